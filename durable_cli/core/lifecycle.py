"""What leads to what in the life of a run: claims, crashes, attempts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from durable_cli.model import Status

MAX_CRASHES: Final = 5


class Orphan(StrEnum):
    """What becomes of an unfinished run whose owner died."""

    GIVE_BACK = "give_back"
    """It was resting: it only loses its owner."""
    COUNT_CRASH = "count_crash"
    """It was executing: the crash counts, and it goes on from its last record."""
    FAIL = "fail"
    """It killed its process too often in a row."""


def decide_orphan(status: Status, crashes: int, *, resting: bool) -> Orphan:
    """What to do with an unfinished run of a dead owner that died `crashes` times in a row before.

    `resting`: it has a due time, so its owner only stayed by it.
    """
    if resting or status not in (Status.RUNNING, Status.COMPENSATING):
        return Orphan.GIVE_BACK
    return Orphan.FAIL if crashes + 1 >= MAX_CRASHES else Orphan.COUNT_CRASH


@dataclass(frozen=True, slots=True)
class Claimable:
    """Whether a run may be claimed now, and if not why, in words for a person."""

    yes: bool
    reason: str = ""


class Awaited(StrEnum):
    """Who goes on with what a run waits for, where that is the end of other runs."""

    NOTHING = "nothing"
    """It waits for no run."""
    ATTENDED = "attended"
    """None of them could go on now, or somebody is there who executes them."""
    LEFT_ALONE = "left_alone"
    """One of them could go on, and nobody executes it."""


def decide_claim(
    status: Status,
    *,
    behind: bool,
    owned: bool,
    due_at: int | None,
    now: int,
    awaited: Awaited = Awaited.NOTHING,
) -> Claimable:
    """May somebody claim this run? `owned`: it has a live owner; `behind`: it waits behind a holder."""
    if status.finished:
        return Claimable(False, f"it is {status}")
    if behind:
        return Claimable(False, "it waits behind the run that holds its key")
    if owned:
        return Claimable(False, "a live process owns it")
    if awaited is Awaited.LEFT_ALONE or (due_at is not None and due_at <= now):
        return Claimable(True)
    if awaited is Awaited.ATTENDED:
        return Claimable(False, "it waits for the end of another run")
    if due_at is not None:
        return Claimable(False, "it is not due yet")
    if status is Status.WAITING:
        return Claimable(False, "it waits for an event or an answer")
    return Claimable(True)


class AttemptEnd(StrEnum):
    """What the end of a failed attempt leads to."""

    RETRY = "retry"
    FAIL = "fail"


def decide_attempt(*, failures: int, max_attempts: int, retryable: bool) -> AttemptEnd:
    """After `failures` attempts that raised (this one included): another, or the end of the step?"""
    return AttemptEnd.RETRY if retryable and failures < max_attempts else AttemptEnd.FAIL
