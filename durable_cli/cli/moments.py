"""Moments in a zone, for commands about schedules: read, shown with their offset, computed from a cron expression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_cli import render
from durable_cli.errors import DurableError, UsageError

if TYPE_CHECKING:
    from durable_cli.cli.session import Session


def default_zone(session: Session) -> str:
    """The zone in force where none is named: the configuration's, else the system's."""
    from durable_cli.zones import system_zone

    configured: str | None = getattr(session.config(), "timezone", None)
    return configured or system_zone()


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
    return round(moment.timestamp() * 1000)
