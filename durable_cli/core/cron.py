"""When a cron expression fires: the rule for changing clocks, in one place. Pure: moments are ms UTC.

`parse` (in `cron_fields`) says which minutes of the wall clock an expression names. This module lays them on
the time line of a zone, by the rule of Vixie cron (SPEC section 5):

- A job whose minute or hour field begins with `*` follows elapsed time: it fires whenever the wall clock
  shows a minute that fits. What fits in a repeated hour fires twice, in a skipped one not at all.
- Any other job has fixed times. Each fires **the first time the wall clock shows that time or a later one**:
  once in a repeated hour, and right after the gap when it was skipped. Several times in one gap, and a time
  at the gap's end, fire once together. That holds for gaps and repetitions of any length (Apia skipped a
  whole day in 2011), where Vixie cron stops at three hours and takes a longer jump for a clock that was set.

How. The time line is cut into stretches of one UTC offset. Each carries `reached`, the time that the wall
clock had shown before it: below it nothing is new (a repeated hour), and what lies between it and the
stretch's first time was skipped (a gap). Within a stretch all is arithmetic on the wall clock, so stepping
forward (`fires`) and looking back (`last_due`) share the rule, and years of `* * * * *` are counted by days.

croniter computes no fire here: its walk gives two fires in a repeated hour and a shifted one in a gap,
`get_next` and `get_prev` differ in Lord Howe, and it cannot count. Zones use `utcoffset` alone, so negative
DST (Dublin) and fractional offsets (Kathmandu, Lord Howe) need no special case.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from durable_cli.core.cron_fields import Cron, notes, parse
from durable_cli.errors import InvalidZone

__all__ = ["Cron", "fires", "last_due", "next_fire", "notes", "parse", "zone"]

_DAY = 86_400
_LOOKBACK = 2 * _DAY
"""No offset differs from another by more than 26 hours: after two days `reached` is right."""
_LONGEST = 32 * _DAY
"""Stretches are cut at about a month, so that the first fire costs no walk to the next change."""
_HORIZON = 50 * 366 * _DAY
"""How far a fire is looked for. 29 February on a given weekday comes at least every 40 years."""
_FIRST, _FINAL = -62_000_000_000, 253_401_000_000
"""About the years 5 and 9999: what `datetime` can say in every zone."""


def next_fire(cron: Cron, zone: ZoneInfo, after_ms: int) -> int | None:
    """The first due time later than `after_ms`; None when none comes within 50 years."""
    return next(_fires(cron, zone, after_ms), None)


def fires(cron: Cron, zone: ZoneInfo, after_ms: int, n: int) -> list[int]:
    """The first `n` due times later than `after_ms`, ascending (fewer at the end of the calendar)."""
    return list(islice(_fires(cron, zone, after_ms), n))


def last_due(cron: Cron, zone: ZoneInfo, after_ms: int, until_ms: int) -> tuple[int, int] | None:
    """The newest due time in (after_ms, until_ms] and how many are due there, exactly; None when none is."""
    first, end = _seconds(after_ms), _seconds(until_ms)
    newest, count = None, 0
    for stretch in _stretches(zone, first, end):
        part = _part(cron, stretch, first, end)
        if part.opening is not None:
            newest, count = part.opening, count + 1
        found = cron.last(part.low, part.high)
        if found is not None:
            newest, count = found * 60 - stretch.offset, count + cron.count(part.low, part.high)
    return None if newest is None else (newest * 1000, count)


def _fires(cron: Cron, zone: ZoneInfo, after_ms: int) -> Iterator[int]:
    first, found = _seconds(after_ms), True
    while found and first < _FINAL:
        end, found = min(first + _HORIZON, _FINAL), False
        for stretch in _stretches(zone, first, end):
            part = _part(cron, stretch, first, end)
            if part.opening is not None:
                found = True
                yield part.opening * 1000
            for minute in cron.minutes(part.low, part.high):
                found = True
                yield (minute * 60 - stretch.offset) * 1000
        first = end


def _seconds(after_ms: int) -> int:
    """The first whole second after this. Due times are whole seconds: (a, b] is [seconds(a), seconds(b))."""
    return min(max(after_ms // 1000 + 1, _FIRST), _FINAL)


# -- the time line of a zone ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stretch:
    """[start, end) in seconds UTC with one offset. `reached`: the wall clock showed all before it earlier."""

    start: int
    end: int
    offset: int
    reached: int


@dataclass(frozen=True, slots=True)
class _Part:
    """What fires in part of a stretch: at its opening what a gap skipped, then minutes of the wall clock."""

    opening: int | None
    low: int
    high: int


def _part(cron: Cron, stretch: _Stretch, first: int, end: int) -> _Part:
    """The due times of `stretch` within [first, end) seconds UTC."""
    shown = stretch.start + stretch.offset
    low = max(stretch.start, first) + stretch.offset
    high = min(stretch.end, end) + stretch.offset
    if cron.by_elapsed_time:
        return _Part(None, _minute(low), _minute(high))
    opening = None
    if stretch.reached < shown and first <= stretch.start:
        skipped = cron.count(_minute(stretch.reached), _minute(shown))
        due_itself = cron.count(_minute(shown), shown // 60 + 1)
        opening = stretch.start if skipped and not due_itself else None
    return _Part(opening, _minute(max(low, stretch.reached)), _minute(high))


def _minute(second: int) -> int:
    """The first minute that begins at `second` or later."""
    return -(-second // 60)


def _stretches(zone: ZoneInfo, first: int, end: int) -> Iterator[_Stretch]:
    """Cover [first, end) seconds UTC (and a little before it), ascending, without holes."""
    start = at = first - _LOOKBACK
    offset = _offset(zone, start)
    reached = start + offset
    while at < end:
        ahead = min(at + _DAY, end)
        changed = _offset(zone, ahead) != offset
        if changed:
            ahead = _change(zone, at, ahead)
        at = ahead
        if changed or at == end or at - start >= _LONGEST:
            yield _Stretch(start, at, offset, reached)
            reached = max(reached, at + offset)
            start, offset = at, _offset(zone, at)


def _change(zone: ZoneInfo, low: int, high: int) -> int:
    """The second in (low, high] from which another offset than that of `low` holds, by halving."""
    before = _offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, second: int) -> int:
    """Seconds that the wall clock is ahead of UTC at this second."""
    ahead = datetime.fromtimestamp(second, zone).utcoffset()
    assert ahead is not None  # a ZoneInfo always knows
    return ahead.days * _DAY + ahead.seconds


# -- names of zones ------------------------------------------------------------------------------------------

_ABBREVIATIONS = {
    "ACST": "Australia/Adelaide", "AEDT": "Australia/Sydney", "AEST": "Australia/Sydney",
    "AWST": "Australia/Perth", "BST": "Europe/London", "CDT": "America/Chicago", "CEST": "Europe/Berlin",
    "CET": "Europe/Berlin", "CST": "America/Chicago", "EDT": "America/New_York", "EEST": "Europe/Helsinki",
    "EET": "Europe/Helsinki", "EST": "America/New_York", "HKT": "Asia/Hong_Kong", "HST": "Pacific/Honolulu",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "KST": "Asia/Seoul", "MDT": "America/Denver",
    "MESZ": "Europe/Berlin", "MET": "Europe/Berlin", "MEZ": "Europe/Berlin", "MSK": "Europe/Moscow",
    "MST": "America/Denver", "NZDT": "Pacific/Auckland", "NZST": "Pacific/Auckland",
    "PDT": "America/Los_Angeles", "PST": "America/Los_Angeles", "SAST": "Africa/Johannesburg",
    "SGT": "Asia/Singapore", "WEST": "Europe/Lisbon", "WET": "Europe/Lisbon",
}  # fmt: skip
"""A place to name instead: a hint, never a guess. EST, MST, HST, CET, MET, EET and WET are names of tzdata as
well, but whoever writes EST rarely means -05:00 in July."""
_NO_PLACES = frozenset({"localtime", "posixrules", "Factory", "leapseconds"})


def zone(name: str) -> ZoneInfo:
    """The zone of this IANA name. Raises InvalidZone for unknown names and abbreviations, with near names."""
    known = isinstance(name, str) and name not in _NO_PLACES and not name.startswith(("posix/", "right/"))
    if known and name.upper() not in _ABBREVIATIONS:
        try:
            return ZoneInfo(name)
        except (OSError, ValueError, LookupError):  # not there, a folder, no such path, no zone file
            pass
    if not isinstance(name, str):
        raise InvalidZone(f"time zone {name!r}: it has to be text", zone=repr(name))
    place = _ABBREVIATIONS.get(name.upper())
    if place is not None:
        message = f"time zone {name!r} is an abbreviation, which different places read differently"
        raise InvalidZone(message, zone=name, candidates=(place,))
    near = () if name in _NO_PLACES else _near_zones(name[:64])
    message = f"there is no time zone {name!r}; a zone is named by its place, as in Europe/Berlin, or UTC"
    raise InvalidZone(message, zone=name, candidates=near)


def _near_zones(name: str) -> tuple[str, ...]:
    fixed = re.fullmatch(r"(?:UTC|GMT)?([+-])0?([0-9]{1,2})(?::?00)?", name, re.IGNORECASE)
    if fixed and 1 <= int(fixed[2]) <= 12:
        return (f"Etc/GMT{'-' if fixed[1] == '+' else '+'}{int(fixed[2])}",)  # POSIX counts westwards
    # Sorted before it is made a dictionary: the short, old names (Cuba) lose to places (America/Havana).
    names = sorted(available_timezones() - _NO_PLACES - set(_ABBREVIATIONS))
    folded = name.strip().replace(" ", "_").lower()
    whole = {n.lower(): n for n in names}
    city = {n.lower().rpartition("/")[2]: n for n in names if "/" in n}
    for table in (whole, city):
        if folded in table:
            return (table[folded],)
    near = difflib.get_close_matches(folded, whole, 2, 0.75) or difflib.get_close_matches(folded, city, 2, 0.75)
    return tuple((whole | city)[n] for n in near)
