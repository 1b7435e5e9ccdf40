"""A run that kills its process again and again: it fails, and somebody says so."""

from __future__ import annotations

import json
from pathlib import Path

from crashkit import Log, durable, quick

from durable_cli import Durable, Status


def test_the_sixth_call_reports_a_run_that_killed_five(tmp_path: Path) -> None:
    """Five processes in a row die in a run; the sixth call fails it, reports it with exit 1, and executes the run that
    waited behind it, which has the key now."""
    db = tmp_path / "durable.db"
    run = ["run", "jobs:deadly", "--key", "k", "--json"]
    for n in range(5):
        assert durable(db, *run).killed, n
        if n == 0:
            queued = durable(db, "start", *run[1:], "--input", "false", "--on-duplicate", "run_again").ok().json
            assert queued["outcome"] == "queued"
    sixth = durable(db, *run)
    assert sixth.code == 1, sixth
    document = sixth.json
    assert (document["outcome"], document["status"]) == ("resumed", "failed")
    assert document["error"]["type"] == "CrashLoop"
    assert document["run_id"] == queued["holder_id"]
    with Durable(db, create=False) as it:
        assert it.check() == []
        waiting = it.run(queued["run_id"])
        assert (waiting.status, waiting.result, waiting.holds_key) == (Status.COMPLETED, '"alive"', True)
        assert it.runs(unfinished=True) == []
    # A person reads the same on stderr, and the next call starts afresh.
    assert "died 5 times in a row" in durable(db, "runs", "show", document["run_id"]).ok().out
    assert durable(db, *run).killed


def test_a_recorded_step_sets_the_count_back(tmp_path: Path) -> None:
    """Four deaths in step one and four in step two are no crash loop: the run got on in between."""
    db, log = tmp_path / "durable.db", Log(tmp_path / "trace")
    run = ["run", "jobs:job", "--key", "k", "--input", json.dumps(str(log.path)), "--json"]
    for step in ("one", "two"):
        for _ in range(4):
            assert quick(db, *run, JOBS_ACT=f"die:{step}:after").killed
    assert quick(db, *run).ok().json["status"] == "completed"
    assert log.steps() == ["one"] * 5 + ["two"] * 5 + ["three"]
    assert [line[2] for line in log.lines()] == ["1", "2", "3", "4", "5"] * 2 + ["1"]
