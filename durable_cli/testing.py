"""For tests of workflows: an engine whose clock jumps, and which executes here and now, in order.

    from durable_cli.testing import Engine

    def test_an_order_that_nobody_pays_is_cancelled():
        with Engine(replay_every_step=True) as engine:
            run = engine.run(order, {"id": 7})
            assert run.status == "waiting"
            engine.advance("3d")
            assert engine.result(run) == "cancelled"

With pytest the fixture `durable_engine` is such an engine (`durable_cli.pytest_plugin`).

`run`, `settle` and `advance` execute; everything else only records, as it does in a file that no worker looks at. What
is due executes in the order in which it came due, one turn after the other in the calling thread, until nothing is due
any more. Nothing sleeps: the clock moves only in `advance`.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

from durable_cli import settling
from durable_cli.client import Durable
from durable_cli.core.timing import Duration, parse_duration
from durable_cli.definition import UNSET
from durable_cli.entering import current_attempts
from durable_cli.errors import UsageError
from durable_cli.execution import Lost
from durable_cli.loading import load_workflow
from durable_cli.model import Claim, OnDuplicate, Run, StartResult, Status, Workflow
from durable_cli.owners import forget_lock_file
from durable_cli.reading import AnyWorkflow
from durable_cli.runner import Ended, take_turn
from durable_cli.store import runs, schedules, transitions, workflows
from durable_cli.store.database import Tx

__all__ = ["Clock", "Engine"]

_MEMORY = Path("/dev/shm")
AnyRun = Run | StartResult | str


class Clock:
    """A wall clock that stands still until somebody moves it. `now`: ms UTC, as all moments of the library."""

    def __init__(self, now: int = 1_800_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        """Move it, backwards too."""
        self.now += ms

    def sleep(self, seconds: float) -> None:
        """What is given to the library in place of `time.sleep`: the clock moves instead, a millisecond at least."""
        self.now += max(1, round(seconds * 1000))


class Engine:
    """An engine for tests. Also a context manager: the end of the block deletes a private file.

    `path`: the database; without it a private file, in memory where the system has a place for that. `start_at`: the
    clock's first moment (a datetime with a zone). `replay_every_step`: after each operation that is recorded the
    function is left and replayed from its top, as after a crash; code that cannot bear that fails at once, and in the
    test. `one_at_a_time`: branches, and the steps of `ctx.map`, go on one after the other, so that each test sees one
    order; False: at once, as elsewhere. `seed`: for `ctx.random` and the jitter of retries. `clock`: one of your own.

    `durable` is the library on that file: runs, keys, cancel, retry, and all else that is not here.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        start_at: dt.datetime | None = None,
        replay_every_step: bool = False,
        one_at_a_time: bool = True,
        seed: int = 1,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        if start_at is not None:
            if start_at.tzinfo is None:
                raise UsageError(f"start_at needs a datetime with a zone, not {start_at!r}")
            self.clock.now = round(start_at.timestamp() * 1000)
        self._remove = None
        if path is None:
            folder = _private_folder()
            path = Path(folder, "durable.db")
            # Also where nobody closes it (a folder in memory costs memory), but never by a child that was forked.
            self._remove = weakref.finalize(self, _remove, folder, os.getpid())
        self.durable = Durable(path, clock=self.clock, sleep=self.clock.sleep, dice=random.Random(seed).random)
        self._engine = self.durable._engine
        self._engine.replay_every_step = replay_every_step
        self._engine.branches_at_once = 1 if one_at_a_time else None

    @property
    def path(self) -> Path:
        """The database file."""
        return self.durable.path

    @property
    def now(self) -> dt.datetime:
        """What the clock says (UTC)."""
        return dt.datetime.fromtimestamp(self.clock.now / 1000, dt.UTC)

    def close(self) -> None:
        """Close the file; a private one is deleted."""
        self.durable.close()
        if self._remove is not None:
            forget_lock_file(self.path)
            self._remove()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    # -- recording -----------------------------------------------------------------------------------------------

    def start(
        self,
        workflow: AnyWorkflow,
        input: object = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
        **options: Any,
    ) -> StartResult:
        """Record a start, as `Durable.start`: nothing is executed yet. Raises as it does (KeyTaken, InvalidInput)."""
        return self.durable.start(workflow, input, key=key, on_duplicate=on_duplicate, **options)

    def send_event(self, run: AnyRun, name: str, payload: object = None, *, buffer: bool = True) -> Run:
        """Send an event, as `Durable.send_event`. The run goes on at the next `settle` or `advance`."""
        return self.durable.send_event(_id(run), name, payload, buffer=buffer)

    def provide_input(self, run: AnyRun, name: str, value: object) -> Run:
        """Answer what a run asks, as `Durable.provide_input`. The run goes on at the next `settle` or `advance`."""
        return self.durable.provide_input(_id(run), name, value)

    # -- executing -----------------------------------------------------------------------------------------------

    def run(
        self,
        workflow: AnyWorkflow,
        input: object = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
        **options: Any,
    ) -> Run:
        """Start a workflow and execute all that is due: it, its children, whoever takes its key. The run that the
        start's answer names (a duplicate: the one that is there already), as it is then: at its end, or at rest.

        A failure of the workflow is in the run (`status`, `error`). Raises as `start`.
        """
        started = self.start(workflow, input, key=key, on_duplicate=on_duplicate, **options)
        self.settle()
        return self.get(started)

    def settle(self) -> None:
        """Execute all that is due now, and what that makes due; schedules fire first."""
        while self._execute_next():
            pass

    def advance(self, duration: Duration) -> None:
        """Let so much time pass: each run goes on at the very moment it is due, in the order of these moments."""
        end = self.clock.now + parse_duration(duration)
        while True:
            self.settle()
            due_at = self._next_at()
            if due_at is None or due_at > end:
                break
            self.clock.now = max(self.clock.now, due_at)
        self.clock.now = max(self.clock.now, end)

    def crash(self) -> None:
        """The process is killed, here and now. Inside a step: this attempt is cut off, nothing of it is recorded, and
        the run is adopted by the next `settle` or `advance` (also the one that is going on), as another process would.

        Unlike after a real kill, `finally` blocks run, since the function has to be left somehow.
        """
        cut_off = [one.execution for one in current_attempts.get() if one.execution.engine is self._engine]
        self._engine.die()
        for execution in cut_off:
            execution.gone = Lost()
        if cut_off:
            raise Lost()

    # -- looking -------------------------------------------------------------------------------------------------

    def get(self, run: AnyRun) -> Run:
        """A run as it is now, with its steps."""
        return self.durable.run(_id(run))

    def result(self, run: AnyRun) -> Any:
        """What a completed run returned. AssertionError, with its status and error, for any other."""
        found = self.get(run)
        if found.status is not Status.COMPLETED:
            why = f": {found.error.type}: {found.error.message}" if found.error is not None else ""
            raise AssertionError(f"run {found.id} of {found.workflow!r} is {found.status}{why}")
        assert found.result is not None
        known = self.durable.workflow(found.workflow)
        assert known is not None
        return load_workflow(known).result.load(found.result)

    # -- one turn ------------------------------------------------------------------------------------------------

    def _execute_next(self) -> bool:
        """Give the run that is due longest one turn, and those that its end promotes theirs. False: none is due."""
        self._look_after()
        self._fire()
        found = self._claim()
        if found is None:
            return False
        claim: Claim | None = found[0]
        while claim is not None:
            claim = self._turn(claim, found[1])
        return True

    def _look_after(self) -> None:
        """Adopt orphans, and end what is overdue."""
        now, alive = self._engine.now(), self._engine.alive

        def look(tx: Tx) -> list[Run]:
            found = [*runs.owned(tx), *runs.overdue(tx, now, 1000)]
            return [run for run in found if run.owner is None or not alive(run.owner.id)]

        def write(tx: Tx) -> None:
            for run in look(tx):
                settling.look_after(tx, runs.get(tx, run.row_id), now=now, alive=alive)

        if self._engine.database.read(look):
            self._engine.database.write(write)

    def _fire(self) -> None:
        for seen in self._engine.database.read(lambda tx: schedules.due(tx, self._engine.now())):
            from durable_cli.firing import fire  # late, as in a worker: it needs croniter

            fire(self._engine, seen, load=load_workflow)

    def _next_at(self) -> int | None:
        """The next moment at which anything is due."""

        def read(tx: Tx) -> list[int | None]:
            return [runs.next_due_at(tx), schedules.next_wake_at(tx, self._engine.now())]

        return min((at for at in self._engine.database.read(read) if at is not None), default=None)

    def _claim(self) -> tuple[Claim, Workflow] | None:
        def write(tx: Tx, owner_id: int) -> tuple[Claim, Workflow] | None:
            due = runs.due(tx, self._engine.now(), 1)
            if not due:
                return None
            known = workflows.get(tx, due[0].workflow)
            epoch = transitions.claim(tx, due[0].row_id, owner_id, self._engine.now())
            assert known is not None
            assert epoch is not None
            return Claim(due[0].row_id, due[0].id, owner_id, epoch), known

        if not self._engine.database.read(lambda tx: runs.due(tx, self._engine.now(), 1)):
            return None
        return self._engine.write_as_owner(write)

    def _turn(self, claim: Claim, known: Workflow) -> Claim | None:
        """One turn; the run promoted by its end. Raises where the code cannot be loaded: a test wants to know."""
        try:
            definition = load_workflow(known)
        except BaseException:
            self._engine.abandon([claim])
            raise
        turn = take_turn(self._engine, claim, definition, stay=False)
        return turn.promoted if isinstance(turn, Ended) else None


def _id(run: AnyRun) -> str:
    if isinstance(run, Run):
        return run.id
    return run.run_id if isinstance(run, StartResult) else run


def _private_folder() -> str:
    """A folder that only we can look into, in memory where there is a place for that."""
    in_memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    return tempfile.mkdtemp(prefix="durable-test-", dir=_MEMORY if in_memory else None)


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
