"""What a call pays for: a crontab pays it every minute (M08)."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import durable_cli

HEAVY = {"apsw", "pydantic", "croniter", "rich", "asyncio", "httpx", "importlib.metadata"}


def imported(cli, *argv):
    """The heavy modules that a call imported."""
    code = (
        "import sys\nfrom durable_cli.__main__ import main\nsys.argv = ['durable', *sys.argv[1:]]\ncode = main()\n"
        "sys.stderr.write('\\n' + ' '.join(sys.modules))\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=cli.dir, env=cli.full_env(), capture_output=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return HEAVY & set(done.stderr.decode().split())


@pytest.mark.parametrize(
    ("argv", "allowed"),
    [
        (["--version"], set()),
        (["--help"], set()),
        (["run", "--help"], set()),
        (["db", "path"], set()),
        (["keys", "list"], set()),
        (["__complete", "zsh", "ru"], set()),
        (["run", "flows:quiet", "--key", "k", "-q"], {"apsw"}),
        (["run", "flows:quiet", "--key", "k", "--json"], {"apsw"}),
        (["runs", "list"], {"apsw"}),
        (["runs", "list", "--format", "table"], {"apsw", "rich"}),
        (["__complete", "zsh", "keys", "show", ""], {"apsw"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_call_imports_only_what_it_needs(shared_cli, argv, allowed):
    """No apsw for help and completion, no rich and no pydantic for a run."""
    if argv[0] == "__complete" and argv[-1] == "":
        shared_cli("start", "flows:quiet", "--key", "k")
    elif not allowed:
        shared_cli.db.unlink(missing_ok=True)
    assert imported(shared_cli, *argv) <= allowed


def test_the_version_needs_no_typer(cli):
    """The fast path, and the number of the project file."""
    code = "import sys\nfrom durable_cli.__main__ import main\nsys.argv = ['durable', '--version']\nmain()\n"
    code += "assert 'typer' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], env=cli.full_env(), capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert done.stdout.decode() == f"durable {project['version']}\n" == f"durable {durable_cli.__version__}\n"
    assert cli("--version").out == cli("--version", "--db", "x").out == done.stdout.decode()


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["__complete", "bash", "durable ru"]], ids=lambda a: a[0])
def test_help_version_and_completion_are_quick(cli, argv):
    """Under 300 ms of processor time (the clock on the wall would measure who else is busy), the best of five."""
    taken = []
    while len(taken) < 5 and min(taken, default=1) >= 0.3:
        process = cli.process(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        taken.append(usage.ru_utime + usage.ru_stime)
    assert min(taken) < 0.3
