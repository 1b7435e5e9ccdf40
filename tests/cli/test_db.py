"""`durable db info|vacuum|migrate|shell`."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from vt import Terminal

from durable_cli import Durable, care
from durable_cli.store import compacting, console, contention, failures, schema


@pytest.fixture
def filled(cli: Any) -> Any:
    """One completed run with a key, one that nobody executes."""
    cli("run", "flows:sync", "--key", "k")
    cli("start", "flows:quiet")
    return cli


@pytest.fixture
def pruned(filled: Any) -> Any:
    """A database with some MiB that pruned runs left."""
    filled("start", "flows:echo")
    with Durable(filled.db) as durable:
        for started in durable.start_many("echo", [{"input": "x" * 100_000} for _ in range(60)]):
            durable.cancel(started.run_id)  # type: ignore[union-attr]
        durable.prune(older_than="0s")
    return filled


@contextmanager
def another(cli: Any, *statements: str) -> Iterator[None]:
    """Another process that has executed these statements and keeps its connection, for the block."""
    code = f"""
        import apsw, time
        connection = apsw.Connection(sys.argv[1])
        for statement in {statements!r}:
            connection.execute(statement).fetchall()
        print(flush=True)
        time.sleep(60)
    """
    with cli.process_of(code) as process:
        process.stdout.readline()
        yield
        process.kill()


def rows(db: Path) -> list[Any]:
    """All runs and steps."""
    connection = apsw.Connection(str(db), flags=apsw.SQLITE_OPEN_READONLY)
    found = connection.execute("SELECT * FROM durable_runs").fetchall()
    found += connection.execute("SELECT * FROM durable_steps").fetchall()
    connection.close()
    return found


# -- info ----------------------------------------------------------------------------------------------------------


def test_what_the_file_is(filled: Any) -> None:
    """Sizes, versions and counts; the file's own size and pages agree."""
    told = filled("db", "info", "--json").document
    assert told["path"] == str(filled.db)
    assert told["bytes"] == filled.db.stat().st_size == told["pages"] * told["page_size"]
    assert (told["schema_version"], told["sqlite"]) == (1, apsw.sqlite_lib_version())
    wanted = {"exists": True, "runs": 2, "unfinished": 1, "keys": 1, "workflows": 2, "workers": 0, "executing": 0}
    assert {name: told[name] for name in wanted} == wanted
    text = filled("db", "info")
    assert "runs       2, 1 unfinished\n" in text.out
    assert (text.code, text.err) == (0, "")


def test_who_is_alive_is_counted(filled: Any, wait_for: Any) -> None:
    """Workers, and processes that execute runs; dead ones are not."""
    with filled.process("run", "flows:slow") as process:
        wait_for(lambda: (filled.dir / "began").exists())
        assert filled("db", "info", "--json").document["executing"] == 1
        process.kill()
        process.wait()
    assert filled("db", "info", "--json").document["executing"] == 0


def test_info_without_a_database(cli: Any) -> None:
    """The empty document, exit 0, and no file; exit 3 where --db named it."""
    told = cli("db", "info", "--json")
    assert (told.code, told.document["exists"], told.document["runs"]) == (0, False, 0)
    assert cli("db", "info").all == (0, "", "")
    assert cli("db", "info", "--db", str(cli.db), "--json").document["error"]["code"] == "database_not_found"
    assert not cli.db.exists()


# -- vacuum --------------------------------------------------------------------------------------------------------


def test_the_file_becomes_smaller(pruned: Any) -> None:
    """By the space that pruned runs left; all that is in it stays, the log is empty, and the file is sound."""
    before, kept = pruned("db", "info", "--json").document, rows(pruned.db)
    assert before["free_pages"] > before["pages"] // 2
    assert "(durable db vacuum)" in pruned("db", "info").out
    told = pruned("db", "vacuum", "--json")
    assert (told.code, told.err) == (0, "")
    after = pruned("db", "info", "--json").document
    assert told.document["bytes_before"] == before["bytes"]
    assert told.document["bytes_after"] == after["bytes"] == pruned.db.stat().st_size < before["bytes"] // 2
    assert (told.document["log_emptied"], after["free_pages"], after["log_bytes"]) == (True, 0, 0)
    assert rows(pruned.db) == kept
    assert pruned("db", "check").code == 0


def test_vacuum_says_nothing_without_a_terminal(pruned: Any) -> None:
    """A line in a crontab mails nothing."""
    assert pruned("db", "vacuum").all == (0, "", "")
    assert "before, " in pruned("db", "vacuum", "-v").err


def test_whoever_reads_goes_on_reading(pruned: Any) -> None:
    """A reader is in nobody's way; that the file shrinks later is said."""
    with another(pruned, "BEGIN", "SELECT count(*) FROM durable_runs"):
        told = pruned("db", "vacuum", "--json")
        assert (told.code, told.document["log_emptied"]) == (0, False)
    assert pruned("db", "check").code == 0
    assert pruned.db.stat().st_size == told.document["bytes_after"]  # once the last one that read has gone


def test_whoever_writes_is_waited_for(pruned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as any write waits; then exit 75, and nothing has changed."""
    monkeypatch.setattr(contention, "DEADLINE", 0.2)
    size = pruned("db", "info", "--json").document["pages"]
    with another(pruned, "BEGIN IMMEDIATE"):
        told = pruned("db", "vacuum", "--json")
        assert (told.code, told.document["error"]["code"]) == (75, "database_locked")
    assert pruned("db", "info", "--json").document["pages"] == size
    assert pruned("db", "vacuum").code == 0


def test_a_run_goes_on_beside_it(pruned: Any, wait_for: Any) -> None:
    """A process that executes a run writes before and after, and its run completes."""
    with pruned.process("run", "flows:slow", "--json") as process:
        wait_for(lambda: (pruned.dir / "began").exists())
        assert pruned("db", "vacuum").code == 0
        (pruned.dir / "go").touch()
        out, _ = process.communicate(timeout=20)
    assert json.loads(out)["status"] == "completed"
    assert pruned("db", "check").code == 0


def test_a_large_file_is_not_vacuumed_under_those_who_would_wait(
    pruned: Any, wait_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 75 with who they are; without them it goes."""
    monkeypatch.setattr(care, "QUICK_BYTES", 1)
    with pruned.process("run", "flows:slow") as process:
        wait_for(lambda: (pruned.dir / "began").exists())
        told = pruned("db", "vacuum")
        assert (told.code, told.out) == (75, "")
        assert f"process {process.pid} (run)" in told.err
        process.kill()
        process.wait()
    assert pruned("db", "vacuum").code == 0


def test_without_space_it_does_not_begin(pruned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the content where temporary files are on the same disk; exit 75, the file as it was."""
    with Durable(pruned.db) as durable:
        content = compacting.content_bytes(durable._engine.database)
    size = pruned.db.stat().st_size
    monkeypatch.setattr(failures, "free_bytes", lambda path: 2 * content - 1)
    told = pruned("db", "vacuum", "--json", env={"SQLITE_TMPDIR": str(pruned.dir)})
    assert (told.code, told.document["error"]["code"]) == (75, "disk_full")
    assert pruned.db.stat().st_size == size
    monkeypatch.setattr(failures, "free_bytes", lambda path: 2 * content)
    assert pruned("db", "vacuum", env={"SQLITE_TMPDIR": str(pruned.dir)}).code == 0


def test_an_interrupt_is_heard_in_the_middle(pruned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 130, and nothing has changed."""
    calls = []

    def interrupted() -> bool:
        calls.append(None)
        if len(calls) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    monkeypatch.setattr(compacting, "_LOOK_EVERY", 10)
    monkeypatch.setattr(compacting, "_go_on", interrupted)
    kept, pages = rows(pruned.db), pruned("db", "info", "--json").document["pages"]
    assert pruned("db", "vacuum").all == (130, "", "")
    assert pruned("db", "info", "--json").document["pages"] == pages
    assert rows(pruned.db) == kept
    assert pruned("db", "check").code == 0


# -- migrate -------------------------------------------------------------------------------------------------------


def test_nothing_to_migrate(filled: Any) -> None:
    """Exit 0, and that is said to whoever asks."""
    wanted = {"path": str(filled.db), "from": 1, "to": 1, "migrated": False, "backup": None}
    assert filled("db", "migrate", "--json").document == wanted
    assert filled("db", "migrate").all == (0, "", "")
    assert "nothing to do" in filled("db", "migrate", "-v").err


def test_an_older_file(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From which schema to which, and where the copy of before is; once."""
    now = schema.current()
    step = "CREATE TABLE durable_two (a INTEGER) STRICT;"
    newer = dataclasses.replace(now, version=2, sql=f"{now.sql}\n{step}", migrations=((2, step),))
    monkeypatch.setattr(schema, "current", lambda: newer)
    told = filled("db", "migrate", "--json").document
    copy = f"{filled.db}.schema-1-backup"
    assert told == {"path": str(filled.db), "from": 1, "to": 2, "migrated": True, "backup": copy}
    assert rows(Path(copy)) == rows(filled.db)
    assert filled("db", "migrate", "--json").document["migrated"] is False


def test_a_newer_file_is_left_alone(filled: Any) -> None:
    """Exit 78."""
    connection = apsw.Connection(str(filled.db))
    connection.execute("UPDATE durable_meta SET value = '9' WHERE name = 'schema_version'")
    connection.close()
    before = filled.db.read_bytes()
    told = filled("db", "migrate", "--json")
    assert (told.code, told.document["error"]["code"]) == (78, "database_too_new")
    assert filled.db.read_bytes() == before


@pytest.mark.parametrize("command", ["vacuum", "migrate", "shell"])
def test_without_a_database_none_is_made(cli: Any, command: str) -> None:
    """Exit 3."""
    assert cli("db", command, "--json").document["error"]["code"] == "database_not_found"
    assert not cli.db.exists()


# -- shell ---------------------------------------------------------------------------------------------------------


def test_sql_as_an_argument_and_in_a_pipe(filled: Any) -> None:
    """Rows as lists are written: TSV in a pipe, the other forms when asked for."""
    sql = "SELECT workflow, status, key, 2.5 FROM durable_v_runs ORDER BY workflow"
    lines = "quiet\tpending\t\t2.5\nsync\tcompleted\tk\t2.5\n"
    assert filled("db", "shell", sql).all == (0, lines, "")
    assert filled("db", "shell", stdin=f"{sql};\n".encode()).all == (0, lines, "")
    assert filled("db", "shell", sql, "--header").out.startswith("workflow\tstatus\tkey\t2.5\n")
    found = filled("db", "shell", sql, "--json").document
    assert found[0] == {"workflow": "quiet", "status": "pending", "key": None, "2.5": 2.5}
    assert filled("db", "shell", sql, "--format", "csv").out.splitlines()[1] == "sync,completed,k,2.5"
    assert filled("db", "shell", sql, "--format", "ids").out == "quiet\nsync\n"
    assert "NULL" in filled("db", "shell", sql, "--format", "table").out


def test_several_statements(filled: Any) -> None:
    """Each result after the other; one JSON document has one result."""
    sql = "SELECT 1; BEGIN; SELECT count(*) FROM durable_runs; COMMIT; SELECT 3 WHERE 0"
    assert filled("db", "shell", sql).out == "1\n2\n"
    assert filled("db", "shell", sql, "--json").document["error"]["code"] == "usage_error"
    assert filled("db", "shell", "SELECT 1 AS a WHERE 0", "--json").document == []
    assert filled("db", "shell", "").all == (0, "", "")


def test_any_value_of_sqlite_is_shown(filled: Any) -> None:
    """Names twice, bytes, infinity, controls: one JSON document, one line."""
    sql = "SELECT 1 AS a, 'x' AS a, x'00ff' AS b, 1e999 AS c, char(27) || '[31m' AS d"
    assert filled("db", "shell", sql, "--json").document == [
        {"a": 1, "a:1": "x", "b": "00ff", "c": "inf", "d": "\x1b[31m"}
    ]
    assert filled("db", "shell", sql).out == "1\tx\t00ff\tinf\t\\x1b[31m\n"


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM durable_runs",
        "DROP VIEW durable_v_runs",
        "BEGIN IMMEDIATE; UPDATE durable_runs SET status = 'failed'",
        "PRAGMA journal_mode = delete",
        "PRAGMA wal_checkpoint",
        "PRAGMA user_version = 7",
        "PRAGMA writable_schema = 1",
        "VACUUM",
        "VACUUM INTO 'copy.db'",
        "ATTACH 'other.db' AS other",
        "CREATE TABLE mine (a)",
        "nonsense",
        "SELECT nothing",
    ],
)
def test_it_reads_only(filled: Any, sql: str) -> None:
    """Whatever writes, here or elsewhere, is refused at once with exit 2, and so is what is no SQL."""
    before, files = filled.db.read_bytes(), sorted(filled.dir.iterdir())
    told = filled("db", "shell", sql, "--json")
    assert (told.code, told.document["error"]["code"]) == (2, "usage_error"), told.out
    assert filled.db.read_bytes() == before
    assert sorted(filled.dir.iterdir()) == files
    assert filled("db", "check").code == 0


def test_it_waits_for_nobody_and_nobody_for_it(filled: Any) -> None:
    """Beside a writer it reads what was committed."""
    with another(filled, "BEGIN IMMEDIATE", "DELETE FROM durable_steps"):
        assert filled("db", "shell", "SELECT count(*) FROM durable_steps").out == "1\n"


def test_a_long_query_is_interrupted(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 130."""
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"
    monkeypatch.setattr(console, "_go_on", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert filled("db", "shell", endless).all == (130, "", "")


def test_a_shell_on_a_terminal(filled: Any) -> None:
    """Answers as tables, with every control character of the data shown literally; what would leave it is refused."""
    with Terminal(filled, "db", "shell", env={"TERM": "dumb"}) as terminal:
        shell = terminal.process
        shell.expect_exact("sqlite> ")
        asked = {
            "SELECT char(27) || '[31mred' || char(7) AS a;": "?[31mred?",  # the box does that itself
            ".mode list": "sqlite> ",
            "SELECT char(27) || 'x';": "\\x1bx",
            "DELETE FROM durable_runs;": "readonly database",
            ".open other.db": "is not here",
            ".backup other.db": "durable db backup FILE",
            ".py": "is not here",
            "SELECT key FROM durable_v_keys;": "k",
        }
        for line, answer in asked.items():
            shell.sendline(line)
            shell.expect_exact(line)
            shell.expect_exact(answer)
            assert "\x1b" not in shell.before
        shell.sendline(".exit 3")
        assert terminal.end() == 3
    assert not (filled.dir / "other.db").exists()


def test_no_shell_where_nobody_types(filled: Any) -> None:
    """With --no-input, or where the answer does not go to the terminal: exit 2 with what to do."""
    for options in (["--no-input"], ["--json"]):
        with Terminal(filled, "db", "shell", *options, columns=200) as terminal:
            assert terminal.end() == 2
            assert any("needs SQL" in line for line in terminal.picture.lines)
