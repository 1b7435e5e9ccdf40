"""Durations and back-off: tables and properties."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cli.core.timing import backoff_ms, format_age, format_duration, parse_duration
from durable_cli.errors import InvalidDuration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("1w1d", 691_200_000),
        ("90", 90_000),
        ("0.5", 500),
        (90, 90_000),
        (0.25, 250),
        (timedelta(minutes=2), 120_000),
        (0, 0),
        (" 5m ", 300_000),
    ],
)
def test_a_duration_is_a_timedelta_seconds_or_text_with_units(text: object, expected: int) -> None:
    assert parse_duration(text) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["", "h", "1x", "1h 30m", "30m1h", "1h1h", "-5s", -1, "1e3", "٣s", "٣", None, True, [], float("nan"),
     float("inf"), 1e300, "999999999999999w", timedelta(days=-1)],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(InvalidDuration, match="1h30m"):
        parse_duration(text)  # type: ignore[arg-type]


@given(st.integers(0, 10**12))
def test_a_formatted_duration_reads_back_exactly(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-5, "0s"), (59_999, "59s"), (60_000, "1m"), (3_600_000, "1h"), (86_400_000, "24h"), (172_800_000, "2d")],
)
def test_an_age_is_short_and_never_negative(ms: int, text: str) -> None:
    assert format_age(ms) == text


@given(
    st.integers(1, 200),
    st.sampled_from(["exponential", "linear", "constant"]),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_a_delay_follows_its_formula_within_cap_and_jitter(
    attempt: int, backoff: str, base: int, cap: int, jitter: float, dice: float
) -> None:
    plain = {"exponential": base * 2 ** (attempt - 1), "linear": base * attempt, "constant": base}[backoff]
    middle = min(plain, cap)
    delay = backoff_ms(attempt=attempt, backoff=backoff, base_ms=base, max_delay_ms=cap, jitter=jitter, dice=dice)
    assert 0 <= delay
    assert middle * (1 - jitter) - 1 <= delay <= middle * (1 + jitter) + 1
    if jitter == 0:
        assert delay == middle
