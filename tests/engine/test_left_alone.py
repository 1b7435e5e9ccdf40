"""Runs that nobody executes: a run that waits for one, or behind one, is due with it, for whoever comes (SPEC 4.7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bothways import KINDS, define
from enginekit import CRASHED, claim, dead_owner, die, duplicates, in_child, live_owner, own

from durable_cli import Durable, NotFinished, Status
from durable_cli.errors import NotResumable, NotRetryable
from durable_cli.runner import take_turn
from durable_cli.testing import Clock


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def _child(ctx: Any, n: Any) -> Any:
    if isinstance(n, dict):
        await ctx.sleep("z", n["sleep"])
    return await ctx.run("work", lambda: n)


class World:
    """A workflow `child`, and one `parent` that calls it with the key "c"."""

    def __init__(self, durable: Durable, kind: str) -> None:
        self.durable = durable
        self.child = define(kind, _child, name="child")
        child = self.child

        async def parent(ctx: Any, how: Any) -> Any:
            how = how or {}
            return await ctx.call(child, how.get("input", 1), key="c", on_duplicate=how.get("policy"))

        self.parent = define(kind, parent, name="parent")

        async def top(ctx: Any, _: Any) -> Any:
            return await ctx.call(self.parent)

        self.top = define(kind, top, name="top")

    def rest(self, flow: Any = None, what: Any = None, **options: Any) -> str:
        """A run that has begun its child and was put to rest by a process that then died."""
        flow = self.parent if flow is None else flow
        run_id = self.durable.start(flow, what, key="p", **options).run_id
        take_turn(self.durable._engine, claim(self.durable, run_id), flow.definition, stay=False)
        return run_id

    def ended(self, run_id: str) -> Any:
        run = self.durable.run(run_id)
        assert self.durable.check() == []
        assert run.status is Status.COMPLETED, run
        return json.loads(run.result or "null")

    def of_child(self) -> str:
        return self.durable.runs(workflow="child", limit=1)[0].id


@pytest.fixture
def world(durable: Durable, kind: str) -> World:
    return World(durable, kind)


def _never_begun(world: World, run_id: str) -> None:
    pass


def _orphaned(world: World, run_id: str) -> None:
    own(world.durable, run_id, dead_owner(world.durable))
    world.durable._engine.database.write(
        lambda tx: tx.change(
            "UPDATE durable_runs SET status = 'running', due_at = NULL WHERE public_id = :id", id=run_id
        )
    )


LEFT = [_never_begun, _orphaned]


@pytest.mark.parametrize("left", LEFT, ids=["never begun", "orphaned"])
@pytest.mark.parametrize("policy", ["use_existing", "run_again"])
def test_the_foreground_executes_what_its_run_waits_for_or_behind(
    durable: Durable, world: World, policy: str, left: Callable[[World, str], None]
) -> None:
    """Also where it has not started it: the child's key was held, by a run that nobody executed."""
    other = durable.start(world.child, 7, key="c").run_id
    left(world, other)
    done = durable.execute(world.parent, {"policy": policy}, key="p")
    assert world.ended(done.run.id) == (1 if policy == "run_again" else 7)
    assert durable.run(other).status is Status.COMPLETED


@pytest.mark.parametrize("left", LEFT, ids=["never begun", "orphaned"])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("timeout", [None, "1h"])
@pytest.mark.parametrize("how", ["run", "error", "resume", "owner dead"])
def test_a_run_at_rest_is_taken_up_with_what_it_waits_for(
    durable: Durable, world: World, how: str, deep: bool, timeout: str | None, left: Callable[[World, str], None]
) -> None:
    """Put to rest by a worker that died, it has no due time of its own (or that of its time-out): the key would be
    taken for ever."""
    flow = world.top if deep else world.parent
    run_id = world.rest(flow, timeout=timeout)
    if deep:
        middle = durable.runs(workflow="parent")[0].id
        take_turn(durable._engine, claim(durable, middle), world.parent.definition, stay=False)
    left(world, world.of_child())
    assert durable.run(run_id).owner is None
    if how == "owner dead":  # a foreground process had stayed by it
        own(durable, run_id, dead_owner(durable))
    if how == "resume":
        done = durable.resume(run_id, definition=flow.definition)
    else:
        policy = "error" if how == "error" else None
        done = durable.execute(flow, key="p", on_duplicate=policy)
        assert done.start is not None
        assert done.start.outcome == "resumed"
        assert len(duplicates(durable, "p")) == 1
    assert (done.run.id, done.executed) == (run_id, True)
    assert world.ended(run_id) == 1


def test_a_run_whose_child_rests_or_is_executed_is_not_due(durable: Durable, clock: Clock, world: World) -> None:
    """Then there is nothing to execute here: `existing`, and `resume` says what it waits for."""
    run_id = world.rest(what={"input": {"sleep": "1h"}})
    child = world.of_child()
    take_turn(durable._engine, claim(durable, child), world.child.definition, stay=False)

    def met() -> None:
        done = durable.execute(world.parent, key="p")
        assert done.start is not None
        assert (done.start.outcome, done.executed) == ("existing", False)
        with pytest.raises(NotResumable, match="it waits for the end of another run") as refused:
            durable.resume(run_id, definition=world.parent.definition)
        assert refused.value.facts == (f"it waits for run {child} of 'child', which is {durable.run(child).status}",)

    met()
    clock.advance(3_600_000)
    mine = claim(durable, child)
    met()
    durable._engine.abandon([mine])
    assert world.durable.execute(world.parent, key="p").executed
    assert world.ended(run_id) == {"sleep": "1h"}


def test_a_live_worker_is_left_its_runs(durable: Durable, world: World) -> None:
    run_id = world.rest()
    durable._engine.become("worker")
    done = durable.execute(world.parent, key="p")
    assert (done.executed, durable.run(run_id).status) == (False, Status.WAITING)
    durable._engine.become("run")
    assert durable.execute(world.parent, key="p").executed


def test_a_run_that_waits_for_an_event_says_so(durable: Durable, kind: str) -> None:
    """Children that it started and does not wait for do not make it due."""
    child = define(kind, _child, name="child")

    async def body(ctx: Any, _: Any) -> Any:
        await ctx.start(child)
        return await ctx.wait_for_event("go")

    flow = define(kind, body)
    run_id = durable.start(flow, key="k").run_id
    take_turn(durable._engine, claim(durable, run_id), flow.definition, stay=False)
    with pytest.raises(NotResumable, match="it waits for an event"):
        durable.resume(run_id, definition=flow.definition)


def test_who_follows_a_waiting_run_executes_the_holder_that_was_left_alone(durable: Durable, world: World) -> None:
    """`run --wait` behind a holder whose process dies: nobody else would ever end that."""
    holder = durable.start(world.child, 7, key="c").run_id
    own(durable, holder, live_owner(durable))
    durable._engine.database.write(
        lambda tx: tx.change(
            "UPDATE durable_runs SET status = 'running', due_at = NULL WHERE public_id = :id", id=holder
        )
    )

    def die_once(seconds: float) -> None:
        own(durable, holder, dead_owner(durable))

    durable._engine._sleep = die_once
    done = durable.execute(world.child, 8, key="c", on_duplicate="run_again", wait=True)
    assert (done.run.status, done.run.result) == (Status.COMPLETED, "8")
    assert durable.run(holder).result == "7"


def test_who_follows_a_run_takes_it_up_when_its_child_is_left_alone(durable: Durable, world: World) -> None:
    """`run --wait` of a run that nobody owns, while the process that executes its child dies."""
    run_id = world.rest()
    child = world.of_child()
    own(durable, child, live_owner(durable))
    durable._engine._sleep = lambda seconds: _orphaned(world, child)
    done = durable.execute(world.parent, key="p", wait=True)
    assert done.start is not None
    assert (done.start.outcome, done.run.id, done.executed) == ("existing", run_id, True)
    assert world.ended(run_id) == 1


@pytest.mark.parametrize("how", ["resume", "wait"])
def test_the_fifth_crash_promotes_a_run_that_is_executed_here(
    durable: Durable, kind: str, tmp_path: Path, how: str
) -> None:
    """Whoever meets the run that killed its process too often reports that, and goes on with the run behind it."""

    async def body(ctx: Any, what: Any) -> Any:
        return await ctx.run("work", die if what == "die" else lambda: what)

    flow = define(kind, body)
    run_id = durable.start(flow, "die", key="k").run_id
    for crash in range(5):
        assert in_child(lambda: durable.resume(run_id, definition=flow.definition)) == CRASHED
        if crash == 0:
            durable.start(flow, "waited", key="k", on_duplicate="run_again")
    if how == "resume":
        done = durable.resume(run_id, definition=flow.definition)
    else:  # the process of the holder that we follow dies
        dead = durable.run(run_id).owner
        assert dead is not None
        own(durable, run_id, live_owner(durable))
        durable._engine._sleep = lambda seconds: own(durable, run_id, dead.id)
        done = durable.execute(flow, "new", key="k", wait=True)
    assert done.run.id == run_id
    assert done.run.error is not None
    assert (done.executed, done.run.error.type) == (True, "CrashLoop")
    assert [run.result for run in done.promoted] == ['"waited"']
    assert durable.runs(unfinished=True) == []
    assert durable.check() == []


@pytest.mark.parametrize("owner", ["dead", "alive", "none"])
def test_a_refused_retry_or_rerun_names_what_comes_to_the_end(durable: Durable, world: World, owner: str) -> None:
    """Waiting for a run whose process is dead would last for ever."""
    run_id = durable.start(world.child, key="c").run_id
    if owner != "none":
        own(durable, run_id, dead_owner(durable) if owner == "dead" else live_owner(durable))
    hint = f"durable {'runs wait' if owner == 'alive' else 'resume'} {run_id}"
    with pytest.raises(NotRetryable) as refused:
        durable.retry(run_id)
    assert refused.value.hint == hint
    with pytest.raises(NotFinished) as unfinished:
        durable.rerun(run_id)
    assert unfinished.value.hint == hint
    durable._engine.become("worker")
    with pytest.raises(NotRetryable) as attended:
        durable.retry(run_id)
    assert attended.value.hint == f"durable runs wait {run_id}"
