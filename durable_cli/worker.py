"""The worker: adopt orphans, end what is overdue, claim what is due in batches, execute, drain.

A loop of bounded sweeps that believes nothing the file does not say. A turn of a run has a thread of its own, and so
has the loading of a workflow's code: neither a step that hangs nor a module that does is in anybody's way. Each run is
looked after on its own: one that cannot be read, loaded or written stops no other, and is left alone, longer each
time, so that nothing ever spins. The threads are daemons: what still hangs when the process has to end hangs nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

from durable_cli import settling
from durable_cli.codeload import CodeLoader, begin
from durable_cli.engine import Engine
from durable_cli.errors import FILE_BROKEN, DatabaseUnusable, DurableError
from durable_cli.execution import Progress
from durable_cli.faces import shared_loop
from durable_cli.fires import Fires
from durable_cli.housekeeping import Housekeeping
from durable_cli.loading import load_workflow
from durable_cli.model import Claim, Run, Schedule, Status
from durable_cli.patience import Patience, Rarely
from durable_cli.runner import Ended, Rested, Turn, silent, take_turn
from durable_cli.store import runs, schedules, transitions, workflows
from durable_cli.store.checkpoint import shrink_log
from durable_cli.store.database import Tx
from durable_cli.wake import Bell

POLL_S = 0.5
"""How long a worker sleeps at most: two wake-ups a second when idle."""
_BATCH = 100
"""How many orphans or overdue runs one sweep looks after."""
_GATHER_S = 0.05
"""How long at most a worker with a backlog lets a few free places wait for more of them."""
_SHRINK_EVERY_S = 60.0
"""How often an idle worker looks whether the log beside the file has become large."""

log = logging.getLogger("durable.worker")


@dataclass(slots=True)
class Counts:
    """What a worker or a tick did. `runs` by the status they ended with; `rested`: turns that ended in a wait;
    `errors`: what could not be done; `fired`: starts by schedules, of which `skipped` met a taken key; `missed`: due
    times of schedules that nobody was there for; `failed`: the runs that ended badly."""

    claimed: int = 0
    adopted: int = 0
    timed_out: int = 0
    rested: int = 0
    errors: int = 0
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What one look at the file tells."""

    owned: list[Claim]
    overdue: list[Run]
    due: bool
    next_at: int | None
    schedules: list[Schedule]


class Worker:
    """Executes what is due in one file; for one thread. Its runs execute in threads of their own.

    `concurrency`: how many runs at once. `stop`: set it, and the worker claims nothing new, lets running steps end for
    at most `grace_s` seconds and gives the rest back. `progress` is told what happens, in the threads of the runs.
    `retention_ms`: how old finished runs become before they are pruned; None: none are.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        concurrency: int = 16,
        stop: threading.Event | None = None,
        grace_s: float = 10.0,
        progress: Callable[[Progress], None] = silent,
        retention_ms: int | None = None,
    ) -> None:
        self.engine = engine
        self.concurrency = concurrency
        self.stop = stop or threading.Event()
        self.grace_s = grace_s
        self.progress = progress
        self.counts = Counts()
        self.cut_off = False
        """Was a step still executing when the grace was over?"""
        self._changed = threading.Condition()  # guards what follows
        self._active: set[Claim] = set()
        self._changes = 0
        self._broken: BaseException | None = None
        self._code = CodeLoader(engine, changed=self._something_changed, complain=self._complain)
        self._failures = Patience(1.0, 60.0)
        self._say = Rarely(log.warning, 300.0)
        self._fires = Fires(engine, self._code, self.counts, self._say)
        self._house = Housekeeping(engine, retention_ms=retention_ms)
        self._suspects: dict[Claim, float] = {}
        self._shrunk_at = self._claimed_at = time.monotonic()
        self._backlog = False
        self._bell: Bell | None = None

    @property
    def busy(self) -> bool:
        """Does one of its threads still execute something?"""
        with self._changed:
            return bool(self._active)

    # -- the two ways of working --

    def work(self) -> Counts:
        """Work until `stop` is set. Raises the error of a file that cannot be used any more."""
        me = self.engine.become("worker")
        trouble = Patience(POLL_S, 30.0)
        self.engine.working = os.getpid()
        try:
            with closing(Bell(self.engine.path, me)) as bell, shared_loop():
                self._bell = bell
                while not self.stop.is_set():
                    try:
                        pause = self.sweep()
                        trouble.went_well("sweep")
                    except FILE_BROKEN:
                        raise
                    except DurableError as error:
                        self._complain("sweep", error)
                        pause = trouble.failed("sweep")
                    self._wait(bell, pause)
                self._drain()
        except BaseException:
            with suppress(DurableError):
                self.engine.step_down()  # the process may live on
            raise
        finally:
            self.engine.working = None
            self._bell = None
        return self.counts

    def wake(self) -> None:
        """Make the loop look now (from any thread)."""
        bell = self._bell
        if bell is not None:
            bell.ring()

    def tick(self) -> Counts:
        """Do all that is due now, and what that makes due, then return. Raises what keeps it from looking.

        Not registered as a worker: what comes due while it ends must not be left to it.
        """
        self._fires.until = self.engine.now()  # what comes due while its runs execute is for the next tick
        with shared_loop():
            while not self.stop.is_set():
                seen = self._changes
                if self.sweep() == 0.0:
                    continue
                with self._changed:
                    if self._changes != seen:
                        continue  # a thread that ended after we looked may have made something due
                    if self._active or self._code.busy:
                        self._changed.wait(POLL_S)
                    elif not self._fires.awaits_code:  # else it has come since that sweep
                        break
            self._drain()
        return self.counts

    def _wait(self, bell: Bell, seconds: float) -> None:
        """Until something is due, somebody rings, or `stop` is set."""
        until = time.monotonic() + seconds
        while not self.stop.is_set():
            left = until - time.monotonic()
            if bell.wait(min(left, POLL_S)) or left <= POLL_S:
                return

    # -- one sweep --

    def sweep(self) -> float:
        """Look after orphans and overdue runs, claim what is due. Returns the seconds until something may be due."""
        if self._broken is not None:
            raise self._broken
        self._reassert()
        more = self._house.look()
        now = self.engine.now()
        free = self._free()
        facts = self.engine.database.read(lambda tx: self._look(tx, now, free))
        changed = self._look_after(facts) | self._fires.fire(facts.schedules)
        if (free > 0 and (facts.due or changed) and self._claim(free)) or more:
            return 0.0
        self._shrink_if_idle()
        if facts.next_at is None or free <= 0:
            return min(POLL_S, self._batching()) if self._batching() > 0 else POLL_S
        return min(POLL_S, max(0.0, (facts.next_at - now) / 1000))

    def _look(self, tx: Tx, now: int, free: int) -> _Facts:
        next_at = runs.next_due_at(tx)
        something = next_at is not None and next_at <= now
        if something:
            next_at = runs.next_due_at(tx, now)
        return _Facts(
            runs.claims(tx),
            runs.overdue(tx, now, _BATCH),
            something and free > 0 and bool(self._due(tx, now, 1)),
            min(filter(None, (next_at, schedules.next_wake_at(tx, now))), default=None),
            [] if self.stop.is_set() else self._fires.due(tx, now),
        )

    def _free(self) -> int:
        with self._changed:
            free = 0 if self.stop.is_set() else self.concurrency - len(self._active)
        return 0 if free < self.concurrency // 4 and self._batching() > 0 else free

    def _batching(self) -> float:
        """Seconds to gather room for a batch: each claim is a commit, and more was due than there was room for."""
        return self._claimed_at + _GATHER_S - time.monotonic() if self._backlog else 0.0

    def _reassert(self) -> None:
        for lost in self.engine.liveness.reassert():
            raise DatabaseUnusable(f"the lock of owner {lost} was lost and cannot be taken again")

    def _look_after(self, facts: _Facts) -> bool:
        """Give orphans, strays and overdue runs what they need, each in a transaction of its own. Was there any?"""
        dead, strays = self._orphans(facts.owned), self._strays(facts.owned)
        for claim in dead:
            self.counts.adopted += self._each(claim.row_id, claim.run_id, self._reap)
        for claim in strays:
            log.warning("run %s was ours and nobody executed it; it is given back", claim.run_id)
            self._each(claim.row_id, claim.run_id, partial(self._give_back, claim))
        for run in facts.overdue:
            self.counts.timed_out += self._each(run.row_id, run.id, self._end_overdue)
        return bool(dead or strays or facts.overdue)

    def _orphans(self, owned: list[Claim]) -> list[Claim]:
        alive: dict[int, bool] = {}
        for claim in owned:
            if claim.owner_id not in alive:
                alive[claim.owner_id] = self.engine.alive(claim.owner_id)
        left_alone = self._failures.left_alone()
        return [one for one in owned if not alive[one.owner_id] and one.run_id not in left_alone][:_BATCH]

    def _strays(self, owned: list[Claim]) -> list[Claim]:
        """Runs that the file says are ours and that no thread executes. Seen twice, a second apart: a claim is in the
        file a moment before it is in our table."""
        mine, now = self.engine.mine(), time.monotonic()
        strays = [one for one in owned if self.engine.is_me(one.owner_id) and one not in mine]
        self._suspects = {one: self._suspects.get(one, now) for one in strays}
        left_alone = self._failures.left_alone()
        return [one for one, since in self._suspects.items() if now - since >= 1.0 and one.run_id not in left_alone]

    def _each(self, row_id: int, run_id: str, what: Callable[[Tx, Run], bool]) -> bool:
        """What a run needs, in one transaction. False: nothing was done."""
        try:
            return self.engine.write(lambda tx: what(tx, runs.get(tx, row_id)))
        except FILE_BROKEN:
            raise
        except DurableError as error:
            self._failures.failed(run_id)
            self._complain(f"run {run_id}", error)
            return False

    def _reap(self, tx: Tx, run: Run) -> bool:
        return settling.reap(tx, run, now=self.engine.now(), alive=self.engine.alive).run is not run

    def _give_back(self, claim: Claim, tx: Tx, _: Run) -> bool:
        return settling.give_back(tx, claim, now=self.engine.now())

    def _end_overdue(self, tx: Tx, run: Run) -> bool:
        return settling.end_overdue(tx, run, now=self.engine.now()).run is not run

    def _shrink_if_idle(self) -> None:
        if not self.busy and time.monotonic() - self._shrunk_at >= _SHRINK_EVERY_S:
            self._shrunk_at = time.monotonic()
            shrink_log(self.engine.database)

    # -- claiming --

    def _due(self, tx: Tx, now: int, limit: int) -> list[Run]:
        return runs.due(tx, now, limit, runs=self._failures.left_alone(), workflows=self._code.not_now())

    def _claim(self, free: int) -> bool:
        """Claim what is due and execute it. True: there may be more."""
        now = self.engine.now()
        due = self.engine.database.read(lambda tx: self._due(tx, now, free))
        ready = self._code.ready({run.workflow for run in due})
        if not ready:
            return bool(due)

        def write(tx: Tx, owner_id: int) -> list[tuple[Claim, str]]:
            claims = []
            for run in self._due(tx, now, free):
                epoch = transitions.claim(tx, run.row_id, owner_id, now) if run.workflow in ready else None
                if epoch is not None:
                    claims.append((Claim(run.row_id, run.id, owner_id, epoch), run.workflow))
            return claims

        claimed = deque(self.engine.write_as_owner(write))
        try:
            while claimed:
                self._begin(*claimed[0])
                claimed.popleft()
        finally:
            self.engine.abandon([claim for claim, _ in claimed])
        self._backlog, self._claimed_at = len(due) == free, time.monotonic()
        return self._backlog or any(run.workflow not in ready for run in due)

    # -- executing --

    def _begin(self, claim: Claim, workflow: str) -> None:
        self.engine.taken_up(claim)
        with self._changed:
            self._active.add(claim)
        try:
            begin(f"durable-run-{claim.run_id}", self._execute, claim, workflow)
        except BaseException:
            self._over(claim)
            raise
        with self._changed:
            self.counts.claimed += 1

    def _over(self, claim: Claim) -> None:
        """Its thread executes nothing any more."""
        self.engine.let_go(claim)
        with self._changed:
            self._active.discard(claim)

    def _execute(self, claim: Claim, workflow: str) -> None:
        """The turn of a run, and of the run that its end leaves to us, in a thread of its own."""
        at: Claim | None = claim
        try:
            while at is not None:
                at = self._after(at, self._turn(at, workflow))
            self._failures.went_well(claim.run_id)
        except BaseException as error:
            self._failures.failed(claim.run_id)
            if isinstance(error, FILE_BROKEN):
                self._broken = error
            self._complain(f"run {claim.run_id}", error)
        finally:
            self._over(claim)
            self._something_changed()

    def _something_changed(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()
        self.wake()

    def _turn(self, claim: Claim, workflow: str) -> Turn | None:
        known = self.engine.database.read(lambda tx: workflows.get(tx, workflow))
        assert known is not None
        try:
            definition = load_workflow(known)
        except DurableError as error:  # it has moved since we loaded it
            self._code.failed(workflow, error)
            self.engine.put_back(claim, note=error.message)
            return None
        return take_turn(self.engine, claim, definition, stay=False, stop=self.stop, progress=self.progress)

    def _after(self, claim: Claim, turn: Turn | None) -> Claim | None:
        """Count a turn. The claim on the run that it left to this process, where it is to be executed here."""
        with self._changed:
            if isinstance(turn, Ended):
                self.counts.runs[str(turn.status)] += 1
                if turn.status not in (Status.COMPLETED, Status.CANCELLED):
                    self.counts.failed.append(claim.run_id)
            elif isinstance(turn, Rested):
                self.counts.rested += 1
        promoted = turn.promoted if isinstance(turn, Ended) else None
        if promoted is not None and self.stop.is_set():
            self.engine.abandon([promoted])
            return None
        return promoted

    def _complain(self, what: str, error: BaseException) -> None:
        with self._changed:
            self.counts.errors += 1
        about = type(error).__name__ if isinstance(error, DurableError) and error.exit_status >= 75 else what
        self._say(about, f"{what}: {error if isinstance(error, DurableError) else f'{type(error).__name__}: {error}'}")

    # -- draining --

    def _drain(self) -> None:
        """Let running steps end for a while; what is not over by then is given back and goes on elsewhere."""
        try:
            if self._bell is not None:  # a worker: nobody shall leave anything to us from now on
                self.engine.step_down()
            if self._wait_for_all(self.grace_s):
                return
            self.cut_off = True
            log.warning("not every run came to the end of a step in time; they are given back")
            self.engine.abandon()
        except FILE_BROKEN:
            raise
        except DurableError as error:  # our death will say the same
            self._complain("draining", error)
            self._wait_for_all(self.grace_s)

    def _wait_for_all(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        with self._changed:
            while self._active and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._active
