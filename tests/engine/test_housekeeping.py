"""What workers and ticks do besides executing: tell of keys held too long, and prune by the retention."""

from __future__ import annotations

import logging

import pytest
from enginekit import change, told

from durable_cli import workflow
from durable_cli.errors import InvalidDuration
from durable_cli.housekeeping import Housekeeping
from durable_cli.model import Status

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.INFO, "durable.worker")
    return lambda: [record.getMessage() for record in caplog.records]


def holding(on_max_hold):
    @workflow(name="holding", max_hold="1h", on_max_hold=on_max_hold)
    def holding(ctx, what=None):
        return ctx.run("s", lambda: what)

    return holding


def test_a_key_held_too_long_is_told_once(durable, clock, warnings):
    """`report`: one row of activity and one warning, however often somebody looks; the run goes on."""
    run_id = durable.start(holding("report"), key="k").run_id
    house = Housekeeping(durable._engine)
    house.look()
    assert told(durable, "k") == []
    for _ in range(3):
        clock.advance(HOUR + 1)
        house.look()
    [row] = told(durable, "k", "key_held_long")
    assert (row.run_id, row.details) == (run_id, {"held_ms": HOUR + 1, "action": "report"})
    assert warnings() == [f"run {run_id} of holding has held its key 'k' too long"]
    assert durable.run(run_id).status is Status.PENDING
    assert durable.key(None, "k").held_too_long


def test_a_key_held_too_long_is_cancelled_where_the_workflow_says_so(durable, clock):
    """`cancel`: the run that waits behind takes the key."""
    first = durable.start(holding("cancel"), key="k").run_id
    change(durable, "UPDATE durable_runs SET epoch = 1, started_at = created_at")
    waiting = durable.start(holding("cancel"), key="k", on_duplicate="run_again").run_id
    clock.advance(HOUR + 1)
    Housekeeping(durable._engine).look()
    assert durable.run(first).status is Status.CANCELLED
    assert "max_hold" in durable.run(first).error.message
    assert durable.key(None, "k").holder.id == waiting
    assert durable.check() == []


def test_stuck_keys_are_those_beyond_max_hold_too(durable, clock):
    """`keys --stuck 1w` names a holder older than its workflow's own limit; a finished holder is never stuck."""
    durable.start(holding("report"), key="k")
    durable.execute(holding("report"), key="done")
    clock.advance(HOUR)
    assert durable.keys(stuck="7d") == []
    clock.advance(1)
    assert [key.key for key in durable.keys(stuck="7d")] == ["k"]
    assert {key: durable.key(None, key).held_too_long for key in ("done", "k")} == {"done": False, "k": True}


def test_looking_happens_once_a_minute(durable, clock, monkeypatch):
    """A sweep that has nothing to do costs no query; a clock set back is no reason never to look again."""
    house = Housekeeping(durable._engine)
    durable.start(holding("report"), key="k")
    looks = []
    monkeypatch.setattr("durable_cli.housekeeping.runs.held_too_long", lambda tx, now, limit: looks.append(now) or [])
    for step in (0, 1, MINUTE - 2, 1, -HOUR, MINUTE):
        clock.advance(step)
        house.look()
    assert len(looks) == 4


def test_a_worker_and_a_tick_prune_by_the_retention(durable, clock):
    """`retention=` of worker, work and tick; what is younger stays, and so does all without a retention."""
    run = durable.execute(holding("report"), key="k").run
    clock.advance(3 * DAY)
    durable.tick()
    durable.tick(retention="4d")
    assert durable.run(run.id).status is Status.COMPLETED
    clock.advance(2 * DAY)
    young = durable.execute(holding("report"), key="young").run
    durable.tick(retention="4d")
    assert [one.id for one in durable.runs()] == [young.id]
    assert [row.kind for row in told(durable, "k")] == ["key_pruned"]
    clock.advance(5 * DAY)
    worker = durable.worker(retention="4d")
    worker.sweep()
    assert durable.runs() == []
    with pytest.raises(InvalidDuration):
        durable.tick(retention="soon")


def test_pruning_happens_once_an_hour_for_all_of_a_file(durable, clock):
    """Ticks are processes of their own, one a minute: the hour is counted in the file."""
    pruned = []
    for minute in range(121):
        durable.execute(holding("report"), key=f"k{minute}")
        before = len(durable.runs())
        durable.tick(retention="1m")
        if len(durable.runs()) < before:
            pruned.append(minute)
        clock.advance(MINUTE)
    assert pruned == [60, 120]


def test_pruning_keeps_nothing_waiting(durable, clock, monkeypatch):
    """One batch a sweep: what is due is executed in between, a request to stop is heeded, and a tick ends when all is
    pruned."""
    monkeypatch.setattr("durable_cli.pruning._BATCH", 2)
    for n in range(9):
        durable.cancel(durable.start(holding("report"), key=f"old{n}").run_id)
    clock.advance(2 * DAY)
    due = durable.start(holding("report"), key="due").run_id
    worker = durable.worker(retention="1d")
    seen = []
    while worker.sweep() == 0.0:
        while worker.busy or worker._code.busy:
            pass
        seen.append((len(durable.runs()) - 1, str(durable.run(due).status)))
    assert seen[:5] == [(7, "pending"), (5, "completed"), (3, "completed"), (1, "completed"), (0, "completed")]
    clock.advance(2 * DAY)
    for n in range(5):
        durable.cancel(durable.start(holding("report"), key=f"new{n}").run_id)
    clock.advance(2 * DAY)
    stopped = durable.worker(retention="1d")
    stopped.stop.set()
    stopped.work()
    stopped.tick()
    assert len(durable.runs()) == 6
    durable.tick(retention="1d")
    assert durable.runs() == []


def test_a_clock_that_jumped_prunes_nothing_and_is_told_once_a_day(durable, clock, warnings):
    """Fifty years ahead: a warning with what to do, from however many ticks; all runs stay."""
    run = durable.execute(holding("report"), key="k").run
    durable.tick(retention="30d")
    clock.advance(50 * 365 * DAY)
    for _ in range(5):
        durable.tick(retention="30d")
        clock.advance(HOUR)
    assert durable.run(run.id).status is Status.COMPLETED
    [warning] = warnings()
    assert "nothing was pruned: the clock may have jumped" in warning
    clock.advance(DAY)
    durable.tick(retention="30d")
    assert len(warnings()) == 2
    durable.prune(older_than="30d", trust_clock=True)
    assert durable.runs() == []


def test_one_run_that_cannot_be_written_is_in_no_others_way(durable, clock, warnings, monkeypatch):
    """The others are told; the worker goes on."""
    from durable_cli import settling
    from durable_cli.errors import DurableError

    bad = durable.start(holding("report"), key="bad").run_id
    clock.advance(1)
    good = durable.start(holding("report"), key="good").run_id
    clock.advance(HOUR + 1)
    note = settling.note_held_long

    def sometimes(tx, run, *, now):
        if run.id == bad:
            raise DurableError("damaged")
        return note(tx, run, now=now)

    monkeypatch.setattr(settling, "note_held_long", sometimes)
    Housekeeping(durable._engine).look()
    assert warnings() == [
        f"run {bad} has held its key too long: damaged",
        f"run {good} of holding has held its key 'good' too long",
    ]
