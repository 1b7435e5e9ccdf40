"""The five fields of a cron expression together: the local days and minutes that they name. Pure.

Who does what. The refusals are ours (`cron_items`), the values of an accepted field are croniter's
(`croniter.expand`: names, ranges, lists, steps, `#`, `L`). The walk over the calendar is ours again: croniter
drops the day of month beside a `#`, differs between forwards and backwards, takes `*/2` in a day field for a
restriction, which Vixie cron does not, and cannot count fires without visiting each.

Decisions where SPEC section 5 leaves room:
- `?` is `*`, in the two day fields only, as croniter and Quartz have it.
- `N/S` is `N-last/S`, and `N-L` is `N-31`, as croniter has them.
- Ranges may wrap (`22-3`, `fri-mon`); 0 and 7 are both Sunday, also as the ends of a range.
- A step may be as large as the number of the field's values (`*/60` is minute 0, as it says), not larger.
- The two day fields, as in Vixie cron: a day has to fit both when either begins with `*` (also `*/2`), else
  one of them.
- `#` and `L5` do not mix with plain weekdays in one list, and want the day of month to be `*`.
"""

from __future__ import annotations

import calendar
import difflib
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache

from durable_cli.core.cron_items import FIELDS, FieldRefused, accept
from durable_cli.errors import InvalidCron

MINUTES_A_DAY = 1440
LAST = -1
"""In `Cron.nth`: the last such weekday of the month."""

_EPOCH = date(1970, 1, 1).toordinal()
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_ORDER = "minute, hour, day of month, month, day of week"


# -- what an expression means --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cron:
    """An accepted expression, as local days and minutes; knows nothing of zones.

    Minutes are counted from 1970-01-01 00:00 on the wall clock, days likewise; ranges are half open.
    """

    text: str
    """The expression as it was written, with single blanks."""
    fields: tuple[str, str, str, str, str]
    """Its five fields in lower case, `@daily` and its like written out."""
    times: tuple[int, ...]
    """Minutes of a matching day, ascending."""
    days: frozenset[int]
    last_day: bool
    """`L` in the day of month."""
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday; empty when `nth` decides."""
    nth: frozenset[tuple[int, int]]
    """`#` and `L5`: (weekday, 1 to 5 or LAST)."""
    either_day: bool = field(repr=False)
    """Both day fields are restricted: one of them is enough."""
    by_elapsed_time: bool = field(repr=False)
    """The minute or hour field begins with `*`: the job follows elapsed time when the clocks change."""

    def days_of(self, year: int, month: int) -> list[int]:
        """The days of this month that fit, ascending."""
        if month not in self.months:
            return []
        first, length = calendar.monthrange(year, month)  # Monday is 0 there, and 1 here
        return [d for d in range(1, length + 1) if self._fits(d, (first + d) % 7, length)]

    def _fits(self, day: int, weekday: int, length: int) -> bool:
        by_date = day in self.days or (self.last_day and day == length)
        if self.nth:
            last = day + 7 > length and (weekday, LAST) in self.nth
            by_weekday = last or (weekday, (day + 6) // 7) in self.nth
        else:
            by_weekday = weekday in self.weekdays
        return (by_date or by_weekday) if self.either_day else (by_date and by_weekday)

    def _days(self, low: int, high: int) -> Iterator[int]:
        """The days in [low, high) that fit, ascending."""
        while low < high:
            at = date.fromordinal(low + _EPOCH)
            first = low - at.day + 1
            for day in self.days_of(at.year, at.month):
                if low <= first + day - 1 < high:
                    yield first + day - 1
            low = first + calendar.monthrange(at.year, at.month)[1]

    def _times(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Each day that fits in [low, high): its first minute, and which slice of `times` falls in."""
        if low < high:
            for day in self._days(low // MINUTES_A_DAY, -(-high // MINUTES_A_DAY)):
                start = day * MINUTES_A_DAY
                yield start, bisect_left(self.times, low - start), bisect_left(self.times, high - start)

    def minutes(self, low: int, high: int) -> Iterator[int]:
        """The minutes in [low, high) that fit, ascending."""
        for start, begin, end in self._times(low, high):
            for time in self.times[begin:end]:
                yield start + time

    def count(self, low: int, high: int) -> int:
        """How many minutes in [low, high) fit; the work grows with the days between, not with the answer."""
        return sum(end - begin for _, begin, end in self._times(low, high))

    def last(self, low: int, high: int) -> int | None:
        """The last minute in [low, high) that fits."""
        for start, begin, end in reversed(list(self._times(low, high))):
            if begin < end:
                return start + self.times[end - 1]
        return None


def notes(cron: Cron) -> tuple[str, ...]:
    """What a person who adds this schedule should see: readings of cron that surprise."""
    found = []
    for name, unit, span, text in (
        ("hour", "minutes", 60, cron.fields[0]),
        ("day", "hours", 24, cron.fields[1]),
    ):
        step = int(text[2:]) if re.fullmatch(r"\*/[0-9]+", text) else 1
        if span % step:
            found.append(f"{text} starts anew each {name}: its last gap is {span % step} {unit}, not {step}")
    if cron.either_day:
        found.append("day of month and day of week are both given: it fires on the days that fit either")
    return tuple(found)


# -- parsing -------------------------------------------------------------------------------------------------


def parse(expression: str) -> Cron:
    """Read a cron expression: five fields, or `@daily` and its like.

    Raises InvalidCron, which names the field and the reason, and what to write where that can be told.
    """
    if not isinstance(expression, str):
        raise InvalidCron(repr(expression), field="expression", reason="it has to be text")
    return _parse(expression)


def check_form(expression: object) -> str:
    """The expression, blanks made one each, if its form is accepted. As `parse`, without croniter's 50 ms: whether its
    dates ever come is left open.
    """
    if not isinstance(expression, str):
        raise InvalidCron(repr(expression), field="expression", reason="it has to be text")
    return _accepted(expression)[0]


@lru_cache(maxsize=256)
def _parse(expression: str) -> Cron:
    text, parts, accepted = _accepted(expression)
    cron = _expand(text, parts, accepted)
    # Any 28 years without a skipped leap year hold each kind of year, and 29 February on each weekday.
    if not any(cron.days_of(year, month) for year in range(2000, 2028) for month in cron.months):
        reason = f"{parts[2]!r} never comes in month {parts[3]!r}"
        raise InvalidCron(text, field=FIELDS[2].name, reason=reason)
    return cron


def _accepted(expression: str) -> tuple[str, tuple[str, str, str, str, str], str]:
    """The text, its five fields, and those in the form that croniter reads rightly."""
    written = re.findall(r"[^ \t\r\n\f\v]+", expression)
    text = " ".join(written)
    parts = _five_fields(text, written)
    accepted = []
    for where, part in zip(FIELDS, parts, strict=True):
        try:
            accepted.append(accept(where, part))
        except FieldRefused as refusal:
            raise InvalidCron(text, field=where.name, reason=refusal.reason, hint=refusal.hint) from None
    if ("#" in parts[4] or "l" in parts[4]) and parts[2] not in ("*", "?"):
        reason = f"{parts[4]!r} and the day of month {parts[2]!r} cannot be combined: make two schedules"
        raise InvalidCron(text, field=FIELDS[4].name, reason=reason)
    return text, parts, " ".join(accepted)


def _five_fields(text: str, written: list[str]) -> tuple[str, str, str, str, str]:
    """Write macros out, count the fields, lower the case."""
    first = written[0].lower() if written else ""
    if first.startswith("@"):
        _check_macro(text, first, alone=len(written) == 1)
        written = _MACROS[first].split()
    if len(written) != 5:
        raise _wrong_count(text, written)
    minute, hour, day, month, weekday = (part.lower() for part in written)
    return minute, hour, day, month, weekday


def _check_macro(text: str, word: str, *, alone: bool) -> None:
    hint = None
    if word == "@reboot":
        reason = "@reboot names no time; a worker that starts at boot picks up what is due"
    elif word not in _MACROS:
        near = difflib.get_close_matches(word, _MACROS, n=1)
        reason = f"{word} is not known; known are {' '.join(_MACROS)}"
        hint = f"write {near[0]}" if near else None
    elif not alone:
        reason = f"{word} stands alone, without fields or a command after it"
        hint = f"write {word}"
    else:
        return
    raise InvalidCron(text, field="expression", reason=reason, hint=hint)


def _wrong_count(text: str, written: list[str]) -> InvalidCron:
    count = len(written)
    number = {0: "it is empty", 1: "1 field"}.get(count, f"{count} fields")
    reason, hint = f"{number}, and five are needed: {_ORDER}", None
    if count > 5 and re.match(r"[/.~$]|[a-z_]{4}", written[5], re.IGNORECASE):
        reason += f"; {written[5]!r} looks like a command, which is not part of the expression"
        hint = f"write {' '.join(written[:5])!r}"
    elif count in (6, 7):
        reason += f"; there are no seconds (some tools read {written[0]!r} as seconds, others {written[5]!r})"
        reason += f" and no years ({written[6]!r})" if count == 7 else ""
        hint = f"write {' '.join(written[1:6])!r}" if written[0].strip("0") == "" else None
    return InvalidCron(text, field="expression", reason=reason, hint=hint)


def _expand(text: str, parts: tuple[str, str, str, str, str], accepted: str) -> Cron:
    """The values of five accepted fields, by croniter."""
    from croniter import CroniterError, croniter

    try:
        expanded, nth = croniter.expand(accepted)
    except CroniterError as error:  # Our check is the stricter one; should it not be, this is no traceback.
        raise InvalidCron(text, field="expression", reason=str(error)) from None
    minutes, hours, days, months, weekdays = (
        frozenset(range(f.low, f.low + f.span)) if "*" in values else frozenset(values)
        for f, values in zip(FIELDS, expanded, strict=True)
    )
    return Cron(
        text=text,
        fields=parts,
        times=tuple(sorted(h * 60 + m for h in hours for m in minutes)),
        days=days - {"l"},
        last_day="l" in days,
        months=months,
        weekdays=frozenset() if nth else weekdays,
        nth=frozenset((day, LAST if n == "l" else n) for day, which in nth.items() for n in which),
        either_day=parts[2][0] not in "*?" and parts[4][0] not in "*?",
        by_elapsed_time="*" in (parts[0][0], parts[1][0]),
    )
