"""Trouble of other systems (tests/cases.md), H: what an old run can do to a newer one (nothing)."""

from __future__ import annotations

from typing import Any

import pytest
from enginekit import define_job, holder, live_owner, put

from durable_cli import Durable

DAY = 86_400_000


@pytest.mark.parametrize("status", ["pending", "running", "waiting", "completed"])
def test_pruning_an_old_run_frees_nothing_of_the_newer_one(durable: Durable, clock: Any, status: str) -> None:
    """H03: the old one had handed its key over; it goes, and the newer one holds the key as before."""
    job = define_job()
    old = put(durable, job, "completed", key="k")
    clock.advance(40 * DAY)
    new = put(durable, job, status, key="k", owner=live_owner(durable) if status == "running" else None)
    before = holder(durable, "k")
    pruned = durable.prune(older_than="30d")
    assert (pruned.runs, pruned.keys_freed) == (1, 0)
    assert [run.id for run in durable.runs(key="k")] == [new]
    assert holder(durable, "k") == before
    assert old != new
    if status != "completed":
        assert durable.start(job, key="k").run_id == new
    assert durable.check() == []
