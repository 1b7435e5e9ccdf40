"""Trouble of other systems (tests/cases.md), N: what can be told afterwards."""

from __future__ import annotations

from typing import Any

from enginekit import define_job, put

from durable_cli import Durable

DAY = 86_400_000


def test_activity_outlives_its_run_by_seven_days_to_the_moment(durable: Durable, clock: Any) -> None:
    """N02: the run is pruned and its rows are listed; they go seven days after they were written, not before."""
    job = define_job("never")
    run_id = put(durable, job, "completed", key="k")
    durable.start(job, 1, key="k")
    durable.start(job, 2, key="k")
    clock.advance(DAY + 1)
    assert durable.prune(older_than="1d").runs == 1
    kinds = [row.kind for row in durable.activity()][::-1]
    assert kinds == ["key_duplicate", "key_duplicate", "key_pruned"]
    assert {row.run_id for row in durable.activity()} == {run_id}
    assert durable.stats().readds == {"use_existing": 2}
    clock.advance(6 * DAY - 1)
    durable.prune(older_than="1d")
    assert len(durable.activity()) == 3
    clock.advance(1)
    durable.prune(older_than="1d")
    assert [row.kind for row in durable.activity()] == ["key_pruned"]
    clock.advance(DAY + 1)
    durable.prune(older_than="1d")
    assert durable.activity() == []
