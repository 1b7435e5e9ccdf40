"""Trouble of other systems (tests/cases.md), as somebody at a shell meets it."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from enginekit import change

import durable_cli
from durable_cli import Durable

BURST = """
from durable_cli import Debounce, workflow


@workflow(debounce=Debounce("2m"))
def endless(ctx, n: int = 0):
    return ctx.run("work", lambda: n)


@workflow(debounce=Debounce("2m", timeout="10m"))
def capped(ctx, n: int = 0):
    return ctx.run("work", lambda: n)
"""
LEAKY = """
import base64
from durable_cli import workflow


def fetch(account):
    token = base64.b64decode("aHVudGVyMi1pbi1hLWxvY2Fs").decode()
    session = {"authorization": token}
    raise RuntimeError("the server said no")


@workflow
def leaky(ctx, account: dict | None = None):
    token = base64.b64decode("aHVudGVyMi1pbi1hLWxvY2Fs").decode()
    return ctx.run("fetch", fetch, account)
"""


def test_an_input_is_compared_by_its_value(cli: Any) -> None:
    """A08: order and blanks of the JSON are no change; another value is, and is kept."""
    start = ["start", "flows:echo", "--key", "k", "--input"]
    for text in ('{"a":1,"b":[1,2]}', ' {"b" : [1,\n2] ,"a":1}', '{"b":[1,2],"a":1.0}', '{"a":1,"b":[2,1]}'):
        assert cli(*start, text).code == 0
    rows = cli("activity", "--json").document[::-1]
    assert [row["details"]["input_changed"] for row in rows][::2] == [False, True]
    assert rows[-1]["details"]["input"] == {"a": 1, "b": [2, 1]}


@pytest.mark.parametrize(
    "key", [" a", "a\t", unicodedata.normalize("NFD", "é"), unicodedata.normalize("NFC", "é"), "x\x1by"]
)
def test_every_command_means_the_same_key(shared_cli: Any, key: str) -> None:
    """A09: started, listed, found, released: the key to the byte; its neighbours are other keys; what cannot be seen
    is shown."""
    cli = shared_cli
    run_id = cli("run", "flows:once", "--key", key, "--json").document["run_id"]
    assert [run["id"] for run in cli("runs", "list", "--key", key, "--json").document] == [run_id]
    assert key in [row["key"] for row in cli("keys", "list", "--json").document]
    for form in ("tsv", "table"):
        shown = cli("keys", "list", "--format", form).out
        assert all(char.isprintable() or char in "\n\t" for char in shown)
        if key != key.strip() or not key.isprintable():
            assert f"\t{key}\t" not in shown
    assert cli("cancel", "--key", f"{key}.", "--json").document["run_id"] is None
    assert cli("release-key", "--key", key).code == 0
    assert cli("release-key", "--key", key).code == 4
    assert cli("run", "flows:once", "--key", key, "--json").document["run_id"] != run_id


def test_a_key_with_nul_is_refused(cli: Any) -> None:
    """A09: argv cannot carry one, JSON lines can."""
    result = cli("start", "flows:quiet", "--input-lines", "-", stdin=b'{"key": "a\\u0000b"}\n')
    assert result.code != 0
    assert cli("runs", "list", "--json").document == []


def test_a_retry_that_meets_a_newer_holder(cli: Any) -> None:
    """H01: 75 with the newer run's id while it is unfinished; the failed run stays as it was; then it works."""
    failed = cli("run", "flows:bad", "--key", "k", "--json").document["run_id"]
    newer = cli("start", "flows:bad", "--key", "k", "--input", '"other"').out.strip()
    before = cli("runs", "show", failed, "--json").document
    for more in ([], ["--foreground"]):
        refused = cli("retry", failed, "--json", *more)
        assert refused.code == 75
        error = refused.document["error"]
        assert (error["code"], error["holder_id"], error["holder_status"]) == ("key_taken", newer, "pending")
    assert cli("runs", "show", failed, "--json").document == before
    cli("cancel", newer)
    assert cli("retry", failed, "--json").document["status"] == "pending"
    [row] = cli("activity", "--kind", "key_retaken", "--json").document
    assert (row["run_id"], row["details"]["from"]) == (failed, newer)


def test_a_schedule_that_keeps_putting_its_run_off_is_told(cli: Any) -> None:
    """F06: a note where a keyed schedule fires within the period, for ever; none with a cap, a longer pause, no key."""
    (cli.dir / "burst.py").write_text(BURST)
    add = ["schedules", "add", "s", "--tz", "UTC", "--json", "-n"]

    def notes(cron: str, flow: str, *more: str) -> str:
        return " ".join(cli(*add[:3], cron, f"burst:{flow}", *add[3:], *more).document["notes"])

    assert "debounced by 2m" in notes("* * * * *", "endless", "--key", "k")
    assert "debounced" in notes("*/2 * * * *", "endless", "--key", "k")
    for cron, flow, more in (
        ("* * * * *", "capped", ["--key", "k"]),
        ("*/5 * * * *", "endless", ["--key", "k"]),
        ("* * * * *", "endless", []),
    ):
        assert "debounced" not in notes(cron, flow, *more)


def test_what_a_burst_is_waiting_for_can_be_seen(cli: Any) -> None:
    """F03: since when, how many starts were gathered, and when it is due."""
    (cli.dir / "burst.py").write_text(BURST)
    for n in range(4):
        cli("start", "burst:endless", "--key", "k", "--input", str(n))
    [key] = cli("keys", "list", "--json").document
    run = cli("runs", "show", "--key", "k", "--json").document
    assert (key["held_since"], key["readds_24h"]) == (run["created_at"], 3)
    assert run["due_at"] > run["created_at"]
    assert "due in " in cli("keys", "show", "k").out
    assert "debounced 3" in cli("runs", "show", "--key", "k").out


def test_locals_are_nowhere(cli: Any) -> None:
    """M09: neither on the terminal, nor in what is stored, with or without -v and -q; a usage error has no trace."""
    (cli.dir / "leaky.py").write_text(LEAKY)
    secret = "hunter2-in-a-local"
    for more in ([], ["-v"], ["-q"], ["--json"]):
        result = cli("run", "leaky:leaky", *more, env={"FORCE_COLOR": "1"})
        assert result.code == 1
        assert secret not in result.out + result.err
    for argv in (["runs", "show", "last"], ["runs", "show", "last", "--json"], ["logs", "last"], ["activity"]):
        assert secret not in cli(*argv).out
    files = [Path(f"{cli.db}{suffix}") for suffix in ("", "-wal")]
    assert not any(secret.encode() in file.read_bytes() for file in files if file.exists())
    assert "Traceback" not in cli("run", "leaky:leaky", "--nope").err


def test_a_finish_before_its_start_is_shown_without_a_negative_time(cli: Any) -> None:
    """K04: the clock was set back while the run executed."""
    run_id = cli("run", "flows:sync", "--key", "k", "--json").document["run_id"]
    with Durable(cli.db) as durable:
        change(durable, "UPDATE durable_runs SET finished_at = started_at - 7200000")
        change(durable, "UPDATE durable_steps SET finished_at = started_at - 7200000")
    for argv in (
        ["runs", "show", run_id], ["runs", "list", "--format", "table"], ["stats"], ["activity", "--format", "table"],
        ["keys", "list", "--format", "table"], ["keys", "show", "k"], [],
    ):  # fmt: skip
        result = cli(*argv)
        assert result.code == 0
        words = result.out.replace("─", " ").split()
        assert not [word for word in words if word.startswith("-") and word[1:2].isdigit()], result.out
    assert cli("prune", "--older-than", "1h", "--json").document["runs"] == 1


def test_the_activity_of_a_pruned_run_is_listed(cli: Any) -> None:
    """N02: in every form, and what can still be asked about its key says that it is gone."""
    run_id = cli("run", "flows:once", "--key", "k", "--json").document["run_id"]
    cli("start", "flows:once", "--key", "k")
    assert cli("prune", "--older-than", "0s").code == 0
    for form in ("table", "tsv", "json", "csv"):
        assert run_id in cli("activity", "--format", form).out
    assert [row["kind"] for row in cli("activity", "--json").document] == ["key_pruned", "key_duplicate"]
    assert cli("keys", "log", "k").code == 0
    assert cli("runs", "show", run_id).code == 3
    assert cli("stats", "--json").document["keys"]["readds"] == {"use_existing": 1}


@pytest.mark.parametrize("command", ["start", "run"])
def test_a_start_that_cannot_be_written_took_no_key(cli: Any, command: str) -> None:
    """L09: a quota (`ulimit -f`) ends it with 75 and one message; with space again the same line works."""
    cli("start", "flows:quiet", "--key", "a")
    size = (cli.db.stat().st_size + 1023) // 1024
    big = json.dumps("x" * 600_000)
    (cli.dir / "big.json").write_text(big)
    argv = " ".join(cli.argv(command, "flows:echo", "--key", "k", "--input", "@big.json", "--json"))
    line = f"ulimit -f {size + 100}; exec {argv}"
    done = subprocess.run(["bash", "-c", line], cwd=cli.dir, env=cli.full_env(), capture_output=True, timeout=30)
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (75, "disk_full"), done
    assert b"Traceback" not in done.stderr
    assert [row["key"] for row in cli("keys", "list", "--json").document] == ["a"]
    assert cli("db", "check").code == 0
    assert cli(command, "flows:echo", "--key", "k", "--input", "@big.json", "--json").document["outcome"] == "created"


# -- another user's file -------------------------------------------------------------------------------------------

NOBODY = 65534
HOLDS = """
import time
from durable_cli import Durable
it = Durable(sys.argv[1])
it.stats()
print("there", flush=True)
time.sleep(60)
"""
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")


@pytest.fixture
def as_nobody(cli: Any) -> Callable[..., tuple[int, str, str]]:
    """Calls `durable` as the user nobody, to whom the database and its directory belong."""
    for folder in [cli.dir, *cli.dir.parents]:
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    data = cli.dir / "data"
    data.mkdir()
    os.chown(data, NOBODY, NOBODY)
    cli.db = data / "test.db"
    cli.env["DURABLE_DB"] = str(cli.db)

    for module in pkgutil.walk_packages(durable_cli.__path__, "durable_cli."):
        importlib.import_module(module.name)  # nobody may not be allowed to read where they are
    original = cli._child

    def become_and_run(*args: Any) -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        original(*args)

    def call(*argv: str) -> tuple[int, str, str]:
        cli._child = become_and_run
        try:
            return cli(*argv).all  # type: ignore[no-any-return]
        finally:
            cli._child = original

    return call


@root_only
def test_a_directory_that_may_not_be_entered(cli: Any, as_nobody: Any) -> None:
    """Nobody can tell whether a database is there: the open says why it fails (78), and the path is only a path."""
    closed = cli.dir / "closed"
    closed.mkdir(mode=0o700)
    named = ("--db", str(closed / "sub" / "test.db"))
    assert as_nobody("db", "path", *named) == (0, f"{named[1]}\n", "")
    assert as_nobody("db", "path", "--json", *named)[0] == 0
    for argv in (
        ("runs", "list"),
        (),
        ("doctor",),
        ("exec", "--", "true"),
        ("run", "flows:sync"),
        ("start", "flows:sync"),
        ("start", "flows:sync", "-n"),
        ("run", "nobody_knows", "-n"),
        ("schedules", "add", "s", "@daily", "flows:sync", "-n"),
        ("cancel", "--key", "k"),
        ("tick", "-n"),
    ):
        code, out, err = as_nobody(*named, *argv)
        assert (code, "no permission to enter its directory" in out + err) == (78, True), argv
        code, out, err = as_nobody("--json", *named, *argv)
        assert (code, "no permission to enter its directory" in out) == (78, True), argv
    assert as_nobody("db", "backup", "x", *named)[0] == 78
    assert as_nobody("start", "flows:sync", "--app-dir", str(closed / "sub"))[0] == 2


@root_only
def test_a_directory_that_cannot_be_made_names_the_one_that_bars_it(cli: Any, as_nobody: Any) -> None:
    """The advice is about a directory that is there, and as a shell takes it."""
    closed = cli.dir / "read only"
    closed.mkdir(mode=0o755)
    code, _, err = as_nobody("start", "flows:quiet", "--db", str(closed / "sub" / "x.db"))
    assert code == 78
    assert f"cannot write in the directory {closed}, to make the directory {closed}/sub there" in err
    assert err.endswith(f"hint: run as its owner, or chmod u+w '{closed}'\n")


@root_only
def test_a_look_by_root_locks_nobody_out(cli: Any, as_nobody: Any) -> None:
    """L07: root reads (and starts), with the owner's processes gone; the owner goes on, and all files are its own."""
    assert as_nobody("start", "flows:quiet", "--key", "a")[0] == 0
    for argv in (["keys", "list"], ["run", "flows:quiet", "--key", "b"]):
        holding = cli.process_of(HOLDS)
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"there\n"
        assert cli.real(*argv, "--db", str(cli.db)).code == 0
        assert {path.stat().st_uid for path in cli.db.parent.iterdir()} == {NOBODY}, argv
        assert as_nobody("start", "flows:quiet", "--key", "c")[0] == 0
        holding.kill()
        holding.communicate()
        assert as_nobody("keys", "list")[0] == 0
    assert as_nobody("db", "check")[0] == 0


@root_only
def test_a_directory_that_may_not_be_written(cli: Any, as_nobody: Any) -> None:
    """L08: reading works or says in one line which directory; a start is refused; no other database appears."""
    assert as_nobody("start", "flows:quiet", "--key", "a")[0] == 0
    cli.db.parent.chmod(0o555)
    before = sorted(cli.db.parent.iterdir())
    for argv in (["keys", "list"], ["stats"], ["activity"], ["start", "flows:quiet", "--key", "b"]):
        code, out, err = as_nobody(*argv)
        assert "Traceback" not in err
        if code == 0:
            assert argv[0] != "start"
            assert argv[0] != "keys" or "\ta\t" in out
        else:
            assert err.startswith("error: ")
            assert str(cli.db.parent) in err
    assert sorted(cli.db.parent.iterdir()) == before
    assert not (Path(cli.env["HOME"]) / ".local").exists()
    assert json.loads(cli("runs", "list", "--json").out)[0]["key"] == "a"
