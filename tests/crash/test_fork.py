"""L12: user code forks inside a step. The child is nobody: it must not write in the name of its parent. And threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from crashkit import SUPPORT, Log, durable, python

from durable_cli import Durable, Status


@pytest.mark.parametrize("target", ["jobs:again", "jobs:job_async"])
@pytest.mark.parametrize("how", ["start", "exit", "raise", "return", "process"])
def test_a_child_forked_in_a_step_harms_nobody(tmp_path: Path, how: str, target: str) -> None:
    """It starts a run of its own, exits, raises, or comes back out of the step: its parent's run goes on, each step is
    recorded once, by the parent, and the answer is printed once."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    call = ["run", target, "--key", "k", "--input", json.dumps(str(log.path)), "--json"]
    ended = durable(db, *call, JOBS_ACT=f"fork:two:{how}", JOBS_DB=str(db)).ok()
    assert ended.json["status"] == "completed"  # one document: the child printed none
    assert ended.json["result"] == ["one", "two", "three"]
    steps = log.steps()
    assert [step for step in steps if step in ("one", "two", "three")] == ["one", "two", "three"]
    if how != "process":  # Python 3.11 ends one that was forked in a thread with 1, and one of the main thread with 0
        assert f"child:{how}:{1 if how in ('raise', 'return') else 0}" in steps
    with Durable(db, create=False) as it:
        assert it.check() == []
        run = it.run(ended.json["run_id"])
        assert (run.status, run.epoch, run.crashes) == (Status.COMPLETED, 1, 0)
        assert [step.attempts for step in run.steps or ()] == [1, 1, 1]
        others = [other.key for other in it.runs() if other.id != run.id]
        assert others == (["of-the-child"] if how in ("start", "process") else [])


def test_threads_that_execute_at_once_are_one_owner(tmp_path: Path) -> None:
    """A process registers itself once, whatever number of threads use the library first at the same instant."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    with python(str(SUPPORT / "threads.py"), str(db), str(log.path)) as child:
        answer = child.end().ok().json
    assert answer == {"completed": 8, "owners": 1}
    with Durable(db, create=False) as it:
        assert it.check() == []
        assert len(it.runs()) == 8
