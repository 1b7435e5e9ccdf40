"""Cron: which expressions are accepted, and when they fire while clocks change (SPEC section 5; CASES J02-J13)."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from durable_cli.core import cron as timeline
from durable_cli.core.cron import Cron, fires, last_due, next_fire, notes, parse, zone
from durable_cli.errors import InvalidCron, InvalidZone

ALL_ZONES = sorted(available_timezones() - {"localtime", "Factory", "posixrules"})


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


# -- accepted and refused ------------------------------------------------------------------------------------

REFUSED = [
    ("", "expression", "empty", None),
    ("* * * *", "expression", "4 fields, and five are needed", None),
    ("*/10 * * * * *", "expression", "6 fields", None),
    ("*/10 * * * * *", "expression", "some tools read '*/10' as seconds, others '*'", None),
    ("0 30 5 * * 1", "expression", "6 fields", "write '30 5 * * 1'"),
    ("0 0 5 * * 1 2026", "expression", "no years ('2026')", "write '0 5 * * 1'"),
    ("0 5 * * * /usr/bin/backup", "expression", "looks like a command", "write '0 5 * * *'"),
    ("0 0\N{NO-BREAK SPACE}* * *", "expression", "4 fields", None),
    ("@reboot", "expression", "@reboot names no time", None),
    ("@dayly", "expression", "@dayly is not known", "write @daily"),
    ("@daily backup", "expression", "stands alone", "write @daily"),
    ("a b c d e", "minute", "'a' is not a number", None),
    ("60 * * * *", "minute", "60 is not between 0 and 59", "write 0"),
    ("0 24 * * *", "hour", "24 is not between 0 and 23", "write 0"),
    ("0 1 0/10 * *", "day of month", "0 is not between 1 and 31", None),
    ("0 0 32 * *", "day of month", "32 is not between 1 and 31", None),
    ("0 0 0 * *", "day of month", "0 is not between 1 and 31", None),
    ("0 0 1 0 *", "month", "0 is not between 1 and 12", None),
    ("0 0 1 13 *", "month", "13 is not between 1 and 12", None),
    ("0 0 * * 8", "day of week", "8 is not between 0 and 7", None),
    ("99999999999999999999 * * * *", "minute", "is not between 0 and 59", None),
    ("*/0 * * * *", "minute", "a step of 0", None),
    ("59-0/0 * * * *", "minute", "a step of 0", None),
    ("*/90 * * * *", "minute", "a step of 90, larger than the field's 60 values", None),
    ("0 */36 * * *", "hour", "a step of 36, larger than the field's 24 values", None),
    ("0 0 */32 * *", "day of month", "larger than the field's 31 values", None),
    ("0 0 1 */13 *", "month", "larger than the field's 12 values", None),
    ("0 0 * * */8", "day of week", "larger than the field's 7 values", None),
    ("*/ * * * *", "minute", "'*/' is not a number", None),
    ("*/x * * * *", "minute", "'*/x' is not a number", None),
    ("** * * * *", "minute", "'**' is not a number", None),
    ("-5 * * * *", "minute", "'-5' is not a number", None),
    ("1.5 * * * *", "minute", "'1.5' is not a number", None),
    ("\N{ARABIC-INDIC DIGIT THREE} * * * *", "minute", "is not a number", None),
    ("1,,2 * * * *", "minute", "a comma with nothing beside it", None),
    ("*,5 * * * *", "minute", "'*' in '*,5' is every value already", "write *"),
    ("5-5 * * * *", "minute", "a range of one value", "write 5, or * for every value"),
    ("0 0 * * sun-sun", "day of week", "a range of one value", "write 0, or * for every value"),
    ("0 0 1 jan-jan *", "month", "a range of one value", "write 1, or * for every value"),
    ("0 0 mon * *", "day of month", "this field has no names", None),
    ("0 0 * * monday", "day of week", "names here are sun mon", "write mon"),
    ("0 0 1 janu-jun *", "month", "'janu' is not a number", "write jan"),
    ("H H * * *", "minute", "'H' would pick a value by hash or dice", None),
    ("0 H(0-5)/2 * * *", "hour", "'H(0-5)/2' would pick", None),
    ("R R * * *", "minute", "'R' would pick a value by hash or dice", None),
    ("0 0 1W * *", "day of month", "W (the nearest working day) is not supported", None),
    ("0 0 LW * *", "day of month", "W (the nearest working day) is not supported", None),
    ("0 0 L-3 * *", "day of month", "'L-3': L (the last day) stands alone", None),
    ("4 0 L/2 2 0", "day of month", "'L/2': L (the last day) stands alone", None),
    ("0 L * * *", "hour", "L (the last day) belongs to the day of month", None),
    ("0 0 * * 5L", "day of week", "'5L': the last such weekday is written L5", "write L5"),
    ("0 0 * * friL", "day of week", "the last such weekday is written L5", "write L5"),
    ("0 0 * * Lfri", "day of week", "the last such weekday is written L5", "write L5"),
    ("0 0 * * L", "day of week", "needs a weekday", None),
    ("0 0 * * L8", "day of week", "after L comes a weekday, 0 to 7", None),
    ("? * * * *", "minute", "? stands alone, in the day of month or the day of week", "write *"),
    ("0 0 ?/2 * *", "day of month", "? stands alone", "write *"),
    ("0 0 1#2 * *", "day of month", "# belongs to the day of week", None),
    ("0 0 * * 1#6", "day of week", "after # comes 1 to 5", None),
    ("0 0 * * 1#0", "day of week", "after # comes 1 to 5", None),
    ("0 0 * * 1#L", "day of week", "after # comes 1 to 5", "write L1"),
    ("0 0 * * 1-5#2", "day of week", "before # comes one weekday", None),
    ("0 0 * * 5,6#3", "day of week", "'6#3' and plain weekdays cannot be mixed", None),
    ("0 0 8-9 * 0#2", "day of week", "'0#2' and the day of month '8-9' cannot be combined", None),
    ("30 23 1-7 JAN MON#1", "day of week", "cannot be combined", None),
    ("0 0 1 * L5", "day of week", "'l5' and the day of month '1' cannot be combined", None),
    ("0 0 31 2 *", "day of month", "'31' never comes in month '2'", None),
    ("* * 30 feb ?", "day of month", "'30' never comes in month 'feb'", None),
    ("0 0 31 4,6,9,11 *", "day of month", "never comes", None),
]


@pytest.mark.parametrize(("expression", "field", "reason", "hint"), REFUSED)
def test_a_refusal_names_the_field_the_reason_and_the_expression(
    expression: str, field: str, reason: str, hint: str | None
) -> None:
    """Nothing that means something else elsewhere is accepted in silence, and each refusal says what is wrong."""
    with pytest.raises(InvalidCron) as caught:
        parse(expression)
    error = caught.value
    assert (error.field, error.hint) == (field, hint)
    assert reason in error.reason
    assert error.fields() == {"expression": expression, "field": field, "reason": error.reason}
    assert repr(expression) in error.message
    assert "\n" not in error.message
    assert error.exit_status == 2


def test_what_is_no_text_is_refused() -> None:
    """Also what cannot be hashed (the accepted ones are cached)."""
    for value in (None, 5, ["* * * * *"]):
        unchecked: Any = value
        with pytest.raises(InvalidCron, match="has to be text"):
            parse(unchecked)


SAME = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@Weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("  0\t0 *  * *\n", "0 0 * * *"),
    ("0 0 * * 7", "0 0 * * 0"),
    ("0 0 * * Sun", "0 0 * * 0"),
    ("05 00 01 JAN *", "5 0 1 1 *"),
    ("0 0 ? * 1", "0 0 * * 1"),
    ("0 0 1 * ?", "0 0 1 * *"),
    ("0 0 * * MON-FRI", "0 0 * * 1,2,3,4,5"),
    ("0 0 * * fri-mon", "0 0 * * 5,6,0,1"),
    ("0 0 * * 5-7", "0 0 * * 5,6,0"),
    ("0 0 * * 1-7/2", "0 0 * * 1,3,5,0"),
    ("0 0 * * 7-2", "0 0 * * 0,1,2"),
    ("0 0 * nov-mar *", "0 0 * 11,12,1,2,3 *"),
    ("0 0 1 apr-jan/3 *", "0 0 1 4,7,10,1 *"),
    ("0 22-3 * * *", "0 22,23,0,1,2,3 * * *"),
    ("0 23-3/2 * * *", "0 23,1,3 * * *"),
    ("50-10/7 * * * *", "50,57,4 * * * *"),
    ("0 0 28-3/2 * *", "0 0 28,30,1,3 * *"),
    ("*/60 * * * *", "0 * * * *"),
    ("5/15 * * * *", "5,20,35,50 * * * *"),
    ("59/15 * * * *", "59 * * * *"),
    ("0 23/6 * * *", "0 23 * * *"),
    ("0 0 1 dec/3 *", "0 0 1 12 *"),
    ("0 5,5,1-6 * * *", "0 1,2,3,4,5,6 * * *"),
    ("0 0 * * wed,fri,mon-thu,tue,tue", "0 0 * * 1-5"),
    ("0 0 29-L * *", "0 0 29,30,31 * *"),
    ("35 0 1-l/8 * *", "35 0 1,9,17,25 * *"),
    ("0 0 * * L7", "0 0 * * L0"),
    ("0 0 * * sun#2", "0 0 * * 7#2"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_spellings_of_one_schedule(one: str, other: str) -> None:
    """Names, case, blanks, macros, wrapping ranges and steps mean what the written-out list means."""

    def meaning(cron: Cron) -> tuple[object, ...]:
        return cron.times, cron.days, cron.last_day, cron.months, cron.weekdays, cron.nth, cron.either_day

    assert meaning(parse(one)) == meaning(parse(other))


def test_the_text_is_kept_as_written() -> None:
    """Lists show what the user wrote, with single blanks."""
    assert parse(" 0  0 * * Mon ").text == "0 0 * * Mon"
    assert parse("@daily").text == "@daily"
    assert parse("@daily").fields == ("0", "0", "*", "*", "*")


def test_surprising_readings_are_noted() -> None:
    """`*/7` is not every seven minutes, and two day fields are a union (CASES J03, J06)."""
    assert notes(parse("*/7 * * * *")) == ("*/7 starts anew each hour: its last gap is 4 minutes, not 7",)
    assert notes(parse("0 */5 * * *")) == ("*/5 starts anew each day: its last gap is 4 hours, not 5",)
    assert "either" in notes(parse("0 0 13 * 5"))[0]
    assert notes(parse("*/15 */6 * * 1-5")) == ()


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


# -- stepping and looking back agree, and both agree with the definition -------------------------------------


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


@settings(max_examples=120, deadline=None)
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

    def utcoffset(self, at: datetime | None) -> timedelta:
        raise AssertionError("asked by fromutc alone")

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


@settings(max_examples=150, deadline=None)
@given(fields=five_fields(wrap=False), start=st.datetimes(datetime(1990, 1, 1), datetime(2110, 1, 1)))
def test_cronsim_agrees_on_utc(fields: Fields, start: datetime) -> None:
    """A second opinion on fields and calendar (cronsim has Debian cron's rules, and no wrapping ranges)."""
    cron = parse_if_it_ever_comes(fields)
    start = start.replace(microsecond=0, tzinfo=UTC)
    other = CronSim(text_of(fields), start)
    expected = [int(next(other).timestamp()) * 1000 for _ in range(4)]
    assert fires(cron, zone("UTC"), int(start.timestamp()) * 1000, 4) == expected


@settings(max_examples=100, deadline=None)
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


# -- zones ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "Asia/Kathmandu", "Etc/GMT-2", "America/Argentina/Ushuaia"])
def test_names_of_places_are_accepted(name: str) -> None:
    """IANA names."""
    assert zone(name).key == name


@pytest.mark.parametrize(
    ("name", "reason", "candidates"),
    [
        ("EST", "abbreviation", ("America/New_York",)),
        ("cest", "abbreviation", ("Europe/Berlin",)),
        ("PST", "abbreviation", ("America/Los_Angeles",)),
        ("europe/berlin", "no time zone", ("Europe/Berlin",)),
        ("Berlin", "no time zone", ("Europe/Berlin",)),
        ("New York", "no time zone", ("America/New_York",)),
        ("Asia/Kathmandoo", "no time zone", ("Asia/Kathmandu",)),
        ("UTC+2", "no time zone", ("Etc/GMT-2",)),
        ("-05:00", "no time zone", ("Etc/GMT+5",)),
        ("Mars/Phobos", "no time zone", ()),
        ("", "no time zone", ()),
        ("Europe", "no time zone", ()),
        ("localtime", "no time zone", ()),
        ("../../etc/passwd", "no time zone", ()),
        ("/etc/localtime", "no time zone", ()),
        ("x\0", "no time zone", ()),
        ("\ud800", "no time zone", ()),
    ],
)
def test_other_names_are_refused_with_near_ones(name: str, reason: str, candidates: tuple[str, ...]) -> None:
    """Unknown names and abbreviations are never guessed, only answered with a place to write instead (I13)."""
    with pytest.raises(InvalidZone, match=reason) as caught:
        zone(name)
    error = caught.value
    assert error.candidates[: len(candidates)] == candidates
    assert bool(error.candidates) == bool(candidates)
    assert repr(name) in error.message
    assert error.fields() == {"zone": name, "candidates": list(error.candidates)}
    assert (error.hint is None) == (not candidates)


def test_leap_second_zones_are_refused() -> None:
    """`right/` zones count other seconds than the rest of the world."""
    with pytest.raises(InvalidZone):
        zone("right/Europe/Berlin")
    unchecked: Any = 5
    with pytest.raises(InvalidZone, match="has to be text"):
        zone(unchecked)
