"""What a retry opens again of a run's record: the operation whose failure ended the run, and what had failed with it.

An operation inside of branches had taken the operations around it with it (parallel, map, race): they are open again
too, and with them every branch that had failed, since with one failure left they would only fail anew. Failures that
the function caught stay as they are recorded. Works inside the caller's write transaction.
"""

from __future__ import annotations

from collections.abc import Callable

from durable_cli.core.replay import GROUPS, Place, parent_place
from durable_cli.model import Run, Status, Step, StepStatus
from durable_cli.store import history, runs
from durable_cli.store.database import Tx

_AT_PLACE = frozenset({"run", "shell", "http"})
"""Kinds that have attempts, which go on being counted where they were; all others begin anew."""


def reopen(tx: Tx, run: Run, *, now: int, retry: Callable[..., object]) -> None:
    """Open again what ended a failed or cancelled run. `retry(tx, child, now=)` gives None where it could."""
    reopened: set[Place] = set()
    if run.error is not None and run.error.seq is not None:
        _Reopening(tx, run.row_id, now, retry, reopened).outwards((run.error.branch or "", run.error.seq))
    _revive_children(tx, run, now, retry)


class _Reopening:
    def __init__(self, tx: Tx, run: int, now: int, retry: Callable[..., object], reopened: set[Place]) -> None:
        self.tx = tx
        self.run = run
        self.now = now
        self.retry = retry
        self.reopened = reopened

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
        elif step.child_row is not None and self._goes_on(step):
            history.wait_again(self.tx, self.run, *place)
        else:
            history.forget(self.tx, self.run, *place)

    def _open_group(self, step: Step) -> None:
        details = {name: value for name, value in (step.details or {}).items() if name not in ("decided", "failed")}
        history.wait_again(self.tx, self.run, step.branch, step.seq, details=details)
        for branch, seq in (step.details or {}).get("failed", ()):
            self.open((branch, seq))

    def _goes_on(self, step: Step) -> bool:
        """Is there a child to wait for again: one that was retried here and now, or by somebody before?"""
        assert step.child_row is not None
        child = runs.get(self.tx, step.child_row)
        if not child.finished:
            return step.error is None or step.error.type != "Deadlock"
        return child.status is Status.COMPLETED or self.retry(self.tx, child, now=self.now) is None


def _revive_children(tx: Tx, run: Run, now: int, retry: Callable[..., object]) -> None:
    """The children whose end the run waits for were cancelled when it ended: they go on with it."""
    for row_id in sorted(history.children_waited_for(tx, run.row_id, decided=False)):
        child = runs.get(tx, row_id)
        if child.status is Status.CANCELLED:
            retry(tx, child, now=now)
