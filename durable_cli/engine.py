"""One file, one clock, and the identity of this process: what every operation of the library is bound to.

No state lives here that the file or the lock file does not say, except which owner this process is. Everything that
a test wants to decide comes in from outside: `vfs`, `clock`, `liveness`, `ids`, `sleep`, `dice`.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from durable_cli import owners, settling, wake
from durable_cli.errors import DurableError
from durable_cli.listeners import Listeners
from durable_cli.model import Claim, Run, Step, Workflow
from durable_cli.owners import Liveness
from durable_cli.store import history, process, runs, transitions, workflows
from durable_cli.store import owners as owner_rows
from durable_cli.store.database import Database, Tx
from durable_cli.values import MAX_VALUE_BYTES

T = TypeVar("T")

_LETTERS = "abcdefghjkmnpqrstvwxyz"
_ALPHABET = "0123456789" + _LETTERS
"""Crockford's base 32 in lower case: no i, l, o, u to misread."""


def wall_clock() -> int:
    """This moment in milliseconds UTC."""
    return time.time_ns() // 1_000_000


def _monotonic() -> int:
    return time.monotonic_ns() // 1_000_000


def random_id() -> str:
    """Ten random letters, the first no digit. Ids that begin with the time would have useless prefixes."""
    return secrets.choice(_LETTERS) + "".join(secrets.choice(_ALPHABET) for _ in range(9))


class _Resigned(Exception):
    """This process is no longer the owner that it was."""


class Engine:
    """Binds a file to a clock and to this process as an owner. Thread-safe; after a fork the child is nobody yet."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        clock: Callable[[], int] | None = None,
        vfs: str | None = None,
        liveness: Liveness | None = None,
        ids: Callable[[], str] | None = None,
        sleep: Callable[[float], None] | None = None,
        dice: Callable[[], float] | None = None,
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self.max_value_bytes = max_value_bytes
        self.now = clock or wall_clock
        self.passed = clock or _monotonic
        """Milliseconds, for how long something takes in this process: no step of the wall clock changes that."""
        self.new_id = ids or random_id
        self.dice = dice or random.random
        # For users' tests (`durable_cli.testing`): unwind and replay the function after each operation it recorded;
        # how many branches go on at once, whatever the code says.
        self.replay_every_step = False
        self.branches_at_once: int | None = None
        self._sleep = sleep
        self.database = Database(path, create=create, vfs=vfs)
        self.listeners = Listeners()
        self.database.on_commit = self.listeners.tell
        self.liveness = liveness or owners.lock_file_liveness(self.database.path)
        self._owner: tuple[int, int] | None = None  # (pid, owner id)
        self.working: int | None = None
        """The process in which a worker takes up what is due: a forked child inherits the number, not the work."""
        self._mine: dict[Claim, int] = {}  # by whom executed, a pid: a forked child inherits the table, not the runs
        self._lock = threading.Lock()
        _engines.add(self)

    @property
    def path(self) -> Path:
        """The file, absolute."""
        return self.database.path

    def pause(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Wait, at most so long; a `stop` that is set ends it at once."""
        if self._sleep is not None:
            self._sleep(seconds)
        elif stop is not None:
            stop.wait(seconds)
        else:
            time.sleep(seconds)

    def alive(self, owner_id: int) -> bool:
        """Is this owner alive?"""
        return self.liveness.alive(owner_id)

    def is_me(self, owner_id: int) -> bool:
        """Is this process that owner?"""
        return self._owner == (os.getpid(), owner_id)

    # -- this process as an owner --

    def become(self, kind: str) -> int:
        """Make this process an owner of this kind ("run" or "worker"). Returns the owner's id."""

        def write(tx: Tx, owner_id: int) -> int:
            owner_rows.set_kind(tx, owner_id, kind)
            return owner_id

        return self.write_as_owner(write)

    def step_down(self) -> None:
        """Be no worker any more: nobody shall leave anything to us. Raises an error of the file, which cannot say it;
        then the lock says it, unless this process still executes something."""
        try:
            self.become("run")
        except DurableError:
            if not self.mine():
                self.liveness.release(self._be_nobody())
            raise

    def _be_nobody(self) -> int:
        """Forget which owner this process is, for the next write to make it another one. Returns the owner's id."""
        assert self._owner is not None
        owner_id = self._owner[1]
        self._owner = None
        return owner_id

    def write_as_owner(self, operation: Callable[[Tx, int], T], *, landed: Callable[[Tx], T | None] | None = None) -> T:
        """`write` for an operation that makes this process the owner of something.

        The first one registers the process: its row, then its byte lock, then the commit, so that nobody ever sees
        an owner that does not hold its lock.
        """
        known = self._owner

        def as_known_owner(tx: Tx) -> T:
            if self._owner is not known:
                raise _Resigned
            return operation(tx, self._owner_id(tx, []))

        with self.listeners.later():
            if known is not None and known[0] == os.getpid():
                try:
                    return self.database.write(as_known_owner, landed=landed)
                except _Resigned:
                    pass  # `close` in another thread came between
            with process.LOCK:  # one at a time, or two threads would each register the process, as two owners
                return self._write_and_register(operation, landed)

    def _write_and_register(self, operation: Callable[[Tx, int], T], landed: Callable[[Tx], T | None] | None) -> T:
        registered: list[int] = []

        def with_owner(tx: Tx) -> T:
            return operation(tx, self._owner_id(tx, registered))

        try:
            result = self.database.write(with_owner, landed=landed)
        except BaseException:
            for owner_id in registered:
                self.liveness.release(owner_id)
            raise
        for owner_id in registered:
            self._owner = (os.getpid(), owner_id)
        return result

    def _owner_id(self, tx: Tx, registered: list[int]) -> int:
        if self._owner is not None and self._owner[0] == os.getpid():
            return self._owner[1]
        for dead in owner_rows.unused(tx):
            if not self.alive(dead):
                owner_rows.remove(tx, dead)
                wake.remove(self.path, dead)
        owner_id = owner_rows.register(tx, pid=os.getpid(), kind="run", now=self.now())
        self.liveness.hold(owner_id)
        registered.append(owner_id)
        return owner_id

    # -- what an owner does --

    def record(self, claim: Claim, make: Callable[[Tx], Step]) -> Step | None:
        """Record the operation that `make` makes in the transaction, if the run is still ours. None: it is not."""
        made: list[Step] = []

        def write(tx: Tx) -> Step | None:
            if not transitions.progress(tx, claim.row_id, claim.owner_id, claim.epoch):
                return None
            made.append(make(tx))
            return made[-1] if history.record(tx, claim.row_id, made[-1]) else None

        def landed(tx: Tx) -> Step | None:
            step = made[-1]
            return step if history.at(tx, claim.row_id, step.branch, step.seq) == step else None

        step = self.database.write(write, landed=landed)
        if step is not None and step.child_row is not None:
            self.ring()  # a child was begun
        return step

    def go_on(self, claim: Claim) -> bool:
        """A run that rested (or, with epoch 0, had not begun) while we stayed by it is executed. False: it is not
        ours any more."""

        def write(tx: Tx) -> bool:
            if claim.epoch == 0:
                return transitions.begin(tx, claim.row_id, claim.owner_id, self.now())
            ours = runs.ours(tx, claim.row_id, claim.owner_id, claim.epoch)
            if ours:
                transitions.go_on(tx, claim.row_id)
            return ours

        return self.database.write(write)

    def claim_descendant(self, root: int, besides: list[str]) -> tuple[Claim, Workflow] | None:
        """Claim a due run that the run in row `root` has started, unless a live worker is there to execute it. One
        whose owner is dead is taken from it first.
        """

        def look(tx: Tx) -> Run | None:
            if self.has_live_worker(tx):
                return None
            owned = runs.owned_descendants(tx, root)
            orphan = next((run for run in owned if run.owner is not None and not self.alive(run.owner.id)), None)
            return orphan or runs.due_descendant(tx, root, self.now(), besides=besides)

        def write(tx: Tx, owner_id: int) -> tuple[Claim, Workflow] | None:
            while (run := look(tx)) is not None and run.owner is not None:
                settling.reap(tx, run, now=self.now(), alive=self.alive)
            if run is None:
                return None
            known = workflows.get(tx, run.workflow)
            epoch = transitions.claim(tx, run.row_id, owner_id, self.now())
            return None if epoch is None or known is None else (Claim(run.row_id, run.id, owner_id, epoch), known)

        return None if self.database.read(look) is None else self.write_as_owner(write)

    def put_back(self, claim: Claim, *, note: str) -> None:
        """Give back a run that cannot be executed here, and say why."""

        def write(tx: Tx) -> None:
            if settling.give_back(tx, claim, now=self.now()):
                transitions.note(tx, claim.row_id, note)

        self.write(write)

    def still_ours(self, claim: Claim) -> bool:
        """The fence, read only."""
        return self.database.read(lambda tx: runs.ours(tx, claim.row_id, claim.owner_id, claim.epoch))

    def write(self, operation: Callable[[Tx], T], *, landed: Callable[[Tx], T | None] | None = None) -> T:
        """`Database.write` for what may make a run due: afterwards the workers are told to look."""
        workers: list[int] = []

        def and_look_for_workers(tx: Tx) -> T:
            result = operation(tx)
            workers[:] = owner_rows.workers(tx)
            return result

        result = self.database.write(and_look_for_workers, landed=landed)
        wake.ring(self.path, workers)
        return result

    def ring(self) -> None:
        """Tell the workers to look: something is due."""
        wake.ring(self.path, self.database.read(owner_rows.workers))

    def has_live_worker(self, tx: Tx) -> bool:
        """Is there a live worker, which executes whatever is due?"""
        return any(self.alive(worker) for worker in owner_rows.workers(tx))

    def claim_promoted(self, tx: Tx, run: Run, owner_id: int) -> Claim | None:
        """Claim the run that was promoted when ours ended, unless a live worker is there to execute it, or it is not
        due yet."""
        if self.has_live_worker(tx) or run.due_at is None or run.due_at > self.now():
            return None
        epoch = transitions.claim(tx, run.row_id, owner_id, self.now())
        return None if epoch is None else Claim(run.row_id, run.id, owner_id, epoch)

    def taken_up(self, claim: Claim) -> None:
        """This process executes the run from now on (`abandon` would give it back)."""
        with self._lock:
            self._mine[claim] = os.getpid()

    def let_go(self, claim: Claim) -> None:
        """This process no longer executes the run."""
        with self._lock:
            self._mine.pop(claim, None)

    def mine(self) -> set[Claim]:
        """The runs that this process executes."""
        with self._lock:
            return {claim for claim, pid in self._mine.items() if pid == os.getpid()}

    def abandon(self, claims: list[Claim] | None = None) -> None:
        """Give back the runs that this process executes, so that anybody may go on with them at once."""
        mine = list(self.mine()) if claims is None else claims
        if mine:
            self.write(lambda tx: [settling.give_back(tx, claim, now=self.now()) for claim in mine])

    def die(self) -> None:
        """For tests: as if this process were killed here and now. What it owned belongs to a dead owner, and nothing
        that still executes is accepted any more. The next write makes it another owner."""
        if self._owner is None or self._owner[0] != os.getpid():
            return
        owner_id = self._be_nobody()

        def write(tx: Tx) -> None:
            for run in runs.owned_by(tx, owner_id):
                transitions.fence_off(tx, run.row_id)

        self.database.write(write)
        self.liveness.release(owner_id)

    def close(self) -> None:
        """Give up being an owner, unless a thread of this process executes or works as one, and close the file."""
        busy = self.working == os.getpid() or bool(self.mine())
        if not busy and self._owner is not None and self._owner[0] == os.getpid():
            owner_id = self._be_nobody()
            try:
                self.write(lambda tx: self._resign(tx, owner_id))
            except DurableError:
                pass  # the lock goes all the same, and the next owner removes the row
            self.liveness.release(owner_id)
        self.database.close()

    def _resign(self, tx: Tx, owner_id: int) -> None:
        for run in runs.owned_by(tx, owner_id):
            transitions.give_back(tx, run.row_id, self.now(), crash=False)
        owner_rows.remove(tx, owner_id)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _renew_locks() -> None:
    # Whoever held one at the fork is not in the child.
    for engine in _engines:
        engine._lock = threading.Lock()


process.on_fork(forget=_renew_locks)
