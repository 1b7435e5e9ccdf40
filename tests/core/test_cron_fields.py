"""Cron expressions: which are accepted, with what meaning, and why the others are refused (CASES J02-J07)."""

from __future__ import annotations

from typing import Any

import pytest

from durable_cli.core.cron import Cron, notes, parse
from durable_cli.errors import InvalidCron

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


def test_every_stepped_range_of_weekdays() -> None:
    """All of them, with 0 and 7 as Sunday at either end: the values are those of a walk round the week."""
    for low in range(8):
        for high in range(8):
            for step in range(1, 8):
                if (low - high) % 7 == 0 and (low, high) != (0, 7):
                    continue
                end = high if low < high else high + 7
                walked = {day % 7 for day in range(low, end + 1, step)}
                assert parse(f"0 0 * * {low}-{high}/{step}").weekdays == walked, (low, high, step)


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
