"""A run that waits for the end of another learns it, in whatever way that one ends; nothing takes the end away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from enginekit import change, claim

from durable_cli import Durable, Status, workflow
from durable_cli.runner import Ended, take_turn


@workflow(name="kept_child", reuse="after_failure")
def child(ctx: Any, what: Any = None) -> Any:
    return ctx.run("work", lambda: what)


@workflow(name="asking_parent")
def parent(ctx: Any) -> str:
    try:
        return f"got {ctx.call(child, 2, key='k', on_duplicate='run_again')}"
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "replaced", "cancelled child", "retried holder"])
def test_a_parent_learns_how_its_child_that_waited_behind_a_holder_ended(durable: Durable, end: str) -> None:
    """Kept from the key by `reuse`, the child is cancelled in the transaction of the holder's end."""
    first = durable.start(child, 1, key="k").run_id
    holder = claim(durable, first)
    asker = durable.start(parent).run_id
    durable.tick()
    assert durable.run(asker).status is Status.WAITING
    waiting = next(run.id for run in durable.runs(workflow="kept_child") if run.id != first)
    assert durable.run(waiting).runs_after_id == first
    if end == "completed":
        take_turn(durable._engine, holder, child.definition)
    elif end == "failed":
        change(durable, "UPDATE durable_runs SET deadline_at = 1, timeout_ms = 1 WHERE public_id = :id", id=first)
        turn = take_turn(durable._engine, holder, child.definition)
        assert isinstance(turn, Ended)
        assert turn.promoted is not None  # it is ours to execute
        take_turn(durable._engine, turn.promoted, child.definition)
    elif end == "cancelled":
        durable.cancel(first)
    elif end == "replaced":
        durable.start(child, 3, key="k", on_duplicate="cancel_existing")
    elif end == "cancelled child":
        durable.cancel(waiting)
    else:
        durable.cancel(first)
        durable.cancel(waiting)
        durable.retry(first)
    for _ in range(3):
        durable.tick()
    run = durable.run(asker)
    assert run.status is Status.COMPLETED
    told = json.loads(run.result or "")
    if end in ("completed", "replaced"):
        assert "KeyKept" in told
    elif end in ("failed", "cancelled"):
        assert told == "got 2"
    else:
        assert "cancelled" in told
    assert durable.check() == []


def test_the_end_of_a_child_is_not_pruned_before_it_was_seen(durable: Durable, clock: Any) -> None:
    asker = durable.start(parent).run_id
    take_turn(durable._engine, claim(durable, asker), parent.definition, stay=False)
    found = next(run.id for run in durable.runs(workflow="kept_child"))
    take_turn(durable._engine, claim(durable, found), child.definition, stay=False)
    clock.advance(1000)
    assert durable.prune(older_than=0, dry_run=True).runs == 0
    assert durable.prune(older_than=0).runs == 0
    durable.tick()
    assert durable.run(asker).result == '"got 2"'
    clock.advance(1000)
    assert durable.prune(older_than=0).runs == 2
