"""`durable doctor`: each thing that it can find, what mends it, and the exit code; and that it finds nothing else."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import sys
from pathlib import Path

import pytest
from enginekit import change, dead_owner, define_job, live_owner, own, put

from durable_cli import Durable, doctor, workflow
from durable_cli.errors import DatabaseNotFound
from durable_cli.store import failures, filesystem

M, H, D = 60_000, 3_600_000, 86_400_000


def found(durable: Durable, check: str) -> list[tuple[str, str, str | None]]:
    """(severity, message, hint) of what was found of one kind."""
    return [(one.severity, one.message, one.hint) for one in durable.doctor().findings if one.check == check]


def checks(durable: Durable) -> set[str]:
    """What kinds of findings there are; `code` aside, which depends on where the tests lie."""
    return {one.check for one in durable.doctor().findings} - {"code"}


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def healthy(cli):
    """A database in which something completed; named by --db, so that cron would use the same."""
    cli("run", "flows:sync", "--key", "nightly")
    cli("exec", "--key", "k", "--", "true")
    return cli


def test_nothing_is_found_in_a_healthy_database(healthy):
    """Exit 0 and not a word; at a terminal (here -v) what was looked at."""
    assert healthy("doctor", "--db", str(healthy.db)).all == (0, "", "")
    told = healthy("doctor", "--db", str(healthy.db), "-v")
    assert told.code == 0
    assert told.err.endswith("nothing found\n")
    assert "sqlite: 3." in told.err


def test_findings_for_a_person_and_for_a_program(healthy):
    """A line with severity and place, what it is, and what mends it; exit 1. As JSON the same."""
    healthy.db.chmod(0o644)
    said = healthy("doctor", "-q", "--db", str(healthy.db))
    assert (said.code, said.err) == (1, "")
    assert said.out.splitlines() == [
        f"warning[file] others may read {healthy.db}, and inputs and results are plain text in there",
        f"    mend: chmod 600 {healthy.db}",
    ]
    told = healthy("doctor", "--db", str(healthy.db), "--json")
    assert told.code == 1
    assert {name: told.document[name] for name in ("path", "usable", "healthy")} == {
        "path": str(healthy.db),
        "usable": True,
        "healthy": False,
    }
    assert [sorted(one) for one in told.document["findings"]] == [["check", "facts", "hint", "message", "severity"]]
    facts = told.document["facts"]
    assert facts["bytes"] == healthy.db.stat().st_size
    assert sorted(facts) == sorted(
        ("sqlite", "apsw", "sqlite_source", "bytes", "log_bytes", "free_bytes", "file_system", "workers")
    )
    assert healthy("doctor", "--db", str(healthy.db), "--format", "tsv").out.startswith("file\twarning\tothers may")


def test_doctor_changes_nothing_and_executes_nothing(healthy):
    """No byte of the database changes, no file is made, and the code is not imported."""
    healthy("start", "flows:sync", "--key", "waits")
    (healthy.dir / "flows.py").write_text("open('imported', 'w')\n")
    before = healthy.db.read_bytes(), sorted(os.listdir(healthy.db.parent))
    healthy("doctor", "--db", str(healthy.db))
    assert (healthy.db.read_bytes(), sorted(os.listdir(healthy.db.parent))) == before
    assert not (healthy.dir / "imported").exists()


def test_doctor_without_a_database(cli):
    """Nothing to find and nothing made; 3 where --db named it, as for every command that reads."""
    assert cli("doctor").code == 0
    assert cli("doctor", "--db", str(cli.db)).code == 3
    assert not cli.db.exists()
    with pytest.raises(DatabaseNotFound):
        Durable(cli.db, create=False).doctor()


def test_a_log_without_its_database(cli):
    """What was moved away without its -wal: said before anything is put there."""
    Path(f"{cli.db}-wal").write_bytes(b"log")
    told = cli("doctor")
    assert told.code == 1
    assert f"error[file] there is no database {cli.db}, but {cli.db}-wal of one that was moved" in told.out


def test_a_database_that_cannot_be_used_is_78(healthy):
    """As a finding, in the same form; damage that only a check sees, too."""
    text = healthy.dir / "text.db"
    text.write_text("no database\n" * 1000)
    text.chmod(0o600)
    told = healthy("doctor", "--db", str(text), "--json")
    assert (told.code, told.document["usable"]) == (78, False)
    assert "is not an SQLite database" in told.document["findings"][0]["message"]
    with Durable(healthy.db) as durable:
        run_id = durable.start("sync", key="x").run_id
        change(durable, "PRAGMA ignore_check_constraints = 1")
        change(durable, "UPDATE durable_runs SET due_at = NULL WHERE public_id = :id", id=run_id)
    told = healthy("doctor", "--db", str(healthy.db), "--json")
    assert (told.code, told.document["usable"]) == (78, False)
    assert "will never be due" in json.dumps(told.document["findings"])


def test_another_database_under_cron(healthy, tmp_path):
    """A warning where cron's file is there (somebody uses it), else a note; nothing where --db or a config says it."""
    other = tmp_path / "home" / ".local" / "share" / "durable" / "durable.db"
    assert healthy("doctor").all == (
        0,
        f"note[environment] cron, which does not have your environment, would use {other}\n"
        f"    mend: DURABLE_DB={healthy.db}"
        "   # a line of its own in the crontab; what --print-crontab prints has --db\n",
        "",
    )
    assert healthy("doctor", "-q").all == (0, "", "")
    healthy("run", "flows:quiet", "--db", str(other))
    told = healthy("doctor", "-q")
    assert (told.code, told.out.startswith("warning[environment] cron")) == (1, True)
    assert healthy("doctor", "--db", str(healthy.db)).code == 0
    data = {"DURABLE_DB": "", "XDG_DATA_HOME": str(tmp_path / "data")}
    assert f"would use {other}, and that file is there" in healthy("doctor", env=data).out
    assert healthy("doctor", env={"DURABLE_DB": ""}).all == (0, "", "")


# -- the file ------------------------------------------------------------------------------------------------------


def test_modes_of_all_files(durable):
    """The log and the lock file too, in one command."""
    live_owner(durable)
    assert checks(durable) == set()
    for suffix in ("-wal", "-lock"):
        Path(f"{durable.path}{suffix}").chmod(0o640)
    [(severity, _, hint)] = found(durable, "file")
    assert (severity, hint) == ("warning", f"chmod 600 {durable.path}-wal {durable.path}-lock")
    assert stat.S_IMODE(durable.path.stat().st_mode) == 0o600


def test_a_file_of_another_user(durable, monkeypatch):
    """Who it belongs to, who this is, and how to be the one."""
    durable.runs()
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 12345)
    told = found(durable, "file")
    assert told[0][0] == "warning"
    assert "and this process runs as 12345" in told[0][1]
    assert told[0][2] is not None
    assert told[0][2].startswith("sudo -u ")


@pytest.mark.parametrize(("free", "severity"), [(1 << 30, None), (100 << 20, "warning"), (1 << 20, "error")])
def test_free_space(durable, monkeypatch, free, severity):
    """Little is a warning, next to nothing an error."""
    durable.runs()
    monkeypatch.setattr(failures, "free_bytes", lambda path: free)
    assert [one[0] for one in found(durable, "disk")] == ([severity] if severity else [])


def test_a_log_that_grows(durable, monkeypatch):
    """The -wal beyond what is normal, with the command that says who keeps it."""
    durable.start(define_job())
    assert found(durable, "log") == []
    monkeypatch.setattr(doctor, "LONG_LOG", 1000)
    [(severity, _, hint)] = found(durable, "log")
    assert (severity, hint) == ("warning", f"fuser -v {durable.path}-wal")


def test_an_unsafe_file_system_that_is_overridden(durable, monkeypatch):
    """Without the override the file cannot be used at all; with it doctor goes on saying so."""
    monkeypatch.setattr(filesystem, "kind_of", lambda path, mounts=None: ("nfs4", "/mnt"))
    told = durable.doctor()
    assert told.failure is not None
    assert told.failure.exit_status == 78
    monkeypatch.setenv(filesystem.OVERRIDE, "1")
    told = durable.doctor()
    assert told.failure is None
    assert [(one.check, one.severity) for one in told.findings] == [("file", "error")]


# -- the content ---------------------------------------------------------------------------------------------------


def test_a_clock_behind_the_newest_record(durable, clock):
    """And one that was right again is none."""
    durable.start(define_job())
    clock.advance(-3 * D)
    [(severity, message, _)] = found(durable, "clock")
    assert (severity, "3 days behind the newest record" in message) == ("warning", True)
    clock.advance(3 * D)
    assert found(durable, "clock") == []


def test_a_clock_that_leapt(durable, clock):
    """By the mark that the last prune left."""
    durable.start(define_job())
    durable.prune(older_than="1d")
    clock.advance(800 * D)
    assert "800 days ahead" in found(durable, "clock")[0][1]


def test_an_orphan(durable):
    """A run whose process died; a note where a worker is there to take it up."""
    run_id = put(durable, define_job(), "running", key=None)
    [(severity, message, hint)] = found(durable, "runs")
    assert (severity, hint) == ("warning", f"durable resume {run_id}")
    assert "was left by process 4194304, which died" in message
    durable._engine.become("worker")
    assert [one[0] for one in found(durable, "runs")] == ["note"]
    assert durable.doctor().facts["workers"] == 1


def test_many_orphans_are_told_in_few_lines(durable):
    """Ten, and how many more."""
    for _ in range(12):
        put(durable, define_job(), "running", key=None)
    told = found(durable, "runs")
    assert len(told) == 11
    assert told[-1][1:] == ("2 more runs were left by processes that died", "durable tick")


def test_runs_that_nobody_executes(durable, clock):
    """Due for five minutes: a tick each minute would have done it."""
    run_id = durable.start(define_job()).run_id
    clock.advance(4 * M)
    assert found(durable, "workers") == []
    clock.advance(2 * M)
    message = "1 run: due for more than 5m, and no worker is there to execute them"
    assert found(durable, "workers") == [("warning", message, "durable worker")]
    durable._engine.become("worker")
    assert found(durable, "workers") == [
        ("warning", "1 run: due for more than 5m although a worker lives", f"durable runs show {run_id}")
    ]


def test_a_run_that_cannot_go_on(durable, clock):
    """What a worker noted, once for all runs of the workflow, and not again as one that nobody executes."""
    job = define_job()
    run_ids = [durable.start(job).run_id for _ in range(3)]
    change(durable, "UPDATE durable_runs SET note = 'it raised ImportError'")
    clock.advance(H)
    hints = [hint for _, message, hint in found(durable, "code") if message.endswith("ImportError")]
    assert len(hints) == 1
    assert hints[0].split("   ")[0] in [f"durable resume {run_id}" for run_id in run_ids]
    assert found(durable, "workers") == []


def test_a_stuck_key(durable, clock):
    """Held for more than a day by a run that nobody goes on with; told once, with who waits behind it."""
    job = define_job(on_duplicate="run_again")
    run_id = put(durable, job, "running", key="k")
    durable.start(job, 2, key="k")
    clock.advance(2 * D)
    [(severity, message, hint)] = found(durable, "keys")
    assert (severity, hint) == ("error", f"durable resume {run_id}")
    assert message == f"key 'k' of job has been held for 2d by run {run_id}, which nobody goes on with"
    assert found(durable, "runs") == []
    [finding] = [one for one in durable.doctor().findings if one.check == "keys"]
    assert "waits behind it" in finding.facts[0]


def test_a_key_whose_holder_still_executes(durable, clock):
    """A step that hangs looks like this."""
    run_id = durable.start(define_job(), key="k").run_id
    own(durable, run_id, live_owner(durable))
    change(durable, "UPDATE durable_runs SET status = 'running'")
    clock.advance(2 * D)
    [(severity, message, hint)] = found(durable, "keys")
    assert (severity, hint) == ("warning", f"durable runs show {run_id}")
    assert message.endswith("whose process is still executing it")


def test_a_run_that_waits_may_hold_its_key(durable, clock):
    """For a person's answer, say: that is what it is for."""
    put(durable, define_job(), "waiting", key="k", due_in_ms=30 * D)
    clock.advance(2 * D)
    assert found(durable, "keys") == []


def test_a_key_beyond_its_max_hold(durable, clock):
    """As its workflow says; told once."""

    @workflow(name="limited", max_hold="1h")
    def limited(ctx):
        ctx.run("one", lambda: None)

    run_id = durable.start(limited, key="k").run_id
    clock.advance(3 * H)
    [(severity, message, _)] = found(durable, "keys")
    assert severity == "warning"
    assert message == f"run {run_id} has held the key 'k' of limited for 3h, longer than its max_hold"
    clock.advance(2 * D)
    assert len(found(durable, "keys")) == 1


def test_schedules_that_do_not_fire(durable, clock):
    """Paused by hand: a note. Paused by failures, failing, unreadable, never due: each with its command."""
    for name in ("by-hand", "failed", "failing", "unreadable", "vanished", "fine"):
        durable.schedule(name, "0 0 1 1 *", define_job(), timezone="UTC")
    durable.pause_schedule("by-hand", reason="holidays")

    def mark(name: str, columns: str) -> None:
        change(durable, f"UPDATE durable_schedules SET {columns} WHERE name = :name", name=name)

    mark("failed", "failures = 5, paused_at = 1, paused_reason = 'it failed 5 times in a row: boom'")
    mark("failing", "failures = 2, last_error = 'boom'")
    mark("unreadable", "cron = 'x'")
    mark("vanished", "file = '/f.py', vanished_at = 1")
    assert {message.split()[1]: (severity, hint) for severity, message, hint in found(durable, "schedules")} == {
        "by-hand": ("note", "durable schedules resume by-hand"),
        "failed": ("error", "durable schedules resume failed"),
        "failing": ("warning", "durable schedules show failing"),
        "unreadable": ("error", "durable schedules show unreadable"),
        "vanished": ("note", "durable schedules remove vanished"),
    }


def test_schedules_that_nobody_fires(durable, clock):
    """No worker and no tick."""
    durable.schedule("s", "* * * * *", define_job(), timezone="UTC")
    clock.advance(10 * M)
    [(severity, message, hint)] = found(durable, "schedules")
    assert (severity, "1 schedule due for more than 5m" in message) == ("warning", True)
    assert hint is not None
    assert hint.startswith("durable worker")


# -- code ----------------------------------------------------------------------------------------------------------


def code_findings(cli) -> list[dict[str, object]]:
    """What is found about code, through the command."""
    document = cli("doctor", "--db", str(cli.db), "--json").document
    return [one for one in document["findings"] if one["check"] == "code"]


def test_code_that_is_needed(cli):
    """Gone, not Python, or open to others; only while a run or a schedule needs it; with nothing imported."""
    file = cli.dir / "flows.py"
    text = file.read_text()
    cli("run", "flows:sync")
    file.unlink()
    assert code_findings(cli) == []
    file.write_text(text)
    run_id = cli("start", "flows:sync", "--json").document["run_id"]
    assert code_findings(cli) == []

    file.unlink()
    [gone] = code_findings(cli)
    assert (gone["severity"], gone["facts"]) == ("error", ["needed by 1 unfinished run"])
    assert gone["message"] == f"workflow sync: its file {file} is not there"
    file.write_text("def f(:\n")
    assert "is not Python" in code_findings(cli)[0]["message"]
    file.write_text(text)
    file.chmod(0o666)
    [unsafe] = code_findings(cli)
    assert "can be written by everybody" in unsafe["message"]
    file.chmod(0o644)
    assert code_findings(cli) == []
    file.unlink()
    cli("cancel", run_id)
    assert code_findings(cli) == []


def test_code_of_commands_and_of_prompts(cli):
    """A command needs no file; what was typed at a prompt has none."""
    cli("schedules", "add", "s", "0 0 1 1 *", "flows:quiet", "--key", "k")
    (cli.dir / "tab").write_text("0 0 1 1 * true\n")
    cli("schedules", "import", "tab")
    assert code_findings(cli) == []
    with Durable(cli.db) as durable:
        change(durable, "UPDATE durable_workflows SET file = '<stdin>' WHERE name = 'quiet'")
    [typed] = code_findings(cli)
    assert "defined at a prompt" in typed["message"]
    assert typed["facts"] == ["needed by 1 schedule"]


def test_what_is_named_as_a_mend_can_be_typed(cli):
    """Every `durable ...` of a finding, run as it stands: it is understood, and finds what it names."""
    cli("start", "flows:sync", "--key", "k")
    cli("schedules", "add", "s", "* * * * *", "flows:quiet")
    cli("schedules", "pause", "s")
    cli("schedules", "add", "gone", "* * * * *", "flows:quiet")
    with Durable(cli.db) as durable:
        put(durable, define_job(), "running", key=None)
        for _ in range(12):
            put(durable, define_job(), "running", key=None)
        change(durable, "UPDATE durable_runs SET created_at = created_at + 5 * :day", day=D)
        change(durable, "UPDATE durable_runs SET held_since = 1, due_at = 1 WHERE key = 'k'")
        change(durable, "UPDATE durable_schedules SET file = '/f.py', vanished_at = 1 WHERE name = 'gone'")
    findings = cli("doctor", "--json").document["findings"]
    assert {one["check"] for one in findings} >= {"clock", "runs", "keys", "schedules"}
    for one in findings:
        for command in re.findall(r"durable (?!worker|start --moved)([^#]*)", one["hint"]):
            done = cli(*shlex.split(command))
            assert done.code in (0, 1, 78), (one["hint"], done)
            assert "hint:" not in done.err, (one["hint"], done)
    assert {one["check"] for one in cli("doctor", "--json").document["findings"]} & {
        "clock",
        "keys",
        "schedules",
    } == set()


def test_the_file_on_a_network_can_be_copied_away(cli, monkeypatch, tmp_path):
    """By the command that is named, although durable refuses such a file; a blank in its name, too."""
    db = cli.dir / "my file.db"
    cli("run", "flows:sync", "--db", str(db))
    monkeypatch.setattr(filesystem, "kind_of", lambda path, mounts=None: ("nfs4", str(path.parent)))
    with Durable(db) as durable:
        [hint] = [one[2] for one in found(durable, "file")]
    assert hint.startswith(f"{filesystem.OVERRIDE}=1 durable db backup ~/'my file.db'   #")


def test_owners_that_died_without_runs_are_nothing(durable):
    """Their rows go with the next owner."""
    dead_owner(durable)
    assert checks(durable) == set()


def test_order_of_findings():
    """Errors first, notes last."""
    three = [doctor.Finding("x", severity, severity) for severity in ("note", "error", "warning")]
    assert [one.severity for one in doctor.worst(three)] == ["error", "warning", "note"]


def test_the_line_for_a_crontab_is_one_that_cron_can_run(cli):
    """With the program and the database in full: cron knows neither PATH nor DURABLE_DB. The same after an import."""
    line = f"* * * * * {sys.executable} -m durable_cli -q tick --db {cli.db}"
    told = cli("schedules", "import", "-", stdin=b"0 1 * * * true\n").err.splitlines()
    assert told[-2:] == ["schedules are fired by durable worker, or by this line in the crontab:", f"  {line}"]
    assert f"mend: durable worker   # or in the crontab: {line}\n" in cli("doctor").out
