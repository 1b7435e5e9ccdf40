"""The worker: adopt orphans, end what is overdue, claim what is due in batches, execute, drain.

A loop of bounded sweeps that believes nothing the file does not say. Each run is looked after on its own: one that
cannot be read, loaded or written stops no other, and is left alone for a while so that nothing ever spins.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from durable_cli import settling
from durable_cli.engine import Engine
from durable_cli.errors import DatabaseUnusable, DiskError, DurableError, OutcomeUnknown
from durable_cli.faces import shared_loop
from durable_cli.loading import load_workflow
from durable_cli.model import Claim, Run
from durable_cli.runner import Ended, Rested, Turn, take_turn
from durable_cli.store import runs, transitions, workflows
from durable_cli.store.database import Tx
from durable_cli.wake import Bell

POLL_S = 0.5
"""How long a worker sleeps at most: two wake-ups a second when idle."""
_LEAVE_ALONE_S = 30.0
"""How long a workflow whose code cannot be loaded, or a run whose turn failed, is left alone."""

log = logging.getLogger("durable.worker")


@dataclass(slots=True)
class Counts:
    """What a worker or a tick did. `runs` by the status they ended with; `rested`: turns that ended in a wait."""

    claimed: int = 0
    adopted: int = 0
    timed_out: int = 0
    rested: int = 0
    errors: int = 0
    runs: Counter[str] = field(default_factory=Counter)


class Worker:
    """Executes what is due in one file. Not thread-safe itself; its runs execute in threads.

    `concurrency`: how many runs at once. `stop`: set it, and the worker claims nothing new, lets running steps end for
    at most `grace_s` seconds and gives the rest back.
    """

    def __init__(
        self, engine: Engine, *, concurrency: int = 16, stop: threading.Event | None = None, grace_s: float = 10.0
    ) -> None:
        self.engine = engine
        self.concurrency = concurrency
        self.stop = stop or threading.Event()
        self.grace_s = grace_s
        self.counts = Counts()
        self._active: dict[int, Future[None]] = {}
        self._left_alone: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="durable-run")
        self._bell: Bell | None = None

    # -- the two ways of working --

    def work(self) -> Counts:
        """Work until `stop` is set. Raises the error of a file that cannot be used any more."""
        bell = self._bell = Bell(self.engine.path, self.engine.become("worker"))
        try:
            with shared_loop():
                while not self.stop.is_set():
                    pause = self.sweep()
                    bell.wait(pause)
                self.engine.become("run")  # nobody shall leave anything to us from now on
                self._drain()
        finally:
            self._bell = None
            bell.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
        return self.counts

    def wake(self) -> None:
        """Make the loop look now (from any thread, also from a signal's)."""
        if self._bell is not None:
            self._bell.ring()

    def tick(self) -> Counts:
        """Do all that is due now, and what that makes due, then return.

        Not registered as a worker: what comes due while it ends must not be left to it.
        """
        try:
            with shared_loop():
                while not self.stop.is_set():
                    self.sweep()
                    if not self._active:
                        break
                    self._wait_for_one()
                self._drain()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
        return self.counts

    # -- one sweep --

    def sweep(self) -> float:
        """Look after orphans and overdue runs, claim what is due. Returns the seconds until something may be due."""
        try:
            self._reassert()
            self._look_after()
            self._claim()
            return self._pause()
        except (DatabaseUnusable, DiskError, OutcomeUnknown):
            raise  # limping on with such a file loses work: stop, and say so
        except DurableError as error:
            self._complain("sweep", error)
            return _LEAVE_ALONE_S / 10

    def _reassert(self) -> None:
        for lost in self.engine.liveness.reassert():
            log.error("the lock of owner %s was lost and cannot be taken again", lost)
            self.stop.set()

    def _look_after(self) -> None:
        """Give orphans and overdue runs what they need, each in a transaction of its own."""
        now = self.engine.now()
        owned, overdue = self.engine.database.read(lambda tx: (runs.owned(tx), runs.overdue(tx, now, 100)))
        alive: dict[int, bool] = {}
        for run in owned:
            assert run.owner is not None
            if run.owner.id not in alive:
                alive[run.owner.id] = self.engine.alive(run.owner.id)
            if not alive[run.owner.id] and self._each(run, self._reap):
                self.counts.adopted += 1
        for run in overdue:
            if run.owner is None and self._each(run, self._end_overdue):
                self.counts.timed_out += 1

    def _each(self, run: Run, what: Callable[[Tx, Run], object]) -> bool:
        if self._is_left_alone(run.id):
            return False
        try:
            self.engine.database.write(lambda tx: what(tx, runs.get(tx, run.row_id)))
            return True
        except (DatabaseUnusable, DiskError):
            raise
        except DurableError as error:
            self._leave_alone(run.id, 1.0)
            self._complain(f"run {run.id}", error)
            return False

    def _reap(self, tx: Tx, run: Run) -> None:
        settling.reap(tx, run, now=self.engine.now(), alive=self.engine.alive)

    def _end_overdue(self, tx: Tx, run: Run) -> None:
        settling.end_overdue(tx, run, now=self.engine.now())

    # -- claiming --

    def _claim(self) -> None:
        free = self.concurrency - len(self._active)
        now = self.engine.now()
        if free <= 0 or self.stop.is_set():
            return
        if not self.engine.database.read(lambda tx: self._candidates(tx, now, 1)):
            return  # nothing due: no write transaction for nothing

        def write(tx: Tx, owner_id: int) -> list[tuple[Claim, str]]:
            claims = []
            for run in self._candidates(tx, now, free):
                epoch = transitions.claim(tx, run.row_id, owner_id, now)
                if epoch is not None:
                    claims.append((Claim(run.row_id, run.id, owner_id, epoch), run.workflow))
            return claims

        for claim, workflow in self.engine.write_as_owner(write):
            self.counts.claimed += 1
            self.engine.taken_up(claim)
            self._active[claim.row_id] = self._pool.submit(self._execute, claim, workflow)

    def _candidates(self, tx: Tx, now: int, limit: int) -> list[Run]:
        alone = [name for name in list(self._left_alone) if self._is_left_alone(name)]
        return runs.due(tx, now, limit, besides=alone)

    def _execute(self, claim: Claim, workflow: str) -> None:
        """One turn of one run, in a thread of the pool."""
        try:
            turn = self._turn(claim, workflow)
            if isinstance(turn, Ended):
                self.counts.runs[str(turn.status)] += 1
            elif isinstance(turn, Rested):
                self.counts.rested += 1
        except BaseException as error:
            self._leave_alone(claim.run_id, 1.0)
            self._complain(f"run {claim.run_id}", error)
        finally:
            self.engine.let_go(claim)
            self._active.pop(claim.row_id, None)
            self.wake()

    def _turn(self, claim: Claim, workflow: str) -> Turn | None:
        known = self.engine.database.read(lambda tx: workflows.get(tx, workflow))
        assert known is not None
        try:
            definition = load_workflow(known)
        except DurableError as error:
            self._leave_alone(workflow, _LEAVE_ALONE_S)
            self._complain(f"workflow {workflow}", error)
            self.engine.put_back(claim, note=error.message)
            return None
        return take_turn(self.engine, claim, definition, stay=False, stop=self.stop)

    # -- pausing, and being left alone --

    def _pause(self) -> float:
        if len(self._active) >= self.concurrency:
            return POLL_S
        now = self.engine.now()
        next_at = self.engine.database.read(lambda tx: runs.next_due_at(tx, besides=list(self._left_alone)))
        return POLL_S if next_at is None else min(POLL_S, max(0.0, (next_at - now) / 1000))

    def _leave_alone(self, name: str, seconds: float) -> None:
        self._left_alone[name] = time.monotonic() + seconds

    def _is_left_alone(self, name: str) -> bool:
        until = self._left_alone.get(name)
        if until is not None and until <= time.monotonic():
            self._left_alone.pop(name, None)
            return False
        return until is not None

    def _complain(self, what: str, error: BaseException) -> None:
        self.counts.errors += 1
        log.warning("%s: %s: %s", what, type(error).__name__, error)

    # -- draining --

    def _wait_for_one(self) -> None:
        from concurrent.futures import FIRST_COMPLETED, wait

        wait(list(self._active.values()), timeout=POLL_S, return_when=FIRST_COMPLETED)

    def _drain(self) -> None:
        """Let running steps end for a while; what is not over by then is given back and goes on elsewhere."""
        from concurrent.futures import wait

        wait(list(self._active.values()), timeout=self.grace_s)
        if self._active:
            log.warning("%d runs were not at the end of a step in time and are given back", len(self._active))
            self.engine.abandon()

