"""Undoing what a failed run did: its compensations, newest first, each recorded like a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable_cli.core import replay
from durable_cli.errors import Abort, StepFailed
from durable_cli.execution import Execution
from durable_cli.model import Step
from durable_cli.operations import Operations, StepOptions

UNDO_BRANCH = "~undo"
"""The branch on which compensations are recorded; no other path begins like this."""


async def undo_all(operations: Operations, execution: Execution, done: list[Step]) -> bool:
    """Call the compensations, newest first; one that fails does not stop the others. True: one failed."""
    failed = False
    for step in done:
        place = (step.branch, step.seq)
        compensation = execution.compensations.get(place)
        options = StepOptions(kind=replay.UNDO)
        if compensation is None:
            function, value = _missing(step), None
        else:
            function, value = compensation.function, operations.replayed(step, compensation.values)
            options = StepOptions(kind=replay.UNDO, retry=compensation.retry or options.retry)
        try:
            await operations.step(step.name, function, (value,), {}, options)
        except StepFailed:
            failed = True
    return failed


def _missing(step: Step) -> Callable[[Any], None]:
    def missing(_: Any) -> None:
        raise Abort(f"the compensation of {replay.position((step.branch, step.seq))} is no longer in the code")

    return missing
