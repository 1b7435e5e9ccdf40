"""Trouble of other systems (tests/cases.md), J: cron expressions in a zone that changes its clocks."""

from __future__ import annotations

from datetime import datetime

import pytest

from durable_cli.core.cron import fires, parse, zone

ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"]


@pytest.mark.parametrize("name", ZONES)
def test_each_tenth_day_begins_anew_each_month(name: str) -> None:
    """J13: the first of March is not skipped, in no zone, and the 31st comes in long months only."""
    where = zone(name)
    after = int(datetime(2021, 2, 20, 12, tzinfo=where).timestamp()) * 1000

    def days(expression: str) -> list[str]:
        found = fires(parse(expression), where, after, 5)
        return [datetime.fromtimestamp(at // 1000, where).strftime("%m-%d %H:%M") for at in found]

    assert days("0 0 */10 * *") == ["02-21 00:00", "03-01 00:00", "03-11 00:00", "03-21 00:00", "03-31 00:00"]
    assert [day[:5] for day in days("0 0 31 * *")] == ["03-31", "05-31", "07-31", "08-31", "10-31"]
