"""The views that other programs read: the rows of `runs list`, `keys list` and `activity`, from another process."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from durable_cli import Durable, render

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"
NO_COLUMN = {
    "durable_v_runs": {"owner"},  # owner_pid in its place: whether it lives is not in the file
    "durable_v_keys": {"owner_alive"},
    "durable_v_activity": set(),
}
FIELDS = {
    "durable_v_runs": render.RUN_FIELDS,
    "durable_v_keys": render.KEY_FIELDS,
    "durable_v_activity": render.ACTIVITY_FIELDS,
}
JSON = ("input", "result", "error", "details")


def rows(db: Path, view: str) -> list[dict[str, object]]:
    """All rows of a view, its JSON columns read."""
    connection = apsw.Connection(str(db), flags=apsw.SQLITE_OPEN_READONLY)
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({view})").fetchall()]
    found = [dict(zip(names, row, strict=True)) for row in connection.execute(f"SELECT * FROM {view}").fetchall()]
    connection.close()
    for row in found:
        for name in JSON:
            if isinstance(row.get(name), str):
                row[name] = json.loads(row[name])
    return found


@pytest.fixture
def busy(cli):
    """Runs of every kind: completed, failed, replaced, waiting behind, resting, owned by a dead process; dropped and
    changed inputs, hand-offs, a release, keys with blanks and quotes."""
    cli("run", "flows:sync", "--input", "3", "--key", " a'b ")
    cli("run", "flows:bad", "--key", "k", "--input", '"it \\u001b[1m broke"')
    cli("run", "flows:flaky", "--key", "rests")
    cli("start", "flows:echo", "--key", "k", "--input", '{"n": null, "deep": [1, {"x": 2.5}]}')
    cli("start", "flows:echo", "--key", "k", "--input", "null")
    cli("start", "flows:echo", "--key", "k", "--input", "7", "--on-duplicate", "cancel_existing")
    cli("start", "flows:echo", "--key", "é→", "--input", "1")
    cli("start", "flows:echo", "--key", "é→", "--on-duplicate", "error")
    cli("run", "flows:once", "--key", "once")
    cli("release-key", "--key", "once")
    cli("retry", "--key", "once")
    cli("start", "flows:quiet")
    owned = cli.process("run", "flows:slow", "--key", "slow")
    try:
        while not (cli.dir / "began").exists():
            assert owned.poll() is None
        cli("start", "flows:slow", "--key", "slow", "--input", "1.0", "--on-duplicate", "run_again")
    finally:
        owned.kill()
        owned.communicate()
    return cli


def wanted(cli, view: str) -> list[dict[str, object]]:
    command = {"durable_v_runs": "runs", "durable_v_keys": "keys"}.get(view)
    document = cli(*([command, "list"] if command else ["activity"]), "--json").document
    assert len(document) > 3
    return document


@pytest.mark.parametrize("view", FIELDS)
def test_a_view_has_the_rows_of_its_command(busy, view):
    """Every column that has a name of the JSON has its value; flags are 0 and 1."""
    found, documents = rows(busy.db, view), wanted(busy, view)
    names = set(FIELDS[view]) - NO_COLUMN[view]
    assert names <= set(found[0])
    by = [{name: document[name] for name in names} for document in documents]
    order = ("id",) if view != "durable_v_keys" else ("workflow", "key")
    seen = [{name: row[name] for name in names} for row in found]
    assert sorted(seen, key=lambda row: [row[name] for name in order]) == sorted(
        by, key=lambda row: [row[name] for name in order]
    )


def test_owners_are_told_by_their_pid(busy):
    """Of a run and of the holder of a key."""
    run = next(one for one in wanted(busy, "durable_v_runs") if one["owner"] is not None)
    assert {row["id"]: row["owner_pid"] for row in rows(busy.db, "durable_v_runs")}[run["id"]] == run["owner"]["pid"]
    key = next(row for row in rows(busy.db, "durable_v_keys") if row["key"] == "slow")
    assert key["owner_pid"] == run["owner"]["pid"]


def test_activity_can_be_counted_by_outcome(busy):
    """The outcome of a duplicate is a column too, with the value that is in details."""
    found = rows(busy.db, "durable_v_activity")
    assert {row["outcome"] for row in found} >= {"use_existing", "error", "cancel_existing", "run_again", None}
    assert all(row["outcome"] == row["details"].get("outcome") for row in found)
    assert all(row["input_changed"] == row["details"].get("input_changed") for row in found)


def test_moments_are_exact_to_the_millisecond(tmp_path):
    """As `--json` writes them, for moments of any year; what no calendar can say is null."""
    db, dice = tmp_path / "d.db", random.Random(7)
    moments = [0, 1, 999, 59_999, 253402300799999, *(dice.randrange(253402300800000) for _ in range(2000))]
    with Durable(db) as durable:
        durable._engine.database.write(
            lambda tx: [
                tx.insert(
                    "INSERT INTO durable_activity (at, kind, workflow, details) VALUES (:at, 'x', 'w', '{}')", at=at
                )
                for at in [*moments, 2**62]
            ]
        )
    found = [row["at"] for row in sorted(rows(db, "durable_v_activity"), key=lambda row: row["id"])]
    assert found == [*map(render.iso, moments), None]


def test_an_empty_database_has_empty_views(cli):
    """No rows, and no error."""
    with Durable(cli.db) as durable:
        assert durable.runs() == []
    assert [rows(cli.db, view) for view in FIELDS] == [[], [], []]


def test_damaged_json_damages_no_other_row(busy):
    """A row whose error or details are no JSON any more is given as it is; the rest of the list is there."""
    count = len(rows(busy.db, "durable_v_runs"))
    connection = apsw.Connection(str(busy.db))
    connection.execute("UPDATE durable_runs SET error = '{' WHERE error IS NOT NULL")
    connection.execute("UPDATE durable_activity SET details = '{' WHERE id = 1")
    runs = connection.execute("SELECT error FROM durable_v_runs").fetchall()
    assert len(runs) == count
    assert ("{",) in runs
    assert connection.execute("SELECT details FROM durable_v_activity WHERE id = 1").fetchall() == [("{",)]
    connection.close()


def test_another_program_can_read_them(busy):
    """In another process, read only, with whatever SQLite Python has: what the manual says of datasette and sqlite3."""
    code = "import sqlite3, sys; db = sqlite3.connect('file:' + sys.argv[1] + '?mode=ro', uri=True); " + "; ".join(
        f"print(len(db.execute('SELECT * FROM {view}').fetchall()))" for view in FIELDS
    )
    other = subprocess.run([sys.executable, "-c", code, str(busy.db)], capture_output=True, text=True, timeout=30)
    assert other.returncode == 0, other.stderr
    assert [int(line) for line in other.stdout.split()] == [len(wanted(busy, view)) for view in FIELDS]


def test_the_manual_names_every_column(busy):
    """docs/operating.md documents the views with all their columns, in order."""
    text = OPERATING.read_text()
    for view in FIELDS:
        told = re.search(rf"^\| `{view}` \| (.+?) \|", text, re.MULTILINE)
        assert told is not None, view
        assert re.findall(r"`(\w+)`", told[1]) == list(rows(busy.db, view)[0])
