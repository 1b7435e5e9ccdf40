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


def in_order(steps: Sequence[Step]) -> list[tuple[str, Step]]:
    """Each operation with its number, those inside of branches behind the one that has the branches, undo steps last."""
    ordered = sorted(steps, key=_standing)
    numbers = ["" if step.kind == replay.UNDO else replay.number((step.branch, step.seq)) for step in ordered]
    width = max(map(len, numbers), default=0)
    return [(number.rjust(width), step) for number, step in zip(numbers, ordered, strict=True)]


def _standing(step: Step) -> tuple[bool, list[tuple[int, int, str]]]:
    path: list[tuple[int, int, str]] = [(0, step.seq, "")]
    branch = step.branch
    while branch and step.kind != replay.UNDO:
        branch, _, last = branch.rpartition("/")
        seq, _, name = last.partition(":")
        item = name.isascii() and name.isdigit()  # of a map: by number
        path[:0] = [(0, int(seq) if seq.isdigit() else 0, ""), (0 if item else 1, int(name) if item else 0, name)]
    return step.kind == replay.UNDO, path


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
