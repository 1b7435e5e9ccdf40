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


def position(place: Place) -> str:
    """A place for a person: "operation 3", "operation 2 of branch 'left'"."""
    branch, seq = place
    return f"operation {seq}" + (f" of branch {branch!r}" if branch else "")
