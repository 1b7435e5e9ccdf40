"""What a retry opens again of a run's record: the operation whose failure ended the run, and what had failed with it.

An operation inside of branches had taken the operations around it with it (parallel, map, race): they are open again
too, and with them every branch that had failed, since with one failure left they would only fail anew. Failures that
the function caught stay as they are recorded. Works inside the caller's write transaction.
"""

from __future__ import annotations

from collections.abc import Callable

from durable_cli.core.replay import GROUPS, Place, child_branch, parent_place
from durable_cli.model import Run, Status, Step, StepStatus
from durable_cli.store import history, runs
from durable_cli.store.database import Tx

_AT_PLACE = frozenset({"run", "shell", "http"})
"""Kinds that have attempts, which go on being counted where they were; all others begin anew."""


Revive = Callable[[Run], bool]
"""Retries a child. False: it cannot be, by its status or its key."""


def reopen(tx: Tx, run: Run, *, now: int, revive: Revive) -> None:
    """Open again what ended a run that is pending again: `run` as it was when it had failed or was cancelled."""
    reopening = _Reopening(tx, run.row_id, now, revive)
    if run.error is not None and run.error.seq is not None:
        reopening.outwards((run.error.branch or "", run.error.seq))
    reopening.calls()


class _Reopening:
    def __init__(self, tx: Tx, run: int, now: int, revive: Revive) -> None:
        self.tx = tx
        self.run = run
        self.now = now
        self.revive = revive
        self.reopened: set[Place] = set()

    def outwards(self, place: Place) -> None:
        """An operation, and all those around it that failed with it."""
        at: Place | None = place
        while at is not None:
            self.open(at)
            at = parent_place(at[0])

    def open(self, place: Place) -> None:
        """An operation, and all those inside of it whose failures ended its branches."""
        step = None if place in self.reopened else history.at(self.tx, self.run, *place)
        self.reopened.add(place)
        if step is None or step.status is not StepStatus.FAILED:
            return
        history.doubt_behind(self.tx, self.run, *place)
        if step.kind in GROUPS:
            self._open_group(step)
        elif step.kind in _AT_PLACE:
            history.try_again(self.tx, self.run, *place, self.now)
        elif self._goes_on(step):
            history.wait_again(self.tx, self.run, *place)
        else:
            history.forget(self.tx, self.run, *place)

    def _open_group(self, step: Step) -> None:
        was = step.details or {}
        details = {name: value for name, value in was.items() if name not in ("decided", "failed", "cut_off")}
        history.wait_again(self.tx, self.run, step.branch, step.seq, details=details)
        for branch, seq in was.get("failed", ()):
            self.open((branch, seq))
        for name in was.get("cut_off", ()):
            # Recorded, and the branch was cut off before it could see it: nobody caught it.
            last = history.last_of(self.tx, self.run, child_branch((step.branch, step.seq), name))
            if last is not None and last.status is StepStatus.FAILED:
                self.open((last.branch, last.seq))

    def calls(self) -> None:
        """The calls that went on when the run ended: mostly, their children were cancelled with it."""
        for step in history.calls(self.tx, self.run):
            if not self._goes_on(step):
                history.forget(self.tx, self.run, step.branch, step.seq)

    def _goes_on(self, step: Step) -> bool:
        """Is there a child to wait for: one that was retried, here and now or by somebody before, or has completed?
        Else the call begins anew, by the rules of any start: another run may have the child's key by now.
        """
        if step.child_row is None:
            return False
        child = runs.get(self.tx, step.child_row)
        if not child.finished:
            return not runs.needs(self.tx, child.row_id, self.run)
        if child.status is Status.COMPLETED:
            return True
        unseen = step.status is StepStatus.WAITING and child.status is not Status.CANCELLED
        # A failure that the function has not seen yet is for it to see, but not beside one that is taken back.
        return self.revive(child) if not unseen or self._in_reopened(step) else True

    def _in_reopened(self, step: Step) -> bool:
        around = parent_place(step.branch)
        while around is not None and around not in self.reopened:
            around = parent_place(around[0])
        return around is not None
