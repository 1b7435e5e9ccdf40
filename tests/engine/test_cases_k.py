"""Trouble of other systems (tests/cases.md), K: clocks that jump."""

from __future__ import annotations

from typing import Any

import pytest
from enginekit import change, define_job

from durable_cli import Durable

HOUR, DAY = 3_600_000, 86_400_000


@pytest.mark.parametrize("jump", [0, 2 * HOUR, -2 * HOUR, 400 * DAY, -400 * DAY])
def test_a_worker_never_sleeps_for_longer_than_a_minute(durable: Durable, clock: Any, jump: int) -> None:
    """K01: whatever the clock does, and however far the next thing is, it looks again soon."""
    durable.schedule("s", "* * * * *", define_job(), timezone="UTC")
    durable.schedule("yearly", "@yearly", define_job(), timezone="UTC")
    worker = durable.worker()
    for step in (0, jump, 0, -jump, 0, 60_000):
        clock.advance(step)
        assert 0 <= worker.sweep() <= 60


def test_a_run_that_ended_before_it_began_is_pruned_as_any_other(durable: Durable, clock: Any) -> None:
    """K04: by its finish; its activity and its key are told as ever."""
    job = define_job()
    run = durable.execute(job, key="k").run
    durable.start(define_job("never"), 2, key="k")
    change(durable, "UPDATE durable_runs SET finished_at = started_at - 7200000 WHERE public_id = :id", id=run.id)
    clock.advance(DAY)
    assert durable.prune(older_than="2d").runs == 0
    assert durable.activity(key="k")[0].run_id == run.id
    clock.advance(DAY)
    assert durable.prune(older_than="2d").runs == 1
    assert durable.check() == []
