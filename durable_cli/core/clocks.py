"""Can the wall clock be trusted to judge ages? Pure.

The clock is used as it is for everything that waits; but deleting what is "older than 30 days" by a clock that jumped
to 1970 or fifty years ahead would delete everything or nothing for ever. So the clock is compared with the mark that the
last look left: within one boot with the clock that counts since boot (suspend included), which no step of the wall clock
moves; across boots with the past it must not be behind of, and with a year it should not leap. Without a mark the newest
record is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STEP_MS: Final = 5 * 60_000
LEAP_MS: Final = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment by both clocks: `wall` in ms UTC, `boottime` in ms since the boot `boot`.

    `trusted`: the moment of the newest record when somebody last said that the clock is right. What lies in the future
    up to there was written by a clock that was wrong, and says nothing any more.
    """

    wall: int
    boot: str | None
    boottime: int | None
    trusted: int | None = None


def suspect(mark: Mark | None, now: Mark, newest: int | None) -> str | None:
    """Why the clock cannot be trusted now, in words; None if nothing speaks against it.

    `mark`: the last one left; `newest`: the moment of the newest record (ms UTC).
    """
    told = newest is not None and (mark is None or mark.trusted is None or newest > mark.trusted)
    if told and newest is not None and now.wall < newest - STEP_MS:
        return f"it is {_days(newest - now.wall)} behind the newest record"
    if mark is None:
        if newest is not None and now.wall - newest > LEAP_MS:
            return f"it is {_days(now.wall - newest)} ahead of the newest record"
        return None
    if now.wall < mark.wall - STEP_MS:
        return f"it is {_days(mark.wall - now.wall)} behind the last time it was looked at"
    if mark.boot is not None and mark.boot == now.boot and None not in (mark.boottime, now.boottime):
        passed = (now.boottime or 0) - (mark.boottime or 0)
        drift = (now.wall - mark.wall) - passed
        if abs(drift) > STEP_MS:
            return f"it was set {_days(abs(drift))} {'ahead' if drift > 0 else 'back'} since this machine started"
        return None
    if now.wall - mark.wall > LEAP_MS:
        return f"it is {_days(now.wall - mark.wall)} ahead of the last time it was looked at"
    return None


def ran_on(seen: Mark, now: Mark) -> bool:
    """Has the clock run on as clocks do since that mark, so that what was wrong with it then is the same jump now?"""
    return suspect(seen, now, None) is None


def _days(milliseconds: int) -> str:
    days = milliseconds / 86_400_000
    return f"{days:.0f} days" if days >= 2 else f"{milliseconds / 60_000:.0f} minutes"
