"""Entering operations and leaving a branch: the rules that hold whatever the operation.

One context does one thing at a time; an operation takes the next place on its branch, and asks the record there; what
leaves a branch once is raised again by whatever comes next on it.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from durable_cli.core import replay
from durable_cli.core.keys import check_step_name
from durable_cli.core.replay import Fresh, Mismatch, Place, Recorded
from durable_cli.errors import ConcurrentOperation, NestedOperation
from durable_cli.execution import Closed, Execution, Leave, Stop, Suspend, TimedOut, Undo
from durable_cli.failing import called, non_determinism

BRANCH_ONLY: Final = (Suspend, Closed, Undo)
"""Departures that concern one branch: the others go on, be it only to what they have on record."""


class Scope:
    """What the branches of one operation share: once closed, none of them begins anything new."""

    def __init__(self, *, closed: bool = False) -> None:
        self.closed = closed


@dataclass(slots=True)
class Attempt:
    """A step that is executing. `abandoned`: its time was over, and its result will not be used."""

    execution: Execution
    place: Place
    number: int
    name: str
    abandoned: bool = False


current_attempts: ContextVar[tuple[Attempt, ...]] = ContextVar("durable_attempts", default=())
"""The steps that this thread or task is inside of, the innermost last (a step may execute another run)."""

current_branch: ContextVar[Branch | None] = ContextVar("durable_branch", default=None)
"""The branch whose code, around its steps, this thread or task executes."""


class Branch:
    """One branch of one run, and where it stands."""

    def __init__(self, execution: Execution, branch: str = "", scopes: tuple[Scope, ...] = ()) -> None:
        self.execution = execution
        self.branch = branch
        self.scopes = scopes
        self.asked = 0
        self.leaving: Leave | None = None
        self.ended = False
        self._busy = threading.Lock()
        self._aside: list[Place] = []

    def _inside(self) -> Attempt | None:
        for attempt in reversed(current_attempts.get()):
            if attempt.execution is self.execution:
                return attempt
        return None

    def leave(self, how: Leave) -> Leave:
        """Note that this branch (or, by what is none of `BRANCH_ONLY`, the whole run) is left; what to raise."""
        self.leaving = how
        if not isinstance(how, BRANCH_ONLY):
            self.execution.gone = self.execution.gone or how
        return how

    def entered(self, kind: str, name: str) -> _Entered:
        """`with` around one operation."""
        return _Entered(self, kind, name)

    def enter(self, kind: str, name: str) -> Recorded | Fresh:
        """Take the next place for the operation (`kind`, `name`), if the rules allow an operation here and now."""
        execution = self.execution
        if execution.poison is not None:
            raise execution.poison
        inside = self._inside()
        if inside is not None:
            raise execution.spoil(
                NestedOperation(
                    f"ctx.{kind} {name!r} was used inside step {inside.name!r} ({replay.position(inside.place)} of "
                    f"workflow {execution.run.workflow!r}); a step may only use ctx.heartbeat, ctx.attempt and "
                    "ctx.idempotency_key: move the operation out of the step function"
                )
            )
        current = current_branch.get()
        if current is not None and current is not self and current.execution is execution:
            raise execution.spoil(
                ConcurrentOperation(
                    f"ctx.{kind} {name!r} was used on the context of {called(self.branch)} inside of "
                    f"{called(current.branch)} of workflow {execution.run.workflow!r}; a branch uses the context that "
                    "it is called with"
                )
            )
        if not self._busy.acquire(blocking=False):
            raise execution.spoil(
                ConcurrentOperation(
                    f"ctx.{kind} {name!r} began while another operation of this context (operation {self.asked}) "
                    f"was going on in workflow {execution.run.workflow!r}; one context does one thing at a time: "
                    "use ctx.parallel, ctx.map or ctx.race"
                )
            )
        try:
            return self._take_place(kind, name)
        except BaseException:
            self._busy.release()
            raise

    def exit(self) -> None:
        """The operation has ended."""
        self._busy.release()

    def _take_place(self, kind: str, name: str) -> Recorded | Fresh:
        execution = self.execution
        if self.leaving is not None:
            raise self.leaving
        if execution.gone is not None:
            raise self.leave(execution.gone)
        if self.ended:
            raise execution.spoil(
                ConcurrentOperation(
                    f"ctx.{kind} {name!r} was used on the context of {called(self.branch)} of workflow "
                    f"{execution.run.workflow!r}, which has ended"
                )
            )
        check_step_name(name)
        place = (self.branch, self.asked + 1)
        found = replay.match(execution.history, place, kind, name)
        if isinstance(found, Mismatch):
            if not execution.history[place].after_retry:
                raise execution.spoil(non_determinism(execution.run.workflow, found))
            self._set_aside(place)
            found = Fresh(None)
        self.asked += 1
        execution.operations += 1
        # Branches that began have to be replayed in any case, to learn what they have to undo.
        if isinstance(found, Fresh) and not (found.before is not None and kind in replay.GROUPS):
            self._check_may_begin()
        return found

    def _set_aside(self, place: Place) -> None:
        """What was recorded from here on followed a failure that a retry took back: the function goes another way
        now. The records go with the next one that is written."""
        behind = replay.from_here_on(self.execution.history, place)
        for one in behind:
            del self.execution.history[one]
        self._aside.extend(behind)

    def _check_may_begin(self) -> None:
        """Leave where nothing new may begin."""
        execution = self.execution
        if self.closed:
            raise self.leave(Closed())
        if execution.undoing:
            raise self.leave(Undo())
        if execution.stop.is_set():
            raise self.leave(Stop())
        if execution.overdue():
            raise self.leave(TimedOut())

    @property
    def closed(self) -> bool:
        """Has another branch decided, so that nobody needs this one any more?"""
        return any(scope.closed for scope in self.scopes)

    def check_at_rest(self) -> None:
        """The function has returned: an operation that still goes on (a task or a thread nobody waited for) would be
        lost. Asked before an event loop ends and cancels it."""
        execution = self.execution
        if self._busy.locked() and execution.poison is None and execution.gone is None:
            raise execution.spoil(
                ConcurrentOperation(
                    f"workflow {execution.run.workflow!r} returned while operation {self.asked} of its context was "
                    "going on; await it (or wait for its thread) before the function ends"
                )
            )

    def conclude(self, failure: BaseException | None) -> None:
        """A function (the workflow's, or a branch's) has returned, or raised `failure`: raise what really ended it.

        What the code swallowed counts all the same; and an end before the record's is non-determinism.
        """
        execution = self.execution
        self.ended = True
        if failure is not None and not isinstance(failure, (Exception, SystemExit, Leave)):
            raise failure  # KeyboardInterrupt and its like: the process is being left
        if failure is None:
            self.check_at_rest()
        if execution.poison is not None:
            raise execution.poison
        if self.leaving is not None:
            raise self.leaving
        if execution.gone is not None:
            raise execution.gone
        if failure is None or isinstance(failure, Exception):
            left = replay.left_over(execution.history, self.branch, self.asked)
            if left is not None:
                raise execution.spoil(non_determinism(execution.run.workflow, left)) from failure
        if failure is not None:
            raise failure


class _Entered:
    """`with` around one operation: enters it, and lets the context go afterwards."""

    def __init__(self, branch: Branch, kind: str, name: str) -> None:
        self._branch, self._kind, self._name = branch, kind, name

    def __enter__(self) -> Recorded | Fresh:
        return self._branch.enter(self._kind, self._name)

    def __exit__(self, *_: object) -> None:
        self._branch.exit()
