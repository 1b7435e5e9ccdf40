"""One field of a cron expression: which forms are accepted, and for every other one what is wrong with it and
what would be right. Pure.

croniter accepts what nobody means and names no field when it refuses, so the refusals are all made here; what
passes comes out in a form that `croniter.expand` (7.0.0) reads rightly. Two forms it reads wrongly: a stepped
range that wraps (`23-3/2` is 23, 2 to it instead of 23, 1, 3) is written out as a list, and a range of one
value (`5-5`, every value to it and 5 to Vixie cron) is refused.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Final

_MONTHS: Final = dict(jan=1, feb=2, mar=3, apr=4, may=5, jun=6, jul=7, aug=8, sep=9, oct=10, nov=11, dec=12)
_WEEKDAYS: Final = dict(sun=0, mon=1, tue=2, wed=3, thu=4, fri=5, sat=6)


class FieldRefused(Exception):
    """A field that is not accepted; becomes an InvalidCron, which knows the expression."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Field:
    """One of the five fields: which numbers, and which names for them."""

    name: str
    low: int
    high: int
    span: int
    """How many values there are; the day of week has 7, and 8 numbers for them."""
    names: dict[str, int] = field(default_factory=dict)


FIELDS: Final = (
    Field("minute", 0, 59, 60),
    Field("hour", 0, 23, 24),
    Field("day of month", 1, 31, 31),
    Field("month", 1, 12, 12, _MONTHS),
    Field("day of week", 0, 7, 7, _WEEKDAYS),
)
_DAY, _WEEKDAY = FIELDS[2], FIELDS[4]
_ITEM = re.compile(r"(?:\*|(?P<low>[a-z0-9]+)(?:-(?P<high>[a-z0-9]+))?)(?P<slash>/(?P<step>[0-9]+))?")


def accept(where: Field, text: str) -> str:
    """The field in a form that croniter reads rightly; raises FieldRefused."""
    items = text.split(",")
    for item in items:
        if item == "":
            raise FieldRefused(f"{text!r} has a comma with nothing beside it")
        if item in ("*", "?") and len(items) > 1:
            raise FieldRefused(f"{item!r} in {text!r} is every value already", "write *")
    marks = [item for item in items if where is _WEEKDAY and ("#" in item or item.startswith("l"))]
    if marks and len(marks) < len(items):
        raise FieldRefused(f"{marks[0]!r} and plain weekdays cannot be mixed in {text!r}: make two schedules")
    return ",".join(_accept_item(where, item) for item in items)


def _accept_item(where: Field, item: str) -> str:
    if item == "?" and where in (_DAY, _WEEKDAY):
        return "*"
    if (item == "l" and where is _DAY) or (where is _WEEKDAY and re.fullmatch("l[0-7]", item)):
        return item
    if "#" in item and where is _WEEKDAY:
        return _accept_nth(item)
    if where is _DAY:
        item = re.sub("-l(?=/|$)", "-31", item)
    _refuse_other_dialects(where, item)
    shape = _ITEM.fullmatch(item)
    if shape is None:
        raise FieldRefused(f"{item!r} is not a number, a name, a range such as 1-5 or a step such as */2")
    step = _step(where, item, shape["step"]) if shape["slash"] else 1
    if shape["low"] is None:
        return item
    low = _number(where, shape["low"])
    if shape["high"] is None:
        return item
    high = _number(where, shape["high"])
    if (low - high) % where.span == 0 and (low, high) != (0, 7):
        raise FieldRefused(f"{item!r} is a range of one value", f"write {low}, or * for every value")
    if step > 1 and low > high:
        around = range(low - where.low, high - where.low + where.span + 1, step)
        return ",".join(str(value % where.span + where.low) for value in around)
    return item


def _number(where: Field, text: str) -> int:
    if not text.isdigit():
        if text in where.names:
            return where.names[text]
        near = [name for name in where.names if text.startswith(name)]
        near = near or difflib.get_close_matches(text, where.names, n=1)
        known = f"names here are {' '.join(where.names)}" if where.names else "this field has no names"
        raise FieldRefused(f"{text!r} is not a number; {known}", f"write {near[0]}" if near else None)
    value = int(text) if len(text) < 10 else 10**9
    if not where.low <= value <= where.high:
        hint = "write 0" if value == where.high + 1 and where.low == 0 and where is not _WEEKDAY else None
        raise FieldRefused(f"{text} is not between {where.low} and {where.high}", hint)
    return value


def _step(where: Field, item: str, text: str) -> int:
    step = int(text) if len(text) < 10 else 10**9
    if step == 0:
        raise FieldRefused(f"{item!r} has a step of 0")
    if step > where.span:
        raise FieldRefused(f"{item!r} has a step of {text}, larger than the field's {where.span} values")
    return step


def _accept_nth(item: str) -> str:
    """`5#2`, the second Friday."""
    day, _, which = item.partition("#")
    if not re.fullmatch("[1-5]", which):
        hint = f"write L{_WEEKDAYS.get(day, day)}" if which == "l" else None
        raise FieldRefused(f"{item!r}: after # comes 1 to 5", hint)
    if not re.fullmatch("[a-z0-9]+", day):
        raise FieldRefused(f"{item!r}: before # comes one weekday")
    return f"{_number(_WEEKDAY, day) % 7}#{which}"


def _refuse_other_dialects(where: Field, item: str) -> None:
    """Marks that mean something in Jenkins, Quartz or croniter, each with what would be right here."""
    if re.fullmatch(r"[hr](\(.*\))?(/.*)?", item):
        raise FieldRefused(f"{item.upper()!r} would pick a value by hash or dice: write the value you mean")
    if re.fullmatch(r"w[0-9]+|[0-9]+w|lw|wl", item):
        raise FieldRefused(f"{item.upper()!r}: W (the nearest working day) is not supported")
    if item.startswith("?"):
        raise FieldRefused(f"{item!r}: ? stands alone, in the day of month or the day of week", "write *")
    if "#" in item:
        raise FieldRefused(f"{item!r}: # belongs to the day of week")
    if where is _WEEKDAY:
        _refuse_last_weekday(item)
    elif re.fullmatch(r"l|l[-/].*|.*-l|l[0-9]+|[0-9]+l", item):
        here = "stands alone" if where is _DAY else "belongs to the day of month or the day of week"
        raise FieldRefused(f"{item.upper()!r}: L (the last day) {here}")


def _refuse_last_weekday(item: str) -> None:
    """`5L`, `friL`, `Lfri` and `L` alone."""
    if item == "l":
        raise FieldRefused("'L' needs a weekday here (L5, the last Friday); the month's last day is L in field 3")
    day = item.removesuffix("l") if item.endswith("l") else item.removeprefix("l")
    number = _WEEKDAYS.get(day, day)
    if day != item and re.fullmatch("[0-7]", str(number)):
        raise FieldRefused(f"{item.upper()!r}: the last such weekday is written L{number}", f"write L{number}")
    if day != item and (day.isdigit() or not day):
        raise FieldRefused(f"{item.upper()!r}: after L comes a weekday, 0 to 7")
