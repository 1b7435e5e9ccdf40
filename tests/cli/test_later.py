"""`durable start --at TIME` and `--delay D`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from durable_cli.cli import moments
from durable_cli.errors import InvalidZone, UsageError

NOW = datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)


class FakeSession:
    """What `moments` asks of a session."""

    def __init__(self, now=NOW):
        self.moment = now

    def now(self):
        return round(self.moment.timestamp() * 1000)

    def config(self):
        return None


@pytest.fixture
def berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    return FakeSession()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-12-24T18:00", "2026-12-24T17:00:00"),
        ("2026-12-24 18:00:30", "2026-12-24T17:00:30"),
        ("2026-12-24T18:00Z", "2026-12-24T18:00:00"),
        ("2026-12-24T18:00-05:00", "2026-12-24T23:00:00"),
        ("2026-12-24", "2026-12-23T23:00:00"),
        ("2027-07-01T12:00", "2027-07-01T10:00:00"),  # summer
        ("13:01", "2026-11-29T12:01:00"),
        ("13:00", "2026-11-30T12:00:00"),  # 30 seconds over: tomorrow
        ("9:05", "2026-11-30T08:05:00"),
        ("today 23:59", "2026-11-29T22:59:00"),
        ("tomorrow 09:05", "2026-11-30T08:05:00"),
        ("2026-11-29T13:00", "2026-11-29T12:00:00"),  # 30 seconds over: `date -Is` a while ago
        ("2027-03-28T02:30", "2027-03-28T01:30:00"),  # does not exist: an hour later by the clock
    ],
)
def test_a_moment_is_read(berlin, text, found):
    """Without an offset it is local; a time alone is the next one."""
    at, zone = moments.ahead(text, berlin)
    assert datetime.fromtimestamp(at / 1000, UTC).isoformat() == f"{found}+00:00"
    assert zone == (None if text[-1] == "Z" or "-05:00" in text else "Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-11-29T12:58", "is over"),
        ("2001-01-01", "is over"),
        ("today 09:00", "is over"),
        ("24:00", "no time of a day"),
        ("12:60", "no time of a day"),
        ("soon", "not a moment"),
        ("", "not a moment"),
        ("2026-13-01", "not a moment"),
        ("1h", "not a moment"),
        ("\x1b[2J", "not a moment"),
        ("9999-12-31T23:59:59-12:00", "beyond what a calendar can say"),
    ],
)
def test_what_is_over_or_no_moment_is_refused(berlin, text, reason):
    """A moment that is over is a slip: nothing starts."""
    with pytest.raises(UsageError, match=reason):
        moments.ahead(text, berlin)


def test_the_day_on_which_the_clock_is_set_has_its_own_length(monkeypatch):
    """23:30 of the evening before the change: 12:00 of tomorrow is 11.5 hours off, not 12.5."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    session = FakeSession(datetime(2027, 3, 27, 22, 30, tzinfo=UTC))
    at, _ = moments.ahead("12:00", session)
    assert at - session.now() == timedelta(hours=11.5) / timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("02:50", "01:50"),  # once more, by the winter's clock
        ("today 02:50", "01:50"),
        ("02:30", "01:30"),  # not the time that clocks showed 70 minutes ago
        ("02:39", "01:39+1"),  # over in both hours: tomorrow
    ],
)
def test_in_the_hour_that_comes_twice(monkeypatch, text, found):
    """02:40 for the second time, in Berlin on the night to winter: the next time that clocks show it."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    now = datetime(2026, 10, 25, 1, 40, tzinfo=UTC)
    if text == "02:30":
        now = datetime(2026, 10, 25, 0, 40, tzinfo=UTC)  # for the first time
    at, _ = moments.ahead(text, FakeSession(now))
    clock, _, days = found.partition("+")
    assert f"{datetime.fromtimestamp(at / 1000, UTC):%H:%M %d}" == f"{clock} {25 + int(days or 0)}"


def test_a_zone_without_a_name_is_needed_only_for_local_times(monkeypatch):
    """A moment that says its offset needs none."""
    monkeypatch.setenv("TZ", "CET-1CEST")
    assert moments.ahead("2999-01-01T00:00Z", FakeSession())[1] is None
    with pytest.raises(InvalidZone):
        moments.ahead("18:00", FakeSession())


def test_a_start_at_a_moment_begins_then(cli):
    """The run is due then, and the answer says when, in which zone; nothing executes it before."""
    document = cli(
        "start", "flows:sync", "--key", "k", "--at", "2999-12-24T18:00", "--json", env={"TZ": "Asia/Tokyo"}
    ).document
    assert (document["due_at"], document["zone"]) == ("2999-12-24T09:00:00.000Z", "Asia/Tokyo")
    assert cli("show", document["run_id"], "--json").document["due_at"] == "2999-12-24T09:00:00.000Z"
    told = cli("start", "flows:sync", "--at", "2999-12-24T18:00", "-v", env={"TZ": "Asia/Tokyo"})
    assert "; it begins Tue 2999-12-24 18:00 +09:00 (Asia/Tokyo)" in told.err
    assert len(told.out.split()) == 1
    assert cli("tick", "--json").document["claimed"] == 0


def test_a_delayed_start(cli):
    """`--delay`; zero is at once; a configured zone tells the moment."""
    document = cli("start", "flows:sync", "--delay", "90m", "--json").document
    run = cli("show", document["run_id"], "--json").document
    began, due = (datetime.fromisoformat(run[name]) for name in ("created_at", "due_at"))
    assert timedelta(minutes=89) < due - began < timedelta(minutes=91)
    assert document["due_at"] == run["due_at"]
    now = cli("start", "flows:sync", "--delay", "0s").out.strip()
    assert cli("tick", "--json").document["runs"] == {"completed": 1}
    assert cli("show", now, "--json").document["status"] == "completed"


@pytest.mark.parametrize(
    "argv",
    [
        ["--at", "2001-01-01"],
        ["--at", "soon"],
        ["--delay", "soon"],
        ["--delay", "-1h"],
        ["--at", "18:00", "--delay", "1h"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_starts_nothing(cli, argv):
    """Exit 2 before anything is loaded or written."""
    result = cli("start", "flows:sync", *argv)
    assert (result.code, result.out) == (2, "")
    assert not cli.db.exists()


def test_a_dry_run_says_when(cli):
    """Only where a run would be made."""
    would = cli("start", "flows:sync", "--key", "k", "--delay", "1h", "-n")
    assert (would.code, "it would begin" in would.out) == (0, True)
    assert not cli.db.exists()
    cli("start", "flows:sync", "--key", "k")
    assert "it would begin" not in cli("start", "flows:sync", "--key", "k", "--delay", "1h", "-n").out


@pytest.mark.parametrize("policy", ["use_existing", "send_event:poke"])
def test_a_taken_key_is_not_put_off(cli, policy):
    """The holder begins when it would have, and the call says so."""
    cli("start", "flows:sync", "--key", "k")
    result = cli("start", "flows:sync", "--key", "k", "--delay", "1h", "--on-duplicate", policy)
    assert result.code == 0
    assert "--at and --delay are for new runs" in result.err
    assert cli("tick", "--json").document["claimed"] == 1


def test_a_run_that_takes_the_newer_input_is_put_off(cli):
    """And the call says until when, with and without --dry-run, not that it is not."""
    cli("start", "flows:sync", "--key", "k")
    again = ["start", "flows:sync", "--key", "k", "--on-duplicate", "run_again", "--delay", "2h"]
    would = cli(*again, "-n", "--json").document
    assert (would["action"], would["outcome"]) == ("merge_holder", "merged")
    assert would["due_at"] is not None
    result = cli(*again, "-v")
    assert "for new runs" not in result.err
    assert cli("tick", "--json").document["claimed"] == 0
    document = cli(*again, "--json").document
    assert document["outcome"] == "merged"
    assert document["due_at"] >= would["due_at"]
