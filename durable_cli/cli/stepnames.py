"""How recorded operations are called for a person: by the branches they are in, and undo steps as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from durable_cli.core.replay import parent_place
from durable_cli.model import Run, Step, StepStatus

_UNDO: Final = "compensate"


def label(step: Step, steps: Sequence[Step], *, ascii_only: bool) -> str:
    """`undo reserve`, `left › fetch`, `resize[2]`; raw text."""
    if step.kind == _UNDO:
        return f"undo {step.name}"
    groups = {(one.branch, one.seq): one for one in steps}
    parts: list[str] = []
    bare = False
    branch = step.branch
    while (place := _parent(branch)) is not None:
        name = _unescaped(branch.rpartition("/")[2].partition(":")[2])
        group = groups.get(place)
        if group is not None and group.kind == "map":
            bare = bare or (not parts and group.name == step.name)
            name = f"{group.name}[{name}]"
        parts.append(name)
        branch = place[0]
    names = [*reversed(parts), *([] if bare else [step.name])]
    return (" > " if ascii_only else " › ").join(names)


def failed_undos(run: Run) -> list[str]:
    """`undo reserve failed: ValueError: ...` of each compensation that failed; raw text."""
    return [
        f"undo {step.name} failed: {step.error.type}: {step.error.message}"
        for step in run.steps or ()
        if step.kind == _UNDO and step.status is StepStatus.FAILED and step.error is not None
    ]


def _parent(branch: str) -> tuple[str, int] | None:
    try:
        return parent_place(branch)
    except ValueError:  # a path of another make
        return None


def _unescaped(name: str) -> str:
    return name.replace("%3A", ":").replace("%2F", "/").replace("%25", "%")
