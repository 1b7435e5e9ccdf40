"""Trouble of other systems (tests/cases.md), B: reuse, on the ways to a start that `test_start` does not take."""

from __future__ import annotations

from typing import Any

import pytest
from enginekit import FINISHED, UNFINISHED, define_job, live_owner, put, snapshot

from durable_cli import Debounce, Durable, workflow

KEPT = {"after_close": (), "after_failure": ("completed",), "never": FINISHED}
MINUTE = 60_000


def put_each(durable: Durable, job: Any) -> dict[str, str]:
    """A holder in every status, each of a key of its own; whatever is under way is in a living process's hands."""
    owner = live_owner(durable)
    hands = {"running": owner, "waiting": owner, "compensating": owner}
    return {status: put(durable, job, status, key=status, owner=hands.get(status)) for status in UNFINISHED + FINISHED}


def judge(durable: Durable, reuse: str, holders: dict[str, str], answers: dict[str, tuple[str, str]]) -> None:
    """(outcome, run) by status: a new run where the table says free, else the holder."""
    for status, old in holders.items():
        outcome, run_id = answers[status]
        taken = status in UNFINISHED or status in KEPT[reuse]
        assert (outcome, run_id == old) == (("existing", True) if taken else ("created", False)), (status, outcome)
        assert durable.run(run_id).holds_key
        assert len(durable.runs(key=status)) == (1 if taken else 2)
    assert durable.check() == []


@pytest.mark.parametrize("by", ["clock", "hand"])
@pytest.mark.parametrize("reuse", KEPT)
def test_a_fire_finds_a_key_free_or_taken_as_a_start_does(durable: Durable, clock: Any, reuse: str, by: str) -> None:
    """B02: schedules, fired by the clock and by hand, over every status of the holder."""
    from durable_cli.firing import fire
    from durable_cli.store import schedules

    job = define_job(reuse)
    holders = put_each(durable, job)
    for status in holders:
        durable.schedule(f"s-{status}", "* * * * *", job, timezone="UTC", key=status)
    if by == "hand":
        told = {status: durable.trigger_schedule(f"s-{status}") for status in holders}
        answers = {status: (str(one.outcome), one.run_id) for status, one in told.items()}
    else:
        clock.advance(MINUTE)
        engine = durable._engine
        for seen in engine.database.read(lambda tx: schedules.due(tx, engine.now())):
            fire(engine, seen)
        answers = {}
        for status in holders:
            [one] = durable.schedule_fires(f"s-{status}")
            assert one.run_id is not None
            answers[status] = one.outcome, one.run_id
    judge(durable, reuse, holders, answers)


@pytest.mark.parametrize("reuse", KEPT)
def test_a_debounced_start_finds_a_key_free_or_taken_as_any_start_does(durable: Durable, reuse: str) -> None:
    """B02: only a run that has not begun takes the newer input; what has begun, or is over, follows the table."""
    job = define_job(reuse)
    holders = put_each(durable, job)

    @workflow(name="job", reuse=reuse, debounce=Debounce("1m"))  # type: ignore[arg-type]
    def debounced(ctx: Any, what: Any = None) -> Any:
        return ctx.run("work", lambda: what)

    told = {status: durable.start(debounced, "new", key=status, moved=True) for status in holders}
    judge(durable, reuse, holders, {status: (str(one.outcome), one.run_id) for status, one in told.items()})
    for status, one in told.items():
        if one.outcome == "created":
            assert durable.run(one.run_id).due_at == durable._engine.now() + MINUTE
            assert durable.start(debounced, "newer", key=status).outcome == "merged"


def test_what_would_happen_is_told_by_the_policy_of_now(durable: Durable) -> None:
    """B10: a completed holder is told to keep its key or not as the workflow says today; nothing is written."""
    put(durable, define_job("after_close"), "completed", key="k")
    before = snapshot(durable)
    for reuse, action in (("after_close", "create"), ("never", "existing"), ("after_close", "create")):
        assert durable.explain_start(define_job(reuse), key="k", execute=False).action == action
    assert snapshot(durable) == before
