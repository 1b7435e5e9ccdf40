"""Trouble of other systems (tests/cases.md), D: runs that wait behind a holder, and debounced ones."""

from __future__ import annotations

import json
from typing import Any

from enginekit import change, dead_owner, duplicates, live_owner, own

from durable_cli import Debounce, Durable, Status, workflow

MINUTE = 60_000


def define(**options: Any) -> Any:
    @workflow(name="flow", **options)
    def flow(ctx: Any, what: Any = None) -> Any:
        return ctx.run("work", lambda: what)

    return flow


def test_of_six_debounced_inputs_the_last_one_runs(durable: Durable, clock: Any) -> None:
    """D02: none has begun: one run, the sixth input, and each of the five others on record."""
    flow = define(debounce=Debounce("30s"))
    ids = {durable.start(flow, {"v": n}, key="k").run_id for n in range(1, 7)}
    clock.advance(30_000)
    durable.tick()
    [run_id] = ids
    assert json.loads(durable.run(run_id).result or "") == {"v": 6}
    assert [row["input"] for row in duplicates(durable, "k")] == [{"v": n} for n in range(1, 6)]


def test_a_run_that_comes_due_or_is_adopted_is_no_duplicate_of_itself(durable: Durable, clock: Any) -> None:
    """D05: a debounced run that comes due, and a run of a dead owner, go on without a word about their key."""
    flow = define(debounce=Debounce("30s"), reuse="never")
    run_id = durable.start(flow, 1, key="k").run_id
    other = durable.start(flow, 2, key="other").run_id
    own(durable, other, dead_owner(durable))
    change(durable, "UPDATE durable_runs SET status = 'running', due_at = NULL WHERE public_id = :id", id=other)
    clock.advance(30_000)
    counts = durable.tick()
    assert (counts.errors, counts.runs["completed"]) == (0, 2)
    assert [durable.run(one).status for one in (run_id, other)] == [Status.COMPLETED] * 2
    assert durable.activity() == []
    assert len(durable.runs()) == 2


def test_the_time_of_a_waiting_run_counts_from_when_it_takes_the_key(durable: Durable, clock: Any) -> None:
    """D11: ten minutes behind a holder cost it nothing of its minute; then it has one minute and no more."""

    @workflow(name="patient", timeout="1m")
    def patient(ctx: Any) -> None:
        ctx.sleep("long", "1h")

    first = durable.start(patient, key="k", timeout="2h").run_id
    own(durable, first, live_owner(durable))
    change(durable, "UPDATE durable_runs SET status = 'running', due_at = NULL WHERE public_id = :id", id=first)
    behind = durable.start(patient, key="k", on_duplicate="run_again").run_id
    clock.advance(10 * MINUTE)
    durable.tick()
    assert durable.run(behind).status is Status.PENDING
    durable.cancel(first)
    run = durable.run(behind)
    assert (run.status, run.holds_key, run.deadline_at) == (Status.PENDING, True, clock.now + MINUTE)
    durable.tick()
    clock.advance(MINUTE - 1)
    durable.tick()
    assert durable.run(behind).status is Status.WAITING
    clock.advance(1)
    durable.tick()
    ended = durable.run(behind)
    assert (ended.status, ended.error and ended.error.type) == (Status.FAILED, "Timeout")
    assert durable.check() == []


def test_the_time_of_a_debounced_run_counts_from_when_it_is_due(durable: Durable, clock: Any) -> None:
    """D11: put off again and again, it still has all of its time."""
    flow = define(debounce=Debounce("30s"), timeout="40s")
    run_id = durable.start(flow, 0, key="k").run_id
    for n in range(1, 10):
        clock.advance(29_000)
        assert durable.start(flow, n, key="k").run_id == run_id
    run = durable.run(run_id)
    assert (run.due_at, run.deadline_at) == (clock.now + 30_000, clock.now + 70_000)
    clock.advance(30_000)
    durable.tick()
    assert durable.run(run_id).result == "9"
