"""What `run`, `start` and their kin print and return: the table of exit codes, outcomes, cron's silence."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

RUN_FIELDS = [
    "run_id", "workflow", "key", "outcome", "status", "result", "error", "holder_id", "holder_status", "replaced_id",
]  # fmt: skip


def test_run_prints_the_result_and_nothing_else(cli):
    """Exit 0; the result as JSON on stdout, nothing for null; `durable` itself adds nothing without a terminal."""
    assert cli("run", "flows:sync", "--input", "4").all == (0, "5\n", "")
    assert cli("run", "flows:quiet").all == (0, "", "")
    assert cli("run", "flows:echo", "--input", '"é"').out == '"é"\n'


def test_the_document_of_run_has_the_fixed_names(cli):
    """`--json` of run, to the letter."""
    document = cli("run", "flows:sync", "--key", "k", "--json").document
    assert list(document) == RUN_FIELDS
    assert document["outcome"] == "created"
    assert (document["status"], document["result"], document["error"]) == ("completed", 2, None)
    again = cli("run", "flows:once", "--key", "k", "--json").document
    kept = cli("run", "flows:once", "--key", "k", "--json").document
    assert list(kept) == RUN_FIELDS
    assert (kept["outcome"], kept["status"], kept["result"]) == ("existing", "completed", "the one")
    assert kept["run_id"] == kept["holder_id"] == again["run_id"]
    assert kept["holder_status"] == "completed"


def test_a_failed_run_exits_1_with_a_report_and_gives_its_document(cli):
    """The report names workflow, step, attempt, the line in the user's file, and how to go on; no locals, no frames
    of ours. With `--json` the document has `error` {type, message, step, attempt}."""
    result = cli("run", "flows:bad", "--key", "k")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(
        "noise of the step\nerror: bad failed in step fetch (attempt 1): ValueError: it broke\n"
    )
    assert 'flows.py", line' in result.err
    assert "raise ValueError(text)" in result.err
    assert "local-secret\n" not in result.err.replace('password = "local-secret"', "")
    assert "durable_cli/" not in result.err
    assert result.err.splitlines()[-1].startswith("hint: durable retry ")
    found = cli("run", "flows:bad", "--key", "k", "--json")
    assert found.code == 1
    assert found.document["error"] == {"type": "ValueError", "message": "it broke", "step": "fetch", "attempt": 1}
    assert "error:" not in found.err


def test_quiet_shows_the_output_only_on_failure(cli):
    """`-q`: nothing on success; on failure at most 40 lines with the last lines of the step's output (M19)."""
    assert cli("run", "flows:sync", "--key", "k", "-q").all == (0, "", "")
    assert cli("run", "flows:noisy", "-q").err == ""
    result = cli("run", "flows:bad", "--key", "k", "-q")
    assert (result.code, result.out) == (1, "")
    assert "    noise of the step\n" in result.err
    assert len(result.err.splitlines()) <= 40
    long = cli("run", "flows:bad", "-q", "--input", json.dumps("x\n" * 300))
    assert len(long.err.splitlines()) <= 40
    assert long.err.splitlines()[-1].startswith("hint: durable retry ")


CHILDREN = """
import subprocess

from durable_cli import Context, workflow


def sync() -> None:
    print("starting rsync")
    subprocess.run(["sh", "-c", "echo 'rsync: connection refused' >&2; exit 12"], check=True)


@workflow
def copy(ctx: Context) -> None:
    ctx.run("before", print, "done before")
    ctx.run("sync", sync)


@workflow
def booked(ctx: Context) -> None:
    ctx.run("book", lambda: None, compensate=lambda _: print("taken back\\n" * 20))
    ctx.run("sync", sync)


@workflow
async def acopy(ctx: Context) -> None:
    await ctx.run("sync", sync)


@workflow
def after(ctx: Context) -> None:
    try:
        ctx.run("sync", sync)
    except Exception:
        pass
    print("outside of the steps")
    raise ValueError("no more")
"""


@pytest.mark.parametrize("workflow", ["copy", "booked", "acopy"])
def test_what_a_child_wrote_is_told_with_what_the_step_printed(cli, workflow):
    """A step's own prints do not hide why its command failed; nor do the undo steps that come behind it."""
    (cli.dir / "kids.py").write_text(CHILDREN)
    told = cli("run", f"kids:{workflow}", "-q").err
    assert "    starting rsync\n    rsync: connection refused\n" in told
    assert "taken back" not in told


def test_the_output_of_a_failure_outside_of_the_steps(cli):
    """A step that failed and was caught is not where it ended."""
    (cli.dir / "kids.py").write_text(CHILDREN)
    assert "    rsync: connection refused\n    outside of the steps\n" in cli("run", "kids:after", "-q").err


def test_a_tick_tells_what_a_child_wrote(cli):
    """With one run there is no doubt who wrote it; with several each is told what was recorded of it."""
    (cli.dir / "kids.py").write_text(CHILDREN)
    cli("start", "kids:copy")
    assert "    starting rsync\n    rsync: connection refused\n" in cli("tick", "-q").err
    cli("start", "kids:copy")
    cli("start", "kids:copy")
    told = cli("tick", "-q").err
    assert told.count("    starting rsync\n") == 2


def test_a_hostile_error_is_shown_literally(cli):
    """ESC, bidi and line breaks of the user's exception do not reach the terminal."""
    result = cli("run", "flows:bad", "--input", json.dumps("\x1b[31m\u202e\x9b\nsecond"), "-q")
    assert "\\x1b[31m\\u202e\\x9b" in result.err
    assert all(char.isprintable() or char == "\n" for char in result.err)


@pytest.mark.parametrize(("policy", "code"), [("use_existing", 0), ("error", 6), ("cancel_existing", 6)])
def test_a_key_kept_by_a_completed_run(cli, policy, code):
    """`existing` prints the holder's result and says that nothing was started; the others exit 6 (B03, A16)."""
    cli("run", "flows:once", "--key", "k")
    result = cli("run", "flows:once", "--key", "k", "--on-duplicate", policy)
    assert result.code == code
    assert "hint: durable release-key " in result.err
    holder = cli("runs", "list", "--format", "ids").out.strip()
    assert holder in result.err
    assert cli("run", "flows:once", "--key", "k", "--on-duplicate", policy, "-E", "42").code == 42
    if policy == "use_existing":
        assert result.out == '"the one"\n'
        assert "nothing started" in result.err
        assert f"durable rerun {holder}" in result.err
        assert cli("run", "flows:once", "--key", "k", "-q").err == ""
    else:
        error = cli("run", "flows:once", "--key", "k", "--on-duplicate", policy, "--json").document["error"]
        assert (error["code"], error["holder_id"], error["holder_status"]) == ("key_taken", holder, "completed")


def test_following_the_advice_works(cli):
    """B03: release-key, then rerun, gives a new holder."""
    cli("run", "flows:once", "--key", "k")
    old = cli("runs", "list", "--format", "ids").out.strip()
    assert cli("release-key", old).code == 0
    new = cli("rerun", old, "--foreground", "--json").document
    assert new["status"] == "completed"
    assert new["run_id"] != old
    assert cli("keys", "list", "--fields", "holder_id").out == f"{new['run_id']}\n"


def test_a_run_that_gave_way_is_not_to_be_retried_blindly(cli, wait_for):
    """Its report names the run that took its place, or the one whose key it waited for."""
    job = ("exec", "--name", "job", "--key", "k")
    with cli.process(*job, "--", "sleep", "60") as replaced:
        wait_for(lambda: cli("keys", "list", "--fields", "status").out == "running\n")
        assert cli(*job, "--on-duplicate", "cancel_existing", "--", "true").code == 0
        new = cli("runs", "list", "--limit", "1", "--format", "ids").out.strip()
        assert replaced.wait(15) == 5
        assert replaced.stderr.read().decode().endswith(f"hint: durable runs show {new}\n")
    assert cli("runs", "show", new).code == 0


def test_a_user_without_a_name_releases_keys_too(cli, monkeypatch):
    """As in a container that runs with a number: `docker run -u 12345`."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", unknown)
    cli("run", "flows:once", "--key", "k")
    assert cli("release-key", "--key", "k").code == 0
    assert cli("activity", "--kind", "key_released", "--json").document[0]["details"]["by"].startswith("uid ")


@pytest.mark.parametrize("name", ["\udcff.db", "n" * 250 + ".db"])
def test_a_name_that_no_database_can_have(cli, name):
    """Exit 78, and no file is left behind."""
    result = cli("start", "flows:echo", "--db", str(cli.dir / name))
    assert (result.code, "bug" in result.err) == (78, False)
    assert not (cli.dir / name).exists()


def test_code_below_a_directory_that_is_not_utf_8(cli):
    """Its place could not be stored: exit 2, nothing started."""
    folder = cli.dir / "d\udcff"
    folder.mkdir()
    (folder / "odd.py").write_text("from durable_cli import workflow\n\n@workflow\ndef odd(ctx):\n    ctx.now()\n")
    result = cli("start", str(folder / "odd.py"))
    assert (result.code, "not valid UTF-8" in result.err) == (2, True)


def test_a_key_kept_by_a_run_that_did_not_complete(cli):
    """run: exit 1 and it says so; start: the id, exit 0, and it says so (C11, B06)."""
    cli("run", "flows:bad_once", "--key", "k", "-q")
    result = cli("run", "flows:bad_once", "--key", "k")
    assert result.code == 1
    assert "nothing started" in result.err
    assert "failed" in result.err
    started = cli("start", "flows:bad_once", "--key", "k")
    assert started.code == 0
    assert "failed" in started.err
    assert cli("runs", "list", "--format", "ids").out == started.out


@pytest.mark.parametrize("verb", [("run", "flows:bad_once"), ("start", "flows:bad_once")])
def test_quiet_says_of_a_taken_key_one_line(cli, verb):
    """`error` met: who has the key, and no advice that cron would mail every minute; without -q there is some."""
    cli("run", "flows:bad_once", "--key", "k")
    asked = (*verb, "--key", "k", "--on-duplicate", "error")
    result = cli(*asked, "-q")
    assert (result.code, result.out, len(result.err.splitlines())) == (6, "", 1)
    assert "is kept by run" in result.err
    assert len(cli(*asked).err.splitlines()) == 3
    assert cli(*asked, "-q", "--json").document["error"]["hint"].startswith("durable release-key ")


def test_quiet_says_of_a_key_that_a_command_holds_one_line(cli, wait_for):
    """So too for exec, while the holder goes on."""
    holding = cli.process("exec", "--key", "k", "--", "sleep", "30")
    try:
        wait_for(lambda: cli("keys", "list", "--held", "--format", "ids").out != "")
        result = cli("-q", "exec", "--name", "sleep", "--key", "k", "--on-duplicate", "error", "--", "true")
        assert (result.code, result.out, len(result.err.splitlines())) == (75, "", 1)
    finally:
        holding.terminate()
        holding.communicate()


def test_a_failed_holder_lets_a_new_start_in(cli):
    """B06: after_close, H failed, the next start is a new run; after_failure, H completed, names it and its status."""
    first = cli("run", "flows:bad", "--key", "k", "--json").document["run_id"]
    assert cli("start", "flows:bad", "--key", "k", "--json").document["outcome"] == "created"
    assert first not in cli("keys", "list").out
    done = cli("run", "flows:article", "--key", "a", "--json").document["run_id"]
    again = cli("run", "flows:article", "--key", "a")
    assert done in again.err
    assert "completed" in again.err
    assert "nothing started" in again.err


def test_a_key_held_by_a_live_run(cli, wait_for):
    """`use_existing`: 0 and silence without a terminal (a word with -v); `error`: 75; -E; --wait exits as it ends."""
    holder = cli.process("run", "flows:slow", "--key", "k")
    wait_for((cli.dir / "began").exists)
    held = cli("run", "flows:slow", "--key", "k")
    assert (held.code, held.out, held.err) == (0, "", "")
    assert "already running, nothing started" in cli("run", "flows:slow", "--key", "k", "-v").err
    document = cli("run", "flows:slow", "--key", "k", "--json").document
    assert (document["outcome"], document["holder_status"]) == ("existing", "running")
    assert cli("run", "flows:slow", "--key", "k", "-E", "7").code == 7
    refused = cli("run", "flows:slow", "--key", "k", "--on-duplicate", "error", "-q")
    assert refused.code == 75
    assert refused.err.startswith("error: ")
    assert cli("runs", "show", "last", "--json").document["owner"] == {"alive": True, "pid": holder.pid}
    assert cli("keys", "list", "--fields", "owner_alive").out == "true\n"
    waiting = cli.process("run", "flows:slow", "--key", "k", "--wait")
    shown = cli("runs", "wait", "last", "--timeout", "0.1")
    assert shown.code == 8
    assert "hint:" in shown.err or "error:" in shown.err
    (cli.dir / "go").touch()
    out, err = waiting.communicate(timeout=20)
    assert (waiting.returncode, out, err) == (0, b'"over"\n', b"")
    assert holder.communicate(timeout=20)[0] == b'"over"\n'


def test_cancelled_is_5_and_a_wait_says_how_it_ended(cli):
    """The run that was waited for ended cancelled."""
    run_id = cli("start", "flows:sync", "--key", "k").out.strip()
    assert cli("cancel", run_id, "--json").document == {"cancelled": 1, "run_id": run_id, "status": "cancelled"}
    assert cli("cancel", run_id, "--json").document == {"cancelled": 0, "run_id": run_id, "status": "cancelled"}
    assert cli("cancel", "--key", "k", "--json").document["cancelled"] == 0
    assert cli("cancel", "--key", "none", "--json").document == {"cancelled": 0, "run_id": None, "status": None}
    assert cli("wait", run_id).code == 5
    assert cli("runs", "wait", run_id, "--json").document["status"] == "cancelled"


def test_cancel_without_a_database_is_no_error(cli):
    """Nothing to cancel, and no file is made for it; an id is not found."""
    assert cli("cancel", "--key", "k", "--json").document["cancelled"] == 0
    assert cli("cancel", "abcdefghjk").code == 3
    assert not cli.db.exists()


@pytest.mark.parametrize(
    ("argv", "code", "error"),
    [
        (["runs", "show", "zzzzzzzzzz"], 3, "run_not_found"),
        (["runs", "show", "--key", "none"], 3, "key_not_found"),
        (["keys", "show", "none"], 3, "key_not_found"),
        (["runs", "wait", "zzzzzzzzzz"], 3, "run_not_found"),
        (["cancel", "zzzzzzzzzz"], 3, "run_not_found"),
        (["retry", "zzzzzzzzzz"], 3, "run_not_found"),
        (["retry", "--key", "done"], 4, "not_retryable"),
        (["rerun", "--key", "open"], 4, "not_finished"),
        (["release-key", "--key", "open"], 4, "not_finished"),
        (["resume", "--key", "done"], 4, "not_resumable"),
        (["run", "nowhere:x"], 3, "module_not_found"),
        (["run", "flows:snyc"], 3, "workflow_not_found"),
        (["run", "./nowhere.py:x"], 3, "module_not_found"),
        (["run", "broken:x"], 1, "module_failed"),
        (["run", "flows"], 2, "usage_error"),
        (["run", "flows:sync", "--input", '"text"'], 2, "invalid_input"),
        (["run", "flows:sync", "--key", ""], 2, "invalid_key"),
        (["runs", "list", "--db", "/nonexistent/x.db"], 3, "database_not_found"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_exit_codes_of_refusals(refusals, argv, code, error):
    """One table: the exit code, the code of the JSON error, and a message for a person."""
    result = refusals(*argv)
    assert result.code == code, result
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "durable_cli/" not in result.err
    found = refusals(*argv, "--json")
    assert found.code == code
    assert found.document["error"]["code"] == error


@pytest.fixture(scope="module")
def refusals(shared_cli):
    (shared_cli.dir / "broken.py").write_text("import flows\n\nsecret = 'hunter2'\n1 / 0\n")
    shared_cli("run", "flows:once", "--key", "done")
    shared_cli("start", "flows:sync", "--key", "open")
    return shared_cli


def test_several_workflows_with_one_key_need_a_name(cli):
    """Exit 2 with the candidates; --workflow chooses."""
    cli("run", "flows:sync", "--key", "k")
    cli("run", "flows:quiet", "--key", "k")
    error = cli("runs", "show", "--key", "k", "--json")
    assert error.code == 2
    assert error.document["error"]["candidates"] == ["quiet", "sync"]
    assert cli("runs", "show", "--key", "k", "--workflow", "sync", "--json").document["workflow"] == "sync"
    assert cli("keys", "show", "k", "--workflow", "quiet", "--json").document["workflow"] == "quiet"


def test_every_id_that_is_printed_can_be_shown(cli):
    """A14: created, existing, replaced; by id and by prefix."""
    created = cli("start", "flows:sync", "--key", "k").out.strip()
    existing = cli("start", "flows:sync", "--key", "k", "--json").document
    replaced = cli("start", "flows:sync", "--key", "k", "--on-duplicate", "cancel_existing", "--json").document
    assert existing["run_id"] == created
    assert (replaced["outcome"], replaced["replaced_id"]) == ("replaced", created)
    for run_id in (created, replaced["run_id"], replaced["replaced_id"]):
        assert cli("show", run_id, "--json").document["id"] == run_id
        assert cli("show", run_id[:6], "--json").document["id"] == run_id


def test_a_start_killed_before_it_printed_can_be_repeated(cli):
    """A13: the same command prints the id of the run that was created, exit 0, and one run exists."""
    first = cli("start", "flows:sync", "--key", "k").out
    again = cli("start", "flows:sync", "--key", "k")
    assert (again.code, again.out) == (0, first)
    assert cli("runs", "list", "--format", "ids").out == first


def test_run_takes_up_what_was_recorded(cli):
    """`resumed`: a holder that nobody executes is executed here."""
    run_id = cli("start", "flows:sync", "--key", "k").out.strip()
    document = cli("run", "flows:sync", "--key", "k", "--json").document
    assert (document["run_id"], document["outcome"], document["status"]) == (run_id, "resumed", "completed")


def test_retry_and_rerun(cli):
    """In place and anew; `--foreground` executes here and exits as the run ends."""
    bad = cli("run", "flows:bad", "--key", "k", "--json").document["run_id"]
    assert cli("retry", bad, "--json").document["status"] == "pending"
    assert cli("resume", bad, "-q").code == 1
    assert cli("retry", bad, "--foreground", "-q").code == 1
    done = cli("run", "flows:sync", "--input", "5", "--json").document["run_id"]
    fresh = cli("rerun", done).out.strip()
    assert cli("resume", fresh).out == "6\n"
    assert cli("rerun", done, "--foreground").out == "6\n"


def test_dry_run_says_what_would_happen_and_writes_nothing(cli):
    """On run, start, retry, rerun, cancel."""
    assert cli("run", "flows:sync", "--key", "k", "-n").code == 0
    assert not cli.db.exists()
    run_id = cli("run", "flows:once", "--key", "k", "--json").document["run_id"]
    before = cli("runs", "list", "--json").document, cli("activity", "--json").document
    explained = cli("run", "flows:once", "--key", "k", "--dry-run", "--json").document
    assert explained["holder_id"] == run_id
    assert explained["holder_status"] == "completed"
    for argv in (["start", "flows:once", "--key", "k"], ["retry", run_id], ["rerun", run_id], ["cancel", run_id]):
        result = cli(*argv, "-n")
        assert (result.code, bool(result.out)) == (0, True), (argv, result)
    assert before == (cli("runs", "list", "--json").document, cli("activity", "--json").document)


@pytest.mark.parametrize(
    "argv",
    [
        ("run", "nope", "-n"),
        ("start", "nope", "-n"),
        ("start", "nope", "-n", "--input-lines", "-"),
        ("schedules", "add", "s", "@daily", "nope", "-n"),
        ("keys", "eval", "nope", "--input", "1"),
        ("run", "nope"),
        ("start", "nope"),
    ],
)
def test_a_name_that_nobody_knows_makes_no_database(cli, argv):
    """Looking a name up is a question; where there is no file the answer is no."""
    folder = cli.db.parent / "new"
    assert cli(*argv, env={"DURABLE_DB": str(folder / "test.db")}).code == 3
    assert not folder.exists()


def test_a_home_that_nobody_has(cli):
    """`~name` of a user who does not exist is a name like any other, and no bug of ours."""
    assert cli("runs", "list", "--db", "~nobody-of-this-name/x.db").code == 3
    assert cli("start", "flows:sync", "--app-dir", "~nobody-of-this-name").code == 2


def test_if_older(cli):
    """Anacron of any grain: nothing while the last completed run is young."""
    assert cli("run", "flows:sync", "--key", "k", "--if-older", "1h").out == "2\n"
    young = cli("run", "flows:sync", "--key", "k", "--if-older", "1h")
    assert (young.code, young.out, young.err) == (0, "", "")
    assert cli("run", "flows:sync", "--key", "k", "--if-older", "1h", "--json").document["status"] == "completed"
    assert cli("run", "flows:sync", "--key", "k", "--if-older", "0s").out == "2\n"
    assert cli("run", "flows:sync", "--key", "other", "--if-older", "1h").out == "2\n"
    assert len(cli("runs", "list", "--json").document) == 3


@pytest.mark.parametrize("call", [("run", "flows:sync", "--key", "k"), ("exec", "--key", "k")])
def test_a_dry_run_knows_if_older(cli, call):
    """It says what the call would do: nothing, while the last completed run is young. Without a file it makes none."""

    def dry(older):
        command = ("--", "true") if call[0] == "exec" else ()
        return cli(*call, "--if-older", older, "-n", "--json", *command)

    assert dry("1d").document["action"] == "create"
    assert not cli.db.exists()
    cli(*call, *(("--", "true") if call[0] == "exec" else ()))
    found = dry("1d").document
    assert (found["action"], found["key"]) == ("nothing", "k")
    assert "nothing to do: run " in found["reason"]
    assert dry("0s").document["action"] == "create"


def test_max_wait_leaves_a_run_that_rests_longer(cli):
    """Exit 8; the run stays, and the last line says how to go on."""
    result = cli("run", "flows:flaky", "--key", "k", "--max-wait", "1s", "-q")
    assert result.code == 8
    assert "durable resume " in result.err.splitlines()[-1]
    document = cli("runs", "show", "last", "--json").document
    assert document["status"] == "waiting"
    assert cli("keys", "list", "--held", "--stuck", "0s", "--format", "ids").out.strip() == document["id"]


def test_max_wait_leaves_a_run_of_another_process(cli, wait_for):
    """With --wait, too: when so much time is over, or at once where that run is known to rest longer. It goes on."""
    resting = cli.process("run", "flows:flaky", "--key", "rests")
    working = cli.process("run", "flows:slow", "--key", "works")
    try:
        wait_for(lambda: cli("runs", "list", "--status", "waiting", "--format", "ids").out != "")
        wait_for(lambda: cli("runs", "list", "--status", "running", "--format", "ids").out != "")
        for workflow, key, limit in (("flaky", "rests", "10m"), ("slow", "works", "100ms")):
            left = cli("run", f"flows:{workflow}", "--key", key, "--wait", "--max-wait", limit)
            assert (left.code, left.out) == (8, "")
            assert "durable runs wait " in left.err.splitlines()[-1]
        (cli.dir / "go").touch()
        assert cli("run", "flows:slow", "--key", "works", "--wait", "--max-wait", "1h").code == 0
    finally:
        for process in (resting, working):
            process.kill()
            process.communicate()


def test_report_changes_and_never(cli):
    """`changes`: one report when it breaks, one line when it works again; `never`: the exit code alone."""
    (cli.dir / "moody.py").write_text(
        "import os\nfrom durable_cli import workflow\n\n@workflow\ndef job(ctx):\n"
        "    ctx.run('s', lambda: None if os.path.exists('well') else 1 / 0)\n"
    )
    line = ["run", "moody:job", "--key", "k", "-q", "--report"]
    first, second = cli(*line, "changes"), cli(*line, "changes")
    assert (first.code, second.code, second.err) == (1, 1, "")
    assert "ZeroDivisionError" in first.err
    assert cli(*line, "never").err == ""
    (cli.dir / "well").touch()
    assert cli(*line, "changes").err.startswith("works again: job")
    assert cli(*line, "changes").err == ""


def test_the_printed_crontab_line_works_as_cron_reads_it(cli, tmp_path):
    """Absolute, `%` escaped, silent on success: pasted into cron's shell with cron's environment it does the same."""
    key = "50% of 'it' $(x) \"q\" \\"
    result = cli("run", "flows:echo", "--key", key, "-P", "a=b c", "--print-crontab", "*/5 * * * *")
    assert result.code == 0
    line = result.out.rstrip("\n")
    schedule, command = line[:11], line[12:]
    assert schedule == "*/5 * * * *"
    assert "%" not in command.replace("\\%", "")
    assert not cli.db.exists()
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": cli.full_env()["PYTHONPATH"]}
    ran = subprocess.run(
        ["/bin/sh", "-c", command.replace("\\%", "%")], env=env, cwd=tmp_path, capture_output=True, timeout=30
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    [run] = cli("runs", "list", "--json").document
    assert (run["key"], run["input"], run["status"]) == (key, {"a": "b c"}, "completed")


def test_printed_units(cli):
    """systemd doubles % and $; launchd is XML; both are absolute and run nothing."""
    unit = cli("run", "./flows.py:sync", "--key", "a b%$", "--print-systemd").out
    [start] = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert shlex.split(start.removeprefix("ExecStart="))[-1] == f"{cli.dir}/flows.py:sync"
    assert '"a b%%$$"' in start
    assert "Persistent=true" in unit
    import plistlib

    document = plistlib.loads(cli("run", "flows:sync", "--key", "<&>", "--print-launchd").out.encode())
    words = document["ProgramArguments"]
    assert words[words.index("--key") + 1] == "<&>"
    assert words[words.index("--app-dir") + 1] == str(cli.dir)
    assert not cli.db.exists()


@pytest.mark.parametrize("form", [["--print-crontab", "@daily"], ["--print-systemd"], ["--print-launchd"]])
def test_what_would_be_refused_every_night_is_not_printed(cli, form):
    """Exit code and reason are those of the call itself, and nothing is written."""
    for argv in (
        ["run", "flows:sync", "--input", '"x"'],
        ["run", "flows:sync", "--key", ""],
        ["run", "flows:nope"],
        ["run", "flows:once", "--key", "k", "--on-duplicate", "run_again"],
        ["exec", "--key", "", "--", "true"],
        ["exec", "--timeout", "x", "--", "true"],
    ):
        told = cli(*argv[:1], *form, *argv[1:])
        real = cli(*argv)
        assert (told.code, told.out) == (real.code, ""), argv
        assert told.err == real.err
    assert cli("exec", *form, "-n", "--", "true").code == 2


def test_each_job_has_a_name_of_its_own(cli):
    """By workflow and key, whatever the directory; where letters cannot tell two apart a hash does, the same each time."""

    def name(*argv, env=None):
        unit = cli(*argv[:1], "--print-systemd", *argv[1:], env={"DURABLE_DB": ""} | (env or {})).out
        [service] = re.findall(r"^# ~/.config/systemd/user/(.*)\.service$", unit, re.M)
        plist = cli(*argv[:1], "--print-launchd", *argv[1:], env={"DURABLE_DB": ""} | (env or {})).out
        assert f"<string>{service.replace('durable-', 'durable.', 1)}</string>" in plist
        return service

    assert name("run", "flows:sync", "--key", "docs") == "durable-sync-docs"
    assert name("run", str(cli.dir / "flows.py:sync"), "--key", "docs") == "durable-sync-docs"
    assert name("run", "flows:sync") == "durable-sync"
    assert name("exec", "--name", "sync", "--key", "docs", "--", "true") == "durable-sync-docs"
    others = [
        name("run", "flows:sync", "--key", "a b"),
        name("run", "flows:sync", "--key", "a%b"),
        name("run", "flows:sync", "--key", "é" * 100),
        name("run", "flows:sync", "--input", "5"),
        name("exec", "--name", "a-b", "--key", "c", "--", "true"),
        name("exec", "--name", "a", "--key", "b-c", "--", "true"),
        name("exec", "--name", "a", "--key", "b", "--", "true", env={"DURABLE_DB": str(cli.db)}),
    ]
    assert len(set(others)) == len(others)
    assert all(re.fullmatch(r"durable-[A-Za-z0-9_.-]{1,110}", other) for other in others)
    assert name("run", "flows:sync", "--key", "a b") == others[0]


@pytest.mark.parametrize("expression", ["", "* * * *", "@never", "* * * * * *", "*/5 * * *\n*"])
def test_a_crontab_line_needs_five_fields(cli, expression):
    """Refused with an example."""
    result = cli("run", "flows:sync", "--print-crontab", expression)
    if expression.count("\n"):
        assert result.out.startswith("*/5 * * * * ")
        return
    assert result.code == 2
    assert "five fields" in result.err


def test_a_bug_of_ours_is_70_with_a_line_to_report(cli, monkeypatch):
    """Not the user's fault: one line that can be reported, no traceback without -v."""
    import durable_cli.client

    monkeypatch.setattr(durable_cli.client.Durable, "stats", lambda self, **given: 1 / 0)
    cli("run", "flows:quiet")
    result = cli("stats")
    assert (result.code, result.out) == (70, "")
    assert result.err.startswith("error: a bug in durable: ZeroDivisionError: division by zero\n  to report: ")
    assert "Traceback" not in result.err
    assert "Traceback" in cli("stats", "-v").err
    assert cli("stats", "--json").document["error"]["code"] == "internal_error"


def test_db_check(cli):
    """0 where the file is sound, 3 where it is not there, 78 where it is none."""
    assert cli("db", "check").code == 3
    cli("run", "flows:sync", "--key", "k")
    assert cli("db", "check", "--json").document == {"ok": True, "problems": []}
    other = cli.dir / "text.db"
    other.write_text("no database\n" * 1000)
    assert cli("db", "check", "--db", str(other)).code == 78


def test_a_damaged_database_that_does_not_open(cli):
    """Others are told that `db check` says more; it does not send anybody to itself."""
    cli("run", "flows:sync")
    with cli.db.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 3000)
    listed, checked = cli("runs", "list"), cli("db", "check")
    assert (listed.code, checked.code) == (78, 78)
    assert "hint: durable db check   # how much" in listed.err
    assert checked.err.splitlines()[-1] == "hint: restore the last backup, with all durable processes stopped"


def test_notify_calls_the_notifier_without_user_text(cli):
    """A desktop notification: argv, no shell, workflow and status only."""
    tools = cli.dir / "bin"
    tools.mkdir()
    (tools / "notify-send").write_text(f'#!{sys.executable}\nimport sys\nopen("told", "w").write(repr(sys.argv[1:]))\n')
    (tools / "notify-send").chmod(0o755)
    result = cli("run", "flows:sync", "--key", "$(x)", "--notify", env={"PATH": f"{tools}:/usr/bin:/bin"})
    assert result.code == 0
    assert (cli.dir / "told").read_text() == "['--app-name=durable', '--', 'durable', 'sync: completed']"
