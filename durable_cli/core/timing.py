"""Durations and delays: arithmetic on milliseconds, without a clock."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from durable_cli.errors import InvalidDuration, UsageError

_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_LONGEST_MS: Final = 1000 * 366 * 86_400_000  # a thousand years: more is a mistake, and stays inside 63 bits

_LAST_MOMENT: Final = 253_402_300_799_999  # the last millisecond of 9999 in UTC

Duration = timedelta | int | float | str


def parse_duration(value: Duration) -> int:
    """A duration as milliseconds.

    A timedelta, a number of seconds, or text: a number of seconds ("90", "0.5") or numbers with units ms, s, m, h,
    d, w, the larger first ("1h30m"). Raises InvalidDuration for anything else, for negative and for absurd lengths.
    """
    milliseconds = _milliseconds(value)
    if milliseconds is None or not 0 <= milliseconds <= _LONGEST_MS:
        raise InvalidDuration(
            f'{value!r} is not a duration; give a timedelta, a number of seconds, or text such as "90s" or "1h30m"'
        )
    return round(milliseconds)


def check_moment(at: int) -> int:
    """The moment (ms UTC), if a calendar can say it. Raises UsageError beyond the year 9999."""
    if at > _LAST_MOMENT:
        raise UsageError("a moment after the year 9999 is beyond what a calendar can say")
    return at


def _milliseconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value * 1000 if abs(value) < 1e15 else None  # also refuses NaN and infinities
    if not isinstance(value, str):
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,15}(\.\d+)?", text, re.ASCII):
        return float(text) * 1000
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    units = [_UNIT_MS[unit] for _, unit in parts]
    if units != sorted(set(units), reverse=True):
        return None  # "1m1h", "1h1h": more likely a slip than a wish
    return sum(float(number) * _UNIT_MS[unit] for number, unit in parts)


def format_duration(milliseconds: int) -> str:
    """The shortest exact text that `parse_duration` reads back: 5400000 -> "1h30m"."""
    if milliseconds == 0:
        return "0s"
    parts, rest = [], milliseconds
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def format_age(milliseconds: int) -> str:
    """About how long, for a person: "4m", "3h", "12d". Never negative: a clock set back shows "0s"."""
    seconds = max(0, milliseconds) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def format_count(number: object, what: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def backoff_ms(*, attempt: int, backoff: str, base_ms: int, max_delay_ms: int, jitter: float, dice: float) -> int:
    """How long to wait after failed attempt `attempt` (1 is the first).

    exponential: base·2^(n-1); linear: base·n; constant: base. Then capped at max_delay, then spread by ±jitter
    (`dice` is uniform in [0, 1)).
    """
    if backoff == "exponential":
        # 2^62 ms is beyond any cap; the bound keeps the number small.
        delay = base_ms << min(attempt - 1, 62)
    elif backoff == "linear":
        delay = base_ms * attempt
    else:
        delay = base_ms
    delay = min(delay, max_delay_ms)
    return max(0, round(delay * (1 + jitter * (2 * dice - 1))))


def debounce_due(*, now: int, first: int, period_ms: int, timeout_ms: int | None) -> int:
    """When a debounced run is due after a start at `now`, the first of the burst having come at `first`:
    min(now + period, first + timeout), but never before now."""
    due = now + period_ms
    return due if timeout_ms is None else max(now, min(due, first + timeout_ms))
