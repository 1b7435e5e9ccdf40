"""Each row of docs/coming-from.md, under its number."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import enginekit
import pytest

import durable_cli
from durable_cli import Context, Debounce, Durable, KeyTaken, Status, workflow
from durable_cli.definition import WorkflowFunction

PAGE = Path(__file__).parent.parent.parent / "docs" / "coming-from.md"
Row = Callable[[Durable], None]
ROWS: dict[str, Row] = {}


def row(*numbers: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS.update(dict.fromkeys(numbers, function))
        return function

    return add


def outcome(durable: Durable, job: WorkflowFunction[..., object], policy: str = "use_existing", **more: object) -> str:
    return str(durable.start(job, more.get("input"), key="k", on_duplicate=policy).outcome)


def taken(durable: Durable, job: WorkflowFunction[..., object], policy: str) -> KeyTaken:
    with pytest.raises(KeyTaken) as caught:
        durable.start(job, key="k", on_duplicate=policy)
    return caught.value


@row("T1", "O1", "B1")
def _a_key_is_held_by_one_run_in_any_unfinished_state(durable: Durable) -> None:
    job = enginekit.define_job()
    owner = enginekit.live_owner(durable)
    for status in enginekit.UNFINISHED:
        run = enginekit.put(durable, job, status, key=status, owner=None if status == "pending" else owner)
        assert durable.start(job, key=status).run_id == run


@row("T2")
def _after_close(durable: Durable) -> None:
    job = enginekit.define_job("after_close")
    for status in enginekit.FINISHED:
        enginekit.put(durable, job, status, key="k")
        assert outcome(durable, job) == "created"
        durable.cancel(key="k")


@row("T3")
def _after_failure(durable: Durable) -> None:
    job = enginekit.define_job("after_failure")
    enginekit.put(durable, job, "failed", key="k")
    assert outcome(durable, job) == "created"
    enginekit.put(durable, job, "completed", key="done")
    assert durable.start(job, key="done").outcome == "existing"


@row("T4")
def _never(durable: Durable) -> None:
    job = enginekit.define_job("never")
    enginekit.put(durable, job, "failed", key="k")
    assert outcome(durable, job) == "existing"


@row("T5")
def _error(durable: Durable) -> None:
    job = enginekit.define_job()
    run = durable.start(job, key="k").run_id
    assert taken(durable, job, "error").holder_id == run


@row("T6", "I1")
def _use_existing(durable: Durable) -> None:
    @workflow(key="article:{id}")
    def job(ctx: Context, what: dict[str, int]) -> None:
        ctx.run("work", print)

    first = durable.start(job, {"id": 1, "v": 1})
    second = durable.start(job, {"id": 1, "v": 2})
    assert (first.key, second.outcome, second.run_id) == ("article:1", "existing", first.run_id)
    assert durable.activity()[0].details["input"] == {"id": 1, "v": 2}


@row("T7", "I2")
def _cancel_existing(durable: Durable) -> None:
    job = enginekit.define_job()
    old = durable.start(job, key="k").run_id
    assert outcome(durable, job, "cancel_existing") == "replaced"
    assert durable.run(old).status is Status.CANCELLED


@row("T8")
def _send_event(durable: Durable) -> None:
    @workflow
    def job(ctx: Context, what: object = None) -> object:
        return ctx.wait_for_event("changed")

    run = durable.execute(job, 1, key="k", max_wait_ms=0).run.id
    assert durable.start(job, 2, key="k", on_duplicate="send_event:changed").outcome == "event_sent"
    assert durable.resume(run).run.result == "2"


@row("I3", "B2")
def _debounce(durable: Durable) -> None:
    @workflow(debounce=Debounce("30s", timeout="5m"))
    def job(ctx: Context, what: int) -> int:
        return ctx.run("work", int, what)

    for number in (1, 2):
        durable.start(job, number, key="k")
    ended = durable.execute(job, 3, key="k")
    assert (ended.start and ended.start.outcome, ended.run.result) == ("merged", "3")
    assert [row.details.get("input") for row in durable.activity()] == [2, 1]


@row("I4")
def _cel(durable: Durable) -> None:
    pytest.importorskip("cel_expr_python")
    from durable_cli import InvalidKey, cel

    @workflow(key=cel("event.data.user_id"))
    def job(ctx: Context, what: dict[str, str]) -> None:
        ctx.run("work", print)

    assert durable.start(job, {"user_id": "u7"}).key == "u7"
    with pytest.raises(InvalidKey):
        durable.start(job, {})


@row("U1")
def _run_id(durable: Durable) -> None:
    job = enginekit.define_job()
    given = [durable.start(job, run_id="abcdefghjk").run_id for _ in range(2)]
    assert (given, len(durable.runs())) == (["abcdefghjk"] * 2, 1)


@row("O2")
def _replace_while_it_has_not_begun(durable: Durable) -> None:
    job = enginekit.define_job()
    run = durable.start(job, 1, key="k").run_id
    assert durable.start(job, 2, key="k", on_duplicate="run_again").outcome == "merged"
    assert durable.run(run).input == "2"


@row("F3")
def _one_waits(durable: Durable) -> None:
    job = enginekit.define_job()
    enginekit.put(durable, job, "running", key="k", owner=enginekit.live_owner(durable))
    waiting = {durable.start(job, n, key="k", on_duplicate="run_again").run_id for n in range(5)}
    assert len(waiting) == 1


@row("F4")
def _the_next_call_goes_on(durable: Durable) -> None:
    job = enginekit.define_job()
    run = enginekit.put(durable, job, "running", key="k")
    assert durable.execute(job, key="k").run.id == run


@pytest.mark.parametrize("number", sorted(ROWS))
def test_the_row_is_true(durable: Durable, number: str) -> None:
    ROWS[number](durable)


def test_flock(tmp_path: Path) -> None:
    """F1, F2: a second copy of a command, while the first runs, through the command line."""
    import os
    import subprocess

    root = str(Path(durable_cli.__file__).parent.parent)
    env = {**os.environ, "DURABLE_DB": str(tmp_path / "d.db"), "PYTHONPATH": root}
    line = [sys.executable, "-m", "durable_cli", "exec", "--key", "k"]
    hold = "echo began; read go"
    with subprocess.Popen([*line, "--", "sh", "-c", hold], env=env, stdin=-1, stdout=-1, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "began\n"
        assert subprocess.run([*line, "--", "sh", "-c", hold], env=env, stdin=subprocess.DEVNULL).returncode == 0
        again = subprocess.run([*line, "-E", "99", "--", "sh", "-c", hold], env=env, stdin=subprocess.DEVNULL)
        assert again.returncode == 99
        first.communicate("go\n", timeout=20)


def test_every_row_of_the_page_is_run() -> None:
    told = set(re.findall(r"^\| ([A-Z]\d) \|", PAGE.read_text(), re.MULTILINE))
    assert told == set(ROWS) | {"F1", "F2"}
