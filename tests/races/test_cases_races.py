"""Trouble of other systems (tests/cases.md): many processes debounce one key, and some of them are killed."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from crashkit import Nursling, durable_argv, environment, image, quick

from durable_cli import Durable

FLOW = """
from durable_cli import Debounce, workflow


@workflow(debounce=Debounce("1h"))
def burst(ctx, n: int = 0):
    return ctx.run("work", lambda: n)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "burst.py").write_text(FLOW)
    return f"{tmp_path / 'burst.py'}:burst"


def test_processes_that_debounce_one_key_lose_nothing(tmp_path: Path, target: str) -> None:
    """F02: 12 numbered inputs from 3 processes at a time: one run, its input is the last commit's, and each other
    input is on record once, in the order of the commits."""
    db = tmp_path / "durable.db"
    waiting, running, ids = list(range(12)), [], set()
    with ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < 3:
                call = ["start", target, "--key", "k", "--input", str(waiting.pop()), "--json"]
                running.append(stack.enter_context(Nursling(durable_argv(db, *call)[3:], environment(), ())))
            ids.add(running.pop(0).end().ok().json["run_id"])
    with Durable(db, create=False) as it:
        assert it.check() == []
        [run] = it.runs()
        assert ids == {run.id}
        rows = it.activity(key="k")[::-1]
        assert [row.details["outcome"] for row in rows] == ["debounced"] * 11
        dropped = [row.details["input"] for row in rows]
        assert sorted([*dropped, json.loads(run.input)]) == list(range(12))
        assert run.due_at == rows[-1].at + 3_600_000


@pytest.mark.parametrize("phase", ["before", "uncommitted", "committed"])
def test_a_debounced_start_that_is_killed_changed_both_or_nothing(tmp_path: Path, target: str, phase: str) -> None:
    """F02: input, due time and what is told of it are the old ones or the new ones."""
    db = tmp_path / "durable.db"
    quick(db, "start", target, "--key", "k", "--input", "1").ok()
    with image(db) as it:
        [old] = it.runs()
    call = ["start", target, "--key", "k", "--input", "2", "--json"]
    assert quick(db, *call, strikes=[(signal.SIGKILL, phase, 1)]).killed
    with image(db) as it:
        assert it.check() == []
        [run] = it.runs()
        rows = it.activity()
        if phase != "committed":
            assert (run, rows) == (old, [])
        else:
            [row] = rows
            assert (run.id, run.input, row.details["input"]) == (old.id, "2", 1)
            assert run.due_at == row.at + 3_600_000
    assert quick(db, *call).ok().json["run_id"] == old.id
