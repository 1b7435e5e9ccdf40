"""A run that waits for the end of another learns it, in whatever way that one ends; nothing takes the end away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bothways import KINDS, define
from enginekit import change, claim

from durable_cli import Debounce, Durable, Status, StepFailed, children, workflow
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


# -- starts that are refused -----------------------------------------------------------------------------------------


class Once:
    """A function of the user's that raises when it is first asked, and never again."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, *args: Any) -> Any:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("not now")
        return args[-1]


@pytest.mark.parametrize("operation", ["call", "start"])
@pytest.mark.parametrize("options", ["merge", "debounce", "key", "contended"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_start_of_a_child_is_on_record(
    durable: Durable, clock: Any, monkeypatch: pytest.MonkeyPatch, kind: str, options: str, operation: str
) -> None:
    """A replay gives the same failure, though the child's own code would say something else by now."""
    once = Once()
    chosen: dict[str, dict[str, Any]] = {
        "merge": {"merge": once, "on_duplicate": "run_again"},
        "debounce": {"merge": once, "debounce": Debounce("1d")},
        "key": {"key": lambda what: once("k")},
        "contended": {"merge": lambda old, new: new, "on_duplicate": "run_again"},
    }

    async def work(ctx: Any, what: Any) -> Any:
        return await ctx.run("work", lambda: what)

    asked = define(kind, work, name="asked", **chosen[options])
    alerts: list[str] = []

    async def body(ctx: Any) -> str:
        try:
            return str(await getattr(ctx, operation)(asked, 1, key=None if options == "key" else "m"))
        except StepFailed as failed:
            told = f"{type(failed).__name__} {failed.error_type}"
        await ctx.run("alert", lambda: alerts.append(told))
        await ctx.sleep("a while", "1h")
        return told

    flow = define(kind, body)
    if options != "key":
        durable.start(asked, 0, key="m", delay="1d")
    if options == "contended":
        monkeypatch.setattr(children, "MERGES", 0)
    run_id = durable.start(flow).run_id
    durable.tick()
    assert durable.run(run_id).status is Status.WAITING
    monkeypatch.undo()
    clock.advance(3_600_000)
    durable.tick()
    run = durable.run(run_id)
    told = f"{'ChildFailed' if operation == 'call' else 'StepFailed'} "
    told += {"key": "InvalidKey", "contended": "KeyContended"}.get(options, "InvalidInput")
    assert (run.status, json.loads(run.result or "null"), alerts) == (Status.COMPLETED, told, [told])
    assert once.asked == int(options != "contended")


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_asks_for_a_refused_child_again(durable: Durable, kind: str) -> None:
    """The operation whose failure ended the run has a fresh try, as any other."""
    once = Once()

    async def work(ctx: Any, what: Any) -> Any:
        return await ctx.run("work", lambda: what)

    asked = define(kind, work, name="asked", key=once)

    async def body(ctx: Any) -> Any:
        return await ctx.call(asked, "k")

    run_id = durable.start(define(kind, body)).run_id
    durable.tick()
    failed = durable.run(run_id)
    assert (failed.status, failed.error and failed.error.type) == (Status.FAILED, "InvalidKey")
    durable.retry(run_id)
    for _ in range(3):
        durable.tick()
    assert (durable.run(run_id).status, durable.run(run_id).result) == (Status.COMPLETED, '"k"')


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_whose_input_is_merged_takes_the_place_of_what_a_retry_took_back(
    durable: Durable, clock: Any, kind: str
) -> None:
    """The transaction that finds out that inputs have to be merged sets nothing aside; the next one does."""
    broken = [True]

    async def work(ctx: Any, what: Any) -> Any:
        return await ctx.run("work", lambda: what)

    summing = define(kind, work, name="summing", on_duplicate="run_again", merge=lambda old, new: old + new)

    async def body(ctx: Any) -> Any:
        try:
            await ctx.run("fetch", lambda: 1 / 0 if broken[0] else 5)
        except StepFailed:
            await ctx.run("alert", lambda: None)
            await ctx.run("alert more", lambda: None)
            raise
        return await ctx.call(summing, 2, key="m")

    flow = define(kind, body)
    run_id = durable.execute(flow).run.id
    durable.start(summing, 1, key="m", delay="1h")
    broken[0] = False
    durable.retry(run_id)
    durable.tick()
    clock.advance(3_600_000)
    durable.tick()
    run = durable.run(run_id)
    assert (run.status, run.result) == (Status.COMPLETED, "3")
    assert [step.name for step in run.steps or ()] == ["fetch", "summing"]
    assert durable.check() == []
