"""The crontab lines of examples/README.md as cron runs them: `env -i`, in the home directory, without a terminal."""

from __future__ import annotations

import datetime as dt
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from enginekit import change

from durable_cli import Durable

ROOT = Path(__file__).parents[2]
LINES = re.findall(
    r"^    (\S+ \S+ \S+ \S+ \S+) (/path/to/durable .*)$", (ROOT / "examples" / "README.md").read_text(), re.M
)
TICK, RUN = (next(line for _, line in LINES if verb in line) for verb in ("durable tick", "durable run"))

YEARLY = ("0 0 1 1 *", "--tz", "UTC")

FLOWS = """
from durable_cli import Context, workflow


@workflow
def beat(ctx: Context, fail: bool = False) -> str:
    print("noise")
    return ctx.run("beat", step, fail)


def step(fail: bool) -> str:
    print("noise of the step")
    if fail:
        raise ValueError("no pulse")
    return "done"
"""


class Cron:
    """A home, a `durable` outside of PATH, and how cron runs a line there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "jobs").mkdir()
        (home / "jobs" / "flows.py").write_text(FLOWS)
        self.durable = home / "venv durable"  # a blank in the path
        self.durable.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m durable_cli "$@"\n')
        self.durable.chmod(0o755)
        self.db = home / ".local" / "share" / "durable" / "durable.db"

    def line(self, documented: str) -> tuple[int, str]:
        """Run a documented line. Its exit code, and what would be mailed."""
        text = documented.replace("/path/to/durable", shlex.quote(str(self.durable)))
        return self.raw(text.replace("/path/to/examples", str(ROOT / "examples")))

    def raw(self, text: str) -> tuple[int, str]:
        """Run a line as cron does: an unescaped % would end it."""
        command, *stdin = (part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", text))
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.home,
            env={"HOME": str(self.home), "LOGNAME": "me", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"},
            input="\n".join(stdin),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            start_new_session=True,
        )
        return done.returncode, done.stdout

    def call(self, *argv: str) -> str:
        """What a person types at home, in the same environment."""
        code, out = self.raw(shlex.join([str(self.durable), *argv]).replace("%", "\\%"))
        assert code == 0, out
        return out

    def make_due(self) -> None:
        """Every schedule has missed its fire of this year."""
        due = round(dt.datetime(dt.datetime.now(dt.UTC).year, 1, 1, tzinfo=dt.UTC).timestamp()) * 1000
        with Durable(self.db, create=False) as it:
            change(it, "UPDATE durable_schedules SET next_fire_at = :due, wake_at = :due", due=due)


@pytest.fixture
def cron(tmp_path: Path) -> Cron:
    return Cron(tmp_path)


def test_both_lines_are_documented() -> None:
    """What is tested here is what the README says; its % is escaped."""
    assert len(LINES) == 2
    assert "\\%F" in RUN


def test_the_tick_line_is_silent_when_all_is_well(cron: Cron) -> None:
    """It fires a schedule, executes the run, and there is nothing to mail; once more, and it does not fire again."""
    cron.call("schedules", "add", "beat", *YEARLY, "jobs/flows.py:beat", "--key", "beat", "-q")
    cron.make_due()
    assert cron.line(TICK) == (0, "")
    assert cron.line(TICK) == (0, "")
    with Durable(cron.db, create=False) as it:
        assert [(str(run.status), run.key) for run in it.runs()] == [("completed", "beat")]


def test_the_tick_line_without_anything_to_do(cron: Cron) -> None:
    """Also in a home where durable never ran."""
    assert cron.line(TICK) == (0, "")


def test_the_tick_line_mails_why_a_run_failed(cron: Cron) -> None:
    """Workflow, step, reason, and the command that goes on; few lines."""
    cron.call("schedules", "add", "beat", *YEARLY, "jobs/flows.py:beat", "--input", "true", "-q")
    cron.make_due()
    _, mail = cron.line(TICK)
    assert "beat failed in step beat (attempt 1): ValueError: no pulse" in mail
    assert "durable retry " in mail
    assert len(mail.splitlines()) <= 40
    assert mail.isascii()


def test_the_tick_line_mails_that_code_cannot_be_loaded(cron: Cron) -> None:
    """A fire that fails exits 1 and says why; the schedule says it too."""
    cron.call("schedules", "add", "beat", *YEARLY, "jobs/flows.py:beat", "-q")
    (cron.home / "jobs" / "flows.py").write_text("raise RuntimeError('half an edit')\n")
    cron.make_due()
    code, mail = cron.line(TICK)
    assert code == 1
    assert "half an edit" in mail
    assert "half an edit" in cron.call("schedules", "list", "--fields", "name,last_error")


def test_the_run_line_is_silent_when_all_is_well(cron: Cron) -> None:
    """The backup is made under the key of the day; nothing is mailed."""
    (cron.home / "Documents").mkdir()
    (cron.home / "Documents" / "letter.txt").write_text("dear")
    (cron.home / "backups").mkdir()
    assert cron.line(RUN) == (0, "")
    assert list((cron.home / "backups").glob("*.tar.gz"))
    with Durable(cron.db, create=False) as it:
        assert re.fullmatch(r"backup:\d{4}-\d\d-\d\d", it.runs()[0].key or "")


def test_the_run_line_mails_why_it_failed(cron: Cron) -> None:
    """No such folder: exit 1, and the reason."""
    code, mail = cron.line(RUN)
    assert code == 1
    assert "Documents" in mail
    assert "durable retry " in mail


def test_a_line_that_print_crontab_wrote(cron: Cron) -> None:
    """Pasted as it is, with a key that has a % and a blank."""
    written = cron.call("run", "jobs/flows.py:beat", "--key", "100% sure", "--print-crontab", "30 2 * * *").strip()
    line = written.removeprefix("30 2 * * * ").replace(
        f"{sys.executable} -m durable_cli", shlex.quote(str(cron.durable))
    )
    assert cron.raw(line) == (0, "")
    with Durable(cron.db, create=False) as it:
        assert it.runs()[0].key == "100% sure"


def test_an_imported_line_is_fired(cron: Cron) -> None:
    """`%` and all: what cron did, a tick does, silently; its output is in the run's log."""
    (cron.home / "tab").write_text("WORD=hello\nCRON_TZ=UTC\n0 0 1 1 * cat; echo $WORD %from\\% stdin%second line\n")
    cron.call("schedules", "import", "tab", "-q")
    cron.make_due()
    assert cron.line(TICK) == (0, "")
    with Durable(cron.db, create=False) as it:
        assert [str(run.status) for run in it.runs()] == ["completed"]
    log = cron.call("logs", "last")
    assert [line.split("\t")[-1] for line in log.splitlines()] == ["from% stdin", "second line", "hello"]


def printed(cron: Cron, there: Path, *argv: str) -> str:
    """The line of a call that is made in a directory, as cron would run it here, where durable is not installed."""
    done = subprocess.run(
        [str(cron.durable), argv[0], "--print-crontab", "1 1 * * *", *argv[1:]],
        cwd=there,
        env={"HOME": str(cron.home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    line = done.stdout.strip().removeprefix("1 1 * * * ")
    return line.replace(f"{sys.executable} -m durable_cli", shlex.quote(str(cron.durable)))


def test_a_printed_line_begins_where_the_call_was_made(cron: Cron) -> None:
    """What is relative in an input, or in a command, means the same under cron."""
    there = cron.home / "a %dir"
    there.mkdir()
    (there / "flows.py").write_text(FLOWS.replace("return ctx", "open('kept', 'w').close()\n    return ctx"))
    (there / "in.json").write_text("false")
    (there / "tool").write_text("#!/bin/sh\npwd > made\n")
    (there / "tool").chmod(0o755)
    run = printed(cron, there, "run", "flows.py:beat", "--input", "@in.json", "--key", "k")
    assert run.startswith(f"cd '{cron.home}/a \\%dir' && ")
    assert cron.raw(run) == (0, "")
    assert (there / "kept").exists()
    assert cron.raw(printed(cron, there, "exec", "--key", "k", "--", "./tool")) == (0, "")
    assert (there / "made").read_text() == f"{there}\n"


def test_a_printed_command_does_not_need_the_path(cron: Cron) -> None:
    """Its program is named in full, its own words are left alone, and so are the options of the call."""
    line = printed(
        cron, cron.home, "exec", "--key", "k", "--timeout", "5m", "-E", "9", "--wait", "--", "sh", "-c", "true %"
    )
    command = line.partition(" && ")[2].replace("\\%", "%")
    words = shlex.split(command)
    assert words[1:4] == ["exec", "-q", "--db"]
    assert words[5:] == [
        *("--key", "k", "-E", "9", "--wait", "--timeout", "5m", "--"),
        *(shutil.which("sh", path="/usr/bin:/bin") or "", "-c", "true %"),
    ]
    assert cron.raw(line) == (0, "")
