"""M15: INT, TERM and HUP leave a resumable run, whatever the step does and whatever the code catches."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from crashkit import Child, Gate, Log, durable_argv, quick, spawn

from durable_cli import Durable, Status


def call(log: Log, target: str = "jobs:again") -> list[str]:
    return ["run", target, "--key", "k", "--input", json.dumps(str(log.path))]


@pytest.mark.parametrize(
    ("number", "target"),
    [
        (signal.SIGINT, "jobs:stubborn"),
        (signal.SIGTERM, "jobs:again"),
        (signal.SIGHUP, "jobs:again"),
        (signal.SIGTERM, "jobs:job_async"),
    ],
)
def test_the_first_signal_lets_the_step_end(tmp_path: Path, number: signal.Signals, target: str) -> None:
    """The running step ends and is recorded, no other begins, the exit code is 128 + the signal, and the run is
    nobody's: the next `durable run` goes on with the next step."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    with spawn(db, "-v", *call(log, target), JOBS_ACT=f"hold:two:{gate.path}") as owner:
        gate.wait_arrived(owner)
        owner.send(number)
        owner.wait_said("may end")
        gate.open()
        ended = owner.end()
    gate.close()
    assert ended.code == 128 + number, ended
    assert log.steps() == ["one", "two"]
    with Durable(db, create=False) as it:
        run = it.find(key="k")
        assert (run.status, run.owner) == (Status.PENDING, None)
        assert f"durable resume {run.id}" in ended.err
    document = quick(db, *call(log, target), "--json").ok().json
    assert (document["run_id"], document["outcome"], document["status"]) == (run.id, "resumed", "completed")
    assert log.steps() == ["one", "two", "three"]


@pytest.mark.parametrize("target", ["jobs:stubborn", "jobs:job_async"])
def test_the_second_signal_stops_at_once(tmp_path: Path, target: str) -> None:
    """In the middle of a step that never ends by itself: the run is handed back, and the step is executed again by
    the next process."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    with spawn(db, "-v", *call(log, target), JOBS_ACT=f"hold:two:{gate.path}") as owner:
        gate.wait_arrived(owner)
        owner.send(signal.SIGTERM)
        owner.wait_said("may end")
        owner.send(signal.SIGINT)
        ended = owner.end()
    assert ended.code == 128 + signal.SIGINT, ended
    with Durable(db, create=False) as it:
        run = it.find(key="k")
        assert (run.status, run.owner, run.crashes) == (Status.PENDING, None, 0)
    assert quick(db, *call(log, target)).ok()
    assert log.steps() == ["one", "two", "two", "three"]


def test_a_hangup_ignored_from_the_start_stays_ignored(tmp_path: Path) -> None:
    """`nohup durable run ...` goes on when the terminal closes."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    code = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-c", code, *durable_argv(db, *call(log))]
    with Child(argv, JOBS_ACT=f"hold:two:{gate.path}") as owner:
        gate.wait_arrived(owner)
        owner.send(signal.SIGHUP)
        gate.open()
        owner.end().ok()
    gate.close()
    assert log.steps() == ["one", "two", "three"]
