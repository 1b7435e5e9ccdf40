"""The public face of the library: errors with their fields, finding runs, frozen rows, waiting."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from enginekit import Boom, change, define_job, put, snapshot

import durable_cli
from durable_cli import (
    Context,
    Durable,
    DurableError,
    InvalidInput,
    KeyTaken,
    Run,
    RunNotFound,
    Status,
    errors,
    workflow,
)

# -- errors --------------------------------------------------------------------------------------------------------


def _every_error(kind: type[errors.DurableError] = errors.DurableError) -> list[type[errors.DurableError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _every_error(child))]


EXIT_CODES = {1, 2, 3, 4, 5, 6, 8, 70, 75, 78}


@pytest.mark.parametrize(
    "kind", sorted(set(_every_error()), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_every_error_has_an_exit_code_a_code_and_a_message(kind: type[errors.DurableError]) -> None:
    assert kind.exit_code in EXIT_CODES or "exit_status" in vars(kind)
    assert kind.code() == kind.code().lower().strip("_")
    assert (kind.__doc__ or "").strip().split("\n")[0].endswith((".", ";"))


CALLS: dict[str, tuple[Callable[[Durable, Any], object], str, int, dict[str, object]]] = {
    "run": (lambda it, _: it.run("zzzzzzzzzz"), "run_not_found", 3, {}),
    "prefix": (lambda it, _: it.run("zz"), "run_not_found", 3, {}),
    "find": (lambda it, _: it.find(key="nobody's"), "key_not_found", 3, {}),
    "key": (lambda it, _: it.key(None, "nobody's"), "key_not_found", 3, {}),
    "start": (lambda it, _: it.start("no such workflow"), "workflow_not_found", 3, {}),
    "execute": (lambda it, _: it.execute("no such workflow"), "workflow_not_found", 3, {}),
    "bad key": (lambda it, job: it.start(job, key=""), "invalid_key", 2, {}),
    "taken": (
        lambda it, job: it.start(job, key="pending", on_duplicate="error"),
        "key_taken",
        75,
        {"holder_id": "pending", "holder_status": "pending"},
    ),
    "kept": (
        lambda it, job: it.start(job, key="completed", on_duplicate="error"),
        "key_taken",
        6,
        {"holder_id": "completed", "holder_status": "completed"},
    ),
    "not finished": (
        lambda it, _: it.rerun(it.find(key="pending").id),
        "not_finished",
        4,
        {"run_id": "pending", "status": "pending"},
    ),
    "release": (
        lambda it, _: it.release_key(it.find(key="pending").id),
        "not_finished",
        4,
        {"run_id": "pending", "status": "pending"},
    ),
    "retry": (
        lambda it, _: it.retry(it.find(key="completed").id),
        "not_retryable",
        4,
        {"run_id": "completed", "status": "completed"},
    ),
    "resume": (
        lambda it, job: it.resume(it.find(key="completed").id, definition=job.definition),
        "not_resumable",
        4,
        {"run_id": "completed", "status": "completed"},
    ),
    "wait": (
        lambda it, _: it.wait(it.find(key="pending").id, timeout=0),
        "not_over",
        8,
        {"run_id": "pending", "status": "pending"},
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_refusals_carry_their_fields(durable: Durable, call: str) -> None:
    """Exit code, code, fields with the ids, one line of text; nothing but activity is written."""
    job = define_job("after_failure")
    ids = {status: put(durable, job, status, key=status) for status in ("pending", "completed")}
    before = snapshot(durable)
    function, code, exit_status, fields = CALLS[call]
    with pytest.raises(errors.DurableError) as raised:
        function(durable, job)
    error = raised.value
    assert (error.code(), error.exit_status) == (code, exit_status)
    assert error.fields() == {
        name: ids[str(value)] if name.endswith("_id") else value for name, value in fields.items()
    }
    for name, value in error.fields().items():
        assert getattr(error, name) == value
    assert error.message == str(error)
    assert "\n" not in error.message
    assert snapshot(durable) == before


def test_a_refusal_by_a_finished_holder_says_how_to_go_on(durable: Durable) -> None:
    """B03: which run, its status, nothing was started, and the command that lets it go; following it works."""
    job = define_job("never")
    done = put(durable, job, "completed", key="k")
    with pytest.raises(KeyTaken) as taken:
        durable.start(job, key="k", on_duplicate="error")
    assert done in taken.value.message
    assert "completed" in taken.value.message
    assert "nothing was started" in taken.value.message
    assert taken.value.hint == f"durable release-key {done}"
    durable.release_key(done)
    assert durable.rerun(done).outcome == "created"


# -- finding -------------------------------------------------------------------------------------------------------


def test_a_run_is_found_by_id_prefix_and_last(db: Path, clock: Any) -> None:
    """A prefix of three letters or more that fits one run; of an ambiguous one the candidates are told."""
    ids = iter(["abcdefghjk", "abcxyzxyzx", "mnpqrstvwx"])
    job = define_job()
    with Durable(db, clock=clock, ids=lambda: next(ids)) as durable:
        with pytest.raises(RunNotFound, match="no runs"):
            durable.run("last")
        for _ in range(3):
            durable.start(job)
        for name, found in {
            "abcdefghjk": "abcdefghjk",
            "abcd": "abcdefghjk",
            "abcx": "abcxyzxyzx",
            "mnp": "mnpqrstvwx",
            "last": "mnpqrstvwx",
        }.items():
            assert durable.run(name).id == found
        for name in ("", "mn", "zzz", "ABCD", "%bc", "abc_", "abcdefghjkm"):
            with pytest.raises(RunNotFound):
                durable.run(name)
        with pytest.raises(errors.AmbiguousRun) as ambiguous:
            durable.run("abc")
        assert set(ambiguous.value.candidates) == {"abcdefghjk", "abcxyzxyzx"}
        assert ambiguous.value.exit_status == 2
        assert durable.cancel("abcd").run_id == "abcdefghjk"
        with pytest.raises(errors.AmbiguousRun):
            durable.cancel("abc")


def test_a_key_finds_its_holder_else_its_newest_run(durable: Durable) -> None:
    job, other = define_job(), define_job(name="other")
    old = put(durable, job, "completed", key="k")
    assert durable.find(key="k").id == old
    durable.release_key(old)
    assert durable.find(key="k").id == old
    new = put(durable, job, "completed", key="k")
    assert durable.find(key="k").id == new
    durable.release_key(new)
    durable.retry(durable.execute(job, {"fail": 1}, key="x").run.id)
    assert durable.find(key="k").id == new
    there = durable.start(other, key="k").run_id
    for call in (durable.find, lambda key: durable.key(None, key), durable.cancel):
        with pytest.raises(errors.AmbiguousRun) as ambiguous:
            call(key="k")
        assert ambiguous.value.candidates == ("job", "other")
        assert "--workflow" in (ambiguous.value.hint or "")
    assert durable.find(key="k", workflow="other").id == there
    assert [run.id for run in durable.key("job", "k").all_runs] == [new, old]


def test_lists_are_newest_first_and_narrowed(durable: Durable, clock: Any) -> None:
    job, other = define_job(), define_job(name="other")
    ids = []
    for n, (flow, status) in enumerate([(job, "completed"), (other, "pending"), (job, "failed"), (job, "pending")]):
        ids.append(put(durable, flow, status, key=f"k{n}"))
        clock.advance(1000)

    def found(**narrow: Any) -> list[int]:
        return [ids.index(run.id) for run in durable.runs(**narrow)]

    assert found() == [3, 2, 1, 0]
    assert found(limit=2) == [3, 2]
    assert found(workflow="job") == [3, 2, 0]
    assert found(status=["pending", "failed"]) == [3, 2, 1]
    assert found(unfinished=True) == [3, 1]
    assert found(key="k2") == [2]
    assert found(since=2.5) == [3, 2]
    assert found(search="workflow:other") == [1]
    assert found(search="key:k3 status:pending") == [3]
    assert found(status=["pending"], workflow="job", key="k0") == []
    with pytest.raises(ValueError):
        durable.runs(status=["no such status"])


def test_a_finish_before_its_start_stops_nothing(durable: Durable, clock: Any) -> None:
    """K04: the wall clock went back while the run executed: lists, counts and order are as ever."""

    @workflow(name="back")
    def back(ctx: Any) -> None:
        ctx.run("s", lambda: clock.advance(-3_600_000))

    first = durable.execute(back, key="k").run
    assert first.finished_at is not None
    assert first.finished_at < first.created_at
    second = durable.execute(back, key="k").run
    assert [run.id for run in durable.runs()] == [second.id, first.id]
    assert durable.run("last").id == second.id
    assert durable.stats().runs == {"completed": 2}
    assert durable.key(None, "k").holder is not None
    assert durable.check() == []


# -- rows, names ---------------------------------------------------------------------------------------------------


def test_rows_and_results_are_frozen(durable: Durable) -> None:
    """Nothing that the library gives can be changed by accident."""
    job = define_job()
    started = durable.start(job, key="k")
    durable.start(job, key="k")
    done = durable.execute(job, key="k")
    given = [
        started,
        done,
        done.run,
        *(done.run.steps or ()),
        durable.keys()[0],
        durable.key(None, "k"),
        durable.activity()[0],
        durable.stats(),
        durable.cancel(key="k"),
        durable.workflow("job"),
        durable.explain_start(job, key="k", execute=True),
    ]
    for row in given:
        assert dataclasses.is_dataclass(row)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(row, dataclasses.fields(row)[0].name, None)


def test_exported_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted, each one there, public modules only, and a wrong one is an AttributeError."""
    names = durable_cli.__all__
    assert names == sorted(names)
    assert {"Durable", "workflow", "Context", "AsyncContext", "Retry", "Abort", "KeyTaken", "StepFailed"} <= set(names)
    for name in names:
        assert getattr(durable_cli, name).__module__.startswith("durable_cli.")
        assert name in dir(durable_cli)
    with pytest.raises(AttributeError, match="no_such"):
        durable_cli.no_such  # noqa: B018
    assert (Path(durable_cli.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(
    "public", [Durable, durable_cli.Context, durable_cli.AsyncContext, durable_cli.Retry], ids=lambda it: it.__name__
)
def test_everything_public_is_typed_and_explained(public: type) -> None:
    for name, member in inspect.getmembers(public, inspect.isfunction):
        if name.startswith("_"):
            continue
        assert member.__doc__, name
        hints = inspect.signature(member)
        assert hints.return_annotation is not inspect.Signature.empty, name
        assert all(
            parameter.annotation is not inspect.Parameter.empty for parameter in list(hints.parameters.values())[1:]
        ), name
    assert get_type_hints(Durable.start)["return"] is durable_cli.StartResult


# -- waiting -------------------------------------------------------------------------------------------------------


def test_a_step_of_the_wall_clock_ends_no_waiting(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout=` is a length of time."""
    slept: list[float] = []
    monkeypatch.setattr("time.monotonic_ns", lambda: int(sum(slept) * 1e9))
    monkeypatch.setattr("time.time_ns", lambda: int((1_800_000_000 + (-1) ** len(slept) * 7200) * 1e9))
    with Durable(db, sleep=slept.append) as durable:
        run_id = durable.start(define_job()).run_id
        with pytest.raises(errors.NotOver):
            durable.wait(run_id, timeout=10)
    assert 10 <= sum(slept) < 10.1


@pytest.mark.parametrize("operation", ["retry", "rerun", "release_key", "explain_retry", "explain_rerun", "wait"])
def test_a_run_that_is_pruned_meanwhile_is_not_found(
    durable: Durable, clock: Any, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Between finding it and the transaction of the operation."""
    run_id = put(durable, define_job(), "failed", key="k")
    clock.advance(1)
    find = durable.run

    def run(name: str) -> Run:
        found = find(name)
        durable.prune(older_than=0)
        return found

    monkeypatch.setattr(durable, "run", run)
    with pytest.raises(RunNotFound, match=f"run {run_id} is gone: it was pruned"):
        getattr(durable, operation)(run_id)


def test_waiting_for_a_run(db: Path, clock: Any) -> None:
    """Until it is finished, however it ends; or until the time is over, to the millisecond."""
    job = define_job()
    began = clock.now
    finish_at = began + 1500

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now >= finish_at:
            durable.cancel(run_id)

    with Durable(db, clock=clock, sleep=sleep) as durable:
        run_id = durable.start(job, key="k").run_id
        with pytest.raises(errors.NotOver) as over:
            durable.wait(run_id, timeout=0.7)
        assert (clock.now - began, over.value.run_id, over.value.status) == (700, run_id, "pending")
        with pytest.raises(errors.NotOver):
            durable.wait(run_id, timeout=0)
        assert clock.now - began == 700
        assert durable.wait(run_id, timeout=5).status == "cancelled"
        assert 1500 <= clock.now - began <= 1700
        assert durable.wait(run_id, timeout=0).status == "cancelled"
        stop = threading.Event()
        stop.set()
        waiting = durable.start(job, key="other").run_id
        with pytest.raises(errors.NotOver):
            durable.wait(waiting, stop=stop)
        with pytest.raises(RunNotFound):
            durable.wait("zzzzzzzzzz")


def test_executing_with_wait_follows_the_holder(db: Path, clock: Any) -> None:
    """`wait`: where nothing is executed here, block until the holder's run ends and tell it as it is then."""
    job = define_job()
    other = Durable(db, clock=clock)
    naps = []

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        naps.append(seconds)
        if len(naps) == 3:
            other.cancel(run_id)

    with Durable(db, clock=clock, sleep=sleep) as durable, other:
        run_id = put(durable, job, "running", key="k", owner=other._engine.write_as_owner(lambda tx, owner: owner))
        done = durable.execute(job, key="k", wait=True)
        assert (done.executed, done.start and done.start.outcome, done.run.status) == (False, "existing", "cancelled")
        assert (done.run.id, len(naps)) == (run_id, 3)


def test_the_last_completed_run_of_a_key(durable: Durable, clock: Any) -> None:
    """Failed ones do not count, keys and workflows are told apart, and no key is a key of its own here."""
    job = define_job()
    assert durable.last_completed_at("job", "k") is None
    put(durable, job, "failed", key="k")
    assert durable.last_completed_at("job", "k") is None
    put(durable, job, "completed", key="k")
    first = clock.now
    clock.advance(5)
    put(durable, job, "completed", key=None)
    put(durable, job, "failed", key="k")
    assert durable.last_completed_at("job", "k") == first
    assert durable.last_completed_at("job", None) == clock.now
    assert durable.last_completed_at("job", "other") is None
    assert durable.last_completed_at("no such workflow", "k") is None


def test_start_on_a_decorated_function_uses_the_default_file(monkeypatch: pytest.MonkeyPatch, db: Path) -> None:
    """`workflow.start` is `Durable().start`; `DURABLE_DB` names the file."""
    monkeypatch.setenv("DURABLE_DB", str(db))
    job = define_job()
    run_id = job.start({"v": 1}, key="k").run_id
    with Durable() as durable:
        assert durable.path == db
        assert durable.run(run_id).key == "k"
    with pytest.raises(errors.UsageError, match="reuse is set on the workflow"):
        job.start(key="k", reuse="never")


def test_a_run_id_given_twice_is_one_start(durable: Durable) -> None:
    """A13: the caller made the id and lost the answer: asking again gives the run that is there."""
    job = define_job()
    for _ in range(2):
        for key in ("k", None):
            answer = durable.start(job, 1, key=key, run_id=f"{'keyed' if key else 'plain'}aaaaa")
            assert answer.run_id == f"{'keyed' if key else 'plain'}aaaaa"
            assert durable.run(answer.run_id).status == Status.PENDING
    assert len(durable.runs()) == 2
    assert durable.activity() == []
    before = snapshot(durable)
    with pytest.raises(errors.UsageError, match="another workflow or key"):
        durable.start(job, 1, key="another", run_id="keyedaaaaa")
    for bad in ("", "short", "1bcdefghjk", "ABCDEFGHJK", "abcdefghjkm", 5):
        with pytest.raises(errors.InvalidName):
            durable.start(job, run_id=bad)  # type: ignore[arg-type]
    assert snapshot(durable) == before


def test_check_finds_what_the_constraints_do_not(durable: Durable) -> None:
    """G20: a waiting run behind a run that is over."""
    job = define_job()
    first = put(durable, job, "pending", key="k")
    put(durable, job, "pending", key="other")
    assert durable.check() == []
    durable.execute(job, key="k")
    waiting = durable.start(job, key="other", on_duplicate="run_again").run_id
    assert durable.check() == []
    change(
        durable,
        "UPDATE durable_runs SET holds_key = 0, held_since = NULL,"
        " runs_after_id = (SELECT id FROM durable_runs WHERE public_id = :first) WHERE public_id = :id",
        first=first,
        id=waiting,
    )
    assert durable.check() != []
    assert Boom.__name__ == "Boom"


def test_the_size_of_a_value_can_be_configured(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MiB unless said otherwise, by argument or environment; for inputs, results and events alike."""

    @workflow
    def echo(ctx: Context, text: str) -> str:
        return ctx.run("echo", lambda: text + text)

    with Durable(db, max_value_bytes=4096) as small:
        with pytest.raises(InvalidInput, match="at most 4,096"):
            small.start(echo, "x" * 5000)
        run = small.execute(echo, "x" * 3000).run
        assert run.error is not None
        assert run.error.type == "Unstorable"
    monkeypatch.setenv("DURABLE_MAX_VALUE_BYTES", str(3 << 20))
    with Durable(db) as large:
        assert large.execute(echo, "x" * (1 << 20)).run.status == "completed"
    for wrong in ("0", "many", str(1 << 30)):
        monkeypatch.setenv("DURABLE_MAX_VALUE_BYTES", wrong)
        with pytest.raises(DurableError, match="DURABLE_MAX_VALUE_BYTES"):
            Durable(db)


@pytest.mark.parametrize("thing", [print, 3, None, lambda ctx: None])
def test_what_is_no_workflow_is_refused_in_words(durable: Durable, thing: object) -> None:
    with pytest.raises(errors.UsageError, match="is no workflow"):
        durable.start(thing)  # type: ignore[arg-type]
