"""The units in `examples/`: systemd and launchd accept them, and their commands work in a bare environment."""

from __future__ import annotations

import configparser
import json
import os
import plistlib
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from crashkit import EXAMPLES, PACKAGE_ROOT, until

from durable_cli import Durable

UNITS = ("durable-worker.service", "durable-tick.service", "durable-tick.timer")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with durable installed where the units say, and a module in the folder that they name."""
    program = tmp_path / ".local/bin/durable"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(1, {str(PACKAGE_ROOT)!r})\n"
        "from durable_cli.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    program.chmod(0o755)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/mine.py").write_text(
        "from durable_cli import workflow\n\n@workflow\ndef flow(ctx):\n    return ctx.run('work', lambda: 'done')\n"
    )
    return tmp_path


def exec_start(unit: str, home: Path) -> list[str]:
    parser = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(EXAMPLES / unit)
    return shlex.split(parser["Service"]["ExecStart"].replace("%h", str(home)))


def launchd_argv(home: Path) -> list[str]:
    with (EXAMPLES / "com.example.durable-worker.plist").open("rb") as file:
        return [word.replace("/Users/YOU", str(home)) for word in plistlib.load(file)["ProgramArguments"]]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(unit: str, home: Path) -> None:
    """Without a word: every key is known, the program is there."""
    folder = home / ".config/systemd/user"
    folder.mkdir(parents=True)
    for name in UNITS:
        shutil.copy(EXAMPLES / name, folder)
    (home / "run").mkdir(mode=0o700)
    env = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "PATH": os.environ["PATH"]}
    argv = ["systemd-analyze", "--user", "verify", "--man=no", str(folder / unit)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip("systemd cannot look at user units here")
    assert (done.returncode, done.stderr) == (0, "")


def test_launchd_can_read_the_list() -> None:
    """A property list with the keys of launchd.plist(5), absolute paths, and a time to drain."""
    with (EXAMPLES / "com.example.durable-worker.plist").open("rb") as file:
        document = plistlib.load(file)
    known = {"Label", "ProgramArguments", "RunAtLoad", "KeepAlive", "ThrottleInterval", "ExitTimeOut", "ProcessType"}
    assert set(document) - known == {"StandardErrorPath"}
    assert document["Label"] == "com.example.durable-worker"
    assert document["ProgramArguments"][0].startswith("/")
    assert document["ExitTimeOut"] > int(document["ProgramArguments"][-1].removesuffix("s"))


@pytest.mark.parametrize("unit", ["durable-worker.service", "com.example.durable-worker.plist"])
def test_the_command_of_a_worker_works_in_a_bare_environment(unit: str, home: Path) -> None:
    """Nothing but HOME is set, as by a service manager: it executes what was started, and a SIGTERM ends it well."""
    argv = launchd_argv(home) if unit.endswith(".plist") else exec_start(unit, home)
    env = {"HOME": str(home)}
    worker = subprocess.Popen(argv, env=env, cwd="/", stderr=subprocess.PIPE, text=True)
    try:
        started = [argv[0], "--app-dir", str(home / "jobs"), "start", "mine:flow"]
        run_id = subprocess.run(started, env=env, cwd="/", capture_output=True, text=True, check=True).stdout.strip()
        with Durable(home / ".local/share/durable/durable.db", create=False) as it:
            until(lambda: it.run(run_id).finished or worker.poll() is not None, "the run")
            assert json.loads(it.run(run_id).result or "null") == "done"
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.wait()
    assert (worker.returncode, said) == (0, "")


def test_the_command_of_the_tick_works_in_a_bare_environment(home: Path) -> None:
    """It executes what is due, says nothing, and ends."""
    argv, env = exec_start("durable-tick.service", home), {"HOME": str(home)}
    started = [argv[0], "--app-dir", str(home / "jobs"), "start", "mine:flow"]
    run_id = subprocess.run(started, env=env, cwd="/", capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with Durable(home / ".local/share/durable/durable.db", create=False) as it:
        assert it.run(run_id).status == "completed"
