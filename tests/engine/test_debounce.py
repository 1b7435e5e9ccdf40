"""Debounced runs and who executes them (SPEC 3.4); bursts and caps are in test_cases_f."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from enginekit import duplicates, in_child, live_owner, own

from durable_cli import Context, Debounce, Durable, workflow
from durable_cli.errors import InvalidDefinition
from durable_cli.testing import Clock

T = 30_000


def define(**options: Any) -> Any:
    @workflow(name="saved", debounce=options.pop("debounce", Debounce("30s", timeout="70s")), **options)
    def saved(ctx: Context, n: int = 0) -> int:
        return ctx.run("n", int, n)

    return saved


class Meanwhile:
    """What is given to the library as `sleep`: time passes, and at some moments something happens."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.plan: list[tuple[int, Callable[[], Any]]] = []

    def at(self, ms: int, act: Callable[[], Any]) -> None:
        """Do this so long after now."""
        self.plan.append((self.clock.now + ms, act))

    def __call__(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        due = [act for moment, act in self.plan if moment <= self.clock.now]
        self.plan = [one for one in self.plan if one[0] > self.clock.now]
        for act in due:
            act()


# -- executing here ------------------------------------------------------------------------------------------------


def test_who_executes_a_debounced_run_waits_and_executes_it(durable: Durable, db: Path, clock: Clock) -> None:
    """`durable run` stays the owner of the run it made; what comes meanwhile is merged, by `start` and by another
    `durable run`, which executes nothing and is over at once; the last input runs, when it is due."""
    saved, meanwhile = define(), Meanwhile(clock)
    began = clock.now
    said: list[Any] = []

    def start(n: int) -> None:
        said.append(durable.start(saved, n, key="k").outcome)

    def execute(n: int) -> None:
        done = durable.execute(saved, n, key="k")
        assert not done.executed
        assert clock.now - began < 2 * T, "it did not wait"
        said.append(done.start.outcome if done.start else None)

    with Durable(db, clock=clock, sleep=meanwhile) as owner:
        meanwhile.at(10_000, lambda: start(2))
        meanwhile.at(20_000, lambda: execute(3))
        done = owner.execute(saved, 1, key="k")
        assert (done.start and done.start.outcome, done.executed, done.run.status) == ("created", True, "completed")
        assert done.run.result == "3"
        assert 20_000 + T <= clock.now - began <= 20_000 + T + 1000
    assert said == ["merged", "merged"]
    assert [row["input"] for row in duplicates(durable, "k")] == [1, 2]
    assert {row["outcome"] for row in duplicates(durable, "k")} == {"debounced"}


def test_a_steady_stream_meets_the_cap_in_its_owners_hands(durable: Durable, db: Path, clock: Clock) -> None:
    saved, meanwhile = define(), Meanwhile(clock)
    began = clock.now
    with Durable(db, clock=clock, sleep=meanwhile) as owner:
        for n in range(1, 10):
            meanwhile.at(n * 10_000, lambda n=n: durable.start(saved, n, key="k"))  # type: ignore[misc]
        done = owner.execute(saved, 0, key="k")
        assert 70_000 <= clock.now - began <= 71_000
        assert done.run.result in ("6", "7"), "the one of the 70th second came before or after it began"
    assert len(durable.runs()) == 1


def test_the_run_of_a_process_that_died_waiting_is_taken_up(durable: Durable, db: Path, clock: Clock) -> None:
    """It loses nothing, and no crash counts: the next `durable run` is merged, waits, and executes."""
    saved = define()

    def child() -> None:
        def dies(_: float) -> None:
            os._exit(0)

        Durable(db, clock=clock, sleep=dies).execute(saved, 1, key="k")

    assert in_child(child) == 0
    [run] = durable.runs()
    assert (run.status, run.epoch, run.owner and run.owner.alive) == ("pending", 0, False)
    began = clock.now
    done = durable.execute(saved, 2, key="k")
    assert (done.start and done.start.outcome, done.executed, done.run.id) == ("merged", True, run.id)
    assert (done.run.status, done.run.result, done.run.crashes) == ("completed", "2", 0)
    assert clock.now - began >= T


def test_what_a_worker_finds_due_is_executed_and_nothing_before(durable: Durable, clock: Clock) -> None:
    saved = define()
    run_id = durable.start(saved, 1, key="k").run_id
    clock.advance(T - 1)
    durable.tick()
    assert durable.run(run_id).status == "pending"
    clock.advance(1)
    assert durable.due().due == (run_id,)
    durable.tick()
    assert durable.run(run_id).result == "1"


def test_asked_to_stop_the_owner_leaves_it_to_others(durable: Durable, db: Path, clock: Clock) -> None:
    import threading

    saved, stop, meanwhile = define(), threading.Event(), Meanwhile(clock)
    with Durable(db, clock=clock, sleep=meanwhile) as owner:
        meanwhile.at(5_000, stop.set)
        done = owner.execute(saved, 1, key="k", stop=stop)
    assert (done.interrupted, done.run.status) == (True, "pending")
    run = durable.run(done.run.id)
    assert run.owner is None
    clock.advance(T)
    durable.tick()
    assert durable.run(run.id).status == "completed"


@pytest.mark.parametrize("replaced", [False, True])
def test_cancelled_while_its_owner_waits(durable: Durable, db: Path, clock: Clock, replaced: bool) -> None:
    """The owner sees it and ends; the next start is a new run, which waits anew."""
    saved, meanwhile = define(), Meanwhile(clock)
    with Durable(db, clock=clock, sleep=meanwhile) as owner:
        meanwhile.at(5_000, lambda: durable.cancel(key="k"))
        if replaced:
            meanwhile.at(5_000, lambda: durable.start(saved, 2, key="k"))
        done = owner.execute(saved, 1, key="k")
    assert done.run.status == "cancelled"
    assert clock.now < done.run.created_at + T
    again = durable.start(saved, 3, key="k")
    assert again.outcome == ("merged" if replaced else "created")
    assert durable.run(again.run_id).due_at == clock.now + T
    assert durable.check() == []


# -- what is debounced, and what is not ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["use_existing", "error", "cancel_existing", "run_again", "send_event:poke"])
def test_every_policy_is_merged_until_the_run_is_claimed(durable: Durable, clock: Clock, policy: str) -> None:
    """Also when it is due already; once it has begun, the next start is an ordinary duplicate."""
    saved = define(reuse="after_failure")
    run_id = durable.start(saved, 1, key="k").run_id
    clock.advance(T + 10_000)
    answer = durable.start(saved, 2, key="k", on_duplicate=policy)
    assert (answer.outcome, answer.run_id) == ("merged", run_id)
    assert durable.run(run_id).due_at == clock.now + T
    own(durable, run_id, live_owner(durable))
    durable._engine.database.write(lambda tx: tx.change("UPDATE durable_runs SET status = 'running', due_at = NULL"))
    try:
        answer = durable.start(saved, 3, key="k", on_duplicate=policy)
        outcome = str(answer.outcome)
    except Exception as error:
        outcome = type(error).__name__
    assert (
        outcome
        == {
            "use_existing": "existing",
            "error": "KeyTaken",
            "cancel_existing": "replaced",
            "run_again": "queued",
            "send_event:poke": "event_sent",
        }[policy]
    )
    if policy != "cancel_existing":
        assert durable.run(run_id).input == "2"


def test_never_debounced(durable: Durable, clock: Clock) -> None:
    """Keyless starts, reruns, retries, and the run that waits behind a holder."""
    saved = define()
    assert durable.run(durable.start(saved, 1).run_id).due_at == clock.now
    done = durable.execute(saved, 1, key="k").run.id
    assert durable.run(durable.rerun(done).run_id).due_at == clock.now
    cancelled = durable.start(saved, 1, key="l").run_id
    durable.cancel(cancelled)
    assert durable.retry(cancelled).due_at == clock.now
    own(durable, cancelled, live_owner(durable))
    waiting = durable.start(saved, 2, key="l", on_duplicate="run_again").run_id
    durable.cancel(cancelled)
    assert durable.run(waiting).due_at == clock.now


def test_the_timeout_counts_from_the_due_time(durable: Durable, clock: Clock) -> None:
    """D11: however long it was put off."""
    saved = define(timeout="10s")
    run_id = durable.start(saved, 0, key="k").run_id
    for n in range(1, 4):
        clock.advance(20_000)
        durable.start(saved, n, key="k")
    run = durable.run(run_id)
    assert run.due_at == run.created_at + 70_000
    assert run.deadline_at == run.due_at + 10_000
    clock.now = run.deadline_at
    again = durable.start(saved, 9, key="k")
    assert again.outcome == "created", "nobody was there in time: it has failed, and the key is free"
    assert durable.run(run_id).error.type == "Timeout"  # type: ignore[union-attr]


def test_not_before_the_moment_that_was_asked_for(durable: Durable, clock: Clock) -> None:
    saved = define(debounce=Debounce("30s"))
    first = durable.start(saved, 1, key="k", delay="5m")
    assert durable.run(first.run_id).due_at == clock.now + 300_000
    durable.start(saved, 2, key="k", delay="10m")
    assert durable.run(first.run_id).due_at == clock.now + 600_000
    durable.start(saved, 3, key="l")
    assert durable.find(key="l").due_at == clock.now + T


@pytest.mark.parametrize(
    ("debounce", "why"),
    [
        (lambda: Debounce(0), "longer than nothing"),
        (lambda: Debounce("30s", timeout="29s"), "shorter than the period"),
        (lambda: Debounce("soon"), "soon"),
        (lambda: Debounce(-1), "-1"),
        (lambda: "30s", "Debounce"),
        (lambda: 30, "Debounce"),
    ],
)
def test_what_cannot_be_meant(debounce: Callable[[], Any], why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why):
        define(debounce=debounce())
