"""Who executes a run: the fence, adoption of orphans, crash loops, threads, forks, two engines in one process."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from bothways import KINDS, define
from enginekit import (
    CRASHED,
    Boom,
    change,
    claim,
    dead_owner,
    define_job,
    die,
    duplicates,
    in_child,
    own,
    put,
    snapshot,
    told,
)

from durable_cli import Durable, KeyTaken, Retry, foreground, workflow
from durable_cli.errors import ModuleNotFound, NotFinished, NotResumable, NotRetryable
from durable_cli.runner import Gone, take_turn
from durable_cli.store.contention import Contention

# -- the fence -----------------------------------------------------------------------------------------------------


def _taken_over(durable: Durable, run_id: str) -> None:
    own(durable, run_id, dead_owner(durable))


def _claimed_again_by_the_same_process(durable: Durable, run_id: str) -> None:
    change(durable, "UPDATE durable_runs SET epoch = epoch + 1 WHERE public_id = :id", id=run_id)


def _given_to_another_at_the_same_epoch(durable: Durable, run_id: str) -> None:
    own(durable, run_id, dead_owner(durable))
    change(durable, "UPDATE durable_runs SET epoch = epoch - 1 WHERE public_id = :id", id=run_id)


def _cancelled(durable: Durable, run_id: str) -> None:
    durable.cancel(run_id)


def _cancelled_and_retried(durable: Durable, run_id: str) -> None:
    durable.cancel(run_id)
    durable.retry(run_id)


def _replaced(durable: Durable, run_id: str) -> None:
    run = durable.run(run_id)
    known = durable.workflow(run.workflow)
    assert known is not None
    from durable_cli.definition import loaded_definition

    definition = loaded_definition(known)
    assert definition is not None
    durable.start(definition, key=run.key, on_duplicate="cancel_existing")


LOSSES = [
    _taken_over,
    _claimed_again_by_the_same_process,
    _given_to_another_at_the_same_epoch,
    _cancelled,
    _cancelled_and_retried,
    _replaced,
]


def _give(error: BaseException | None) -> str:
    if error is not None:
        raise error
    return "late"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late", ["record", "failure", "rest", "value", "end", "failed end", "interrupt"])
@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__.strip("_"))
def test_a_stale_owner_writes_nothing(
    durable: Durable, kind: str, late: str, lose: Callable[[Durable, str], None]
) -> None:
    """Whatever an owner that lost its run comes to write (a record, a failure, a rest, an end, a hand-back), nothing
    changes, nothing raises, and no later step runs."""
    seen: list[Any] = []
    error = {"failure": Boom("late"), "rest": Boom("late"), "interrupt": KeyboardInterrupt()}.get(late)

    def lose_it(run_id: str) -> None:
        lose(durable, run_id)
        seen.append(snapshot(durable))

    async def body(ctx: Any) -> str:
        def step() -> str:
            if late not in ("value", "end", "failed end"):
                lose_it(ctx.run_id)
            return _give(error)

        await ctx.run("a", step, retry=Retry(2 if late == "rest" else 1))
        if late in ("value", "end", "failed end"):
            lose_it(ctx.run_id)
        if late == "value":
            await ctx.random()
        if late == "failed end":
            raise ValueError("late")
        if late not in ("end", "failed end"):
            await ctx.run("b", lambda: seen.append("ran"))
        return "late"

    flow = define(kind, body)
    run_id = durable.start(flow, key="k").run_id
    mine = claim(durable, run_id)
    if late == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            take_turn(durable._engine, mine, flow.definition)
    else:
        assert isinstance(take_turn(durable._engine, mine, flow.definition), Gone)
    assert seen == [snapshot(durable)]
    assert durable.check() == []


def test_a_claim_that_is_stale_before_its_turn_runs_no_code(durable: Durable) -> None:
    """C06: a cancel that came before the first step: the body is never called."""
    calls: list[int] = []

    @workflow(name="flow")
    def flow(ctx: Any) -> None:
        calls.append(1)

    run_id = durable.start(flow, key="k").run_id
    mine = claim(durable, run_id)
    durable.cancel(run_id)
    before = snapshot(durable)
    engine = durable._engine
    assert isinstance(take_turn(engine, mine, flow.definition), Gone)
    engine.abandon([mine])
    assert not engine.go_on(mine)
    assert not engine.still_ours(mine)
    assert (snapshot(durable), calls) == (before, [])


def test_a_run_is_claimed_once(durable: Durable, db: Path, clock: Any) -> None:
    """Claims of a run that has an owner, is finished, or waits behind another are refused by the row itself."""
    job = define_job()
    run_id = durable.start(job, key="k").run_id
    mine = claim(durable, run_id)
    waiting = durable.start(job, key="k", on_duplicate="run_again").run_id
    with Durable(db, clock=clock) as other:
        for taken in (run_id, waiting):
            with pytest.raises(AssertionError):
                claim(other, taken)
        durable.cancel(waiting)
        with pytest.raises(AssertionError):
            claim(other, waiting)
    assert durable._engine.still_ours(mine)
    assert not durable._engine.still_ours(replace(mine, epoch=mine.epoch - 1))


# -- adoption (SPEC 4.7) -------------------------------------------------------------------------------------------


def _orphan(durable: Durable, state: str) -> tuple[Any, str]:
    """A run that holds the key "k" and that nobody executes: (its workflow, its id). It gives its input back."""
    first = [state == "crashed"]
    stop = threading.Event()

    @workflow(name="flow")
    def flow(ctx: Any, what: Any = None) -> Any:
        def step() -> Any:
            if first[0]:
                die()
            if state == "interrupted":
                stop.set()
            return what

        got = ctx.run("work", step)
        ctx.run("more", lambda: None)
        return got

    if state == "recorded":
        durable.start(flow, "old", key="k")
    elif state == "crashed":
        assert in_child(lambda: durable.execute(flow, "old", key="k")) == CRASHED
        first[0] = False
    elif state == "interrupted":
        assert durable.execute(flow, "old", key="k", stop=stop).interrupted
    else:
        run = durable.execute(flow, "old", key="k", stop=_set()).run
        durable.cancel(run.id)
        durable.retry(run.id)
    return flow, durable.find(key="k").id


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


ADOPTION = {
    # policy: outcome where the holder was started, outcome where it never was
    "use_existing": ("resumed", "resumed"),
    "error": ("resumed", "resumed"),
    "run_again": ("queued", "merged"),
    "send_event:poke": ("event_sent", "event_sent"),
    "cancel_existing": ("replaced", "replaced"),
}


@pytest.mark.parametrize("policy", ADOPTION)
@pytest.mark.parametrize("state", ["recorded", "crashed", "interrupted", "retried"])
def test_an_orphaned_holder_is_taken_up_at_once(durable: Durable, state: str, policy: str) -> None:
    """The table of adoption: the policy is applied first, then what is left to execute is executed here."""
    flow, old = _orphan(durable, state)
    done = durable.execute(flow, "new", key="k", on_duplicate=policy)
    assert done.start is not None
    outcome = ADOPTION[policy][state == "recorded"]
    assert (done.start.outcome, done.executed, done.run.status) == (outcome, True, "completed")
    assert done.start.run_id == done.run.id
    holder = durable.run(old)
    [row] = duplicates(durable, "k")
    if outcome in ("resumed", "event_sent"):
        assert (done.run.id, done.run.result) == (old, '"old"')
    if outcome == "resumed":
        # The start was not refused: `error` tells only of those answered KeyTaken.
        assert row == {"outcome": "use_existing", "input_changed": True, "input": "new"}
    elif outcome == "merged":
        assert (done.run.id, done.run.result) == (old, '"new"')
        assert row == {"outcome": "run_again", "input_changed": True, "input": "old"}
    elif outcome == "queued":
        assert (holder.status, holder.result, done.run.id != old, done.run.result) == (
            "completed",
            '"old"',
            True,
            '"new"',
        )
        assert [run.id for run in done.promoted] == []
    elif outcome == "replaced":
        assert (holder.status, done.start.replaced_id, done.run.result) == ("cancelled", old, '"new"')
        assert holder.crashes == 0, "a run that does not go on has not crashed again"
    assert durable.check() == []


def test_a_compensating_orphan_cannot_be_replaced(durable: Durable) -> None:
    """KeyTaken (75), and no field of it changes (C09)."""
    job = define_job()
    old = put(durable, job, "compensating", key="k")
    change(durable, "UPDATE durable_runs SET due_at = :now WHERE public_id = :id", now=durable._engine.now(), id=old)
    before = snapshot(durable)
    with pytest.raises(KeyTaken) as taken:
        durable.execute(job, "new", key="k", on_duplicate="cancel_existing")
    assert (taken.value.holder_id, taken.value.holder_status, taken.value.exit_status) == (old, "compensating", 75)
    assert durable.cancel(old).cancelled == 0
    assert snapshot(durable) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["retry_here", "rerun_here"])
def test_what_is_retried_here_is_ours_at_its_commit(
    durable: Durable, db: Path, clock: Any, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    """Another process that looks as soon as it can finds nothing to execute."""
    broken = [True]

    async def body(ctx: Any) -> int:
        return await ctx.run("work", lambda: 1 // int(not broken[0]))  # type: ignore[no-any-return]

    flow = define(kind, body)
    old = durable.execute(flow, key="k").run
    broken[0] = False
    real = foreground._execute_taken

    def later(*args: Any, **more: Any) -> Any:
        with Durable(db, clock=clock) as other:
            assert other.tick().claimed == 0
        return real(*args, **more)

    monkeypatch.setattr(foreground, "_execute_taken", later)
    done = getattr(durable, how)(old.id)
    assert (done.executed, done.run.status, done.run.result, done.run.holds_key) == (True, "completed", "1", True)
    assert (done.run.id == old.id) == (how == "retry_here")
    assert (done.start and done.start.outcome) == (None if how == "retry_here" else "created")
    assert durable.check() == []


@pytest.mark.parametrize("how", ["retry_here", "rerun_here"])
def test_what_cannot_be_executed_here_is_not_begun(durable: Durable, how: str) -> None:
    """Refused, or its code cannot be loaded: every run stays as it was."""
    running = durable.start(define_job(), key="k").run_id
    failed = put(durable, define_job(name="other"), "failed", key="k")
    change(durable, "UPDATE durable_workflows SET file = '/nowhere.py' WHERE name = 'other'")
    before = snapshot(durable)
    for run_id, refusal in ((running, (NotRetryable, NotFinished)), (failed, ModuleNotFound)):
        with pytest.raises(refusal):
            getattr(durable, how)(run_id)
    assert snapshot(durable) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reaped", [False, True], ids=["met first", "reaped before"])
@pytest.mark.parametrize("entrance", ["start", "execute"])
def test_an_overdue_orphan_has_failed_before_it_could_be_replaced(
    durable: Durable, clock: Any, kind: str, entrance: str, reaped: bool
) -> None:
    """Its time is over and its owner dead: what it did is undone, whoever looked first (C09, D07)."""
    undone: list[Any] = []

    async def body(ctx: Any) -> None:
        await ctx.run("reserve", lambda: "r", compensate=undone.append)
        await ctx.run("hang", die)

    flow = define(kind, body, timeout="3s")
    assert in_child(lambda: durable.execute(flow, key="k")) == CRASHED
    old = durable.find(key="k")
    clock.advance(3_000)
    if reaped:
        assert durable.start(flow, key="k").holder_status == "compensating"
    with pytest.raises(KeyTaken) as taken:
        getattr(durable, entrance)(flow, key="k", on_duplicate="cancel_existing")
    assert (taken.value.holder_id, taken.value.holder_status, taken.value.exit_status) == (old.id, "compensating", 75)
    durable.tick()
    done = durable.run(old.id)
    assert (done.status, done.error and done.error.type, undone) == ("compensated", "Timeout", ["r"])
    assert durable.start(flow, key="k", on_duplicate="cancel_existing").outcome == "created"
    assert durable.check() == []


def test_an_overdue_run_whose_owner_lives_is_replaced(durable: Durable, clock: Any) -> None:
    """It is that owner's to end, or whose start replaces it."""
    flow = define("plain", _idle, timeout="3s")
    old = durable.start(flow, key="k").run_id
    claim(durable, old)
    clock.advance(3_000)
    answer = durable.start(flow, key="k", on_duplicate="cancel_existing")
    assert (answer.outcome, answer.replaced_id) == ("replaced", old)


async def _idle(ctx: Any) -> None:
    await ctx.run("nothing", lambda: None)


@pytest.mark.parametrize("policy", ["use_existing", "error"])
def test_a_resting_run_of_a_dead_owner_waits_for_its_time(durable: Durable, db: Path, clock: Any, policy: str) -> None:
    """Its owner died while it rested: no crash; before it is due nobody takes it up, then the next start does."""
    failing = [True]

    @workflow(name="flow")
    def flow(ctx: Any) -> str:
        def step() -> str:
            if failing[0]:
                raise Boom("no")
            return "ok"

        return ctx.run("flaky", step, retry=Retry(2, "constant", "1h", jitter=0))  # type: ignore[no-any-return]

    def rest_and_die() -> None:
        with Durable(db, clock=clock, sleep=lambda _: die()) as child:
            child.execute(flow, key="k")

    assert in_child(rest_and_die) == CRASHED
    failing[0] = False
    run_id = durable.find(key="k").id
    due = durable.run(run_id).due_at
    clock.advance(1000)
    if policy == "error":
        with pytest.raises(KeyTaken) as taken:
            durable.execute(flow, key="k", on_duplicate=policy)
        assert (taken.value.holder_id, taken.value.holder_status) == (run_id, "waiting")
    else:
        early = durable.execute(flow, key="k", on_duplicate=policy)
        assert (early.executed, early.start and early.start.outcome) == (False, "existing")
    with pytest.raises(NotResumable, match="not due") as refused:
        durable.resume(run_id, definition=flow.definition)
    assert "no worker is alive" in refused.value.facts[1]
    resting = durable.run(run_id)
    assert (resting.status, resting.due_at, resting.crashes, resting.owner) == ("waiting", due, 0, None)
    clock.advance(3_600_000)
    done = durable.execute(flow, key="k", on_duplicate=policy)
    assert (done.start and done.start.outcome, done.run.id, done.run.result) == ("resumed", run_id, '"ok"')


def test_a_holder_with_a_live_owner_is_left_alone(durable: Durable, db: Path, clock: Any) -> None:
    """A12: while it is executed elsewhere, executing the key answers the holder and calls no code."""
    answers: list[Any] = []
    calls: list[int] = []

    @workflow(name="flow")
    def flow(ctx: Any) -> None:
        def step() -> None:
            calls.append(1)
            with Durable(db, clock=clock) as other:
                answers.append(other.execute(flow, key="k"))
                with pytest.raises(KeyTaken):
                    other.execute(flow, key="k", on_duplicate="error")
                with pytest.raises(NotResumable, match="live process"):
                    other.resume(ctx.run_id, definition=flow.definition)

        ctx.run("s", step)

    run = durable.execute(flow, key="k").run
    [answer] = answers
    assert (answer.executed, answer.start.outcome, answer.run.id, answer.run.status) == (
        False,
        "existing",
        run.id,
        "running",
    )
    assert (run.status, calls) == ("completed", [1])


def test_the_run_that_waited_is_executed_by_whoever_ended_its_holder(durable: Durable) -> None:
    """And named in `promoted`; the call is about the run it started."""

    @workflow(name="flow")
    def flow(ctx: Any, n: int) -> int:
        def step() -> int:
            if n == 1:
                durable.start(flow, 2, key="k", on_duplicate="run_again")
            return n

        return ctx.run("s", step)  # type: ignore[no-any-return]

    done = durable.execute(flow, 1, key="k")
    assert (done.run.result, [(run.result, run.status) for run in done.promoted]) == ("1", [("2", "completed")])
    assert [run.holds_key for run in durable.runs(key="k")] == [True, False]


# -- crash loops ---------------------------------------------------------------------------------------------------


def _killer(durable: Durable, notes: Path) -> Any:
    """A workflow whose step kills its process, for the input "die"."""

    @workflow(name="flow")
    def flow(ctx: Any, what: Any = None) -> Any:
        def step() -> Any:
            if what == "die":
                with notes.open("a") as file:
                    file.write(f"{ctx.attempt}\n")
                die()
            return what

        ctx.run("before", lambda: None)
        return ctx.run("kill", step)

    return flow


@pytest.mark.parametrize("policy", ["use_existing", "error", "run_again", "cancel_existing"])
@pytest.mark.parametrize("waiting", [False, True])
def test_after_five_crashes_in_a_row_the_run_fails(
    durable: Durable, tmp_path: Path, policy: str, waiting: bool
) -> None:
    """The sixth call reports the failed run, since a job that kills its process can tell nobody itself; the run that
    waited takes the key and is executed (G18). A start that asks for a run of its own gets it."""
    flow = _killer(durable, tmp_path / "notes")
    for crash in range(1, 6):
        assert in_child(lambda: durable.execute(flow, "die", key="k")) == CRASHED
        if crash == 1 and waiting:
            assert durable.start(flow, "waited", key="k", on_duplicate="run_again").outcome == "queued"
    old = next(run for run in durable.runs(key="k") if run.holds_key)
    assert (old.status, old.crashes, old.epoch) == ("running", 4, 5), "the fifth crash is seen by who comes next"
    done = durable.execute(flow, "new", key="k", on_duplicate=policy)
    assert (tmp_path / "notes").read_text().split() == ["1", "2", "3", "4", "5"]
    assert done.start is not None
    then = durable.run(old.id)
    if policy == "cancel_existing":
        assert (done.start.outcome, done.run.result, then.status) == ("replaced", '"new"', "cancelled")
        assert [run.result for run in done.promoted] == (['"waited"'] if waiting else [])
        return
    assert (then.status, then.crashes, then.error and then.error.type) == ("failed", 5, "CrashLoop")
    assert then.error is not None
    assert "after step 'before'" in then.error.message
    if policy == "run_again":
        assert (done.start.outcome, done.run.result) == ("merged" if waiting else "created", '"new"')
    else:
        assert (done.start.outcome, done.run.id, done.run.status, done.executed) == ("resumed", old.id, "failed", True)
        assert [run.result for run in done.promoted] == (['"waited"'] if waiting else [])
    assert durable.check() == []


def test_the_crash_loop_of_a_keyless_run(durable: Durable, tmp_path: Path) -> None:
    """`resume` counts and ends it the same way; a retry has five crashes again."""
    flow = _killer(durable, tmp_path / "notes")
    run_id = durable.start(flow, "die").run_id
    for _ in range(2):
        for _ in range(5):
            assert in_child(lambda: durable.resume(run_id, definition=flow.definition)) == CRASHED
        done = durable.resume(run_id, definition=flow.definition)
        assert (done.executed, done.run.status, done.run.error and done.run.error.type) == (True, "failed", "CrashLoop")
        assert durable.retry(run_id).crashes == 0


def test_a_record_sets_the_count_of_crashes_back(durable: Durable, tmp_path: Path) -> None:
    """Crashes in a row: four before each of three steps, with a record in between, are no loop."""
    notes = tmp_path / "notes"

    @workflow(name="flow")
    def flow(ctx: Any) -> str:
        def step(n: int) -> None:
            with notes.open("a") as file:
                file.write(f"{n}:{ctx.attempt}\n")
            if ctx.attempt < 5:
                die()

        for n in range(3):
            ctx.run("s", step, n)
        return "done"

    for _ in range(12):
        assert in_child(lambda: durable.execute(flow, key="k")) == CRASHED
    run = durable.execute(flow, key="k").run
    assert (run.result, run.crashes, run.epoch) == ('"done"', 0, 13)
    assert notes.read_text().split() == [f"{n}:{attempt}" for n in range(3) for attempt in range(1, 6)]


def test_starts_reap_the_dead_without_counting_twice(durable: Durable, tmp_path: Path) -> None:
    """A start that only records sees the dead owner first: one crash, one count, and the run is there for all."""
    flow = _killer(durable, tmp_path / "notes")
    assert in_child(lambda: durable.execute(flow, "die", key="k")) == CRASHED
    for _ in range(3):
        answer = durable.start(flow, "new", key="k")
        assert (answer.outcome, answer.holder_status) == ("existing", "pending")
    run = durable.run(answer.run_id)
    assert (run.crashes, run.owner, run.due_at) == (1, None, durable._engine.now())


# -- one process, several of us ------------------------------------------------------------------------------------


def test_close_gives_back(durable: Durable, db: Path, clock: Any) -> None:
    """Runs, owner row and lock go; it is no crash; the object can be used again."""
    job = define_job()
    with Durable(db, clock=clock) as other:
        run_id = other.start(job, 1, key="k").run_id
        mine = claim(other, run_id)
        assert durable.run(run_id).owner is not None
        assert durable.key(None, "k").owner_alive is True
    run = durable.run(run_id)
    assert (run.status, run.owner, run.crashes, run.due_at) == ("pending", None, 0, clock.now)
    assert change(durable, "DELETE FROM durable_owners WHERE id = :id", id=mine.owner_id) == 0
    assert not durable._engine.alive(mine.owner_id)
    assert other.execute(job, 1, key="k").run.result == "1"
    other.close()
    other.close()


def test_two_engines_on_one_file_are_two_owners(durable: Durable, db: Path, clock: Any) -> None:
    """Each sees the other alive; closing one takes nothing from the other."""
    job = define_job()
    with Durable(db, clock=clock) as other:
        one, two = durable.start(job, key="1").run_id, durable.start(job, key="2").run_id
        mine, others = claim(durable, one), claim(other, two)
        assert mine.owner_id != others.owner_id
        assert durable._engine.alive(others.owner_id)
        assert other._engine.alive(mine.owner_id)
        for engine in (durable, other):
            assert not engine.execute(job, key="1").executed
            assert not engine.execute(job, key="2").executed
    assert durable._engine.still_ours(mine)
    assert durable.execute(job, key="2").executed
    assert durable.key(None, "1").owner_alive is True


def test_eight_threads_with_one_engine(durable: Durable) -> None:
    """Starts and executes on three keys at once: each run's step ran once, every answer names a run that is there or
    is a refusal with its holder, one owner, a sound file (A02)."""
    ran: Counter[str] = Counter()
    lock = threading.Lock()

    @workflow(name="flow")
    def flow(ctx: Any, n: int) -> int:
        def step() -> int:
            with lock:
                ran[ctx.run_id] += 1
            return n

        return ctx.run("s", step)  # type: ignore[no-any-return]

    barrier = threading.Barrier(8)

    def work(seed: int) -> Counter[str]:
        dice = random.Random(seed)
        told: Counter[str] = Counter()
        barrier.wait()
        for n in range(15):
            key = f"k{dice.randrange(3)}"
            policy = dice.choice(["use_existing", "error", "cancel_existing", "run_again"])
            try:
                if dice.random() < 0.5:
                    answer = durable.start(flow, n, key=key, on_duplicate=policy)
                else:
                    done = durable.execute(flow, n, key=key, on_duplicate=policy)
                    assert done.start is not None
                    answer = done.start
            except KeyTaken as taken:
                named, outcome = taken.holder_id, "refused"
            else:
                named, outcome = answer.run_id, str(answer.outcome)
            assert durable.run(named).key == key
            told[outcome] += 1
        return told

    with ThreadPoolExecutor(8) as pool:
        answers: Counter[str] = sum(pool.map(work, range(8)), Counter())
    assert answers.total() == 120
    assert max(ran.values()) == 1
    every = durable.runs()
    assert len(every) == answers["created"] + answers["replaced"] + answers["queued"]
    assert {run.id for run in every if run.status == "completed"} <= set(ran)
    assert [run for run in every if run.status in ("running", "waiting") or run.owner is not None] == []
    owners = durable._engine.database.read(lambda tx: tx.value("SELECT count(*) FROM durable_owners"))
    assert owners == 1
    assert durable.check() == []


def test_an_owner_that_waits_for_the_file_lets_other_threads_read(db: Path) -> None:
    """Once the process is an owner, no thread holds its lock while another process writes."""
    job = define_job()
    met, read = threading.Event(), threading.Event()

    def sleep(_: float) -> None:
        met.set()
        assert read.wait(10), "nobody could read"
        if holder.in_transaction:
            holder.execute("ROLLBACK")

    with Durable(db) as durable:
        first = durable.execute(job, key="first").run
        durable._engine.database._contention = Contention(sleep=sleep)
        holder = apsw.Connection(str(db))
        holder.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=lambda: durable.execute(job, key="second"), daemon=True)
        thread.start()
        assert met.wait(10)
        assert durable.run(first.id).status == "completed"
        assert durable.runs(key="second") == []
        read.set()
        thread.join(10)
        assert [run.status for run in durable.runs(key="second")] == ["completed"]
    holder.close()


def test_eight_threads_whose_first_act_is_to_execute(db: Path, clock: Any) -> None:
    """They open the file, make the schema and register at one moment: one owner, and close() leaves none."""
    job = define_job()
    with Durable(db, clock=clock) as durable:
        barrier = threading.Barrier(8)

        def work(n: int) -> str | None:
            barrier.wait()
            return durable.execute(job, n, key=f"k{n}").run.result

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [str(n) for n in range(8)]
        count = "SELECT count(*) FROM durable_owners"
        assert durable._engine.database.read(lambda tx: tx.value(count)) == 1
    with Durable(db, clock=clock) as durable:
        assert durable._engine.database.read(lambda tx: tx.value(count)) == 0


# -- forks (L12) ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["_exit", "sys.exit", "raise", "return"])
def test_a_fork_in_a_step(durable: Durable, kind: str, how: str) -> None:
    """The child starts a run and leaves, by whatever way: that run is there; the parent's goes on and is recorded
    once, and nothing the child does (abandon, close) takes it from its owner."""
    seen: list[Any] = []
    parent = os.getpid()

    async def body(ctx: Any) -> str:
        def step() -> str:
            pid = os.fork()
            if pid == 0:
                answer = durable.start(define_job(name="other"), how, key="of the child")
                durable.abandon()
                durable.close()
                if how == "_exit":
                    os._exit(answer.outcome != "created")
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (the child's last words)
                if how == "sys.exit":
                    sys.exit(0)
                if how == "raise":
                    raise Boom("in the child")
                return "from the child"
            seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            ctx.heartbeat()
            return "from the parent"

        return str(await ctx.run("fork", step))

    run = durable.execute(define(kind, body), key="k").run
    assert os.getpid() == parent, "a child came back out of the engine"
    assert (run.status, run.result, run.epoch, run.crashes) == ("completed", '"from the parent"', 1, 0)
    assert seen == [0 if how in ("_exit", "sys.exit") else 1]
    other = durable.find(key="of the child")
    assert (other.status, json.loads(other.input), other.holds_key) == ("pending", how, True)
    assert durable.check() == []
    assert told(durable, "k") == []


def test_a_child_executes_as_an_owner_of_its_own(durable: Durable) -> None:
    """A forked process is nobody at first, and then somebody else than its parent."""
    job = define_job()
    mine = claim(durable, durable.start(job, key="k").run_id)

    def child() -> None:
        assert not durable.execute(job, key="k").executed
        assert durable._engine.alive(mine.owner_id)
        done = durable.execute(job, 5, key="of the child")
        assert done.run.result == "5"
        assert durable._engine._owner is not None
        assert durable._engine._owner[1] != mine.owner_id

    assert in_child(child) == 0
    assert durable._engine.still_ours(mine)
    assert durable.find(key="of the child").result == "5"
    assert durable.check() == []
