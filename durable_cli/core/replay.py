"""Recorded history against the operation the function asks for next. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from durable_cli.model import Step, StepStatus

Place = tuple[str, int]
GROUPS: Final = frozenset({"parallel", "map", "race"})
"""The kinds of operations that have branches."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The operation has ended before: give back what was recorded."""

    step: Step


@dataclass(frozen=True, slots=True)
class Fresh:
    """The operation has to be executed. `before`: what earlier attempts left, if any did."""

    before: Step | None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The function asks for another operation than the record has at that place."""

    position: str
    expected: str | None
    asked: str | None


def match(history: Mapping[Place, Step], place: Place, kind: str, name: str) -> Recorded | Fresh | Mismatch:
    """What the record says about the operation (`kind`, `name`) asked for at `place`."""
    step = history.get(place)
    if step is None:
        return Fresh(None)
    if (step.kind, step.name) != (kind, name):
        return Mismatch(position(place), f"{step.kind} {step.name!r}", f"{kind} {name!r}")
    going_on = step.status in (StepStatus.RETRYING, StepStatus.WAITING)
    return Fresh(step) if going_on else Recorded(step)


def left_over(history: Mapping[Place, Step], branch: str, asked: int) -> Mismatch | None:
    """The first recorded operation of `branch` that a function which ended after `asked` operations never reached."""
    step = history.get((branch, asked + 1))
    if step is None or step.after_retry:
        return None
    return Mismatch(position((branch, asked + 1)), f"{step.kind} {step.name!r}", None)


def from_here_on(history: Mapping[Place, Step], place: Place) -> list[Place]:
    """The places recorded at `place` and after it on its branch, with all that happened inside of them."""
    branch, seq = place

    def is_behind(one: Place) -> bool:
        at: Place | None = one
        while at is not None:
            if at[0] == branch:
                return at[1] >= seq
            at = parent_place(at[0])
        return False

    return [one for one in history if is_behind(one)]


def child_branch(place: Place, name: str) -> str:
    """The path of a branch of the operation at `place`. Names may hold any character, hence the escapes."""
    branch, seq = place
    escaped = name.replace("%", "%25").replace("/", "%2F").replace(":", "%3A")
    return f"{branch}/{seq}:{escaped}"


def inside(place: Place) -> str:
    """What the path of every branch of the operation at `place`, and of every branch in it, begins with."""
    return child_branch(place, "")


def parent_place(branch: str) -> Place | None:
    """The place of the operation whose branch this is; None for the function itself."""
    if not branch:
        return None
    parent, _, last = branch.rpartition("/")
    return parent, int(last.partition(":")[0])


UNDO: Final = "compensate"
"""The kind of the steps that undo others."""


def names(step: Step, history: Mapping[Place, Step]) -> tuple[str, ...]:
    """What tells an operation from others of its name: the branches it is in, then its own name; `resize[2]` in a map.

    A step that undoes another has that one's: they are recorded in the order in which the others completed, newest first.
    """
    if step.kind == UNDO:
        done = sorted(
            (one for one in history.values() if one.undo_order is not None), key=lambda one: -(one.undo_order or 0)
        )
        undone = done[step.seq - 1] if step.seq <= len(done) else None
        return (step.name,) if undone is None or undone.name != step.name else names(undone, history)
    parts: list[str] = []
    bare = False
    branch = step.branch
    while (place := _around(branch)) is not None:
        name = _unescaped(branch.rpartition("/")[2].partition(":")[2])
        group = history.get(place)
        if group is not None and group.kind == "map":
            bare = bare or (not parts and group.name == step.name)
            name = f"{group.name}[{name}]"
        parts.append(name)
        branch = place[0]
    return (*reversed(parts), *(() if bare else (step.name,)))


def number(place: Place) -> str:
    """Where an operation stands, for a list: `3`, and `3.1` inside of a branch of 3."""
    around = _around(place[0])
    return str(place[1]) if around is None else f"{number(around)}.{place[1]}"


def _around(branch: str) -> Place | None:
    try:
        return parent_place(branch)
    except ValueError:  # a path of another make
        return None


def _unescaped(name: str) -> str:
    return name.replace("%3A", ":").replace("%2F", "/").replace("%25", "%")


def position(place: Place) -> str:
    """A place for a person: "operation 3", "operation 2 of branch 'left'"."""
    branch, seq = place
    return f"operation {seq}" + (f" of branch {branch!r}" if branch else "")
