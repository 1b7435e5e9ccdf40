"""`durable schedules`: what is printed, in which form, with which exit code."""

from __future__ import annotations

from typing import Any

import pytest

TIMED = """
from durable_cli import Context, schedule, workflow


@schedule("0 3 * * *", key="nightly", timezone="Europe/Berlin")
@workflow
def timed(ctx: Context, n: int = 1) -> int:
    return ctx.run("count", lambda: n)
"""


@pytest.fixture
def timed(cli: Any) -> Any:
    (cli.dir / "timed.py").write_text(TIMED)
    cli.env["TZ"] = "Europe/Berlin"
    return cli


def test_add_prints_the_zone_and_the_next_five_fires(cli: Any) -> None:
    """I13: the zone that was chosen for you is named, each fire has its UTC offset, and what surprises is said."""
    cli.env["TZ"] = "Asia/Kathmandu"
    result = cli("schedules", "add", "a", "30 15 13 * 5", "flows:sync")
    assert (result.code, result.err) == (0, "")
    first, second, *rest = result.out.splitlines()
    assert first == "added: a starts sync"
    assert second == "30 15 13 * 5 in Asia/Kathmandu; next fires:"
    fires = [line for line in rest if line.startswith("  ")]
    assert len(fires) == 5
    assert all(line.endswith(" 15:30 +05:45") for line in fires)
    assert all(line.startswith("  Fri") or "-13 " in line for line in fires)
    notes = rest[5:]
    assert any("either" in note for note in notes)
    assert any("--key KEY prevents that" in note for note in notes)


def test_add_with_a_key_warns_of_nothing(cli: Any) -> None:
    """A keyed schedule does not overlap, and says its key."""
    out = cli("schedules", "add", "a", "@daily", "flows:sync", "--key", "k", "--tz", "UTC").out
    assert "added: a starts sync, key k" in out
    assert "note:" not in out


def test_add_as_a_document(cli: Any) -> None:
    """`--json`: the schedule, the fires in UTC, the notes."""
    document = cli(
        "schedules", "add", "a", "0 12 * * *", "flows:sync", "--tz", "Europe/Berlin", "--input", "5",
        "--on-duplicate", "run_again", "--catchup", "skip", "--jitter", "30s", "--json",
    ).document  # fmt: skip
    assert (document["name"], document["change"], document["workflow"]) == ("a", "added", "sync")
    assert (document["input"], document["on_duplicate"], document["catchup"]) == (5, "run_again", "skip")
    assert document["jitter_ms"] == 30_000
    assert len(document["next"]) == 5
    assert all(at.endswith(("T11:00:00.000Z", "T10:00:00.000Z")) for at in document["next"])


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["a", "0 1 0/10 * *", "flows:sync"], 2, "day of month"),
        (["a", "60 * * * *", "flows:sync"], 2, "minute: 60"),
        (["a", "0 24 * * *", "flows:sync"], 2, "hour: 24"),
        (["a", "0 0 32 * *", "flows:sync"], 2, "day of month: 32"),
        (["a", "*/0 * * * *", "flows:sync"], 2, "step of 0"),
        (["a", "*/90 * * * *", "flows:sync"], 2, "larger than the field"),
        (["a", "0 0 * * 5L", "flows:sync"], 2, "L5"),
        (["a", "H H * * *", "flows:sync"], 2, "'H'"),
        (["a", "a b c d e", "flows:sync"], 2, "minute"),
        (["a", "* * * *", "flows:sync"], 2, "4 fields"),
        (["a", "", "flows:sync"], 2, "empty"),
        (["a", "@reboot", "flows:sync"], 2, "@reboot"),
        (["a", "0 0 31 2 *", "flows:sync"], 2, "never comes"),
        (["a", "@daily", "flows:sync", "--tz", "EST"], 2, "America/New_York"),
        (["a", "@daily", "flows:sync", "--tz", "Europe/Berln"], 2, "Europe/Berlin"),
        (["a", "@daily", "flows:sync", "--key", ""], 2, "key"),
        (["a", "@daily", "flows:sync", "--input", '"x"'], 2, "integer"),
        (["a", "@daily", "flows:sync", "--catchup", "all"], 2, "one, skip"),
        (["a", "@daily", "flows:sync", "--on-duplicate", "queue"], 2, "on_duplicate"),
        (["a b", "@daily", "flows:sync"], 2, "name of a schedule"),
        (["a", "@daily", "flows:nope"], 3, "nope"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_add_refuses_with_nothing_written(shared_cli: Any, argv: list[str], code: int, told: str) -> None:
    """J04, J05, J06, A06: exit 2 (3 for what is not there), the field and the reason, no traceback, no row."""
    result = shared_cli("schedules", "add", *argv)
    assert (result.code, result.out) == (code, "")
    assert told in result.err
    assert "Traceback" not in result.err
    assert shared_cli("schedules", "list").out == ""


def test_dry_run_writes_nothing(cli: Any) -> None:
    """It says what would be added, and makes no file."""
    result = cli("schedules", "add", "a", "@daily", "flows:sync", "--tz", "UTC", "-n")
    assert "would be added" in result.out
    assert not cli.db.exists()


def test_add_again_changes_it(cli: Any) -> None:
    """The old expression is named; asking for the same is no change."""
    add = ["schedules", "add", "a", "flows:sync", "--tz", "UTC", "--key", "k"]
    cli(*add[:3], "@daily", *add[3:])
    assert "unchanged: a" in cli(*add[:3], "@daily", *add[3:]).out
    assert "(was @daily in UTC)" in cli(*add[:3], "0 5 * * *", *add[3:]).out
    assert cli("schedules", "list", "--fields", "cron").out == "0 5 * * *\n"


def test_the_list(cli: Any) -> None:
    """Zone, next fire, counters, state; a table, TSV, JSON; empty without a database; aliases and the singular."""
    assert cli("schedules", "list", "--json").document == []
    assert not cli.db.exists()
    cli("schedules", "add", "b", "0 12 * * *", "flows:sync", "--tz", "Europe/Berlin", "--key", "k")
    cli("schedule", "add", "a", "@hourly", "flows:sync", "--tz", "UTC", "--key", "k")
    assert [row["name"] for row in cli("schedules", "ls", "--json").document] == ["a", "b"]
    row = cli("schedules", "list", "--json").document[1]
    assert (row["timezone"], row["state"], row["fires"], row["last_skip_at"]) == ("Europe/Berlin", "active", 0, None)
    table = cli("schedules", "list", "--format", "table").out
    assert "Europe/Berlin" in table
    assert " 12:00" in table
    assert "+01:00" in table or "+02:00" in table
    cli("schedules", "pause", "a", "--reason", "holidays")
    assert "paused" in cli("schedules", "list", "--format", "table").out
    assert "holidays" in cli("schedules", "show", "a").out
    cli("schedules", "resume", "a")
    assert cli("schedules", "rm", "a").code == 0
    assert cli("schedules", "list", "--format", "ids").out == "b\n"


def test_trigger_and_skips_are_seen(cli: Any) -> None:
    """The id of the run; a second one is told who holds the key; the list and the activity say so."""
    cli("schedules", "add", "a", "@daily", "flows:sync", "--tz", "UTC", "--key", "k")
    first = cli("schedules", "trigger", "a")
    again = cli("schedules", "trigger", "a", "--json").document
    assert (again["outcome"], again["run_id"]) == ("existing", first.out.strip())
    row = cli("schedules", "list", "--json").document[0]
    assert (row["fires"], row["skips"], row["last_outcome"]) == (2, 1, "existing")
    assert row["last_skip_at"] is not None
    (told,) = cli("activity", "--json").document
    assert (told["kind"], told["details"]["schedule"]) == ("key_duplicate", "a")
    shown = cli("schedules", "show", "a", "--json").document
    assert [fire["outcome"] for fire in shown["recent"]] == ["existing", "created"]
    assert len(shown["next"]) == 5


@pytest.mark.parametrize("verb", ["show", "remove", "pause", "resume", "trigger", "next"])
def test_an_unknown_schedule_is_exit_3(cli: Any, verb: str) -> None:
    """With a near name."""
    cli("schedules", "add", "nightly", "@daily", "flows:sync", "--tz", "UTC", "--key", "k")
    result = cli("schedules", verb, "nightyl")
    assert result.code == 3
    assert "did you mean nightly?" in result.err


def test_next_of_an_expression(cli: Any) -> None:
    """J03: the list of UTC times; `--from` is meant in the zone; `-n` is how many. Needs no database."""
    asked = ["schedules", "next", "0 0 13 * 5", "--tz", "UTC", "--from", "2026-11-29", "-n", "3", "--json"]
    assert cli(*asked).document == ["2026-12-04T00:00:00.000Z", "2026-12-11T00:00:00.000Z", "2026-12-13T00:00:00.000Z"]
    spring = ["--tz", "America/New_York", "--from", "2026-03-07T12:00", "-n", "2"]
    assert cli("schedules", "next", "30 2 * * *", *spring).out.splitlines() == [
        "2026-03-08T07:00:00.000Z\tSun 2026-03-08 03:00 -04:00",
        "2026-03-09T06:30:00.000Z\tMon 2026-03-09 02:30 -04:00",
    ]
    assert not cli.db.exists()
    assert cli("schedules", "next", "0 0 * * *", "--from", "soon").code == 2
    assert cli("schedules", "next", "61 * * * *").code == 2


def test_next_of_a_schedule(cli: Any) -> None:
    """By its own zone."""
    cli("schedules", "add", "a", "0 12 * * *", "flows:sync", "--tz", "Asia/Tokyo", "--key", "k")
    asked = ["schedules", "next", "a", "--from", "2026-06-01T00:00", "-n", "1", "--json"]
    assert cli(*asked).document == ["2026-06-01T03:00:00.000Z"]


def test_sync(timed: Any) -> None:
    """Added, changed, vanished; a module that does not import is told, and changes nothing."""
    assert timed("schedules", "sync", "timed").out == "added: timed\n"
    (timed.dir / "timed.py").write_text(TIMED.replace("0 3", "0 4"))
    assert timed("schedules", "sync", "timed").out == "changed: timed\n"
    (timed.dir / "timed.py").write_text("def broken(")
    result = timed("schedules", "sync", "timed", "--json")
    assert (result.code, list(result.document["failed"])) == (1, ["timed"])
    assert timed("schedules", "list", "--fields", "name,state").out == "timed\tactive\n"
    (timed.dir / "timed.py").write_text(TIMED.replace("@schedule", "# @schedule"))
    assert timed("schedules", "sync", "timed").out == "vanished: timed\n"
    assert timed("schedules", "list", "--fields", "name,state").out == "timed\tvanished\n"


def test_a_worker_syncs_its_modules(timed: Any, wait_for: Any) -> None:
    """`durable worker timed` brings its schedules in."""
    with timed.process("worker", "timed") as worker:
        wait_for(lambda: timed("schedules", "list", "--format", "ids").out == "timed\n")
        worker.terminate()
        assert worker.wait(15) == 0


def test_import(cli: Any) -> None:
    """Each line with what became of it; exit 1 where one was refused; again: unchanged. The dry run writes nothing."""
    (cli.dir / "tab").write_text("MAILTO=me\n0 3 * * * ./backup.sh\n@reboot x\n0 4 * * * ./backup.sh b\n")
    dry = cli("schedules", "import", "tab", "-n")
    assert dry.code == 1
    assert "nothing was written" in dry.err
    assert cli("schedules", "list").out == ""
    result = cli("schedules", "import", "tab", "--json")
    assert [(row["line"], row["schedule"], row["change"]) for row in result.document] == [
        (2, "backup.sh", "added"),
        (3, None, "refused"),
        (4, "backup.sh-2", "added"),
    ]
    again = cli("schedules", "import", "-", "--json", stdin=(cli.dir / "tab").read_bytes())
    assert [row["change"] for row in again.document] == ["unchanged", "refused", "unchanged"]
    assert cli("schedules", "import", "nowhere").code == 3


def test_import_does_not_take_a_name_of_python_code(cli: Any) -> None:
    """A line whose program is called as a workflow is refused, by its line."""
    cli("start", "flows:sync")
    (cli.dir / "tab").write_text("0 3 * * * sync\n")
    result = cli("schedules", "import", "tab", "--json")
    assert (result.code, result.document[0]["change"]) == (1, "refused")
    assert "'sync' is the name of a workflow in Python" in result.document[0]["reason"]
