"""Can the wall clock be trusted to judge ages? Pure.

The clock is used as it is for everything that waits; but deleting what is "older than 30 days" by a clock that jumped
to 1970 or fifty years ahead would delete everything or nothing for ever. So each prune compares the clock with the
mark that the last one left: within one boot with the clock that counts since boot (suspend included), which no step
of the wall clock moves; across boots with the past it must not be behind of, and with a year it should not leap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STEP_MS: Final = 5 * 60_000
LEAP_MS: Final = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment by both clocks: `wall` in ms UTC, `boottime` in ms since the boot `boot`."""

    wall: int
    boot: str | None
    boottime: int | None


def suspect(mark: Mark | None, now: Mark, newest: int | None) -> str | None:
    """Why the clock cannot be trusted now, in words; None if nothing speaks against it.

    `mark`: the last one left; `newest`: the moment of the newest record (ms UTC).
    """
    if newest is not None and now.wall < newest - STEP_MS:
        return f"it is {_days(newest - now.wall)} behind the newest record"
    if mark is None:
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


def _days(milliseconds: int) -> str:
    days = milliseconds / 86_400_000
    return f"{days:.0f} days" if days >= 2 else f"{milliseconds / 60_000:.0f} minutes"
