"""The schema comes whole or not at all, once, and a file that is not ours to change stays as it was."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import apsw
import pytest

from durable_cli import errors
from durable_cli.store import schema
from durable_cli.store.database import Database, Tx

ROOT = Path(__file__).parents[2]


def child(code: str, *arguments: object, path: Path = ROOT) -> subprocess.Popen[str]:
    """A process of its own that runs `code` with the package from `path`."""
    begin = """
        import os, sys, time
        from pathlib import Path
        from durable_cli import errors
        from durable_cli.store import schema
        from durable_cli.store.database import Database
        a = sys.argv[1:]
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(path)},
        cwd=path.parent,
    )


def answer(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "durable.db"


def make(path: Path, wanted: schema.Schema | None = None) -> None:
    database = Database(path, wanted=wanted)
    database.read(lambda tx: None)
    database.close()


def change(path: Path, *statements: str) -> None:
    """Change the file behind durable's back."""
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def objects(path: Path) -> dict[str, str]:
    """Name -> SQL of what is in the file."""
    connection = apsw.Connection(str(path))
    found = dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE name LIKE 'durable%'").fetchall())
    connection.close()
    return found


def test_a_new_file_has_the_schema_and_leaves_the_applications_numbers_alone(path: Path) -> None:
    """All objects of schema.sql, the version in our own table, `user_version` and `application_id` untouched."""
    change(path, "PRAGMA user_version = 17", "PRAGMA application_id = 18", "CREATE TABLE articles (id)")
    path.chmod(0o600)
    make(path)
    database = Database(path)
    assert set(objects(path)) == set(schema.current().objects())
    assert "durable_runs" in objects(path)
    assert "durable_one_holder" in objects(path)
    assert database.read(lambda tx: tx.value("SELECT value FROM durable_meta WHERE name = 'schema_version'")) == "1"
    assert database.read(lambda tx: tx.value("PRAGMA user_version")) == 17
    assert database.read(lambda tx: tx.value("PRAGMA application_id")) == 18
    database.write(lambda tx: tx.change("INSERT INTO articles VALUES (1)"))
    database.close()


def test_schema_sql_is_found_in_a_zip_file(tmp_path: Path) -> None:
    """As the wheel has it, beside the package, also when that is imported from a zip file."""
    archive = tmp_path / "durable.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for module in (ROOT / "durable_cli").rglob("*.py"):
            packed.write(module, module.relative_to(ROOT))
        packed.write(ROOT / "schema.sql", "durable_cli/schema.sql")
    code = "print(schema.__file__); print(len(schema.schema_sql())); Database(Path(a[0])).read(lambda tx: None)"
    place, length = answer(child(code, tmp_path / "x.db", path=archive)).split()
    assert place.startswith(str(archive))
    assert int(length) == len((ROOT / "schema.sql").read_text("utf-8"))


def test_twenty_processes_open_a_new_file_at_once(path: Path) -> None:
    """All succeed, all write, and the schema was made once."""
    code = """
        while not os.path.exists(a[1]): time.sleep(0.001)
        d = Database(Path(a[0]))
        d.write(lambda tx: tx.change("INSERT INTO durable_owners (pid, kind, created_at) VALUES (1, 'run', 1)"))
    """
    start = path.with_name("start")
    processes = [child(code, path, start) for _ in range(20)]
    start.touch()
    for process in processes:
        answer(process)
    database = Database(path)
    assert database.read(lambda tx: tx.value("SELECT count(*) FROM durable_owners")) == 20
    assert database.read(lambda tx: tx.value("PRAGMA journal_mode")) == "wal"
    database.close()


def test_kill_while_the_schema_is_made(path: Path) -> None:
    """After kill -9 in the middle of it the file has nothing of ours, and the next process makes all of it."""
    code = """
        real = schema.create
        def create(tx, wanted):
            real(tx, wanted); print("made", flush=True); time.sleep(60)
        schema.create = create
        Database(Path(a[0])).read(lambda tx: None)
    """
    process = child(code, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(errors.DatabaseNotFound, match="none of durable's tables"):
        Database(path, create=False).read(lambda tx: None)
    make(path)
    assert set(objects(path)) == set(schema.current().objects())


# -- not ours to change --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("create", [True, False])
def test_a_newer_file_is_refused_and_unchanged(path: Path, create: bool) -> None:
    """Whatever else a newer schema may contain, the message says the versions, and no byte differs after it."""
    make(path)
    change(
        path,
        "UPDATE durable_meta SET value = '7' WHERE name = 'schema_version'",
        "CREATE TABLE durable_future (a)",
        "CREATE TRIGGER durable_t AFTER INSERT ON durable_runs BEGIN DELETE FROM durable_meta; END",
    )
    before = digest(path)
    for _ in range(2):
        with pytest.raises(errors.DatabaseTooNew, match="schema 7; this durable knows schema 1"):
            Database(path, create=create).write(lambda tx: None)
    assert digest(path) == before
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE durable_extra (a)", "table durable_extra"),
        ("CREATE TABLE Durable_Extra (a)", "table durable_extra"),
        ("CREATE VIEW durable_v_mine AS SELECT 1", "view durable_v_mine"),
        ("CREATE TRIGGER mine AFTER INSERT ON durable_runs BEGIN DELETE FROM durable_meta; END", "trigger mine"),
        ("CREATE UNIQUE INDEX durable_mine ON durable_runs (status)", "index durable_mine"),
        ("DROP INDEX durable_one_holder", "lacks index durable_one_holder"),
        ("DROP TABLE durable_activity", "lacks table durable_activity"),
        ("DELETE FROM durable_meta", "no readable schema version"),
        ("UPDATE durable_meta SET value = '1; DROP TABLE x'", "no readable schema version"),
        ("DROP TABLE durable_meta", "did not make"),
        (
            "DROP TABLE durable_meta; CREATE VIEW durable_meta AS SELECT 'schema_version' name, '1' value",
            "did not make",
        ),
    ],
)
def test_what_is_not_ours_in_our_namespace_is_refused_before_any_write(path: Path, statement: str, words: str) -> None:
    """A trigger on our tables would run with our writes; a lost index would no longer keep our promise."""
    make(path)
    change(path, *statement.split("; ")[:2] if "VIEW durable_meta" in statement else [statement])
    before = digest(path)
    with pytest.raises(errors.DatabaseUnusable, match=words):
        Database(path).write(lambda tx: None)
    assert digest(path) == before


def test_an_applications_own_objects_are_nobodys_business(path: Path) -> None:
    """Tables, views and triggers of other names, also an index of theirs on our table, are let be."""
    make(path)
    change(
        path,
        "CREATE TABLE durables (a)",
        "CREATE VIEW list AS SELECT * FROM durable_runs",
        "CREATE TRIGGER t AFTER INSERT ON durables BEGIN DELETE FROM durables; END",
        "CREATE INDEX theirs ON durable_runs (input)",
    )
    make(path)


def test_a_migration_under_a_running_process_is_noticed(path: Path) -> None:
    """A process of an older version stops at its next transaction and does not write into the newer schema."""
    old = Database(path)
    old.read(lambda tx: None)
    new = Database(path, wanted=next_schema())
    new.read(lambda tx: None)
    with pytest.raises(errors.DatabaseTooNew):
        old.write(lambda tx: None)
    with pytest.raises(errors.DatabaseTooNew):
        old.read(lambda tx: None)
    new.close()
    old.close()


# -- migrations ----------------------------------------------------------------------------------------------------

_STEP_2 = "CREATE TABLE durable_two (a INTEGER) STRICT; INSERT INTO durable_two SELECT count(*) FROM durable_owners;"
_STEP_3 = "CREATE TABLE durable_three (a INTEGER) STRICT; INSERT INTO durable_two VALUES (3);"
_ORPHAN = "CREATE TABLE durable_three (a REFERENCES durable_owners (id)); INSERT INTO durable_three VALUES (99);"
_NEW_TABLES = "\nCREATE TABLE durable_two (a INTEGER) STRICT;\nCREATE TABLE durable_three (a INTEGER) STRICT;\n"


def next_schema(**more: Any) -> schema.Schema:
    return schema.Schema(3, schema.schema_sql() + _NEW_TABLES, more.get("migrations", ((2, _STEP_2), (3, _STEP_3))))


def fill(path: Path) -> None:
    database = Database(path)
    database.write(lambda tx: tx.change("INSERT INTO durable_owners (pid, kind, created_at) VALUES (1, 'run', 1)"))
    database.close()


def backup_of(path: Path) -> Path:
    return path.with_name("durable.db.schema-1-backup")


def test_an_older_file_is_migrated_after_a_backup(path: Path) -> None:
    """Step by step in order, once; the file as it was lies beside it, 0600, and opens with the older version."""
    fill(path)
    for _ in range(2):
        database = Database(path, wanted=next_schema())
        assert database.read(lambda tx: tx.rows("SELECT a FROM durable_two")) == [{"a": 1}, {"a": 3}]
        assert database.read(lambda tx: tx.value("PRAGMA foreign_keys")) == 1
        database.close()
    backup = backup_of(path)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    old = Database(backup, create=False)
    assert old.read(lambda tx: tx.value("SELECT count(*) FROM durable_owners")) == 1
    old.close()
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, backup.name]


@pytest.mark.parametrize(
    ("migrations", "words"),
    [
        (((2, _STEP_2), (3, "CREATE TABLE durable_three (a) STRICT")), "missing datatype"),
        (((2, _STEP_2), (3, "CREATE TABLE durable_other (a)")), "lacks table durable_three"),
        (((2, _STEP_2),), "no way leads to 3"),
        (
            ((2, _STEP_2), (3, _ORPHAN)),
            "rows without parent",
        ),
    ],
)
def test_a_migration_that_fails_changes_nothing(
    path: Path, migrations: tuple[tuple[int, str], ...], words: str
) -> None:
    """A statement that fails, a result that is not the schema, a missing step, a broken reference: all rolled back."""
    fill(path)
    before = objects(path)
    with pytest.raises(errors.DurableError, match=words):
        Database(path, wanted=next_schema(migrations=migrations)).read(lambda tx: None)
    assert objects(path) == before
    make(path)


_MIGRATE = """
    *a, two, three, tables = a
    wanted = schema.Schema(3, schema.schema_sql() + tables, ((2, two), (3, three)))
"""


def test_ten_processes_migrate_at_once(path: Path) -> None:
    """Exactly one does it; the others wait and find it done."""
    fill(path)
    code = """
        while not os.path.exists(a[1]): time.sleep(0.001)
        Database(Path(a[0]), wanted=wanted).write(lambda tx: tx.change("UPDATE durable_two SET a = a + 10"))
    """
    start = path.with_name("start")
    processes = [
        child(textwrap.dedent(_MIGRATE) + textwrap.dedent(code), path, start, _STEP_2, _STEP_3, _NEW_TABLES)
        for _ in range(10)
    ]
    start.touch()
    for process in processes:
        answer(process)
    database = Database(path, wanted=next_schema())
    assert database.read(lambda tx: tx.rows("SELECT a FROM durable_two")) == [{"a": 101}, {"a": 103}]
    database.close()


@pytest.mark.parametrize("place", ["backup", "before commit"])
def test_kill_in_the_middle_of_a_migration(path: Path, place: str) -> None:
    """After kill -9 the file is the old one, whole, and the next process migrates it."""
    fill(path)
    code = """
        if a[1] == "backup":
            def hang(*_): print("there", flush=True); time.sleep(60)
            os.replace = hang
        else:
            real = schema.migrate
            def migrate(*given):
                real(*given); print("there", flush=True); time.sleep(60)
            schema.migrate = migrate
        Database(Path(a[0]), wanted=wanted).read(lambda tx: None)
    """
    process = child(textwrap.dedent(_MIGRATE) + textwrap.dedent(code), path, place, _STEP_2, _STEP_3, _NEW_TABLES)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    make(path)  # opens as schema 1, so nothing of the migration is there
    assert set(objects(path)) == set(schema.current().objects())
    database = Database(path, wanted=next_schema())

    def seen(tx: Tx) -> list[dict[str, Any]]:
        return tx.rows("SELECT a FROM durable_two")

    assert database.read(seen) == [{"a": 1}, {"a": 3}]
    database.close()
    assert backup_of(path).exists()
    assert not backup_of(path).with_name(backup_of(path).name + ".part").exists()
