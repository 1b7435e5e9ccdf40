"""When a schedule fires, by pure arithmetic: missed ones, lateness, clocks that are set, jitter."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cli.core.cron import parse
from durable_cli.core.schedules import Fire, Rule, Wait, check_schedule_name, decide, following, look_back
from durable_cli.errors import InvalidName
from durable_cli.model import Catchup

T0 = 1_800_000_000_000  # 2027-01-15T08:00:00Z
S, M, H, D = 1000, 60_000, 3_600_000, 86_400_000


def rule(cron: str = "* * * * *", catchup: str = "one", jitter_ms: int = 0, zone: str = "UTC") -> Rule:
    return Rule("s", parse(cron), ZoneInfo(zone), Catchup(catchup), jitter_ms)


@pytest.mark.parametrize(
    ("cron", "late", "missed", "starts"),
    [
        ("* * * * *", 0, 0, True),
        ("* * * * *", 30 * S, 0, True),  # half way to the next
        ("* * * * *", 31 * S, 1, True),
        ("0 * * * *", 10 * M, 0, True),
        ("0 * * * *", 10 * M + 1, 1, True),
        ("0 8 * * *", 9 * H, 1, True),
        ("0 8 * * *", 3 * D + H, 4, True),
        ("* * * * *", 3 * H, 180, True),
    ],
)
def test_one_fire_stands_for_all_that_were_missed(cron: str, late: int, missed: int, starts: bool) -> None:
    """Whatever came due, one fires; the newest is missed once it is ten minutes late, or half way to the next."""
    found = decide(rule(cron), T0, T0 + late, ())
    assert isinstance(found, Fire)
    assert (found.missed, found.starts) == (missed, starts)
    assert found.due_at <= T0 + late < (found.next.next_at or 0)


def test_skip_fires_what_is_on_time_and_records_the_rest() -> None:
    """catchup="skip": 8:00 on time fires; at 8:40 it is recorded and nothing fires."""
    assert decide(rule("0 * * * *", "skip"), T0, T0 + M, ()) == Fire(T0, 0, True, Wait(T0 + H, T0 + H))
    assert decide(rule("0 * * * *", "skip"), T0, T0 + 40 * M, ()) == Fire(T0, 1, False, Wait(T0 + H, T0 + H))
    late_but_one_on_time = decide(rule("0 * * * *", "skip"), T0, T0 + 3 * H, ())
    assert late_but_one_on_time == Fire(T0 + 3 * H, 3, True, Wait(T0 + 4 * H, T0 + 4 * H))


def test_a_catch_up_waits_for_a_due_time_beside_it() -> None:
    """I11: 0.8 s before the next minute with one missed, nothing starts; at the minute one run does."""
    early = decide(rule(), T0, T0 + 59_200, ())
    assert early == Wait(T0, T0 + M)
    assert decide(rule(), T0, T0 + M, ()) == Fire(T0 + M, 1, True, Wait(T0 + 2 * M, T0 + 2 * M))


def test_a_year_of_downtime_is_answered_at_once() -> None:
    """I04: 525,600 minutes are one fire, counted and not walked."""
    found = decide(rule(), T0, T0 + 365 * D, ())
    assert isinstance(found, Fire)
    assert found.missed == 365 * 24 * 60


def test_claimed_due_times_are_passed_over() -> None:
    """What was fired is not fired again, not counted as missed, and not waited for."""
    claimed = {T0 + M, T0 + 3 * M, T0 + 4 * M}
    assert following(rule(), T0, claimed) == Wait(T0 + 2 * M, T0 + 2 * M)
    assert decide(rule(), T0, T0 + 4 * M, claimed) == Fire(T0 + 2 * M, 2, True, Wait(T0 + 5 * M, T0 + 5 * M))


def test_a_clock_set_back_is_not_slept_through() -> None:
    """K01: the next due time is recomputed from the clock of now; what is due already stays due."""
    assert look_back(rule(), T0 + 2 * H + M, T0, {T0 + 2 * H}) == Wait(T0 + M, T0 + M)
    assert look_back(rule(), T0 - 5 * M, T0, ()) == Wait(T0 - 5 * M, T0 - 5 * M)
    assert look_back(rule(), None, T0, ()) == Wait(T0 + M, T0 + M)


def test_a_due_time_that_is_none_any_more() -> None:
    """The zone's rules changed since it was computed: the next one by the new rules, and nothing fires."""
    assert decide(rule("0 * * * *"), T0 + 7 * M, T0 + 8 * M, ()) == Wait(T0 + H, T0 + H)


@given(late=st.integers(0, 6 * H), jitter=st.integers(0, H), minutes=st.sampled_from([1, 7, 30, 60, 720]))
def test_jitter_neither_loses_nor_repeats(late: int, jitter: int, minutes: int) -> None:
    """Looking at any moments, each due time is fired or counted once; never before its own delay, which is at most
    the jitter, and the same for whoever computes it."""
    cron = {1: "* * * * *", 7: "*/7 * * * *", 30: "*/30 * * * *", 60: "0 * * * *", 720: "0 */12 * * *"}[minutes]
    it = rule(cron, jitter_ms=jitter)
    at, claimed, counted = T0, set(), 0
    for now in (T0 + late // 3, T0 + late // 2, T0 + late, T0 + late + jitter + 15 * S, T0 + late + jitter + 3 * H):
        found = decide(it, at, now, claimed)
        if isinstance(found, Fire):
            assert T0 <= found.due_at <= it.starts_at(found.due_at) <= min(now, found.due_at + jitter)
            due_since = len(_dues(it, at, found.due_at))
            assert found.missed in (due_since, due_since - 1)
            claimed.add(found.due_at)
            counted += due_since
            assert found.next.next_at is not None
            at = found.next.next_at
    assert counted == len(_dues(it, T0, at - 1))


def _dues(it: Rule, first: int, last: int) -> list[int]:
    from durable_cli.core.cron import fires

    return [at for at in fires(it.cron, it.zone, first - 1, 900) if at <= last]


@pytest.mark.parametrize("name", ["", "a b", "-x", "@daily", "x" * 129, "a/b", "a\n", None, 7])
def test_names_that_could_be_something_else_are_refused(name: object) -> None:
    """A name with a blank would be an expression to `schedules next`, one with a dash an option."""
    with pytest.raises(InvalidName):
        check_schedule_name(name)


@pytest.mark.parametrize("name", ["a", "backup:docs", "0", "x" * 128, "nightly-2.1_b"])
def test_names(name: str) -> None:
    """As names of workflows, and `:` too."""
    assert check_schedule_name(name) == name
