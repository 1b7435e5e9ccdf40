"""The worker itself: what it claims, whom it looks after, what it does about what is wrong, how it drains.

Workers run in threads here, each on a `Durable` of its own as another process would have; a fake clock where time
decides what happens. Real processes are in `crash/test_workers.py`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bothways import KINDS, define, step_of
from crashkit import until
from enginekit import Boom, change, dead_owner, own

from durable_cli import Durable, Status, workflow
from durable_cli.errors import DatabaseCorrupt, DatabaseLocked, DiskError, DiskFull
from durable_cli.patience import Patience, Rarely
from durable_cli.store.checkpoint import shrink_log
from durable_cli.store.database import Database
from durable_cli.testing import Clock
from durable_cli.worker import Worker


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def real(db: Path) -> Iterator[Durable]:
    """A file with a real clock."""
    with Durable(db) as it:
        yield it


@contextmanager
def working(db: Path, *, clock: Any = None, **options: Any) -> Iterator[Worker]:
    """A worker in a thread, drained at the end; what it raised is raised there."""
    with Durable(db, clock=clock) as it:
        worker = it.worker(stop=threading.Event(), **options)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                worker.work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            until(lambda: worker._bell is not None or not thread.is_alive(), "a worker at work")
            yield worker
        finally:
            worker.stop.set()
            worker.wake()
            thread.join(30)
        assert not thread.is_alive()
        if errors:
            raise errors[0]


def finished(durable: Durable, run_id: str) -> Callable[[], bool]:
    return lambda: durable.run(run_id).finished


def simple(name: str = "simple") -> Any:
    @workflow(name=name)
    def flow(ctx: Any, what: Any = None) -> Any:
        return ctx.run("work", lambda: what)

    return flow


# -- claiming ------------------------------------------------------------------------------------------------------


def test_no_more_at_once_than_asked_for(real: Durable, kind: str) -> None:
    """`concurrency` runs execute at once, and as soon as one ends the next begins; all are executed."""
    lock, inside, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.02)
        with lock:
            inside -= 1

    async def body(ctx: Any) -> None:
        await ctx.run("work", work)

    flow = define(kind, body)
    real.start_many(flow, [{}] * 20)
    with working(real.path, concurrency=4) as worker:
        until(lambda: not real.runs(unfinished=True), "all runs")
        assert (most, worker.counts.claimed) == (4, 20)


def test_a_start_is_picked_up_without_polling(real: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that would sleep for a minute begins at once when another `Durable` starts a run, sends an event or
    gives a run back: a datagram wakes it."""
    monkeypatch.setattr("durable_cli.worker.POLL_S", 60.0)

    @workflow(name="listens")
    def listens(ctx: Any) -> Any:
        return ctx.wait_for_event("go")

    with working(real.path):
        began = time.monotonic()
        run_id = real.start(listens).run_id
        until(lambda: real.run(run_id).status is Status.WAITING, "the wait")
        real.send_event(run_id, "go", 1)
        until(finished(real, run_id), "the end")
        other = real.start(listens).run_id
        real.cancel(other)
        real.retry(other)
        until(lambda: real.run(other).status is Status.WAITING, "the retried run")
        assert time.monotonic() - began < 30


def test_without_a_socket_polling_is_enough(tmp_path: Path) -> None:
    """Where the path is too long for a socket's address the worker looks twice a second."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with Durable(folder / "durable.db") as it, working(it.path):
        run_id = it.start(simple()).run_id
        until(finished(it, run_id), "the end")
        assert not list(folder.glob("*-worker-*"))


def test_a_run_cancelled_between_claim_and_first_step_does_nothing(
    durable: Durable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C06: cancelled after the claim and before its thread begins: no step body runs."""
    ran = []

    @workflow(name="flow")
    def flow(ctx: Any) -> None:
        ctx.run("work", lambda: ran.append(1))

    original = Worker._execute

    def execute(self: Worker, claim: Any, name: str) -> None:
        durable.cancel(run_id)
        original(self, claim, name)

    monkeypatch.setattr(Worker, "_execute", execute)
    run_id = durable.start(flow).run_id
    durable.tick()
    assert (durable.run(run_id).status, ran) == (Status.CANCELLED, [])


def test_a_tick_leaves_nothing_to_itself(durable: Durable) -> None:
    """The run that is promoted by an end in a tick is executed by that tick (it is no registered worker), and a tick
    in which nothing is due writes nothing."""
    flow = simple()
    first = durable.start(flow, 1, key="k").run_id
    second = durable.start(flow, 2, key="k", on_duplicate="run_again").run_id
    durable.tick()
    assert [durable.run(run).status for run in (first, second)] == [Status.COMPLETED] * 2
    assert durable.due().due == ()
    before = os.stat(f"{durable.path}-wal").st_size
    durable.tick()
    assert os.stat(f"{durable.path}-wal").st_size == before


# -- orphans, strays, clocks ---------------------------------------------------------------------------------------


def orphan(durable: Durable, flow: Any, what: Any = None) -> str:
    run_id = durable.start(flow, what, delay="1h").run_id  # not due: a worker that is there must not be quicker
    owner = dead_owner(durable)
    change(  # at once: a worker that is there adopts it in between
        durable,
        "UPDATE durable_runs SET status = 'running', due_at = NULL, owner_id = :owner, epoch = 1,"
        " started_at = created_at WHERE public_id = :id",
        owner=owner,
        id=run_id,
    )
    return run_id


def test_a_tick_with_nothing_to_do_writes_nothing(real: Durable, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cron starts one each minute: no commit, no owner. Once an hour one leaves a mark of the clock."""
    real.execute(simple())
    real.tick()
    writes: list[int] = []
    write = Database.write
    monkeypatch.setattr(Database, "write", lambda *args, **more: writes.append(1) or write(*args, **more))
    with Durable(db) as it:
        it.tick()
    assert writes == []


def test_orphans_are_adopted_at_once_and_at_each_sweep(real: Durable) -> None:
    """Those that are there when the worker begins, and those of owners that die while it works."""
    flow = simple()
    before = orphan(real, flow, 1)
    with working(real.path) as worker:
        until(finished(real, before), "the first orphan")
        later = orphan(real, flow, 2)
        until(finished(real, later), "the second orphan")
        assert worker.counts.adopted == 2


def test_one_orphan_that_cannot_be_adopted_stops_no_other(
    durable: Durable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """G05: an error of the file at the third of five: the others go on now, the third one at a later sweep."""
    from durable_cli import settling

    flow = simple()
    orphans = [orphan(durable, flow, n) for n in range(5)]
    original, broken = settling.reap, [orphans[2]]

    def reap(tx: Any, run: Any, **options: Any) -> Any:
        if run.id in broken:
            raise DatabaseLocked("injected")
        return original(tx, run, **options)

    monkeypatch.setattr(settling, "reap", reap)
    counts = durable.tick()
    assert counts.errors == 1
    assert [durable.run(one).status is Status.COMPLETED for one in orphans] == [True, True, False, True, True]
    broken.clear()
    durable.tick()
    assert durable.run(orphans[2]).status is Status.COMPLETED


def test_a_jump_of_the_wall_clock_takes_no_run_from_a_living_owner(db: Path, clock: Clock) -> None:
    """K02: one hour forward and two back while A executes: B takes nothing over. An owner that dies after a jump back
    is seen all the same."""
    gate, began = threading.Event(), threading.Event()
    ran = []

    @workflow(name="held")
    def held(ctx: Any) -> None:
        def work() -> None:
            ran.append(ctx.attempt)
            began.set()
            gate.wait(30)

        ctx.run("work", work)

    with working(db, clock=clock) as a, Durable(db, clock=clock) as it:
        run_id = it.start(held).run_id
        assert began.wait(30)
        with working(db, clock=clock) as b:
            for jump in (3_600_000, -7_200_000):
                clock.advance(jump)
                seen = b.counts.adopted
                for _ in range(3):
                    b.wake()
                assert b.counts.adopted == seen == 0
            later = orphan(it, simple("after"))
            until(finished(it, later), "an orphan after a jump back")
            gate.set()
            until(finished(it, run_id), "the end of the held run")
    assert ran == [1]
    assert a.counts.errors == b.counts.errors == 0


def test_what_is_ours_and_nobody_executes_is_given_back(real: Durable, caplog: pytest.LogCaptureFixture) -> None:
    """A run that the file says is this worker's, and that no thread of it executes, is put back and executed."""
    flow = simple()
    with working(real.path) as worker:
        run_id = real.start(flow, delay="1h").run_id
        assert worker.engine._owner is not None
        own(real, run_id, worker.engine._owner[1])
        change(real, "UPDATE durable_runs SET status = 'running', due_at = NULL WHERE public_id = :id", id=run_id)
        until(finished(real, run_id), "the stray")
    assert real.run(run_id).status is Status.COMPLETED
    assert "nobody executed it" in caplog.text


# -- code that is bad ----------------------------------------------------------------------------------------------

MODULE = """
from durable_cli import workflow

@workflow
def {name}(ctx):
    return ctx.run("work", lambda: "{name}")
"""


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("", "is no longer at"),
        ("1 / 0", "cannot be imported"),
        ("def", "cannot be imported"),
        ("raise SystemExit(3)", "cannot be imported"),
        (None, "is gone"),
    ],
    ids=["renamed", "raises", "syntax", "exits", "deleted"],
)
def test_code_that_cannot_be_loaded(
    db: Path, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, broken: str | None, says: str
) -> None:
    """G13: its run stays as it was (never claimed), with the reason in its note; others go on; it is tried again only
    after a while, and goes on once the code is back; cancelling works meanwhile."""
    from durable_cli.loading import load_target

    name = f"code_{abs(hash((broken, str(tmp_path)))) % 10**8}"
    file = tmp_path / f"{name}.py"
    file.write_text(MODULE.format(name=name))
    with Durable(db, clock=clock) as it:
        code = load_target(f"{file}:{name}", app_dir=None, known=lambda _: None)
        run_id, other = (it.start(code, key=key).run_id for key in ("a", "b"))
        good = it.start(simple()).run_id
        _unload(name)
        file.write_text(broken) if broken is not None else file.unlink()
        worker = it.worker()
        counts = worker.tick()
        assert (counts.errors, counts.claimed) == (1, 1)
        assert it.run(good).status is Status.COMPLETED
        run = it.run(run_id)
        assert (run.status, run.epoch, run.owner) == (Status.PENDING, 0, None)
        assert says in (run.note or "")
        assert it.cancel(other).cancelled == 1
        assert worker.tick().errors == 1  # left alone: not even tried again
        file.write_text(MODULE.format(name=name))
        _unload(name)
        assert it.tick().runs["completed"] == 1
        assert (it.run(run_id).status, it.run(run_id).note) == (Status.COMPLETED, None)


def _unload(name: str) -> None:
    """As a process that has never seen the module."""
    import sys

    from durable_cli.definition import definitions, forget

    for module in [one for one, it in sys.modules.items() if name in str(getattr(it, "__file__", None))]:
        del sys.modules[module]
    if name in {one.name for one in definitions()}:
        forget(name)


def test_a_module_whose_import_never_ends_is_in_nobodys_way(real: Durable, tmp_path: Path) -> None:
    """Its runs stay pending; the others are executed meanwhile, and a drain does not wait for it."""
    from durable_cli.loading import load_target

    file, fifo = tmp_path / "stuck_module.py", tmp_path / "fifo"
    file.write_text(MODULE.format(name="stuck_module"))
    stuck = load_target(f"{file}:stuck_module", app_dir=None, known=lambda _: None)
    first = real.start(stuck).run_id
    _unload("stuck_module")
    os.mkfifo(fifo)
    file.write_text(f"open({str(fifo)!r}).read()\n" + MODULE.format(name="stuck_module"))
    with working(real.path, concurrency=1):
        second = real.start(simple()).run_id
        until(finished(real, second), "the run of another module")
        assert real.run(first).status is Status.PENDING
    os.close(os.open(fifo, os.O_WRONLY))  # the import ends
    until(lambda: not any(one.name.startswith("durable-load") for one in threading.enumerate()), "the loader")


# -- a file that is bad --------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_stored_is_no_failure_of_the_run(
    durable: Durable, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """L09: the disk is full when a step's result is to be recorded: the step is not marked done, whatever the code
    catches; the run is not lost, and goes on when there is space."""
    full = threading.Event()
    original = Database.write

    def write(self: Database, fn: Any, **more: Any) -> Any:
        def transaction(tx: Any) -> Any:
            found = fn(tx)
            if full.is_set():
                raise DiskFull("the disk is full")
            return found

        return original(self, transaction, **more)

    monkeypatch.setattr(Database, "write", write)
    ran = []

    def work() -> str:
        ran.append("ran")
        if len(ran) == 1:
            full.set()
        return "done"

    async def body(ctx: Any) -> str:
        try:
            return str(await ctx.run("work", step_of(kind, work)))
        except Exception as error:
            return f"swallowed {error}"

    flow = define(kind, body)
    run_id = durable.start(flow).run_id
    assert durable.tick().errors >= 1
    assert (durable.run(run_id).status, durable.run(run_id).steps) == (Status.RUNNING, ())
    full.clear()
    durable.close()  # its process is over, or a sweep finds the stray: the run may be claimed
    durable.tick()
    run = durable.run(run_id)
    assert (run.status, run.result, ran) == (Status.COMPLETED, '"done"', ["ran"] * 2)


def test_a_full_disk_is_waited_out_and_told_rarely(
    real: Durable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """L09: a worker that can write nothing looks ever more seldom, says so once, and goes on when there is space."""
    caplog.set_level(logging.WARNING, "durable.worker")
    full, tried = threading.Event(), 0
    with working(real.path) as worker:
        original = Worker._claim

        def claim(self: Worker, free: int) -> bool:
            nonlocal tried
            if full.is_set():
                tried += 1
                raise DiskFull("the disk is full")
            return original(self, free)

        monkeypatch.setattr(Worker, "_claim", claim)
        full.set()
        runs = [one.run_id for one in real.start_many(simple(), [{}] * 20)]  # type: ignore[union-attr]
        until(lambda: tried >= 2, "a second look")
        seen = worker.counts.errors
        full.clear()
        until(lambda: not real.runs(unfinished=True), "all runs")
    assert seen < 20
    assert len([one for one in caplog.messages if "disk is full" in one]) == 1
    assert {real.run(one).status for one in runs} == {Status.COMPLETED}


def test_a_file_that_cannot_be_used_ends_the_worker(real: Durable, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Damage, seen by the loop or by a run's thread, is no matter of patience: the worker raises it and stops."""

    async def body(ctx: Any) -> None:
        def record(*_: Any, **__: Any) -> None:
            raise DatabaseCorrupt("injected")

        monkeypatch.setattr("durable_cli.engine.Engine.record", record)
        await ctx.run("work", lambda: 1)

    flow = define(kind, body)
    with pytest.raises(DatabaseCorrupt, match="injected"):
        with working(real.path) as worker:
            real.start(flow)
            until(lambda: worker._bell is None, "the worker's end")


@pytest.mark.parametrize("writable", [True, False])
def test_a_worker_that_ended_by_an_error_is_none(
    real: Durable, db: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    """The process lives on, and whatever would be left to its worker would be done by nobody. Where the file cannot be
    told, the lock goes."""
    sweeps = []

    def sweep(_: Worker) -> float:
        sweeps.append(real._engine.database.read(real._engine.has_live_worker))
        if not writable:
            monkeypatch.setattr(Database, "write", fails)
        raise DiskError("injected")

    def fails(*_: Any, **__: Any) -> None:
        raise DiskError("injected")

    with monkeypatch.context() as patch, Durable(db) as it:
        patch.setattr(Worker, "sweep", sweep)
        with pytest.raises(DiskError, match="injected"):
            it.work()
        assert sweeps == [True]
        assert not it.has_worker()
        assert not real.has_worker()
        monkeypatch.undo()
        assert it.execute(simple(), 1).run.status is Status.COMPLETED
        assert real.check() == []


@pytest.mark.parametrize("what", ["durable-run-", "durable-load-"])
def test_a_thread_that_cannot_be_started_leaves_nothing_behind(
    real: Durable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """A process at its limit of threads: what was claimed is given back at once, nothing is taken for executing or
    loading for ever, and the worker goes on when there is room again. A schedule has not failed by it."""
    flow = simple()
    ids = [real.start(flow, n).run_id for n in range(3)]
    real.schedule("often", "* * * * *", flow)
    change(real, "UPDATE durable_schedules SET next_fire_at = 1, wake_at = 1")
    begin, failed = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(what) and len(failed) < 4:
            failed.append(thread.name)
            assert {run.status for run in real.runs()} <= {Status.PENDING, Status.RUNNING}
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr("durable_cli.worker.POLL_S", 0.01)
    with working(real.path) as worker:
        until(lambda: not real.runs(unfinished=True) and len(real.runs()) > 3, "all runs, and one of the schedule")
        until(lambda: worker.counts.claimed == len(real.runs()), "each of them counted")
        until(lambda: not worker.busy and worker.engine.mine() == set(), "nothing left in hand")
    assert len(failed) == 4
    assert {real.run(one).status for one in ids} == {Status.COMPLETED}
    assert "no more threads can be started" in caplog.text
    assert real.activity(kinds=["schedule_failed"]) == []
    assert real.check() == []


def test_the_log_beside_the_file_is_emptied(real: Durable) -> None:
    """A large log is moved into the file when nobody is in the way; else it stays as it is, and nothing waits."""
    real.start_many(simple(), [{"input": "x" * 1000}] * 1000)
    log = Path(f"{real.path}-wal")
    assert not shrink_log(real._engine.database)
    assert log.stat().st_size > 100_000
    with Durable(real.path) as other:
        other.stats()
        reader = other._engine.database._ready()
        cursor = reader.execute("SELECT * FROM durable_runs")
        next(cursor)
        began = time.monotonic()
        assert not shrink_log(real._engine.database, larger_than=100_000)
        assert time.monotonic() - began < 5
        cursor.close()
    assert shrink_log(real._engine.database, larger_than=100_000)
    assert log.stat().st_size == 0
    assert len(real.runs()) == 1000
    assert real.check() == []


def test_patience() -> None:
    """Twice as long after each failure, up to a limit; forgotten when it was well for as long."""
    now = [0.0]
    patience = Patience(1.0, 5.0, monotonic=lambda: now[0])
    delays = []
    for _ in range(5):
        delays.append(patience.failed("x"))
        assert patience.left_alone() == ["x"]
        now[0] += delays[-1]
        assert patience.left_alone() == []
    assert delays == [1, 2, 4, 5, 5]
    now[0] += 5
    assert patience.left_alone() == []
    assert patience.failed("x") == 1
    patience.went_well("x")
    assert patience.left_alone() == []


def test_rarely() -> None:
    """The first of a kind at once, then one a period, with what was kept back."""
    now, said = [0.0], []
    rarely = Rarely(said.append, 10.0, monotonic=lambda: now[0])
    for second in range(25):
        now[0] = second
        rarely("disk", f"at {second}")
    rarely("other", "another")
    assert said == [
        "at 0",
        "at 10 (and 9 times since the last message)",
        "at 20 (and 9 times since the last message)",
        "another",
    ]


# -- draining ------------------------------------------------------------------------------------------------------


@contextmanager
def held(kind: str) -> Iterator[tuple[Any, threading.Event, threading.Event]]:
    """A workflow of two steps, the first of which waits at a gate: (workflow, it has begun, the gate)."""
    began, gate = threading.Event(), threading.Event()

    def first() -> str:
        began.set()
        gate.wait(30)
        return "first"

    async def body(ctx: Any) -> str:
        await ctx.run("first", first)
        return str(await ctx.run("second", lambda: "second"))

    yield define(kind, body), began, gate
    gate.set()


def test_a_drain_lets_the_step_end_and_begins_no_other(real: Durable, kind: str) -> None:
    """Nothing new is claimed; the running step is recorded; the run is nobody's and goes on with the next step."""
    with held(kind) as (flow, began, gate):
        with working(real.path) as worker:
            run_id = real.start(flow).run_id
            assert began.wait(30)
            worker.stop.set()
            later = real.start(simple()).run_id
            worker.wake()
            gate.set()
        run = real.run(run_id)
        assert (run.status, run.owner) == (Status.PENDING, None)
        assert [step.name for step in run.steps or ()] == ["first"]
        assert real.run(later).status is Status.PENDING
        real.tick()
        assert real.run(run_id).result == '"second"'
        assert real.run(later).status is Status.COMPLETED


def test_a_step_that_outlasts_the_grace_is_given_back(real: Durable, kind: str) -> None:
    """The drain ends in time, another process executes the step again, and the late result is discarded."""
    with held(kind) as (flow, began, gate):
        with working(real.path, grace=0.1) as worker:
            run_id = real.start(flow).run_id
            assert began.wait(30)
        run = real.run(run_id)
        assert (run.status, run.owner, run.crashes) == (Status.PENDING, None, 0)
        assert worker.cut_off
        assert not any(thread.name.startswith("durable-run") and not thread.daemon for thread in threading.enumerate())
        gate.set()
        until(lambda: not worker.busy, "the late step")
        assert real.run(run_id).steps == ()
        real.tick()
        assert real.run(run_id).status is Status.COMPLETED


def test_nothing_is_left_to_a_worker_that_drains(real: Durable, kind: str) -> None:
    """G03: what A's last run promotes while A drains, and what A gives back after B's first sweep, B executes; two
    workers in one process are two owners."""
    with held(kind) as (flow, began, gate), working(real.path) as b:
        b.stop.clear()
        with working(real.path, concurrency=1) as a:
            blocked = threading.Event()
            original = b._claim
            b._claim = lambda free: original(free) if blocked.is_set() else False  # type: ignore[method-assign]
            first = real.start(flow, key="k").run_id
            assert began.wait(30)
            second = real.start(flow, key="k", on_duplicate="run_again").run_id
            assert a.engine._owner != b.engine._owner
            blocked.set()
            a.stop.set()
            a.wake()
            gate.set()
        until(lambda: not real.runs(unfinished=True), "all runs")
        assert {real.run(one).status for one in (first, second)} == {Status.COMPLETED}
        assert b.counts.adopted == 0


def test_a_worker_leaves_no_trace(real: Durable) -> None:
    """After a drain there is no socket, and nothing thinks that a worker is there."""
    with working(real.path):
        assert list(real.path.parent.glob("*-worker-*"))
    assert not list(real.path.parent.glob("*-worker-*"))
    assert not real._engine.database.read(real._engine.has_live_worker)


def test_a_failing_run_is_counted_and_stops_nothing(durable: Durable, kind: str) -> None:
    """What a run's code raises ends that run."""

    async def body(ctx: Any, what: Any) -> None:
        def work() -> None:
            if what:
                raise Boom("bad")

        await ctx.run("work", work)

    flow = define(kind, body)
    for bad in (True, False, True):
        durable.start(flow, bad)
    counts = durable.tick()
    assert (counts.runs["failed"], counts.runs["completed"], counts.errors) == (2, 1, 0)
