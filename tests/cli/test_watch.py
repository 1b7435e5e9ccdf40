"""`durable runs watch`: one run, followed to its end."""

from __future__ import annotations

import itertools
import json
import os
import signal
from typing import Any

import pytest
from vt import Terminal

from durable_cli.cli.screen import cut


@pytest.fixture
def slow(cli: Any, wait_for: Any) -> Any:
    """`flows:slow` is in its first step until a file `go` is there."""
    with cli.process("run", "flows:slow", "--key", "k") as process:
        wait_for(lambda: (cli.dir / "began").exists())
        cli.runner = process
        yield cli
        process.kill()


def go(cli: Any) -> None:
    (cli.dir / "go").touch()


def rows(out: str) -> list[list[str]]:
    """TSV without the moments."""
    return [line.split("\t")[1:] for line in out.splitlines()]


# -- forms for programs --------------------------------------------------------------------------------------------


def test_a_document_a_line_for_each_change(slow: Any) -> None:
    """The run's own document, as `runs show` has it; the last one is how it ended, and so is the exit code."""
    with slow.process("runs", "watch", "--key", "k", "--json") as watcher:
        assert watcher.stdout is not None
        first = json.loads(watcher.stdout.readline())
        assert (first["status"], first["steps"]) == ("running", [])
        go(slow)
        out, err = watcher.communicate(timeout=20)
        assert (watcher.returncode, err) == (0, b"")
    documents = [first, *map(json.loads, out.splitlines())]
    shown = slow("runs", "show", first["id"], "--json").document
    del shown["key_view"], shown["events"]
    assert documents[-1] == shown
    assert all(one != other for one, other in itertools.pairwise(documents))


def test_a_line_for_each_change(slow: Any) -> None:
    """In a pipe: when it was seen, the run's status, the step, its status, its attempts; the run's end comes last."""
    with slow.process("runs", "watch", "last") as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline().split(b"\t")[1:] == [b"running", b"", b"", b"\n"]
        go(slow)
        out, err = watcher.communicate(timeout=20)
    told = rows(out.decode())
    assert [row[1:] for row in told] == [["one", "completed", "1"], ["two", "completed", "1"], ["", "", ""]]
    assert told[-1][0] == "completed"
    assert (watcher.returncode, err) == (0, b"")


def test_what_is_over_is_told_whole(cli: Any) -> None:
    """A run that has ended: all its steps, its end, its failure report on stderr, and its exit code."""
    cli("run", "flows:bad", "--key", "k")
    result = cli("runs", "watch", "--key", "k")
    assert rows(result.out) == [["failed", "fetch", "failed", "1"], ["failed", "", "", ""]]
    assert result.code == 1
    assert "error: bad failed in step fetch" in result.err
    cli("start", "flows:quiet", "--key", "c")
    cli("cancel", "--key", "c")
    assert cli("runs", "watch", "--key", "c", "--json").code == 5


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        (["--header", "--fields", "status,step"], ["status\tstep", "completed\tfetch", "completed\t"]),
        (["--format", "csv", "--fields", "step,attempts"], ["fetch,1", ","]),
        (["--format", "jsonl", "--fields", "status,result"], ['{"status": "completed", "result": 2}']),
        (["--format", "ids"], ["completed"]),
        (["-q"], []),
    ],
)
def test_forms(cli: Any, form: list[str], lines: list[str]) -> None:
    """As lists have them; nothing with -q."""
    cli("run", "flows:sync", "-q")
    assert cli("runs", "watch", "last", *form).all == (0, "".join(f"{line}\n" for line in lines), "")


def test_retries_are_changes(cli: Any) -> None:
    """A step that is tried again is told with each attempt."""
    cli.process("run", "flows:flaky", "--input", '"1s"').wait(20)
    told = rows(cli("runs", "watch", "last").out)
    assert told == [["failed", "try", "failed", "3"], ["failed", "", "", ""]]


# -- ends ----------------------------------------------------------------------------------------------------------


def test_an_interrupt_ends_the_watching_only(slow: Any) -> None:
    """Exit 130; the run goes on."""
    with slow.process("runs", "watch", "last") as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        watcher.send_signal(signal.SIGINT)
        assert watcher.communicate(timeout=20) == (b"", b"")
        assert watcher.returncode == 130
    go(slow)
    assert slow.runner.wait(20) == 0
    assert slow("runs", "wait", "last").code == 0


def test_nobody_reads_any_more(slow: Any) -> None:
    """As `durable runs watch | head -1` does: it ends, without a word, although nothing changes."""
    with slow.process("runs", "watch", "last") as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        watcher.stdout.close()
        assert watcher.wait(20) == 0
        assert watcher.stderr is not None
        assert watcher.stderr.read() == b""


def test_what_is_not_there(cli: Any) -> None:
    """No database: exit 3, and none is made. No such run, no such key: 3. No name, no such field: 2."""
    assert cli("runs", "watch", "last").code == 3
    assert cli("runs", "watch", "last", "--json").document["error"]["code"] == "database_not_found"
    assert not cli.db.exists()
    cli("start", "flows:quiet")
    assert cli("runs", "watch", "zzzzzzzzzz", "--json").document["error"]["code"] == "run_not_found"
    assert cli("runs", "watch", "--key", "none").code == 3
    assert cli("runs", "watch").code == 2
    assert cli("runs", "watch", "last", "--fields", "stat").code == 2


def test_a_run_that_is_pruned_meanwhile(slow: Any) -> None:
    """It cannot be watched any more, and that is said."""
    go(slow)
    assert slow.runner.wait(20) == 0
    slow("start", "flows:quiet", "--key", "gone")
    with slow.process("runs", "watch", "--key", "gone", "--json") as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        slow("cancel", "--key", "gone")
        slow("prune", "--older-than", "0s", "--yes")
        watcher.communicate(timeout=20)
        assert watcher.returncode in (3, 5)  # it may have seen the end before


# -- on a terminal -------------------------------------------------------------------------------------------------

NASTY = """
from durable_cli import Context, workflow


@workflow
def nasty(ctx: Context) -> str:
    for number in range(30):
        ctx.run(f"{number} \\x1b[31mred[/] :key: \\u202e" + "long " * 20, str)
    ctx.wait_for_event("never")
    return "over"
"""


@pytest.mark.parametrize("columns", [80, 40, 20])
def test_it_is_drawn_in_place(cli: Any, columns: int) -> None:
    """Header and the last steps, one line each however narrow; no control character of a user; the end to stay."""
    (cli.dir / "nasty.py").write_text(NASTY)
    cli("run", "nasty.py", "--max-wait", "0s")
    with Terminal(cli, "runs", "watch", "last", columns=columns, rows=16) as terminal:
        lines = terminal.until_it_shows("31 ⏸ never")
        assert lines[0].startswith("run  ")
        assert [line for line in lines if " earlier " in line]
        assert any("29 \\x1b[31m"[: columns - 12] in line for line in lines)
        assert terminal.picture.wrapped == 0
        assert not terminal.picture.whole
        assert terminal.picture.cursor
        cli("send-event", "last", "never", "1")
        cli("tick")
        assert terminal.end() == 0
        shown = [line for line in terminal.picture.lines if line]
    assert any(line.startswith("result     ") for line in shown)


def test_an_interrupt_on_a_terminal(cli: Any) -> None:
    """130, and a word that the run goes on."""
    cli("start", "flows:quiet")
    with Terminal(cli, "runs", "watch", "last") as terminal:
        terminal.until_it_shows("pending")
        terminal.process.sendintr()
        assert terminal.end() == 130
        assert any("goes on without being watched" in line for line in terminal.picture.lines)


@pytest.mark.parametrize(
    ("env", "styles"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False)]
)
def test_colours(cli: Any, env: dict[str, str], styles: bool) -> None:
    """NO_COLOR is obeyed."""
    cli("start", "flows:quiet")
    with Terminal(cli, "runs", "watch", "last", env=env) as terminal:
        terminal.until_it_shows("pending")
        assert (terminal.picture.styles > 0) == styles


def test_a_terminal_that_cannot_move_its_cursor(cli: Any) -> None:
    """Lines, as they come."""
    cli("run", "flows:sync", "-q")
    with Terminal(cli, "runs", "watch", "last", env={"TERM": "dumb"}) as terminal:
        assert terminal.end() == 0
        shown = [line for line in terminal.picture.lines if line]
    assert len(shown) == 2
    assert shown[0].endswith("fetch  ✓ completed")
    assert shown[1].endswith("  ✓ completed")


def test_ascii_where_there_is_no_utf_8(cli: Any) -> None:
    """Icons and ellipses in ASCII."""
    cli("run", "flows:sync", "-q")
    with Terminal(cli, "runs", "watch", "last", env={"LANG": "C", "LC_ALL": "C"}) as terminal:
        assert terminal.end() == 0
        assert "".join(terminal.picture.lines).isascii()


def test_it_begins_anew_after_a_stop(cli: Any) -> None:
    """After Ctrl-Z and `fg` it does not draw over what the shell wrote."""
    cli("start", "flows:quiet")
    with Terminal(cli, "runs", "watch", "last") as terminal:
        first = list(terminal.until_it_shows("pending"))
        os.kill(terminal.process.pid, signal.SIGSTOP)
        os.kill(terminal.process.pid, signal.SIGCONT)
        lines = terminal.until(lambda lines: sum("pending" in line for line in lines) == 2)
        assert lines[0] == first[0]


@pytest.mark.parametrize(
    ("line", "width", "kept"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("\x1b[31mabc\x1b[0mdef", 6, "\x1b[31mabc\x1b[0mdef"),
        ("\x1b[31mabcdef\x1b[0m", 4, "\x1b[31mabc…\x1b[0m"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日 …"),
        ("abc", 1, "…"),
        ("", 1, ""),
    ],
)
def test_a_line_is_cut_by_what_it_shows(line: str, width: int, kept: str) -> None:
    """Styles take no room and are closed; a wide character has two cells."""
    assert cut(line, width) == kept
