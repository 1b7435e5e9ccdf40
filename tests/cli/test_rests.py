"""What is said of a run that rests: for what it waits, until when, and the command that makes it go on."""

from __future__ import annotations

import re
import signal

import pytest

FLOWS = """
from durable_cli import Context, Retry, workflow


@workflow
def ask(ctx: Context, timeout: str | None = None) -> object:
    if timeout is None:
        return ctx.wait_for_input("go now", prompt="Deploy \x1b1?")
    return ctx.wait_for_input("Publish?", timeout=timeout, default=0)


@workflow
async def paid(ctx) -> object:
    return await ctx.wait_for_all(["paid", "sent"])


@workflow
def nap(ctx: Context) -> None:
    ctx.sleep("pause", "1h")


@workflow
def many(ctx: Context) -> object:
    return ctx.parallel(
        {
            "a": lambda c: c.sleep("pause", "1h"),
            "b": lambda c: c.wait_for_event("left"),
            "c": lambda c: c.wait_for_input("right"),
        }
    )


@workflow
def raced(ctx: Context) -> None:
    ctx.race({"a": lambda c: c.wait_for_event("never"), "b": lambda c: c.run("won", lambda: 1)})
    ctx.sleep("pause", "1h")
"""

CLOCK = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"
IN = r" \(in \d+m\)"
WAITS = [
    (["ask"], "an answer to 'go now' \\(Deploy \\\\x1b1\\?\\)", "durable input RUN 'go now' VALUE"),
    (["ask", "--input", '"1h"'], rf"an answer to 'Publish\?' until {CLOCK}", "durable input RUN 'Publish?' VALUE"),
    (["paid"], "event 'paid' and 'sent'", "durable send-event RUN paid"),
    (["many"], "event 'left' and 1 more", "durable send-event RUN left"),
]


@pytest.fixture
def rests(cli):
    (cli.dir / "rests.py").write_text(FLOWS)
    return cli


def newest(cli):
    return cli("runs", "list", "--format", "ids").out.split()[0]


@pytest.mark.parametrize(("asked", "what", "command"), WAITS)
def test_a_wait_for_somebody_says_how_to_end_it(rests, asked, what, command):
    """While it is waited for, when it is left, and to the next call that meets it; never "until None"."""
    call = ["run", f"rests:{asked[0]}", *asked[1:], "--key", "k"]
    left = rests(*call, "--max-wait", "0s", "--step-by-step")
    run_id = newest(rests)
    command = re.escape(command.replace("RUN", run_id))
    live, last = left.err.splitlines()
    assert (left.code, left.out) == (8, "")
    assert re.fullmatch(rf"  ⏸ waits for {what}: {command}", live)
    assert re.fullmatch(
        rf"run {run_id} waits for {what}({IN})?; to go on: {command}, then durable resume {run_id}", last
    )
    met = rests(*call, "-v").err.splitlines()[-1]
    assert re.fullmatch(
        rf"nothing started: run {run_id} holds the key k and waits for {what}({IN})?; "
        rf"to go on: {command}, then durable resume {run_id}",
        met,
    )


def test_the_commands_work_as_they_are_told(rests):
    """Pasted one after the other; `--db` stands in them where this call had it."""
    db = str(rests.dir / "other.db")
    said = rests("run", "rests:ask", "--max-wait", "0s", "--db", db).err
    answer, resume = re.fullmatch(r".*; to go on: (durable input .*), then (durable resume .*)\n", said).groups()
    run_id = resume.split()[2]
    assert answer == f"durable input {run_id} 'go now' VALUE --db {db}"
    told = rests("input", run_id, "go now", "yes", "--db", db, "-v").err
    assert told.splitlines()[-1] == f"run {run_id} has its answer to go now; to execute it here: {resume}"
    assert rests(*resume.split()[1:]).out == '"yes"\n'


def test_the_answer_to_a_run_that_somebody_executes(rests, wait_for):
    """Neither an owner that waits nor a worker needs a command; an event that is only kept makes nothing due."""
    process = rests.process("run", "rests:ask", "--key", "k")
    wait_for(lambda: rests("inputs", "--format", "ids").out != "")
    met = rests("run", "rests:ask", "--key", "k", "-v").err.splitlines()[-1]
    assert re.search(r"; to go on: durable input [a-z0-9]+ 'go now' VALUE$", met)
    told = rests("input", "--key", "k", "go now", "yes", "-v").err
    assert told.splitlines()[-1].endswith("has its answer to go now")
    assert process.communicate(timeout=20)[0] == b'"yes"\n'
    rests("run", "rests:nap", "--max-wait", "0s")
    assert "to execute" not in rests("send-event", "last", "later", "-v").err
    rests("run", "rests:paid", "--max-wait", "0s")
    sent = rests("send-event", "last", "sent", "-v").err
    assert sent.splitlines()[-1].endswith(f"; to execute it here: durable resume {newest(rests)}")


def test_int_names_what_makes_it_go_on(rests, wait_for):
    """Not `resume` alone, which would be refused."""
    process = rests.process("run", "rests:ask", "--key", "k")
    wait_for(lambda: rests("inputs", "--format", "ids").out != "")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    run_id = newest(rests)
    assert process.returncode == 130
    ends = f"; to go on: durable input {run_id} 'go now' VALUE, then durable resume {run_id}"
    assert (
        err.decode().splitlines()[-1] == f"SIGINT: run {run_id} waits for an answer to 'go now' (Deploy \\x1b1?){ends}"
    )


def test_a_rest_that_ends_by_itself(rests):
    """Local time, as everywhere else; a lost branch of a race is no wait any more."""
    for name in ("nap", "raced"):
        left = rests("run", f"rests:{name}", "--max-wait", "0s")
        run_id = newest(rests)
        assert re.fullmatch(
            rf"run {run_id} waits until {CLOCK}{IN} and can go on then: durable resume {run_id}\n", left.err
        )
        assert "never" not in rests("runs", "list", "--format", "table").out


def test_lists_name_a_question_once(rests):
    """No prompt: its name stands for it."""
    rests("run", "rests:ask", "--input", '"1h"', "--max-wait", "0s")
    shown = rests("runs", "list", "--format", "table").out
    assert re.search(r"  for an answer to 'Publish\?' in \d+m", shown)
