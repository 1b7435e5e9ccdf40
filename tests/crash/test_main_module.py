"""M13: `python jobs.py`, `jobs:job` and `./jobs.py:job` are one workflow, so its key is held once."""

from __future__ import annotations

import json
import os
from pathlib import Path

from crashkit import FLOWS, Gate, Log, durable, python, spawn


def test_a_script_and_the_command_share_a_key(tmp_path: Path) -> None:
    """A run started by the script under `__main__` is the holder for `durable run`, which takes it up when the script
    was killed."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    argument = ["--key", "k", "--input", json.dumps(str(log.path)), "--json"]
    acts = {"JOBS_ACT": f"hold:two:{gate.path}", "JOBS_DB": str(db)}
    with python(str(FLOWS / "jobs.py"), "k", str(log.path), **acts) as script:
        gate.wait_arrived(script)
        for target in ("jobs:job", f"{FLOWS / 'jobs.py'}:job", os.path.relpath(FLOWS / "jobs.py") + ":job", "job"):
            answer = durable(db, "run", target, *argument).ok().json
            assert (answer["outcome"], answer["workflow"]) == ("existing", "job"), target
        script.kill()
    taken_up = durable(db, "run", "jobs:job", *argument).ok().json
    assert (taken_up["outcome"], taken_up["run_id"]) == ("resumed", answer["run_id"])
    assert log.steps() == ["one", "two", "two", "three"]


def test_a_script_takes_up_what_the_command_left(tmp_path: Path) -> None:
    """And the other way round: killed under `durable run`, finished by the script."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    argument = ["--key", "k", "--input", json.dumps(str(log.path)), "--json"]
    with spawn(db, "run", "jobs:job", *argument, JOBS_ACT="die:two:after") as command:
        assert command.end().killed
    with python(str(FLOWS / "jobs.py"), "k", str(log.path), JOBS_DB=str(db)) as script:
        run_id, outcome, status = script.end().ok().out.split()
    assert (outcome, status) == ("resumed", "completed")
    assert run_id == durable(db, "runs", "show", "last", "--json").ok().json["id"]
    assert log.steps() == ["one", "two", "two", "three"]
