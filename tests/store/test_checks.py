"""`check` finds every broken promise, also those that the constraints of the file forbid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from durable_cli.store.checks import check
from durable_cli.store.database import Database


class Damaged:
    """A file whose constraints are switched off, to write into it what must never be there."""

    def __init__(self, path: Path) -> None:
        self.connection = apsw.Connection(str(path))
        self.connection.execute("PRAGMA ignore_check_constraints = 1; PRAGMA foreign_keys = 0")

    def add(self, table: str, **given: Any) -> None:
        """A row with these values, and something in each other column that must have a value."""
        columns = self.connection.execute(f"PRAGMA table_info({table})").fetchall()
        for _, name, kind, required, default, _ in columns:
            if required and default is None and name not in given:
                given[name] = 1 if kind == "INTEGER" else "x"
        places = ", ".join(f":{name}" for name in given)
        self.connection.execute(f"INSERT INTO {table} ({', '.join(given)}) VALUES ({places})", given)

    def run(self, row: int, **given: Any) -> None:
        """A pending run, due, sound unless `given` says otherwise."""
        letters = "abcdefghij"[row] * 10
        self.add("durable_runs", **{"id": row, "public_id": letters, "workflow_id": 1, "due_at": 5, **given})

    def holder(self, row: int, **given: Any) -> None:
        self.run(row, **{"key": "k", "holds_key": 1, "held_since": 5, **given})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "durable.db"
    database = Database(path)
    database.read(lambda tx: None)
    database.close()
    return path


@pytest.fixture
def damaged(path: Path) -> Iterator[Damaged]:
    file = Damaged(path)
    file.add("durable_workflows", id=1, name="sync", reuse="after_close", on_max_hold="report", on_mismatch="record")
    file.add("durable_owners", id=1, pid=1, kind="run")
    yield file
    file.connection.close()


def found(path: Path) -> list[str]:
    database = Database(path)
    try:
        return database.read(check)
    finally:
        database.close()


def test_a_sound_file(path: Path, damaged: Damaged) -> None:
    """A holder, a waiting run, a running one, finished ones with and without their key, a step: nothing to say."""
    damaged.holder(1, status="running", owner_id=1, due_at=None, epoch=1, started_at=5)
    damaged.run(2, key="k", runs_after_id=1, due_at=None)
    done = {"due_at": None, "finished_at": 9, "epoch": 1, "status": "completed", "result": "1"}
    damaged.holder(3, key="other", **done)
    damaged.run(4, key="k", **done)
    damaged.run(5)
    damaged.add("durable_steps", run_id=3, branch="", seq=1, status="completed", result="1", finished_at=6, failures=0)
    assert found(path) == []


def two_holders(file: Damaged) -> None:
    file.connection.execute("DROP INDEX durable_one_holder")
    file.holder(1)
    file.holder(2)


def two_waiting(file: Damaged) -> None:
    file.connection.execute("DROP INDEX durable_one_waiting")
    file.holder(1)
    for row in (2, 3):
        file.run(row, key="k", runs_after_id=1, due_at=None)


_DONE = {"status": "failed", "error": "{}", "finished_at": 9, "due_at": None}

BROKEN: dict[str, Callable[[Damaged], object]] = {
    "run bbbbbbbbbb holds a key and has none": lambda f: f.holder(1, key=None),
    "run bbbbbbbbbb is pending and neither holds its key nor waits for it": lambda f: f.run(1, key="k"),
    "run bbbbbbbbbb waits behind a run that does not exist": lambda f: f.run(1, key="k", runs_after_id=9),
    "run cccccccccc waits behind run bbbbbbbbbb, which has another key": lambda f: (
        f.holder(1),
        f.run(2, key="K", runs_after_id=1),
    ),
    "run cccccccccc waits behind run bbbbbbbbbb, which does not hold the key": lambda f: (
        f.run(1, key="k", **_DONE),
        f.run(2, key="k", runs_after_id=1),
    ),
    "run cccccccccc waits behind run bbbbbbbbbb, which is finished: it should have taken the key": lambda f: (
        f.holder(1, **_DONE),
        f.run(2, key="k", runs_after_id=1),
    ),
    "run cccccccccc waits behind another although it is running": lambda f: (
        f.holder(1),
        f.run(2, key="k", runs_after_id=1, status="running"),
    ),
    "run cccccccccc waits behind another although it is owned": lambda f: (
        f.holder(1),
        f.run(2, key="k", runs_after_id=1, owner_id=1),
    ),
    "run bbbbbbbbbb is running without an owner": lambda f: f.run(1, status="running"),
    "run bbbbbbbbbb has owner 7, who is not in the list of owners": lambda f: f.run(1, status="running", owner_id=7),
    "run bbbbbbbbbb is failed and still has an owner or a due time": lambda f: f.run(1, **{**_DONE, "owner_id": 1}),
    "run bbbbbbbbbb is failed and has no moment at which it finished": lambda f: f.run(
        1, **{**_DONE, "finished_at": None}
    ),
    "run bbbbbbbbbb is waiting and has a moment at which it finished": lambda f: f.run(
        1, status="waiting", finished_at=9
    ),
    "run bbbbbbbbbb is pending and will never be due": lambda f: f.run(1, due_at=None),
    "run bbbbbbbbbb belongs to a workflow that does not exist": lambda f: f.run(1, workflow_id=8),
    "step fetch belongs to run number 5, which does not exist": lambda f: f.add(
        "durable_steps", run_id=5, name="fetch", status="completed", result="1"
    ),
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_each_broken_promise_is_a_sentence(path: Path, damaged: Damaged, sentence: str) -> None:
    """Found by the sentence that names the run, whatever else SQLite's own checks say of it."""
    BROKEN[sentence](damaged)
    assert sentence in found(path)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (two_holders, "key k of workflow sync has more than one holder"),
        (two_waiting, "key k of workflow sync has more than one waiting run"),
    ],
)
def test_what_the_unique_indexes_forbid(
    path: Path, damaged: Damaged, damage: Callable[[Damaged], None], sentence: str
) -> None:
    """Without its index a file no longer opens; a connection that has it open finds the second holder."""
    database = Database(path)
    database.read(lambda tx: None)
    damage(damaged)
    database.close()
    damaged.connection.execute("CREATE TABLE copy (a)")
    from durable_cli.store.transaction import Tx

    assert sentence in check(Tx(damaged.connection, path))


def test_sqlites_own_checks_are_part_of_it(path: Path, damaged: Damaged) -> None:
    """A page that was overwritten, and a reference to nothing."""
    damaged.run(1, owner_id=7)
    assert "a row of durable_runs refers to a row of durable_owners that does not exist" in found(path)
    for row in range(2000):
        damaged.add("durable_activity", kind="key_released", workflow=f"w{row}" * 20, details="{}")
    damaged.connection.close()
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    assert any("damaged" in sentence for sentence in found(path))


@pytest.mark.parametrize("table", ["durable_runs", "durable_steps", "durable_owners"])
def test_what_is_found_before_the_check_breaks_off_is_told(path: Path, damaged: Damaged, table: str) -> None:
    """SQLite's check names the damaged page, and then the page is met again and ends the check itself."""
    damaged.run(1)
    root = damaged.connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()[0]
    damaged.connection.close()
    with open(path, "r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    sentences = found(path)
    assert any(f"page {root}:" in sentence for sentence in sentences), sentences
    assert len(sentences) == len(set(sentences)) > 1
