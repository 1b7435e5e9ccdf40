"""Moments in a zone, for commands about schedules: read, shown with their offset, computed from a cron expression."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from durable_cli import render
from durable_cli.core.timing import check_moment
from durable_cli.errors import DurableError, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from durable_cli.cli.session import Session


def default_zone(session: Session) -> str:
    """The zone in force where none is named: the configuration's, else the system's."""
    from durable_cli.zones import system_zone

    config = session.config()
    return (config.timezone if config else None) or system_zone()


def check(cron: str, zone: str | None) -> None:
    """Raises InvalidCron, InvalidZone."""
    from durable_cli.core import cron as rules

    rules.parse(cron)
    if zone is not None:
        rules.zone(zone)


def fires(cron: str, zone: str, after: int, count: int) -> list[int]:
    """The next due times after a moment. Raises InvalidCron, InvalidZone."""
    from durable_cli.core import cron as rules

    return rules.fires(rules.parse(cron), rules.zone(zone), after, count)


def notes(cron: str) -> tuple[str, ...]:
    """Readings of this expression that surprise."""
    from durable_cli.core import cron as rules

    return rules.notes(rules.parse(cron))


def local(at: int | None, zone: str, *, day: bool = True) -> str:
    """`Mon 2026-11-30 02:30 +01:00` (`day` False: without `Mon`); in UTC where the zone is not known here."""
    if at is None:
        return "-"
    from datetime import datetime

    from durable_cli.core import cron as rules

    try:
        moment = datetime.fromtimestamp(at / 1000, rules.zone(zone))
    except (DurableError, OverflowError, ValueError):
        return render.iso(at) or "-"
    offset = moment.strftime("%z")
    name = f"{('Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun')[moment.weekday()]} " if day else ""
    seconds = "" if moment.second == 0 else f":{moment.second:02d}"
    return f"{name}{moment:%Y-%m-%d %H:%M}{seconds} {offset[:3]}:{offset[3:5]}"


def parse(text: str, zone: str) -> int:
    """A moment in ms UTC: ISO 8601; without an offset it is meant in `zone`."""
    from datetime import datetime

    from durable_cli.core import cron as rules

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a moment", hint="write 2026-12-24T18:00, or with Z or +01:00 at its end"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=rules.zone(zone))
    try:
        return check_moment(round(moment.timestamp() * 1000))
    except OverflowError:
        raise UsageError(f"{text!r} is beyond what a calendar here can say") from None


def told(at: int, session: Session) -> str:
    """A moment for a person in the local zone, which is named; in UTC where that has no name."""
    try:
        zone = default_zone(session)
    except DurableError:
        zone = "UTC"
    return f"{local(at, zone)} ({zone})"


def as_datetime(at: int) -> datetime:
    """A moment for the library."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at / 1000, UTC)


_LATE_MS: Final = 60_000
"""A moment given may be so long over: `date -Is` has no fractions, and commands take a while."""
_CLOCK: Final = re.compile(r"(?:(today|tomorrow)[ T])?(\d{1,2}):(\d{2})", re.ASCII)


def ahead(text: str, session: Session) -> tuple[int, str | None]:
    """The moment of `--at` in ms UTC, and the zone it was read in (None: it says its offset itself).

    ISO 8601, without an offset in the local zone, or `18:00`: today, tomorrow if that is over (also `today 18:00`).
    Raises UsageError, also for what is over, InvalidZone.
    """
    now = session.now()
    zone: str | None
    clock = _CLOCK.fullmatch(text.strip())
    if clock is not None:
        zone = here = default_zone(session)
        at = _next_time(clock[1], int(clock[2]), int(clock[3]), here, now, text)
    else:
        zone = None if _has_offset(text) else default_zone(session)
        at = parse(text, zone or "UTC")
    if at < now - _LATE_MS:
        raise UsageError(f"{text!r} is over: it was {render.age(at, now)}", hint="leave it out to start now")
    return at, zone


def _has_offset(text: str) -> bool:
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _next_time(day: str | None, hour: int, minute: int, zone: str, now: int, text: str) -> int:
    from datetime import datetime, timedelta

    from durable_cli.core import cron as rules

    if hour > 23 or minute > 59:
        raise UsageError(f"{text!r} is no time of a day; it goes from 00:00 to 23:59")
    today = datetime.fromtimestamp(now / 1000, rules.zone(zone))

    def on(days: int) -> list[int]:
        """The moments at which clocks there show that time: two where an hour is repeated."""
        wanted = (today + timedelta(days=days)).replace(hour=hour, minute=minute, second=0, microsecond=0)
        return [round(wanted.replace(fold=fold).timestamp() * 1000) for fold in (0, 1)]

    moments = on(1) if day == "tomorrow" else on(0) if day == "today" else [*on(0), *on(1)]
    return next((moment for moment in moments if moment > now), moments[0])
