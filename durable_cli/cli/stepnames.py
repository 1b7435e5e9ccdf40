"""How operations are called for a person: by the branches they are in, and undo steps as such; in the order they stand in."""

from __future__ import annotations

from collections.abc import Sequence

from durable_cli.core import replay
from durable_cli.execution import Progress
from durable_cli.model import Run, Step, StepStatus


def label(step: Step, steps: Sequence[Step], *, ascii_only: bool) -> str:
    """`undo reserve`, `left › fetch`, `resize[2]`; raw text."""
    names = replay.names(step, {(one.branch, one.seq): one for one in steps})
    return _joined(names, step.kind == replay.UNDO, ascii_only=ascii_only)


def of_progress(progress: Progress, *, ascii_only: bool) -> str:
    """As `label`, of a step that is told of as it happens."""
    return _joined(progress.names or (progress.step,), progress.undo, ascii_only=ascii_only)


def _joined(names: Sequence[str], undo: bool, *, ascii_only: bool) -> str:
    return ("undo " if undo else "") + (" > " if ascii_only else " › ").join(names)


def failed_undos(run: Run, *, ascii_only: bool) -> list[str]:
    """`undo reserve failed: ValueError: ...` of each compensation that failed; raw text."""
    steps = run.steps or ()
    return [
        f"{label(step, steps, ascii_only=ascii_only)} failed: {step.error.type}: {step.error.message}"
        for step in steps
        if step.kind == replay.UNDO and step.status is StepStatus.FAILED and step.error is not None
    ]
