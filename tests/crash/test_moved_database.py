"""L06: the database is moved, deleted or replaced under a running process, which must not go on in the old one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crashkit import Gate, Log, durable, image, recorded_steps, spawn

from durable_cli import Durable, Status
from durable_cli.errors import DatabaseReplaced
from durable_cli.store.database import Database

FILES = ("", "-wal", "-shm", "-lock")


def move(db: Path, away: Path, backup: Path) -> None:
    os.rename(db, away)


def move_all(db: Path, away: Path, backup: Path) -> None:
    for suffix in FILES:
        os.rename(f"{db}{suffix}", f"{away}{suffix}")


def delete(db: Path, away: Path, backup: Path) -> None:
    os.link(db, away)  # so that the test can look into it
    os.unlink(db)


def delete_all(db: Path, away: Path, backup: Path) -> None:
    os.link(db, away)
    for suffix in FILES:
        os.unlink(f"{db}{suffix}")


def delete_wal(db: Path, away: Path, backup: Path) -> None:
    os.unlink(f"{db}-wal")


def restore(db: Path, away: Path, backup: Path) -> None:
    os.link(db, away)
    os.replace(backup, db)


def restore_all(db: Path, away: Path, backup: Path) -> None:
    move_all(db, away, backup)
    os.replace(backup, db)


@pytest.mark.parametrize("accident", [move, move_all, delete, delete_all, delete_wal, restore, restore_all])
def test_a_process_stops_when_its_database_is_gone(
    tmp_path: Path, accident: Callable[[Path, Path, Path], None]
) -> None:
    """It stops with one clear error and exit 78, writes nothing more to the old file, begins no other step, and the
    new file, where there is one, serves the next start. There is no new one beside the -wal of the old one: two
    databases would share it, and lose acknowledged starts."""
    folder = tmp_path / "d"
    folder.mkdir()
    db, log, gate = folder / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    call = ["jobs:again", "--key", "k", "--input", json.dumps(str(log.path)), "--json"]
    # A backup of before: one finished run of another key.
    durable(db, "run", "jobs:again", "--key", "old", "--input", json.dumps(str(tmp_path / "old"))).ok()
    shutil.copy(db, tmp_path / "backup")
    with spawn(db, "run", *call, JOBS_ACT=f"hold:two:{gate.path}") as owner:
        gate.wait_arrived(owner)
        accident(db, folder / "away.db", tmp_path / "backup")
        if accident in (move, delete):
            refused = durable(db, "start", *call)
            assert refused.code == 78
            assert "durable.db-wal" in refused.json["error"]["message"]
        elif accident is not delete_wal:
            started = durable(db, "start", *call).ok().json
            # A backup under a -wal that was left behind is undone by it: what is in the file is the old world.
            assert started["outcome"] == ("existing" if accident is restore else "created")
        gate.open()
        ended = owner.end()
    gate.close()
    assert ended.code == 78, ended
    assert ended.json["error"]["code"] == "database_replaced"
    assert log.steps() == ["one", "two"]
    if accident in (move, delete):  # nothing was lost: it can be brought back, and the run goes on
        os.rename(folder / "away.db", db)
        taken_up = durable(db, "run", *call).ok().json
        assert (taken_up["outcome"], taken_up["status"]) == ("resumed", "completed")
        assert log.steps() == ["one", "two", "two", "three"]
        return
    if accident is delete_wal:
        return
    with Durable(db, create=False) as it:
        assert it.check() == []
        run = it.find(key="k")
        assert run.id == started["run_id"]
        assert recorded_steps(it.run(run.id)) == ({"one"} if accident is restore else set())
        assert run.epoch == (1 if accident is restore else 0)
        assert len(it.runs(key="old")) == (1 if accident in (restore, restore_all) else 0)
    if accident is move_all:  # the only one that takes the WAL along, so that the old file is whole
        with image(folder / "away.db") as old:
            left = old.run(old.find(key="k").id)
            assert (left.status, recorded_steps(left)) == (Status.RUNNING, {"one"})


def test_an_engine_never_goes_on_in_another_file(tmp_path: Path) -> None:
    """After an error that closed the connection, it is opened again: but not on another file, where the claims that
    this process has would be those of a stranger's runs."""
    path = tmp_path / "durable.db"
    database = Database(path)
    database.write(lambda tx: None)
    database._drop()
    database.write(lambda tx: None)
    database._drop()
    other = Database(tmp_path / "other.db")
    other.write(lambda tx: None)
    other.close()
    os.replace(tmp_path / "other.db", path)
    with pytest.raises(DatabaseReplaced):
        database.write(lambda tx: None)
    os.unlink(path)
    with pytest.raises(DatabaseReplaced):
        database.read(lambda tx: None)
    assert not path.exists()
    database.close()  # who closes it gives everything up, and may begin anew
    database.write(lambda tx: None)
    database.close()
