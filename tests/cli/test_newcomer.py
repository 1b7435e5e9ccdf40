"""What a newcomer stumbled over: what is said of rests, ends, undo steps and branches, and tables at 80 columns."""

from __future__ import annotations

import re
import signal
import time

import pytest
from rich.cells import cell_len

from durable_cli import render
from durable_cli.cli import fitting, stepnames
from durable_cli.model import Step, StepStatus

MORE = """
from durable_cli import Context, Retry, workflow


def _bad(value: object = None) -> None:
    raise ValueError("no\\x1b[31m")


@workflow
def text(ctx: Context, s: str) -> str:
    return s


@workflow
def nap(ctx: Context) -> str:
    ctx.sleep("pause", "1h")
    return "over"


@workflow
def saga(ctx: Context) -> None:
    once = Retry(max_attempts=1)
    ctx.run("reserve", lambda: 1, compensate=_bad, compensate_retry=once)
    ctx.run("charge", _bad, retry=once)


@workflow
def fan(ctx: Context) -> None:
    ctx.map("resize", str, [1, 2])
    ctx.parallel({"left": lambda c: c.parallel({"a/b": lambda d: d.run("deep", lambda: 2)})})
"""


MORE += """

@workflow
def arms(ctx: Context) -> None:
    def arm(c: Context) -> None:
        c.run("build", lambda: None)
        c.run("push", lambda: None, compensate=lambda _: None)

    ctx.run("push", lambda: None, compensate=_bad)
    ctx.parallel({"arm": arm, "x86": arm}, concurrency=1)
    ctx.run("publish", _bad)


@workflow
async def aarms(ctx) -> None:
    async def arm(c) -> None:
        await c.run("build", lambda: None)
        await c.run("push", lambda: None, compensate=lambda _: None)

    await ctx.run("push", lambda: None, compensate=_bad)
    await ctx.parallel({"arm": arm, "x86": arm}, concurrency=1)
    await ctx.run("publish", _bad)
"""


@pytest.fixture
def more(cli):
    (cli.dir / "more.py").write_text(MORE)
    return cli


def test_params_for_an_input_that_is_no_object(more):
    """The hint names --input; a field that does not fit has no such hint."""
    assert "this input is not one" in more("run", "more:text", "-P", "s=1").err
    assert "this input is not one" not in more("run", "flows:sync", "-P", "n=x").err.partition("hint")[0]


@pytest.mark.parametrize("form", [["--print-crontab", "@daily"], ["--print-systemd"], ["--print-launchd"]])
def test_a_line_for_a_file_that_is_not_there(more, form):
    """Exit 3 as `run` would; a word on the missing key at a terminal (here -v)."""
    assert more("run", "nope.py:x", *form).code == 3
    assert more("run", "more.py:nap", *form).err == ""
    assert "without --key" in more("run", "more.py:nap", *form, "-v").err
    assert "without --key" not in more("run", "more.py:nap", *form, "-v", "--key", "k").err


def test_steps_by_branch_and_undo_steps_by_name(more):
    """In `runs show`; what could not be undone is told there and by the failure report."""
    more("run", "more:fan")
    shown = more("runs", "show", "last").out
    for name in ("resize[0]", "resize[1]", "left › parallel", "left › a/b › deep"):
        assert f" ✓ {name}  completed" in shown
    assert "left > a/b > deep" in more("runs", "show", "last", env={"LANG": "C"}).out
    report = more("run", "more:saga").err
    assert "undo reserve failed: ValueError: no\\x1b[31m" in report
    shown = more("runs", "show", "last").out
    assert "✗ undo reserve  failed" in shown
    assert "undo reserve failed: ValueError" in shown


@pytest.mark.parametrize("name", ["arms", "aarms"])
def test_steps_of_one_name_are_told_apart(more, name):
    """In the lines of their progress, of a worker too, and in what is undone."""
    said = more("run", f"more:{name}", "--step-by-step").err
    lines = [
        re.sub("  [\\d.]+s$|: .*", "", line) for line in said.splitlines() if line.startswith("  ") and line[2] in "✓✗"
    ]
    undone = ["✓ undo x86 › push", "✓ undo arm › push", "✗ undo push"]
    built = ["✓ push", "✓ arm › build", "✓ arm › push", "✓ x86 › build", "✓ x86 › push", "✗ publish", *undone]
    assert [line.strip() for line in lines] == built
    shown = more("runs", "show", "last").out
    for one in undone:
        assert f" {one}  " in shown
    assert "undo push failed: ValueError" in said
    assert "undo arm > push" in more("runs", "show", "last", env={"LANG": "C"}).out
    more("start", f"more:{name}")
    assert re.search(r"step completed undo arm › push$", more("tick", "-v").err, re.M)


def test_a_kept_holder_that_failed(cli):
    """Besides the other ways: going on in place."""
    run_id = cli("run", "flows:bad_once", "--key", "k", "--json").document["run_id"]
    for policy in ("use_existing", "error"):
        said = cli("run", "flows:bad_once", "--key", "k", "--on-duplicate", policy).err
        assert f"durable retry {run_id} --foreground" in said
    refused = cli("resume", run_id)
    assert (refused.code, refused.err.splitlines()[-1]) == (4, f"hint: durable retry {run_id} --foreground")
    refused = cli("input", run_id, "name", "value")
    assert (refused.code, "is failed" in refused.err) == (4, True)


def test_a_run_that_rests(more, wait_for):
    """INT says until when; a later call says that nobody executes it; resume says when; retry names resume."""
    process = more.process("run", "more:nap", "--key", "k", "-v")
    wait_for(lambda: more("runs", "list", "--status", "waiting", "--format", "ids").out != "")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    said = err.decode()
    run_id = more("runs", "list", "--format", "ids").out.strip()
    assert process.returncode == 130
    assert "running step may end" not in said
    assert f"run {run_id} waits until " in said.splitlines()[-1]
    assert said.splitlines()[-1].endswith(f"durable resume {run_id}")
    met = more("run", "more:nap", "--key", "k", "-v")
    assert (met.code, "nobody executes it" in met.err) == (0, True)
    refused = more("resume", run_id)
    assert (refused.code, "it is due at " in refused.err) == (4, True)
    assert refused.err.splitlines()[-1] == f"hint: durable runs wait {run_id}"
    assert more("retry", run_id).err.splitlines()[-1] == f"hint: durable resume {run_id}"
    assert "note[workers] no worker is alive to go on with 1 run" in more("doctor").out


def test_a_command_that_kept_nothing(cli):
    """What a command prints on a terminal is not kept, and `logs` says so."""
    cli("exec", "--", "true")
    assert "nothing was kept" in cli("logs", "last", "-v").err
    cli("run", "flows:quiet")
    assert "printed nothing" in cli("logs", "last", "-v").err


def test_a_worker_tells_of_bad_ends(more, wait_for):
    """Without a terminal too, escaped; completed runs by -v only."""
    bad = more("start", "more:saga").out.strip()
    more("start", "flows:quiet")
    worker = more.process("worker")
    wait_for(lambda: not more("runs", "list", "--unfinished", "--format", "ids").out)
    time.sleep(0.2)
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=20)
    step = "failed in step charge (attempt 1), and its compensation failed too: ValueError: no\\x1b[31m"
    assert err.decode() == f"error: run {bad} of saga {step}; undo reserve failed: ValueError: no\\x1b[31m\n"


def test_tables_at_80_columns():
    """Ids and statuses whole, long texts cut, columns without content dropped; in cells of the terminal."""
    columns = ["run", "workflow", "key", "status", "waiting", ""]
    row = ["abcdefghjk", "a_workflow_with_a_long_name", "键" * 40, ("‼ compensation_failed", "red"), "-", "x" * 90]
    names, rows = fitting.drop_empty(columns, [row])
    assert names == ["run", "workflow", "key", "status", ""]
    [cut], widths = fitting.fit(names, rows, width=80, ascii_only=False)
    assert widths is not None
    drawn = render.table(names, [cut], width=80, colour=False, ascii_only=False, widths=widths)
    assert [max(cell_len(line) for line in drawn.splitlines()), len(drawn.splitlines())] == [80, 3]
    assert (cut[0], cut[3]) == (row[0], row[3])
    assert str(cut[2]).endswith("…")
    [plain], _ = fitting.fit(names, rows, width=80, ascii_only=True)
    assert str(plain[4]).endswith("x...")


def test_steps_in_the_order_of_their_places(more):
    """Those of branches stand behind the operation that has them, numbered after it; undo steps last."""
    more("run", "more:arms")
    steps = [
        line[:24].split()
        for line in more("runs", "show", "last").out.splitlines()
        if re.match(r"^ +[\d.]* [✓✗] ", line)
    ]
    assert [step[0] for step in steps] == ["1", "2", "2.1", "2.2", "2.1", "2.2", "3", "✓", "✓", "✗"]
    more("run", "more:fan")
    shown = more("runs", "show", "last").out
    numbers = re.findall(r"^ +([\d.]+) ✓ (\S.*?)  completed", shown, re.M)
    assert numbers == [
        *(("1", "resize"), ("1.1", "resize[0]"), ("1.1", "resize[1]"), ("2", "parallel")),
        *(("2.1", "left › parallel"), ("2.1.1", "left › a/b › deep")),
    ]


def test_items_of_a_map_stand_in_their_order():
    """By number, not as text."""
    steps = [
        Step(branch, 1, "run", "a", StepStatus.COMPLETED, 1, 0, 0, 0, None, "1", None)
        for branch in ("/1:10", "/1:9", "")
    ]
    assert [step.branch for _, step in stepnames.in_order(steps)] == ["", "/1:9", "/1:10"]


def test_a_saga_that_was_undone_failed(more):
    """The step failed; that it was compensated is what became of it."""
    assert more("run", "more:saga").err.startswith(
        "error: saga failed in step charge (attempt 1), and its compensation failed too: ValueError: no"
    )
    (more.dir / "more.py").write_text(MORE.replace("compensate=_bad", "compensate=lambda _: None"))
    assert more("run", "more:saga").err.startswith(
        "error: saga failed in step charge (attempt 1), and was compensated: ValueError: no"
    )


def test_hints_that_can_be_followed(more):
    """The key in the command on the key; no app-dir for an absolute path."""
    for _ in range(2):
        more("run", "flows:sync", "--key", "a b")
    assert "key's runs 2 (durable keys show 'a b' --workflow sync)" in more("runs", "show", "last").out
    gone = more("run", "/nowhere/nope.py")
    assert (gone.code, gone.err) == (3, "error: there is no file /nowhere/nope.py\n")
    near = more("run", str(more.dir / "mor.py"))
    assert near.err.splitlines()[-1] == "hint: did you mean more.py?"
    assert "--app-dir" in more("run", "nope.py").err


def test_what_a_cancel_says(more, wait_for):
    """Of a running step only where one runs."""
    more("start", "flows:quiet", "--key", "k")
    assert more("cancel", "--key", "k", "-v").err.splitlines()[-1].endswith(" is cancelled")
    process = more.process("run", "flows:slow", "--key", "s", "-q")
    wait_for((more.dir / "began").exists)
    said = more("cancel", "--key", "s", "-v").err.splitlines()[-1]
    assert said.endswith(" is cancelled; a step that is running ends, and its result is discarded")
    (more.dir / "go").touch()
    assert process.wait(20) == 5


def test_tables_on_a_narrow_terminal(more):
    """What has no room is left out, and named; never the status, nor what --fields asks for."""
    more("run", "flows:sync", "--key", "k")
    for width in (45, 38):
        shown = more("keys", "list", "--format", "table", "-v", env={"COLUMNS": str(width)})
        assert max(cell_len(line) for line in shown.out.splitlines()) <= width
        assert "✓ completed" in shown.out
        assert "no room here for: " in shown.err
    asked = more("keys", "list", "--format", "table", "--fields", "key,runs,holder_id", env={"COLUMNS": "20"})
    assert (asked.err, "holder_id" in asked.out) == ("", True)
