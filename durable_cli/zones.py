"""Which time zone this machine is in, by its IANA name. A schedule stores the name once, and keeps it when the machine
travels.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from durable_cli.errors import InvalidZone

_LOCALTIME: Final = Path("/etc/localtime")
_NAME_FILE: Final = Path("/etc/timezone")


def system_zone() -> str:
    """The zone that the C library would use: `TZ`, else where `/etc/localtime` leads, else UTC.

    Raises InvalidZone where it has no IANA name (`TZ=CET-1CEST`, a copied file): a guess would show at the next change
    of the clocks.
    """
    given = os.environ.get("TZ")
    if given is not None:
        return _named_by_tz(given)
    if not _LOCALTIME.exists():
        return "UTC"
    for path in (_link(_LOCALTIME), os.path.realpath(_LOCALTIME)):
        _, marker, name = path.partition("/zoneinfo/")
        name = name.removeprefix("posix/").removeprefix("right/")
        if marker and _is_zone(name):
            return name
    written = _NAME_FILE.read_text(errors="replace").strip() if _NAME_FILE.is_file() else ""
    if written and _is_zone(written):
        return written
    raise InvalidZone(
        "this machine's time zone has no name (/etc/localtime is a file of its own): name one, such as Europe/Berlin",
        zone="/etc/localtime",
    )


def _named_by_tz(given: str) -> str:
    name = given.removeprefix(":")
    if not name:
        return "UTC"
    _, marker, below = name.partition("/zoneinfo/")
    name = below if marker else name
    if not _is_zone(name):
        raise InvalidZone(
            f"TZ={given} does not name a place; one is needed to know when clocks change: set it to one, such as"
            " Europe/Berlin, or give the moment in UTC",
            zone=given,
        )
    return name


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _is_zone(name: str) -> bool:
    from durable_cli.core.cron import zone

    try:
        zone(name)
    except InvalidZone:
        return False
    return True
