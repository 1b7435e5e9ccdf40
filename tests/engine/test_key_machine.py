"""The machine of keys in short, its mutants in a sample, and what it has found.

The long runs: `python tests/engine/key_machine.py --rules 200000`, and `--mutants` for all of them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from enginekit import dead_owner, live_owner, own, put, told
from keyworld import SEEN

from durable_cli import Context, Debounce, Durable, Retry, workflow


def _load() -> ModuleType:
    place = Path(__file__).with_name("key_machine.py")
    spec = importlib.util.spec_from_file_location("key_machine", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


key_machine = _load()


def test_the_engine_does_what_the_specification_says() -> None:
    """Thousands of rules against the model of SPEC 3, in which each of its branches was taken."""
    SEEN.clear()
    number = 100
    while SEEN["rules"] < 3000 or (key_machine.hardly_seen(1) and SEEN["rules"] < 30_000):
        key_machine.run(50, number, shrink=True)
        number += 1
    assert key_machine.hardly_seen(1) == []


@pytest.mark.parametrize(
    "name",
    [
        "the newer input is dropped",
        "a late owner's work is accepted",
        "a replaced holder's waiting run is forgotten",
        "the waiting run is promoted although the key is kept",
    ],
)
def test_the_machine_notices_a_broken_engine(name: str) -> None:
    assert key_machine.killed(name, 20_000)


# -- found by the machine, or on the way to it ---------------------------------------------------------------------


def test_a_timed_out_run_whose_compensation_is_retried_ends_here(durable: Durable) -> None:
    """The time-out raises the epoch; the owner that stays by the run until the next attempt has to know it."""
    calls: list[int] = []

    def undo(_: object) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("not now")

    @workflow(name="slow", timeout="60s")
    def slow(ctx: Context) -> None:
        ctx.run("reserve", int, compensate=undo, compensate_retry=Retry(max_attempts=3, base="10s"))
        ctx.sleep("too long", "5m")

    done = durable.execute(slow, key="k")
    assert (done.run.status, done.executed, len(calls)) == ("compensated", True, 2)


@pytest.mark.parametrize("policy", ["use_existing", "cancel_existing", "run_again", "error"])
def test_a_debounced_run_of_a_dead_owner_is_taken_up_whatever_the_policy(
    durable: Durable, clock: Any, policy: str
) -> None:
    @workflow(name="saved", debounce=Debounce("30s"))
    def saved(ctx: Context, n: int) -> int:
        return ctx.run("n", int, n)

    first = durable.start(saved, 1, key="k").run_id
    own_by_the_dead = dead_owner(durable)
    durable._engine.database.write(
        lambda tx: tx.change("UPDATE durable_runs SET owner_id = :owner", owner=own_by_the_dead)
    )
    began = clock.now
    done = durable.execute(saved, 2, key="k", on_duplicate=policy)
    assert (done.start and done.start.outcome, done.run.id, done.executed) == ("merged", first, True)
    assert (done.run.status, done.run.result) == ("completed", "2")
    assert clock.now - began >= 30_000


def test_a_retried_run_is_never_debounced(durable: Durable, clock: Any) -> None:
    """SPEC 3.4: a run that was cancelled while it waited, and retried, is due at once and gathers no more starts."""

    @workflow(name="saved", debounce=Debounce("30s"))
    def saved(ctx: Context, n: int) -> int:
        return ctx.run("n", int, n)

    run_id = durable.start(saved, 1, key="k").run_id
    durable.cancel(run_id)
    durable.retry(run_id)
    assert durable.start(saved, 2, key="k").outcome == "existing"
    run = durable.run(run_id)
    assert (run.input, run.due_at) == ("1", clock.now)


def test_replacing_a_holder_whose_child_waits_behind_it(durable: Durable) -> None:
    """The child is cancelled with its parent, and not re-pointed to the new holder."""

    @workflow(name="again", on_duplicate="run_again")
    def again(ctx: Context, n: int) -> int:
        if n == 0:
            ctx.start(again, 1, key="k")
            ctx.sleep("rest", "1h")
        return n

    parent = durable.execute(again, 0, key="k", max_wait=0).run.id
    [child] = [run for run in durable.runs() if run.id != parent]
    assert (child.runs_after_id, child.status) == (parent, "pending")
    new = durable.start(again, 2, key="k", on_duplicate="cancel_existing")
    assert new.outcome == "replaced"
    assert [str(durable.run(run_id).status) for run_id in (parent, child.id)] == ["cancelled", "cancelled"]
    assert durable.run(new.run_id).holds_key
    assert durable.check() == []


def test_a_waiting_run_does_not_begin_before_its_time(durable: Durable, clock: Any) -> None:
    """`delay=` is kept when the start waits behind a holder, is merged, or is debounced: never earlier than asked."""

    @workflow(name="job", timeout="10s")
    def job(ctx: Context, n: int) -> int:
        return ctx.run("n", int, n)

    first = put(durable, job, "running", key="k", input=1, owner=live_owner(durable))
    waiting = durable.start(job, 2, key="k", on_duplicate="run_again", delay="1h")
    assert waiting.outcome == "queued"
    later = durable.start(job, 3, key="k", on_duplicate="run_again", delay="2h")
    assert later.run_id == waiting.run_id
    durable.cancel(first)
    run = durable.run(waiting.run_id)
    assert (run.holds_key, run.due_at, run.input) == (True, clock.now + 7_200_000, "3")
    assert run.deadline_at == clock.now + 7_210_000
    assert durable.due().due == ()
    durable.start(job, 4, key="k", on_duplicate="run_again", delay="3h")
    assert durable.run(waiting.run_id).due_at == clock.now + 10_800_000
    assert told(durable, "k")[-1].details["outcome"] == "run_again"


def test_a_rerun_of_a_run_whose_time_is_over(durable: Durable, clock: Any) -> None:
    """A start that meets an overdue run nobody owns ends it first, then decides: it is finished, and can be run again."""

    @workflow(name="job", timeout="10s")
    def job(ctx: Context, n: int) -> int:
        return ctx.run("n", int, n)

    first = durable.start(job, 1, key="k").run_id
    own(durable, first, None)
    clock.advance(11_000)
    again = durable.rerun(first)
    assert again.outcome == "created"
    assert durable.run(first).status == "failed"
    assert durable.run(again.run_id).holds_key
