"""Stepping forward, looking back, the definition read word by word and cronsim agree on when a job fires."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from durable_cli.core import cron as timeline
from durable_cli.core.cron import Cron, fires, last_due, next_fire, parse, zone
from durable_cli.errors import InvalidCron

ALL_ZONES = sorted(available_timezones() - {"localtime", "Factory", "posixrules"})


def ms(text: str, where: ZoneInfo | None = None) -> int:
    moment = datetime.fromisoformat(text)
    return int(moment.replace(tzinfo=moment.tzinfo or where or UTC).timestamp()) * 1000


def by_looking_back(cron: Cron, where: ZoneInfo, after: int, until: int) -> list[int]:
    """All due times in (after, until], found from the end with `last_due` alone; its counts are checked."""
    found: list[int] = []
    counts: list[int] = []
    while (due := last_due(cron, where, after, until)) is not None:
        assert after < due[0] <= until
        found.append(due[0])
        counts.append(due[1])
        until = due[0] - 1
    assert counts == list(range(len(counts), 0, -1))
    return found[::-1]


def by_stepping(cron: Cron, where: ZoneInfo, after: int, until: int) -> list[int]:
    """All due times in (after, until], found with `next_fire` alone."""
    found: list[int] = []
    moment = next_fire(cron, where, after)
    while moment is not None and moment <= until:
        assert moment > (found[-1] if found else after)
        found.append(moment)
        moment = next_fire(cron, where, moment)
    return found


def alike() -> dict[tuple[int, ...], str]:
    """Every zone of tzdata, one for each way the clocks behaved in 2025 and 2026, by its offsets each 12 hours."""
    start = ms("2025-01-01") // 1000
    found: dict[tuple[int, ...], str] = {}
    for name in ALL_ZONES:
        where = ZoneInfo(name)
        found.setdefault(tuple(timeline._offset(where, start + half * 43_200) for half in range(2 * 731)), name)
    return found


def test_in_every_zone_stepping_finds_what_looking_back_finds() -> None:
    """Two years, every zone: the same list around each change, the same number over the whole."""
    start = ms("2025-01-01")
    sparse = parse("30 2 * * *")
    dense = [parse(text) for text in ("0 * * * *", "15 0 * * *", "0,30 0-3 * * *", "*/30 0-3 * * *")]
    changes = 0
    for offsets, name in alike().items():
        where = ZoneInfo(name)
        stepped = [f for f in fires(sparse, where, start, 800) if f <= start + 730 * 86_400_000]
        assert last_due(sparse, where, start, start + 730 * 86_400_000) == (stepped[-1], len(stepped)), name
        for half in range(1, len(offsets)):
            if offsets[half] != offsets[half - 1]:
                changes += 1
                after = start + (half - 2) * 43_200_000
                until = start + (half + 1) * 43_200_000
                for cron in [sparse, *dense]:
                    assert by_stepping(cron, where, after, until) == by_looking_back(cron, where, after, until), (
                        name,
                        cron.text,
                    )
    assert changes > 50


@st.composite
def a_field(draw: st.DrawFn, low: int, high: int, *, wrap: bool = True) -> tuple[str, frozenset[int]]:
    """The text of a field and the values it names, worked out without the code under test."""
    everything = range(low, high + 1)
    kind = draw(st.sampled_from(["star", "star", "step", "value", "range", "list", "stepped"]))
    if kind == "star":
        return "*", frozenset(everything)
    step = draw(st.integers(1, len(everything)))
    if kind == "step":
        return f"*/{step}", frozenset(everything[::step])
    if kind in ("value", "list"):
        chosen = draw(st.lists(st.sampled_from(everything), min_size=1, max_size=1 if kind == "value" else 4))
        return ",".join(map(str, chosen)), frozenset(chosen)
    first, last = draw(st.sampled_from(everything)), draw(st.sampled_from(everything))
    assume(first != last and (wrap or first < last))
    around = [*everything, *everything]
    begin = around.index(first)
    chosen = around[begin : around.index(last, begin) + 1]
    if kind == "range":
        return f"{first}-{last}", frozenset(chosen)
    return f"{first}-{last}/{step}", frozenset(chosen[::step])


Fields = tuple[tuple[str, frozenset[int]], ...]
EVERY_QUARTER: Fields = (  # at fixed times, as no field of the time begins with a star
    ("0-45/15", frozenset({0, 15, 30, 45})), ("0-23", frozenset(range(24))), ("*", frozenset(range(1, 32))),
    ("*", frozenset(range(1, 13))), ("*", frozenset(range(7))),
)  # fmt: skip


def five_fields(*, wrap: bool = True) -> st.SearchStrategy[Fields]:
    limits = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]
    return st.tuples(*(a_field(low, high, wrap=wrap) for low, high in limits))


def text_of(fields: Fields) -> str:
    return " ".join(text for text, _ in fields)


def parse_if_it_ever_comes(fields: Fields) -> Cron:
    """Fields that were built by the rules are refused for one reason only."""
    try:
        return parse(text_of(fields))
    except InvalidCron as refusal:
        if "never comes" not in refusal.reason:
            raise
    reject()


def fits(fields: Fields, at: datetime) -> bool:
    (_, minutes), (_, hours), (day_text, days), (_, months), (weekday_text, weekdays) = fields
    by_date, by_weekday = at.day in days, at.isoweekday() % 7 in weekdays
    either = "*" not in (day_text[0], weekday_text[0])
    day = (by_date or by_weekday) if either else (by_date and by_weekday)
    return at.minute in minutes and at.hour in hours and at.month in months and day


def by_definition(fields: Fields, where: ZoneInfo, after: int, until: int) -> list[int]:
    """The rule read word by word: look at the clock every minute, remembering the latest time it ever showed."""
    elapsed = "*" in (fields[0][0][0], fields[1][0][0])
    latest = datetime.min
    found = []
    for moment in range(after - after % 60_000 - 2 * 86_400_000, until + 1, 60_000):
        clock = datetime.fromtimestamp(moment // 1000, where).replace(tzinfo=None, fold=0)
        if elapsed:
            due = fits(fields, clock)
        else:
            new = clock if latest == datetime.min else latest + timedelta(minutes=1)
            due = False
            while new <= clock and not due:
                due = fits(fields, new)
                new += timedelta(minutes=1)
            latest = max(latest, clock)
        if due and after < moment <= until:
            found.append(moment)
    return found


CHANGES = [  # near a change of the clock: UTC days of gaps and repetitions of many kinds
    ("America/New_York", "2026-03-08"), ("America/New_York", "2026-11-01"), ("Europe/Berlin", "2026-10-25"),
    ("America/Santiago", "2026-09-06"), ("America/Santiago", "2026-04-05"), ("Australia/Lord_Howe", "2026-10-03"),
    ("Australia/Lord_Howe", "2026-04-04"), ("Antarctica/Troll", "2026-03-29"), ("Antarctica/Troll", "2026-10-25"),
    ("Europe/Dublin", "2026-10-25"), ("Pacific/Apia", "2011-12-30"), ("Asia/Kathmandu", "1985-12-31"),
    ("Africa/Casablanca", "2026-02-15"), ("Asia/Gaza", "2040-10-20"), ("Pacific/Kwajalein", "1993-08-21"),
    ("Asia/Pyongyang", "2018-05-04"), ("America/Caracas", "2016-05-01"), ("UTC", "2024-02-29"),
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    fields=five_fields() | st.just(EVERY_QUARTER),
    change=st.sampled_from(CHANGES),
    shift=st.integers(-26 * 60, 2 * 60),
    length=st.integers(1, 36 * 60),
)
def test_the_fires_are_those_of_the_definition(
    fields: Fields, change: tuple[str, str], shift: int, length: int
) -> None:
    """Any expression near any kind of change: stepping, looking back and a minute-by-minute reading agree."""
    where = ZoneInfo(change[0])
    day = f"{date.fromisoformat(change[1]).month}"
    fields = (*fields[:3], (f"{day},{int(day) % 12 + 1}", frozenset({int(day), int(day) % 12 + 1})), fields[4])
    cron = parse_if_it_ever_comes(fields)
    after = ms(change[1]) + shift * 60_000 + 17
    until = after + length * 60_000
    expected = by_definition(fields, where, after, until)
    assert by_looking_back(cron, where, after, until) == expected
    assert [f for f in fires(cron, where, after, len(expected) + 1) if f <= until] == expected


class Restless(tzinfo):
    """Clocks set back two hours at noon UTC, and forward one hour half an hour later."""

    def utcoffset(self, at: datetime | None) -> None:
        return None

    dst = tzname = utcoffset

    def fromutc(self, at: datetime) -> datetime:
        noon = datetime(2026, 6, 15, 12, tzinfo=self)
        hours = 5 if at < noon else 3 if at < noon + timedelta(minutes=30) else 4
        return (at + timedelta(hours=hours)).replace(tzinfo=timezone(timedelta(hours=hours)))


@pytest.mark.parametrize("after", ["2026-06-15T11:50", "2026-06-15T12:10", "2026-06-15T12:40", "2026-06-15T13:20"])
def test_a_gap_inside_a_repetition_skips_nothing_new(after: str) -> None:
    """What the clock has shown once is over, however often it is set."""
    where: Any = Restless()
    start = ms(after)
    expected = by_definition(EVERY_QUARTER, where, start, start + 7_200_000)
    assert by_stepping(parse(text_of(EVERY_QUARTER)), where, start, start + 7_200_000) == expected
    assert by_looking_back(parse(text_of(EVERY_QUARTER)), where, start, start + 7_200_000) == expected


@settings(max_examples=60, deadline=None)
@given(fields=five_fields(wrap=False), start=st.datetimes(datetime(1990, 1, 1), datetime(2110, 1, 1)))
def test_cronsim_agrees_on_utc(fields: Fields, start: datetime) -> None:
    """A second opinion on fields and calendar (cronsim has Debian cron's rules, and no wrapping ranges)."""
    cron = parse_if_it_ever_comes(fields)
    start = start.replace(microsecond=0, tzinfo=UTC)
    other = CronSim(text_of(fields), start)
    expected = [int(next(other).timestamp()) * 1000 for _ in range(4)]
    assert fires(cron, zone("UTC"), int(start.timestamp()) * 1000, 4) == expected


@settings(max_examples=40, deadline=None)
@given(
    fields=five_fields(wrap=False),
    change=st.sampled_from([("America/New_York", "2026-03-08"), ("America/New_York", "2026-11-01"),
                            ("Europe/Berlin", "2026-03-29"), ("Europe/Berlin", "2026-10-25")]),
)  # fmt: skip
def test_cronsim_agrees_on_whole_hours_of_summer_time(fields: Fields, change: tuple[str, str]) -> None:
    """The second opinion on the rule for changing clocks, around the changes of two zones."""
    fields = (*fields[:2], ("*", frozenset(range(1, 32))), ("*", frozenset(range(1, 13))), fields[4])
    where = ZoneInfo(change[0])
    start = datetime.fromisoformat(change[1]).replace(tzinfo=where) - timedelta(hours=3)
    other = CronSim(text_of(fields), start)
    expected = [int(next(other).timestamp()) * 1000 for _ in range(12)]
    assert fires(parse(text_of(fields)), where, int(start.timestamp()) * 1000, 12) == expected
