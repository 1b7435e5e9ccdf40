"""When a schedule fires, and what becomes of the due times that nobody was there for. Pure: moments are ms UTC.

A schedule keeps its next due time. Whoever looks and finds it passed decides here, for all that came due since:

- The newest due time is fired, once; those before it are **missed**, and counted. So a night of sleep, a year without
  power and a wall clock that jumped ahead are one fire each, whether or not the process that slept is the same.
- The newest is **on time** while it is at most ten minutes old and not half way to the one after it. Later than that
  it is a catch-up for missed ones (`catchup="one"`), or recorded and not fired (`"skip"`).
- A catch-up just before the next due time waits for it, or two runs would start within seconds.

**A due time that was fired is claimed**, one by one and for good: a clock that is set back comes to it again and does
not fire it again. Those that were never fired by themselves, because a clock that ran ahead jumped over them, come
due as ever: the schedule goes on at once, and does not sit out the difference.

Jitter moves the start, not the due time: by a delay that follows from the schedule's name and the due time alone, so
that every process computes the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from durable_cli.core.keys import brief, check_key
from durable_cli.core.policies import listed, parse_on_duplicate
from durable_cli.core.timing import Duration, parse_duration
from durable_cli.errors import InvalidName, UsageError
from durable_cli.model import Catchup, OnDuplicate

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from durable_cli.core.cron import Cron

MAX_FAILURES: Final = 5
"""So many fires in a row that failed pause a schedule."""
BROKEN_RETRY_MS: Final = 60_000
"""When a schedule whose expression cannot even be read is looked at again."""
MAX_JITTER_MS: Final = 86_400_000
_LATE_MS: Final = 600_000
_BESIDE_MS: Final = 10_000
_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.:\-]{0,127}")


# -- what is asked for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spec:
    """A schedule as somebody asked for it, each option checked by itself. `timezone` None: nobody said."""

    name: str
    cron: str
    timezone: str | None
    key: str | None
    on_duplicate: OnDuplicate | None
    catchup: Catchup
    jitter_ms: int


def check_spec(
    *,
    name: object,
    cron: object,
    timezone: object,
    key: object,
    on_duplicate: object,
    catchup: object,
    jitter: Duration | None,
) -> Spec:
    """The options of a schedule. Raises InvalidName, InvalidCron (its form only), InvalidKey, InvalidDuration,
    UsageError. Whether the zone exists and the dates ever come is for `core.cron` to say.
    """
    from durable_cli.core.cron_fields import check_form

    if timezone is not None and not isinstance(timezone, str):
        raise UsageError(f"timezone={brief(timezone)}: it is the name of a zone, such as Europe/Berlin")
    jitter_ms = 0 if jitter is None else parse_duration(jitter)
    if jitter_ms > MAX_JITTER_MS:
        raise UsageError(f"jitter={brief(jitter)}: at most a day")
    return Spec(
        name=check_schedule_name(name),
        cron=check_form(cron),
        timezone=timezone,
        key=check_key(key),
        on_duplicate=None if on_duplicate is None else parse_on_duplicate(on_duplicate),
        catchup=parse_catchup(catchup),
        jitter_ms=jitter_ms,
    )


def check_schedule_name(name: object) -> str:
    """The name of a schedule: as a workflow's, and `:` too. `InvalidName` otherwise."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"{brief(name)} cannot be the name of a schedule: 1 to 128 letters, digits, '_', '.', ':' and '-', "
            "beginning with a letter, a digit or '_'"
        )
    return str.__str__(name)


def parse_catchup(value: object) -> Catchup:
    """`one` or `skip`, else `UsageError`."""
    if isinstance(value, str) and value in set(Catchup):
        return Catchup(value)
    raise UsageError(f"catchup is one of {listed(Catchup)}, not {brief(value)}")


# -- when it fires ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """What of a schedule says when it fires."""

    name: str
    cron: Cron
    zone: ZoneInfo
    catchup: Catchup
    jitter_ms: int

    def starts_at(self, due_at: int) -> int:
        """When the fire of this due time starts: later by its jitter."""
        if self.jitter_ms == 0:
            return due_at
        import hashlib

        dice = hashlib.blake2b(f"{self.name}\0{due_at}".encode(), digest_size=8).digest()
        return due_at + int.from_bytes(dice) % (self.jitter_ms + 1)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing fires now. `next_at` is the due time to wait for, `wake_at` when to look again (None: never)."""

    next_at: int | None
    wake_at: int | None


@dataclass(frozen=True, slots=True)
class Fire:
    """`due_at` fires, or (`starts` False) is recorded as missed with the others; `next` comes after it.

    `missed`: how many due times nobody was there for, `due_at` among them unless it is on time.
    """

    due_at: int
    missed: int
    starts: bool
    next: Wait


def following(rule: Rule, after: int, claimed: Collection[int]) -> Wait:
    """The first due time later than `after` that was not fired yet (`claimed`: those that were)."""
    from durable_cli.core.cron import fires

    ahead = {at for at in claimed if at > after}
    found = next((at for at in fires(rule.cron, rule.zone, after, len(ahead) + 1) if at not in ahead), None)
    return Wait(found, None if found is None else rule.starts_at(found))


def look_back(rule: Rule, next_at: int | None, now: int, claimed: Collection[int]) -> Wait:
    """The clock was set back since `next_at` was computed: what comes next. What is due already stays due."""
    again = following(rule, now, claimed)
    if next_at is not None and (again.next_at is None or next_at < again.next_at):
        return Wait(next_at, rule.starts_at(next_at))
    return again


def decide(rule: Rule, next_at: int, now: int, claimed: Collection[int]) -> Fire | Wait:
    """What becomes of the due times from `next_at` to now. `claimed`: those from `next_at` on that were fired."""
    from durable_cli.core.cron import last_due

    until = now
    while (found := last_due(rule.cron, rule.zone, next_at - 1, until)) is not None:
        newest, count = found
        if newest not in claimed and rule.starts_at(newest) <= now:
            break
        until = newest - 1
    else:
        return _not_yet(rule, next_at, now, claimed)
    count -= sum(next_at <= at <= newest for at in claimed)
    after = following(rule, newest, claimed)
    on_time = now - rule.starts_at(newest) <= _patience(newest, after.next_at)
    starts = on_time or rule.catchup is Catchup.ONE
    if starts and not on_time and after.wake_at is not None and after.wake_at - now <= _BESIDE_MS:
        return Wait(next_at, after.wake_at)
    return Fire(newest, count - on_time, starts, after)


def _not_yet(rule: Rule, next_at: int, now: int, claimed: Collection[int]) -> Wait:
    """Its jitter has not passed; or, where the zone's rules have changed since, it is no due time any more."""
    if next_at > now or rule.starts_at(next_at) > now:
        return Wait(next_at, rule.starts_at(next_at))
    return following(rule, now, claimed)


def _patience(due_at: int, next_at: int | None) -> int:
    """How late a fire may be and still be the one that was meant."""
    return _LATE_MS if next_at is None else min(_LATE_MS, (next_at - due_at) // 2)
