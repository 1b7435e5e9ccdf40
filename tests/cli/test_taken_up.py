"""A call that goes on with a run that was there before says so to a person, and what becomes of the input it gave."""

from __future__ import annotations

import re

import pytest

FLOWS = """
import os
from durable_cli import Context, workflow


def _kill() -> None:
    if not os.path.exists("go"):
        open("go", "w").close()
        os.kill(os.getpid(), 9)


@workflow
def dies(ctx: Context, n: int = 0) -> int:
    ctx.run("one", lambda: None)
    ctx.run("two", _kill)
    return n


@workflow
async def adies(ctx, n: int = 0) -> int:
    await ctx.run("one", lambda: None)
    await ctx.run("two", _kill)
    return n
"""


@pytest.fixture
def killed(cli):
    (cli.dir / "dies.py").write_text(FLOWS)
    return cli


@pytest.mark.parametrize("name", ["dies", "adies"])
@pytest.mark.parametrize(
    ("more", "input_", "own"),
    [
        ((), "2", "; its own input is used, not the one given"),
        ((), "1", ""),
        (("--on-duplicate", "error"), "2", "; its own input is used, not the one given"),
    ],
)
def test_a_run_that_is_taken_up(killed, name, more, input_, own):
    """How old it is, how far it came, and whether another input was given."""
    assert killed.real("run", f"dies:{name}", "--key", "k", "--input", "1").code == -9
    run_id = killed("runs", "list", "--format", "ids").out.strip()
    done = killed("run", f"dies:{name}", "--key", "k", "--input", input_, *more, "-v")
    assert (done.code, done.out) == (0, "1\n")
    said = [line for line in done.err.splitlines() if line.startswith("goes on")]
    assert len(said) == 1
    assert re.fullmatch(
        rf"goes on with run {run_id} \(begun (now|\d+s ago), 1 step recorded\){re.escape(own)}", said[0]
    )


def test_who_did_not_ask_is_told_nothing(killed):
    """Neither cron (-q) nor a pipe."""
    for number, more in enumerate(((), ("-q",))):
        (killed.dir / "go").unlink(missing_ok=True)
        killed.real("run", "dies:dies", "--key", str(number))
        done = killed("run", "dies:dies", "--key", str(number), "--input", "2", *more)
        assert (done.code, done.err) == (0, "")


def test_a_run_that_was_recorded_only(killed):
    """And one that takes the newer input is no news: it is the one that was given."""
    (killed.dir / "go").touch()
    killed("start", "dies:dies", "--key", "a", "--input", "1")
    said = killed("run", "dies:dies", "--key", "a", "--input", "2", "-v").err
    assert re.search(
        r"^goes on with run \w+ \(recorded (now|\d+s ago), not begun yet\); its own input is used", said, re.M
    )
    killed("start", "dies:dies", "--key", "b", "--input", "1")
    merged = killed("run", "dies:dies", "--key", "b", "--input", "2", "--on-duplicate", "run_again", "-v")
    assert (merged.out, "goes on" in merged.err) == ("2\n", False)
    fresh = killed("run", "dies:dies", "--key", "c", "-v").err
    assert "goes on" not in fresh


def test_a_command_that_is_taken_up(killed):
    """The recorded command line is executed, not the one that was given."""
    script = "if test -e there; then echo one; else : > there; kill -9 $PPID; sleep 60; fi"
    assert killed.real("exec", "--key", "e", "--", "sh", "-c", script).code == -9
    done = killed("exec", "--key", "e", "-v", "--", "sh", "-c", "echo two")
    assert (done.code, done.out) == (0, "one\n")
    assert re.search(r"^goes on with run \w+ \(begun .*\); its own command is used, not the one given$", done.err, re.M)
