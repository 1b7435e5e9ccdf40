"""Backups: sound, one moment, private, never over anything; and the way back that docs/operating.md describes."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import textwrap
from pathlib import Path

import apsw
import pytest
from enginekit import die, in_child

from durable_cli import Durable, errors
from durable_cli.store import copying

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


def started(db: Path, *keys: str) -> None:
    """Runs that are recorded by a process which then dies, so that its -wal stays."""

    def record() -> None:
        durable = Durable(db)
        for key in keys:
            durable.start("quiet", key=key)
        die()

    in_child(record)


def keys(db: Path) -> list[str]:
    """The keys that have runs in that file."""
    with Durable(db, create=False) as durable:
        return sorted(key.key for key in durable.keys(held=False))


@pytest.fixture
def filled(cli):
    """A database that knows the workflow `quiet` and has a run of it, with the key `first`."""
    cli("start", "flows:quiet", "--key", "first")
    return cli


def test_a_backup_is_a_database_of_its_own(filled, tmp_path):
    """0600, one file without a log, complete; the answer is its place and its size; nothing is left beside it."""
    started(filled.db, "second")
    folder = tmp_path / "backups"
    folder.mkdir()
    told = filled("db", "backup", str(folder / "b.db"), "--json")
    about = (folder / "b.db").stat()
    assert told.document == {"path": str(folder / "b.db"), "bytes": about.st_size}
    assert [file.name for file in folder.iterdir()] == ["b.db"]
    assert stat.S_IMODE(about.st_mode) == 0o600
    assert filled("db", "check", "--db", str(folder / "b.db")).code == 0
    assert keys(folder / "b.db") == keys(filled.db) == ["first", "second"]


def test_a_backup_says_nothing_without_a_terminal(filled, tmp_path):
    """A line in a crontab mails nothing; -v says how many bytes."""
    assert filled("db", "backup", str(tmp_path / "a")).all == (0, "", "")
    assert re.search(r"b: \d+ bytes, integrity checked", filled("db", "backup", str(tmp_path / "b"), "-v").err)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("there", 2, "is there already"),
        ("dangling", 2, "is there already"),
        ("nowhere/b.db", 3, "there is no directory"),
        ("test.db", 2, "belongs to the database"),
        ("test.db-wal", 2, "belongs to the database"),
        ("test.db-lock", 2, "belongs to the database"),
        ("link", 2, "is there already"),
        ("work/../test.db", 2, "belongs to the database"),
        ("work", 2, "is a directory"),
        ("", 2, "is a directory"),
    ],
)
def test_a_backup_replaces_nothing(filled, tmp_path, name, code, words):
    """Not a file, not a link, and above all not the database, by whatever name; nothing is made then."""
    (tmp_path / "there").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "no such file")
    (tmp_path / "link").symlink_to(filled.db)
    before = sorted(tmp_path.iterdir())
    result = filled("db", "backup", f"{tmp_path}/{name}", "--json")
    assert (result.code, words in result.document["error"]["message"]) == (code, True), result.out
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there").read_text() == "mine"
    assert filled("db", "check").code == 0


def test_without_a_database_there_is_no_backup(cli, tmp_path):
    """Exit 3, and neither file is made."""
    assert cli("db", "backup", str(tmp_path / "b.db")).code == 3
    assert not cli.db.exists()
    assert not (tmp_path / "b.db").exists()


def test_backups_of_a_busy_database_are_each_one_moment(filled, tmp_path):
    """While another process moves an amount from row to row, commit by commit, each backup has the sum."""
    with Durable(filled.db) as durable:
        durable._engine.database.write(
            lambda tx: (tx.change("CREATE TABLE purse (n INTEGER)"), tx.change("INSERT INTO purse VALUES (100), (0)"))
        )
    mover = filled.process_of(
        """
        from durable_cli import Durable
        n, database = 0, Durable(sys.argv[1])._engine.database
        def move(tx):
            tx.change("UPDATE purse SET n = n - 1 WHERE rowid = :here", here=1 + n // 100 % 2)
            tx.change("UPDATE purse SET n = n + 1 WHERE rowid = :there", there=2 - n // 100 % 2)
        while True:
            database.write(move); n += 1
            if n == 3: print("moving", flush=True)
        """
    )
    assert mover.stdout.readline() == b"moving\n"
    splits = set()
    for number in range(8):
        with Durable(filled.db, create=False) as durable:
            made = durable.backup(tmp_path / f"{number}.db")
            assert durable.check() == []
        reader = apsw.Connection(str(made.path))
        splits.add(tuple(row[0] for row in reader.execute("SELECT n FROM purse ORDER BY rowid").fetchall()))
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    mover.send_signal(signal.SIGKILL)
    mover.communicate()
    assert {sum(split) for split in splits} == {100}
    assert len(splits) > 1, "nothing moved meanwhile"


def test_a_worker_goes_on_during_a_backup(filled, tmp_path, wait_for):
    """What is started while backups are made is executed, and the worker lives."""
    worker = filled.process("worker")
    for number in range(4):
        run_id = filled("start", "flows:quiet", "--json").document["run_id"]
        assert filled("db", "backup", str(tmp_path / f"{number}.db")).code == 0
        wait_for(lambda run_id=run_id: filled("show", run_id, "--json").document["status"] == "completed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    worker.communicate()


def test_a_full_disk_leaves_no_half_backup(filled, tmp_path, monkeypatch):
    """75, the place of the backup is named, and nothing is left; the database goes on."""

    def full(connection, source, part):
        Path(part).write_bytes(b"half")
        raise copying._full(part)

    monkeypatch.setattr(copying, "_write", full)
    result = filled("db", "backup", str(tmp_path / "b.db"))
    assert result.code == 75
    assert result.err.startswith(f"error: no space left for a copy of the database in {tmp_path}")
    assert not list(tmp_path.glob("*b.db")) + list(tmp_path.glob(".durable*"))
    assert filled("run", "flows:quiet").code == 0


def test_a_limit_on_files_is_a_full_disk(filled, tmp_path):
    """`ulimit -f`, as a quota: the real thing."""
    line = f"ulimit -f 20; exec {' '.join(filled.argv('db', 'backup', str(tmp_path / 'b.db')))}"
    done = subprocess.run(["bash", "-c", line], cwd=filled.dir, env=filled.full_env(), capture_output=True, timeout=30)
    assert (done.returncode, b"no space left" in done.stderr) == (75, True), done.stderr
    assert not (tmp_path / "b.db").exists()


def test_a_damaged_copy_gets_no_name(filled, tmp_path, monkeypatch):
    """What was written is read back; a copy that is damaged is thrown away."""
    write = copying._write

    def damage(connection, source, part):
        write(connection, source, part)
        with open(part, "r+b") as file:
            file.seek(4096 * 3)
            file.write(b"\0" * 8192)

    monkeypatch.setattr(copying, "_write", damage)
    result = filled("db", "backup", str(tmp_path / "b.db"), "--json")
    assert (result.code, result.document["error"]["code"]) == (78, "database_corrupt")
    assert not (tmp_path / "b.db").exists()


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_file_that_appears_meanwhile_is_kept(filled, tmp_path, monkeypatch, hard_links):
    """Two backups of one name at once: the second is refused, with and without hard links (FAT)."""
    target, check = tmp_path / "b.db", copying._check

    def somebody_is_faster(part, vfs):
        check(part, vfs)
        target.write_text("faster")

    monkeypatch.setattr(copying, "_check", somebody_is_faster)
    if not hard_links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    with Durable(filled.db) as durable, pytest.raises(errors.DurableError, match="File exists"):
        durable.backup(target)
    assert target.read_text() == "faster"
    monkeypatch.setattr(copying, "_check", check)
    with Durable(filled.db) as durable:
        assert durable.backup(tmp_path / "c.db").path == tmp_path / "c.db"
    assert not list(tmp_path.glob(".durable*"))


def test_a_step_may_take_a_backup(filled, tmp_path):
    """What the guard's refusal recommends works where it is raised: inside a process that has the file open."""
    (filled.dir / "inside.py").write_text(
        textwrap.dedent(
            """
            import sqlite3
            from durable_cli import Context, Durable, workflow

            def look(database: str, copy: str) -> list[str]:
                try:
                    sqlite3.connect(database).execute("SELECT 1 FROM durable_runs")
                    return ["no guard"]
                except PermissionError as refused:
                    assert "durable db backup" in str(refused)
                Durable(database).backup(copy)
                return [row[0] for row in sqlite3.connect(copy).execute("SELECT status FROM durable_runs")]

            @workflow
            def inside(ctx: Context, paths: list[str]) -> list[str]:
                return ctx.run("look", look, *paths)
            """
        )
    )
    paths = f'["{filled.db}", "{tmp_path}/b.db"]'
    assert filled("run", "inside.py", "--input", paths, "--json").document["result"] == ["pending", "running"]


# -- the way back --------------------------------------------------------------------------------------------------


def blocks_of(heading: str) -> list[str]:
    """The shell blocks of a section of docs/operating.md."""
    section = re.split(rf"^## {heading}$", OPERATING.read_text(), flags=re.MULTILINE)[1].split("\n## ")[0]
    return [
        textwrap.dedent(block) for block in re.findall(r"^ *```sh\n(.*?)^ *```$", section, re.DOTALL | re.MULTILINE)
    ]


def test_restoring_as_the_manual_says(filled, tmp_path):
    """The commands of docs/operating.md, word for word, on a database whose last process died: the backup is back."""
    filled("db", "backup", str(tmp_path / "home" / "b.db"))
    started(filled.db, "second", "third")
    assert Path(f"{filled.db}-wal").stat().st_size > 0
    script = "\n".join(blocks_of("Restore")).replace("~/backups/durable-2026-11-28.db", "~/b.db")
    assert script.count("~/b.db") == 2
    durable = " ".join(filled.argv())
    script = f'set -eu\ndurable() {{ {durable} "$@"; }}\nfuser() {{ :; }}\n{script}'
    env = filled.full_env()
    done = subprocess.run(["bash", "-c", script], cwd=filled.dir, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    assert "sound" in done.stdout
    assert keys(filled.db) == ["first"]
    assert stat.S_IMODE(filled.db.stat().st_mode) == 0o600
    assert Path(f"{filled.db}.old/{filled.db.name}-wal").exists()


@pytest.mark.parametrize("plain_copy", [False, True])
def test_why_the_old_log_has_to_go(filled, tmp_path, plain_copy):
    """What the manual warns of is so: without moving the log away the file is damaged, or the restore undone."""
    if plain_copy:
        (tmp_path / "b.db").write_bytes(filled.db.read_bytes())  # nobody has it open: it is whole
    else:
        filled("db", "backup", str(tmp_path / "b.db"))
    started(filled.db, "second")
    filled.db.write_bytes((tmp_path / "b.db").read_bytes())
    if plain_copy:
        assert keys(filled.db) == ["first", "second"]
    else:
        assert filled("db", "check").code == 78
