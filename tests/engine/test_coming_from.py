"""Each row of docs/coming-from.md, under its number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from crashkit import Child, Ended, spawn, until
from crashkit import durable as command
from enginekit import FINISHED, UNFINISHED, define_job, duplicates, live_owner, put

from durable_cli import Context, Debounce, Durable, InvalidKey, KeyTaken, NotFinished, Status, cel, workflow
from durable_cli.definition import WorkflowFunction
from durable_cli.errors import InvalidDefinition

PAGE = Path(__file__).parent.parent.parent / "docs" / "coming-from.md"
Row = Callable[..., None]
ROWS: dict[str, Row] = {}


def row(*numbers: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS.update(dict.fromkeys(numbers, function))
        return function

    return add


def job_of(name: str = "work", **options: Any) -> WorkflowFunction[..., Any]:
    """A workflow of one step that gives its input back."""

    @workflow(name=name, **options)
    def job(ctx: Context, what: Any = None) -> Any:
        return ctx.run("work", lambda: what)

    return job


def running(durable: Durable, job: WorkflowFunction[..., Any], key: str = "k", input: Any = 1) -> str:
    """A run that somebody executes."""
    return put(durable, job, "running", key=key, input=input, owner=live_owner(durable))


# -- keys and `reuse` ----------------------------------------------------------------------------------------------


@row("T1")
def _a_key_is_a_workflows(durable: Durable) -> None:
    one, two = (durable.start(define_job(name=name), key="k") for name in ("one", "two"))
    assert (one.outcome, two.outcome, one.key, two.key) == ("created", "created", "k", "k")
    assert one.run_id not in ("k", two.run_id)


@row("T2", "O2")
def _after_close(durable: Durable) -> None:
    job = define_job("after_close")
    for status in UNFINISHED:
        run = put(durable, job, status, key=status, owner=live_owner(durable) if status == "running" else None)
        assert durable.start(job, key=status).run_id == run
    for status in FINISHED:
        put(durable, job, status, key=status)
        assert durable.start(job, key=status).outcome == "created"


@row("T3", "O3")
def _after_failure(durable: Durable) -> None:
    job = define_job("after_failure")
    for status in FINISHED:
        put(durable, job, status, key=status)
        assert durable.start(job, key=status).outcome == ("existing" if status == "completed" else "created")
    hasty = job_of("hasty", reuse="after_failure", timeout="1m")
    durable.start(hasty, key="k")
    durable._engine.now.advance(61_000)  # type: ignore[attr-defined]
    assert durable.start(hasty, key="k").outcome == "created", "timed out"


@row("T4", "O4", "B1", "B7")
def _never(durable: Durable) -> None:
    job = define_job("never")
    old = {key: put(durable, job, "failed", key=key) for key in ("released", "pruned")}
    for key, run in old.items():
        answer = durable.start(job, key=key)
        assert (answer.outcome, answer.run_id, answer.holder_status) == ("existing", run, "failed")
    durable.release_key(old["released"])
    assert durable.start(job, key="released").outcome == "created"
    durable._engine.now.advance(3_601_000)  # type: ignore[attr-defined]
    pruned = durable.prune(older_than="1h")
    assert (pruned.runs, pruned.never_keys_freed) == (2, 1)
    assert durable.start(job, key="pruned").outcome == "created"


@row("I3")
def _idempotency(durable: Durable) -> None:
    job = job_of(key="{id}", reuse="never")
    durable.execute(job, {"id": "evt"})
    durable._engine.now.advance(25 * 3_600_000)  # type: ignore[attr-defined]
    assert durable.start(job, {"id": "evt"}).outcome == "existing"


@row("O5", "B3")
def _a_window_of_time(durable: Durable) -> None:
    job = job_of(key="report:{hour}", reuse="never")
    durable.execute(job, {"hour": "10"})
    assert durable.start(job, {"hour": "10"}).outcome == "existing"
    assert durable.start(job, {"hour": "11"}).outcome == "created"


@row("B6")
def _release(durable: Durable) -> None:
    job = define_job("never")
    done, busy = put(durable, job, "completed", key="done"), running(durable, job, "busy")
    assert not durable.release_key(done).holds_key
    with pytest.raises(NotFinished):
        durable.release_key(busy)


# -- `on_duplicate` ------------------------------------------------------------------------------------------------


@row("T5", "U1")
def _error(durable: Durable) -> None:
    job = define_job()
    run = running(durable, job)
    with pytest.raises(KeyTaken) as taken:
        durable.start(job, key="k", on_duplicate="error")
    assert (taken.value.holder_id, taken.value.holder_status) == (run, "running")
    assert durable.start(job, key="k").run_id == run, "our default"
    durable.cancel(run)
    assert durable.start(job, key="k", on_duplicate="error").outcome == "created"


@row("T6", "O6", "B2")
def _use_existing(durable: Durable) -> None:
    job = define_job()
    run = running(durable, job)
    answer = durable.start(job, key="k", on_duplicate="use_existing")
    assert (answer.outcome, answer.run_id, answer.holder_status) == ("existing", run, "running")


@row("T7", "U2")
def _cancel_existing(durable: Durable) -> None:
    job = define_job()
    old = running(durable, job)
    new = durable.start(job, key="k", on_duplicate="cancel_existing")
    assert (new.outcome, new.replaced_id, durable.run(old).status) == ("replaced", old, Status.CANCELLED)
    [hand_over] = durable.activity(kinds=["key_handed_off"])
    assert hand_over.details == {"from": old, "to": new.run_id, "reason": "replaced"}
    put(durable, job, "compensating", key="undoing", owner=live_owner(durable))
    with pytest.raises(KeyTaken):
        durable.start(job, key="undoing", on_duplicate="cancel_existing")


@row("T8")
def _send_event(durable: Durable) -> None:
    @workflow(name="listens")
    def listens(ctx: Context, what: str) -> list[Any]:
        return [what, ctx.wait_for_event("changed", timeout="1h", default="nothing")]

    run = durable.execute(listens, "first", key="k", max_wait=0).run.id
    assert durable.start(listens, "second", key="k", on_duplicate="send_event:changed").outcome == "event_sent"
    assert json.loads(durable.resume(run).run.result or "") == ["first", "second"]
    alone = durable.execute(listens, "first", key="alone", on_duplicate="send_event:changed")
    assert json.loads(alone.run.result or "") == ["first", "nothing"]


@row("I1")
def _skip(durable: Durable) -> None:
    job = job_of(key=cel("event.data.user_id"))
    run = running(durable, job, "u1", {"user_id": "u1"})
    skipped = {"user_id": "u1", "v": 2}
    assert durable.start(job, skipped).run_id == run
    assert duplicates(durable, "u1")[0]["input"] == skipped
    durable.cancel(run)
    assert json.loads(durable.run(durable.replay_input("u1").run_id).input) == skipped


@row("I2")
def _replace_in_a_burst(durable: Durable) -> None:
    job = job_of(key=cel("event.data.user_id"), on_duplicate="cancel_existing")
    runs = [durable.start(job, {"user_id": "u1", "v": n}).run_id for n in range(5)]
    assert [str(durable.run(run).status) for run in runs] == ["cancelled"] * 4 + ["pending"]


@row("I6", "U6")
def _no_queue(durable: Durable) -> None:
    job = job_of(on_duplicate="run_again")
    running(durable, job)
    assert [str(durable.start(job, n, key="k").outcome) for n in (2, 3, 4)] == ["queued", "merged", "merged"]
    assert [run.input for run in durable.runs(key="k")] == ["4", "1"]
    with pytest.raises(InvalidDefinition, match="concurrency"):
        job_of("other", concurrency=1)
    titles = re.findall(r"^## (.*)$", (PAGE.parent / "choosing.md").read_text(), re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
    assert set(re.findall(r"choosing\.md#([\w-]+)", PAGE.read_text())) <= set(anchors)


@row("O7")
def _replace_the_input(durable: Durable) -> None:
    job = job_of(on_duplicate="run_again")
    run = durable.start(job, 1, key="k", delay="1h").run_id
    assert durable.start(job, 2, key="k").outcome == "merged"
    assert durable.run(run).input == "2"
    running(durable, job, "begun")
    assert durable.start(job, 2, key="begun").outcome == "queued"


@row("B5")
def _keep_the_last(durable: Durable) -> None:
    job = define_job(on_duplicate="run_again")
    first = {
        "failed": put(durable, job, "running", key="failed", input={"fail": 1}),
        "cancelled": running(durable, job, "cancelled"),
        "died": put(durable, job, "running", key="died"),
    }
    last = {key: durable.start(job, 5, key=key).run_id for key in first}
    durable.cancel(first["cancelled"])
    durable.tick()
    for run in last.values():
        assert (durable.run(run).status, durable.run(run).result) == (Status.COMPLETED, "5")


# -- key expressions, bursts, time ---------------------------------------------------------------------------------


@row("O1")
def _a_template(durable: Durable) -> None:
    job = job_of(key="worker:{id}")
    run = durable.start(job, {"id": 5, "more": 1}).run_id
    assert durable.start(job, {"id": 5, "more": 2}).run_id == run
    assert durable.find(key="worker:5").id == run


@row("I5")
def _a_key_that_fails(durable: Durable) -> None:
    job = job_of(key=cel("event.data.user_id"))
    assert durable.start(job, {"user_id": "u7"}).key == "u7"
    with pytest.raises(InvalidKey):
        durable.start(job, {})
    assert len(durable.runs()) == 1


@row("I4", "B4")
def _debounce(durable: Durable) -> None:
    job = job_of(debounce=Debounce("5m", timeout="10m"), merge=lambda old, new: old + new)
    began = durable._engine.now()
    for n in range(1, 7):
        run = durable.start(job, n, key="k").run_id
        durable._engine.now.advance(110_000)  # type: ignore[attr-defined]
    assert [row["input"] for row in duplicates(durable, "k")] == [1, 3, 6, 10, 15]
    assert (durable.run(run).input, durable.run(run).due_at) == ("21", began + 600_000)
    assert durable.run(durable.start(job, 1).run_id).due_at == durable._engine.now(), "without a key: at once"


@row("T9")
def _timeout(durable: Durable) -> None:
    undone: list[int] = []

    @workflow(name="slow", timeout="10m")
    def slow(ctx: Context) -> None:
        ctx.run("reserve", int, compensate=undone.append)
        ctx.sleep("long", "1h")

    began, done = durable._engine.now(), durable.execute(slow, key="k")
    assert done.run.error is not None
    assert (done.run.status, done.run.error.type, undone) == (Status.COMPENSATED, "Timeout", [0])
    assert 600_000 <= durable._engine.now() - began < 700_000


@row("T10", "U5")
def _later(durable: Durable) -> None:
    job = define_job()
    run = durable.start(job, key="k", delay="10m").run_id
    assert durable.start(job, key="k").run_id == run
    durable.tick()
    assert durable.run(run).status == Status.PENDING
    durable._engine.now.advance(600_000)  # type: ignore[attr-defined]
    durable.tick()
    assert durable.run(run).status == Status.COMPLETED


@row("T11")
def _continue_as_new(durable: Durable) -> None:
    @workflow(name="pages", on_duplicate="run_again")
    def pages(ctx: Context, page: int = 1) -> int:
        if page < 3:
            ctx.start(pages, page + 1, key=ctx.key)
        return page

    durable.start(pages, key="k")
    durable.tick()
    assert [(str(run.status), run.input) for run in durable.runs(key="k")] == [("completed", n) for n in "321"]


@row("I9")
def _nothing_of_the_kind(durable: Durable) -> None:
    for option in ("throttle", "rate_limit", "batch"):
        with pytest.raises(InvalidDefinition, match=option):
            job_of("other", **{option: 1})


# -- events, cancelling, producers ---------------------------------------------------------------------------------


@row("I7")
def _cancel_by_key(durable: Durable) -> None:
    run = running(durable, define_job())
    assert durable.cancel(key="k").run_id == run
    assert durable.run(run).status == Status.CANCELLED


@row("I8", "U4")
def _an_event_is_kept(durable: Durable) -> None:
    @workflow(name="waits")
    def waits(ctx: Context) -> Any:
        return ctx.wait_for_event("paid", timeout="1h", default=None)

    run = durable.start(waits, key="k").run_id
    durable.send_event(run, "paid", 5)
    assert durable.resume(run).run.result == "5"


@row("U3")
def _an_id_of_the_callers(durable: Durable) -> None:
    job = define_job()
    given = [durable.start(job, run_id="abcdefghjk").run_id for _ in range(2)]
    assert (given, len(durable.runs())) == (["abcdefghjk"] * 2, 1)


@row("O8")
def _in_a_transaction(durable: Durable) -> None:
    job = define_job()
    durable.start(job)
    app = apsw.Connection(str(durable.path))
    app.execute("CREATE TABLE orders (id)")
    for number, end in enumerate(("ROLLBACK", "COMMIT")):
        app.execute("BEGIN IMMEDIATE")
        app.execute("INSERT INTO orders VALUES (1)")
        durable.start(job, key="k", connection=app)
        app.execute(end)
        orders = app.execute("SELECT count(*) FROM orders").fetchall()
        assert (len(durable.runs(key="k")), orders) == (number, [(number,)])
    app.close()


@row("O9")
def _in_bulk(durable: Durable) -> None:
    answers = durable.start_many(define_job(), [{"key": "k"}, {"key": "k"}, {"key": "l"}])
    assert [str(one.outcome) for one in answers] == ["created", "existing", "created"]  # type: ignore[union-attr]


@pytest.mark.parametrize("number", list(ROWS))
def test_the_row_is_true(durable: Durable, number: str) -> None:
    ROWS[number](durable)
    assert durable.check() == []


# -- flock: through the command line -------------------------------------------------------------------------------


class Shell:
    """`durable exec --key K` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.db = folder, folder / "durable.db"

    def line(self, *options: str, script: str = "true") -> list[str]:
        return ["exec", "--name", "sh", "--key", "K", *options, "--", "sh", "-c", script]

    def run(self, *options: str, script: str = "true") -> Ended:
        return command(self.db, *self.line(*options, script=script), app_dir=self.folder)

    def begin(self, script: str) -> Child:
        return spawn(self.db, *self.line(script=script), app_dir=self.folder)


def test_flock_a_second_copy(tmp_path: Path) -> None:
    """F1 to F4: what a second copy does while the first one runs."""
    shell, log = Shell(tmp_path), tmp_path / "log"
    with shell.begin(f"touch {tmp_path}/there; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo one") as first:
        until(lambda: (tmp_path / "there").exists(), "the command")
        quiet = shell.run(script="echo two")
        assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
        assert re.search(r"nothing started.*\bK\b", shell.run("-v").err)
        assert shell.run("-E", "99").code == 99
        assert shell.run("--on-duplicate", "error").code == 75
        for n in range(3):
            assert shell.run("--on-duplicate", "run_again", script=f"echo {n} >> {log}").code == 0
        (tmp_path / "go").touch()
        assert first.end().ok().out == "one\n"
    assert log.read_text() == "2\n", "one had waited, with the newest command"
    assert shell.run("-E", "99").code == 0


def test_flock_when_the_process_dies(tmp_path: Path) -> None:
    """F5: the next call goes on with the run."""
    shell, log = Shell(tmp_path), tmp_path / "log"
    script = f"echo x >> {log}; [ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; kill -9 $PPID; sleep 30; }}"
    with shell.begin(script) as first:
        assert first.end().killed
    again = shell.run("--json", script=script).ok()
    assert again.json["outcome"] == "resumed"
    assert log.read_text() == "x\nx\n"


def test_flock_what_the_command_leaves_behind(tmp_path: Path) -> None:
    """F6: it holds nothing."""
    shell = Shell(tmp_path)
    for _ in range(2):
        done = shell.run("--json", script="setsid sleep 5 >/dev/null 2>&1 </dev/null & echo left").ok()
        assert done.json["outcome"] == "created"


# -- the page ------------------------------------------------------------------------------------------------------


def test_every_row_of_the_page_is_run() -> None:
    told = re.findall(r"^\| ([A-Z]\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(told) == len(set(told))
    assert set(told) == set(ROWS) | {f"F{n}" for n in range(1, 7)}
    for line in PAGE.read_text().splitlines():
        assert not line.startswith("|") or line.count("|") == 5, line
