"""`durable top`: a live view on a terminal, and once elsewhere."""

from __future__ import annotations

import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from vt import Terminal

from durable_cli import Durable
from durable_cli.cli import top
from durable_cli.cli.session import Session
from durable_cli.store import overview as overview_rows


@pytest.fixture
def busy(cli: Any) -> Any:
    """Runs that have ended, one that rests in a retry, one behind a holder, many that nobody executes, a re-add."""
    cli("run", "flows:sync", "--key", "done")
    cli("run", "flows:flaky", "--max-wait", "0s", "--key", "rests")
    cli("start", "flows:quiet", "--key", "k", "--delay", "1h")
    cli("start", "flows:quiet", "--key", "k")
    for number in range(30):
        cli("start", "flows:echo", "--key", f"\x1b[31m{number} [/] :key: " + "long " * 10)
    return cli


# -- once ----------------------------------------------------------------------------------------------------------


def test_one_document(busy: Any) -> None:
    """With --json: counts, every unfinished run with its step, processes, the last activity; exit 0."""
    told = busy("top", "--json")
    assert (told.code, told.err) == (0, "")
    found = told.document
    assert found["unfinished"] == {"pending": 31, "waiting": 1}
    assert found["finished_1h"] == {"completed": 1}
    assert (found["path"], found["keys_held"], found["processes"]) == (str(busy.db), 33, [])
    assert [row["kind"] for row in found["activity"]] == ["key_duplicate"]
    runs = {run["id"]: run for run in busy("runs", "list", "--unfinished", "--json").document}
    assert {run["id"] for run in found["runs"]} == set(runs)
    for run in found["runs"]:
        step = run.pop("step")
        assert step == ("try" if run["status"] == "waiting" else None)
        assert run == {name: runs[run["id"]][name] for name in run}
    assert found["runs"][0]["status"] == "waiting"  # what is executed or waits comes before what nobody executes


def test_in_a_pipe_it_is_the_picture_once(busy: Any) -> None:
    """Nothing is cut, no escape of ours and none of a user's."""
    told = busy("top")
    assert (told.code, told.err) == (0, "")
    assert "\x1b" not in told.out
    assert told.out.count("\\x1b[31m") == 30
    assert "long long long" in told.out
    assert "runs      0 running  1 waiting  31 pending  0 compensating\n" in told.out
    assert "more" not in told.out


def test_who_is_alive(busy: Any, wait_for: Any) -> None:
    """A live process that executes runs is there with its pid; a dead one is not, but its run says so."""
    with busy.process("run", "flows:slow") as process:
        wait_for(lambda: (busy.dir / "began").exists())
        found = busy("top", "--json").document
        [alive] = found["processes"]
        assert (alive["pid"], alive["kind"], alive["runs"]) == (process.pid, "run", 1)
        assert found["runs"][0]["owner"] == {"alive": True, "pid": process.pid}
        process.kill()
        process.wait()
    assert busy("top", "--json").document["processes"] == []
    assert f"{process.pid} dead" in busy("top").out


def test_without_a_database(cli: Any) -> None:
    """The empty document, exit 0, no file; exit 3 where --db named it."""
    told = cli("top", "--json")
    assert (told.code, told.document["runs"], told.document["at"]) == (0, [], None)
    assert cli("top").all == (0, "", "")
    assert cli("top", "--db", str(cli.db)).code == 3
    assert not cli.db.exists()


@pytest.mark.parametrize("every", ["0s", "50ms", "often"])
def test_how_often(cli: Any, every: str) -> None:
    """Not more often than ten times a second; exit 2."""
    assert cli("top", "--every", every).code == 2


def test_it_reads_by_indexes(tmp_path: Path) -> None:
    """However many runs have ended: no statement goes through a whole table."""
    statements = [value for value in vars(overview_rows).values() if isinstance(value, str) and "SELECT" in value]
    assert len(statements) == 5
    with Durable(tmp_path / "d.db") as durable:
        for sql in statements:
            bound = {name: "[]" for name in re.findall(r":(\w+)", sql)}
            plan = durable._engine.database.read(
                lambda tx, sql=sql, bound=bound: tx.rows(f"EXPLAIN QUERY PLAN {sql}", **bound)
            )
            scans = [row["detail"] for row in plan if row["detail"].startswith("SCAN")]
            assert all("INDEX" in scan or "json_each" in scan or "VIRTUAL" in scan for scan in scans), scans


# -- on a terminal -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 15), (20, 14), (200, 60)])
def test_it_fills_the_terminal_and_gives_it_back(busy: Any, columns: int, rows: int) -> None:
    """Every line fits, controls are shown literally, what has no room is counted; q ends it with exit 0."""
    with Terminal(busy, "top", columns=columns, rows=rows) as terminal:

        def all_there(lines: list[str]) -> bool:  # what is read may end in the middle of a picture
            shown = sum(re.match(r"[a-z][0-9a-z]{9}  ", line) is not None for line in lines)
            more = [re.match(r"(\d+) more", line) for line in lines]
            hidden = sum(int(match[1]) for match in more if match is not None)
            return shown >= 1 and (shown + hidden == 32 or rows == 60)

        terminal.until(all_there)
        assert terminal.picture.whole
        assert not terminal.picture.cursor
        assert terminal.picture.wrapped == 0
        terminal.process.send("q")
        assert terminal.end() == 0
        assert (terminal.picture.whole, terminal.picture.cursor) == (False, True)


def test_it_is_live(busy: Any) -> None:
    """What changes is shown at the next look."""
    with Terminal(busy, "top", "--every", "100ms") as terminal:
        terminal.until_it_shows("31 pending")
        busy("start", "flows:quiet")
        terminal.until_it_shows("32 pending")
        terminal.process.setwinsize(24, 100)
        terminal.picture.columns = 100
        busy("start", "flows:quiet")
        terminal.until_it_shows("33 pending")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(busy: Any, number: signal.Signals) -> None:
    """With the exit code of the signal; Ctrl-C is one."""
    with Terminal(busy, "top") as terminal:
        terminal.until_it_shows("pending")
        if number is signal.SIGINT:
            terminal.process.sendintr()
        else:
            os.kill(terminal.process.pid, number)
        assert terminal.end() == 128 + number
        assert (terminal.picture.whole, terminal.picture.cursor) == (False, True)


def test_keys_are_not_read_with_no_input(busy: Any) -> None:
    """--no-input: q is not ours."""
    with Terminal(busy, "top", "--no-input", "--every", "100ms") as terminal:
        terminal.until_it_shows("31 pending")
        terminal.process.setecho(False)
        terminal.process.send("q")
        busy("start", "flows:quiet")
        terminal.until_it_shows("32 pending")


def test_a_database_that_is_replaced_ends_it(busy: Any) -> None:
    """With the error on the terminal as it was, and its exit code."""
    with Terminal(busy, "top", "--every", "100ms", columns=120) as terminal:
        terminal.until_it_shows("31 pending")
        busy.db.rename(busy.dir / "elsewhere.db")
        assert terminal.end() == 78
        assert not terminal.picture.whole
        assert any("error: " in line for line in terminal.picture.lines)


def test_a_terminal_that_cannot_move_its_cursor(busy: Any) -> None:
    """Once, as in a pipe."""
    with Terminal(busy, "top", env={"TERM": "dumb"}, columns=200, rows=60) as terminal:
        assert terminal.end() == 0
        assert any("31 pending" in line for line in terminal.picture.lines)


def test_any_width_has_a_picture(busy: Any) -> None:
    """No width is too small to be drawn on."""
    with Durable(busy.db) as durable:
        view = durable.overview(limit=10, activity=3)
    session = Session({"LANG": "C.UTF-8"})
    for columns, rows in itertools.product(range(1, 60, 3), (1, 5, 12, 25)):
        assert top._lines(session, "path", view, columns, rows)
