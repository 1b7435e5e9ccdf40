"""Names of time zones: places are accepted, abbreviations and unknown names answered with near ones (CASES I13)."""

from __future__ import annotations

from typing import Any

import pytest

from durable_cli.core.cron import zone
from durable_cli.errors import InvalidZone


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
