"""Looking whether the wall clock jumped: the marks by which that is judged, and the record of each jump."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from durable_cli.core import clocks
from durable_cli.engine import Engine, wall_clock
from durable_cli.store import activity, clock
from durable_cli.store.database import Tx


def mark_now(engine: Engine, now: int) -> clocks.Mark:
    """This moment by both clocks; by the wall clock alone where that is injected or the other unknown."""
    if engine.now is not wall_clock:
        return clocks.Mark(now, None, None)
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = f"{file.read().strip()} {_time_namespace()}"
        return clocks.Mark(now, boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)
    except (OSError, AttributeError):
        return clocks.Mark(now, None, None)


def _time_namespace() -> str:
    """In each, the clock that counts since boot begins elsewhere; a kernel that has none has one for all."""
    try:
        return os.readlink("/proc/self/ns/time")
    except OSError:
        return ""


def doubt(tx: Tx, now: clocks.Mark) -> str | None:
    """Why the clock cannot be trusted now, in words; None if nothing speaks against it."""
    return clocks.suspect(clock.mark(tx, clock.BELIEVED), now, clock.newest_moment(tx))


def recorded(tx: Tx, now: clocks.Mark) -> bool:
    """Has this very jump been recorded: was the clock doubted already, and has it run on since?"""
    seen = clock.mark(tx, clock.DOUBTED)
    return seen is not None and clocks.ran_on(seen, now)


def look(tx: Tx, now: clocks.Mark, *, trust: bool = False) -> str | None:
    """`doubt`, and keep what was seen: a mark where the clock is believed, else each jump once as activity.

    `trust`: somebody looked at the clock, and it is right, whatever speaks against it.
    """
    why = doubt(tx, now)
    if why is None or trust:
        believed = clock.mark(tx, clock.BELIEVED)
        trusted = clock.newest_moment(tx) if trust else believed.trusted if believed is not None else None
        clock.leave_mark(tx, clock.BELIEVED, replace(now, trusted=trusted))
        clock.forget(tx, clock.DOUBTED)
        return None
    if not recorded(tx, now):
        clock.leave_mark(tx, clock.DOUBTED, now)
        activity.clock_jumped(tx, at=now.wall, reason=why)
    return why
