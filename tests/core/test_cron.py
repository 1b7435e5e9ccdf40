"""When cron expressions fire, above all while clocks change (SPEC section 5; CASES J02-J13)."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from durable_cli.core import cron as timeline
from durable_cli.core.cron import Cron, fires, last_due, next_fire, parse, zone


def ms(text: str, where: ZoneInfo | None = None) -> int:
    moment = datetime.fromisoformat(text)
    return int(moment.replace(tzinfo=moment.tzinfo or where or UTC).timestamp()) * 1000


def shown(moment: int, where: ZoneInfo) -> str:
    return datetime.fromtimestamp(moment // 1000, where).isoformat(timespec="minutes")


def first_fires(expression: str, name: str, after: str, n: int) -> list[str]:
    where = zone(name)
    return [shown(moment, where) for moment in fires(parse(expression), where, ms(after, where), n)]


def first_days(expression: str, after: str, n: int) -> list[str]:
    """The days of the first fires in UTC, for expressions at midnight."""
    return [text.removesuffix("T00:00+00:00") for text in first_fires(expression, "UTC", after, n)]


# -- days ----------------------------------------------------------------------------------------------------

DAYS = [
    # Both day fields restricted: the union, as POSIX has it; a field that begins with * is no restriction.
    ("0 0 13 * 5", "2026-11-29", ["2026-12-04", "2026-12-11", "2026-12-13"]),
    ("0 0 */2 * sat", "2023-05-02", ["2023-05-13", "2023-05-27", "2023-06-03", "2023-06-17"]),
    ("0 0 1-31 * 1", "2026-06-01", ["2026-06-02", "2026-06-03"]),
    ("0 0 31 2 0", "2026-01-01", ["2026-02-01", "2026-02-08", "2026-02-15"]),
    # croniter's published edge cases, as facts.
    ("0 0 */10 * *", "2021-02-20", ["2021-02-21", "2021-03-01", "2021-03-11", "2021-03-21", "2021-03-31"]),
    ("0 0 31 * *", "2026-01-30", ["2026-01-31", "2026-03-31", "2026-05-31", "2026-07-31", "2026-08-31"]),
    ("0 0 29 2 *", "2020-02-29", ["2024-02-29", "2028-02-29"]),
    ("0 0 29 2 *", "2095-01-01", ["2096-02-29", "2104-02-29"]),
    ("0 0 29 2 */7", "2077-01-01", ["2088-02-29", "2128-02-29", "2156-02-29"]),
    ("0 0 L * *", "2100-02-01", ["2100-02-28", "2100-03-31"]),
    ("0 0 L * *", "2400-02-01", ["2400-02-29", "2400-03-31"]),
    ("0 0 L 2 *", "2095-03-01", ["2096-02-29", "2097-02-28"]),
    ("0 0 15,L * *", "2024-02-10", ["2024-02-15", "2024-02-29", "2024-03-15", "2024-03-31"]),
    ("0 0 29-L * *", "2015-09-04", ["2015-09-29", "2015-09-30", "2015-10-29"]),
    ("0 0 * * sat#1", "2010-02-25", ["2010-03-06", "2010-04-03"]),
    ("0 0 * * wed#5", "2010-01-25", ["2010-03-31", "2010-06-30", "2010-09-29"]),
    ("0 0 * 2 1#5", "2026-01-01", ["2044-02-29"]),
    ("0 0 * * L5", "2026-11-01", ["2026-11-27", "2026-12-25"]),
    ("0 0 * * L2", "2000-02-01", ["2000-02-29"]),
    ("0 0 * * L6,6#1", "2021-03-01", ["2021-03-06", "2021-03-27", "2021-04-03", "2021-04-24"]),
    ("0 0 * * wed-sun", "2019-01-14", ["2019-01-16", "2019-01-17", "2019-01-18", "2019-01-19", "2019-01-20"]),
    ("0 0 * * fri-mon", "2026-11-25", ["2026-11-27", "2026-11-28", "2026-11-29", "2026-11-30", "2026-12-04"]),
    ("0 0 1 3,6,9,12 *", "2016-12-03", ["2017-03-01", "2017-06-01"]),
    ("0 0 30 3 *", "2021-03-30", ["2022-03-30"]),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "after", "expected"), DAYS)
def test_days(expression: str, after: str, expected: list[str]) -> None:
    """The days a calendar names, leap years, unions and last weekdays included."""
    assert first_days(expression, after, len(expected)) == expected


def test_the_moment_itself_is_no_later_fire() -> None:
    """Strictly later, to the millisecond; a fire's own time is due in (before, itself]."""
    cron, utc, due = parse("30 5 * * *"), zone("UTC"), ms("2026-06-01T05:30")
    assert next_fire(cron, utc, due) == due + 86_400_000
    assert next_fire(cron, utc, due - 1) == due
    assert last_due(cron, utc, due - 1, due) == (due, 1)
    assert last_due(cron, utc, due, due + 86_399_999) is None
    assert last_due(cron, utc, due, due) is None
    assert last_due(cron, utc, due, due - 5) is None


def test_the_end_of_the_calendar_is_no_error() -> None:
    """A clock that was set to nonsense gives no fire, or one in the calendar; never an exception."""
    cron, berlin = parse("@yearly"), zone("Europe/Berlin")
    assert next_fire(cron, berlin, 10**18) is None
    assert fires(cron, berlin, ms("9998-06-01"), 5) == [ms("9999-01-01", berlin)]
    assert next_fire(cron, berlin, -(10**18)) is not None


# -- changing clocks -----------------------------------------------------------------------------------------

TABLES = [
    # New York: 2026-03-08 02:00 -> 03:00, 2026-11-01 02:00 -> 01:00.
    ("30 2 * * *", "America/New_York", "2026-03-07T12:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]),
    ("0,30 2 * * *", "America/New_York", "2026-03-07T12:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:00-04:00"]),
    ("0 2,3 * * *", "America/New_York", "2026-03-07T12:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:00-04:00"]),
    ("0 * * * *", "America/New_York", "2026-03-08T00:30", ["2026-03-08T01:00-05:00", "2026-03-08T03:00-04:00"]),
    ("*/30 2 * * *", "America/New_York", "2026-03-07T12:00", ["2026-03-09T02:00-04:00", "2026-03-09T02:30-04:00"]),
    ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
    ("0 1 * * *", "America/New_York", "2026-10-31T12:00", ["2026-11-01T01:00-04:00", "2026-11-02T01:00-05:00"]),
    ("0 1,2 * * *", "America/New_York", "2026-11-01T00:00",
     ["2026-11-01T01:00-04:00", "2026-11-01T02:00-05:00", "2026-11-02T01:00-05:00"]),
    ("0 * * * *", "America/New_York", "2026-11-01T00:00",
     ["2026-11-01T01:00-04:00", "2026-11-01T01:00-05:00", "2026-11-01T02:00-05:00"]),
    ("*/30 1 * * *", "America/New_York", "2026-11-01T00:00",
     ["2026-11-01T01:00-04:00", "2026-11-01T01:30-04:00", "2026-11-01T01:00-05:00", "2026-11-01T01:30-05:00"]),
    # Berlin: 2026-03-29 02:00 -> 03:00, 2026-10-25 03:00 -> 02:00.
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
    ("*/20 2 * * *", "Europe/Berlin", "2026-10-25T00:00",
     ["2026-10-25T02:00+02:00", "2026-10-25T02:20+02:00", "2026-10-25T02:40+02:00",
      "2026-10-25T02:00+01:00", "2026-10-25T02:20+01:00", "2026-10-25T02:40+01:00", "2026-10-26T02:00+01:00"]),
    # In the second of two hours, what fired in the first is over; so it is right after a gap.
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:15+01:00", ["2026-10-26T02:30+01:00"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:45+02:00", ["2026-10-26T02:30+01:00"]),
    ("30 2 * * *", "Europe/Berlin", "2026-03-29T03:00+02:00", ["2026-03-30T02:30+02:00"]),
    # Lisbon: 2026-03-29 01:00 -> 02:00, 2026-10-25 02:00 -> 01:00.
    ("0 1 * * *", "Europe/Lisbon", "2026-03-28T12:00", ["2026-03-29T02:00+01:00", "2026-03-30T01:00+01:00"]),
    ("0 1 30 3 *", "Europe/Lisbon", "2024-03-01T00:00", ["2024-03-30T01:00+00:00", "2025-03-30T02:00+01:00"]),
    ("15 1 * * *", "Europe/Lisbon", "2026-10-24T12:00", ["2026-10-25T01:15+01:00", "2026-10-26T01:15+00:00"]),
    # Santiago: gap at midnight, 2026-09-06 00:00 -> 01:00; repeated hour before it, 2026-04-05 00:00 -> 23:00.
    ("0 0 * * *", "America/Santiago", "2026-09-05T12:00", ["2026-09-06T01:00-03:00", "2026-09-07T00:00-03:00"]),
    ("0 0 6 9 *", "America/Santiago", "2026-01-01T00:00", ["2026-09-06T01:00-03:00", "2027-09-06T00:00-03:00"]),
    ("30 23 * * *", "America/Santiago", "2026-04-04T12:00", ["2026-04-04T23:30-03:00", "2026-04-05T23:30-04:00"]),
    ("0 0 * * *", "America/Santiago", "2026-04-04T12:00", ["2026-04-05T00:00-04:00", "2026-04-06T00:00-04:00"]),
    ("0 * * * *", "America/Santiago", "2026-04-04T22:30",
     ["2026-04-04T23:00-03:00", "2026-04-04T23:00-04:00", "2026-04-05T00:00-04:00"]),
    # Lord Howe: 2026-10-04 02:00 -> 02:30, 2026-04-05 02:00 -> 01:30.
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
    ("30 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-04T02:30+11:00", "2026-10-05T02:30+11:00"]),
    ("0 * * * *", "Australia/Lord_Howe", "2019-10-06T00:30", ["2019-10-06T01:00+10:30", "2019-10-06T03:00+11:00"]),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"]),
    ("*/15 * * * *", "Australia/Lord_Howe", "2026-04-05T01:30",
     ["2026-04-05T01:45+11:00", "2026-04-05T01:30+10:30", "2026-04-05T01:45+10:30", "2026-04-05T02:00+10:30"]),
    # Kathmandu: 5:45 ahead, no summer time; its one change was a gap, 1986-01-01 00:00 -> 00:15.
    ("0 0 * * *", "Asia/Kathmandu", "2026-03-28T12:00", ["2026-03-29T00:00+05:45", "2026-03-30T00:00+05:45"]),
    ("*/30 * * * *", "Asia/Kathmandu", "2026-10-25T01:50", ["2026-10-25T02:00+05:45", "2026-10-25T02:30+05:45"]),
    ("10 0 * * *", "Asia/Kathmandu", "1985-12-31T12:00", ["1986-01-01T00:15+05:45", "1986-01-02T00:10+05:45"]),
    # Troll jumps two hours, Dublin's winter time is the odd one, Apia had no 30 December 2011.
    ("30 1 * * *", "Antarctica/Troll", "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T01:30+02:00"]),
    ("30 1 * * *", "Antarctica/Troll", "2026-10-24T12:00", ["2026-10-25T01:30+02:00", "2026-10-26T01:30+00:00"]),
    ("30 1 * * *", "Europe/Dublin", "2026-03-28T12:00", ["2026-03-29T02:00+01:00", "2026-03-30T01:30+01:00"]),
    ("30 1 * * *", "Europe/Dublin", "2026-10-24T12:00", ["2026-10-25T01:30+01:00", "2026-10-26T01:30+00:00"]),
    ("0 5 * * *", "Pacific/Apia", "2011-12-28T12:00",
     ["2011-12-29T05:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T05:00+14:00"]),
    ("0 5 30 12 *", "Pacific/Apia", "2011-12-28T12:00", ["2011-12-31T00:00+14:00", "2012-12-30T05:00+14:00"]),
    ("0 */6 * * *", "Pacific/Apia", "2011-12-29T17:00", ["2011-12-29T18:00-10:00", "2011-12-31T00:00+14:00"]),
    # The rules go on after the tables of tzdata end (2037).
    ("30 2 * * *", "Europe/Berlin", "2103-03-24T12:00", ["2103-03-25T03:00+02:00", "2103-03-26T02:30+02:00"]),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "name", "after", "expected"), TABLES)
def test_fires_around_changes_of_the_clock(expression: str, name: str, after: str, expected: list[str]) -> None:
    """Fixed times once in a repeated hour and right after a gap; `*` and `*/n` by elapsed time."""
    assert first_fires(expression, name, after, len(expected)) == expected


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)])
def test_hourly_jobs_follow_elapsed_time(day: str, hours: int) -> None:
    """25 hourly fires on the long day, 23 on the short; by list and by count."""
    berlin = zone("Europe/Berlin")
    start = ms(day, berlin)
    end = ms((date.fromisoformat(day) + timedelta(days=1)).isoformat(), berlin)
    for expression in ("0 * * * *", "@hourly", "17 */1 * * *"):
        cron = parse(expression)
        due = last_due(cron, berlin, start - 1, end - 1)
        assert due is not None
        assert due[1] == hours
        assert len([f for f in fires(cron, berlin, start - 1, 30) if f < end]) == hours


# -- bounded work --------------------------------------------------------------------------------------------


def test_ten_years_of_minutes_are_counted_by_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downtime is answered exactly without walking it: no minute is visited, the zone is asked about once a day."""
    asked = 0
    ask = timeline._offset

    def counted(where: ZoneInfo, second: int) -> int:
        nonlocal asked
        asked += 1
        return ask(where, second)

    def forbidden(*_: object) -> None:
        raise AssertionError("a minute was visited")

    monkeypatch.setattr(timeline, "_offset", counted)
    monkeypatch.setattr(Cron, "minutes", forbidden)
    berlin = zone("Europe/Berlin")
    start, end = ms("2026-01-01", berlin), ms("2036-01-01", berlin)
    minutes = (end - start) // 60_000
    assert last_due(parse("* * * * *"), berlin, start, end) == (end, minutes)
    assert asked < 5_000
    daily = last_due(parse("30 2 * * *"), berlin, start, end)
    assert daily == (end - 86_400_000 + 9_000_000, 3652)


def test_the_first_fire_does_not_walk_to_the_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next minute costs about a month of looking at the zone, not fifty years."""
    asked: list[int] = []
    ask = timeline._offset

    def noted(where: ZoneInfo, second: int) -> int:
        asked.append(second)
        return ask(where, second)

    monkeypatch.setattr(timeline, "_offset", noted)
    assert next_fire(parse("* * * * *"), zone("UTC"), 0) == 60_000
    assert len(asked) < 50


def test_croniter_is_imported_when_an_expression_is_read() -> None:
    """`durable run` from cron must not pay for it."""
    script = "import sys, durable_cli.core.cron as c; assert 'croniter' not in sys.modules; c.parse('@daily')"
    subprocess.run([sys.executable, "-c", script + "; assert 'croniter' in sys.modules"], check=True)
