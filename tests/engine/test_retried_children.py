"""A retry of a run goes on with the children it waits for, whoever has their keys by now, however deep they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bothways import KINDS, define
from enginekit import Boom, change, claim

from durable_cli import Durable, Status
from durable_cli.runner import take_turn
from durable_cli.store import history
from durable_cli.testing import Clock

broken = [False]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    broken[0] = False
    return str(request.param)


def child_of(kind: str) -> Any:
    """A workflow that waits for "go" and gives its input, or fails while `broken`."""

    async def body(ctx: Any, n: int) -> int:
        await ctx.wait_for_event("go")

        def work() -> int:
            if broken[0]:
                raise Boom("broken")
            return n

        return int(await ctx.run("work", work))

    return define(kind, body, name="child")


def let_go(durable: Durable) -> None:
    """Every child that has its key goes on, until nothing more happens."""
    for _ in range(4):
        for run in durable.runs(workflow="child", unfinished=True):
            if run.runs_after_id is None:
                durable.send_event(run.id, "go")
        durable.tick()


def ended(durable: Durable, run_id: str) -> tuple[str, Any]:
    run = durable.run(run_id)
    assert durable.check() == []
    return str(run.status), json.loads(run.result or "null") if run.error is None else run.error.message


@pytest.mark.parametrize("on_error", ["fail_fast", "complete_all"])
@pytest.mark.parametrize("why", ["cancelled", "failed", "both failed"])
def test_two_children_of_one_key_one_behind_the_other(
    durable: Durable, clock: Clock, kind: str, why: str, on_error: str
) -> None:
    """One of them takes the key back; the call of the other begins anew, behind it. The first retry works."""
    child = child_of(kind)

    async def first(ctx: Any) -> Any:
        return await ctx.call(child, 1, key="d")

    async def second(ctx: Any) -> Any:
        await ctx.sleep("z", "1s")
        return await ctx.call(child, 2, key="d", on_duplicate="run_again")

    async def parent(ctx: Any) -> Any:
        return await ctx.parallel({"a": first, "b": second}, on_error=on_error)

    run_id = durable.start(define(kind, parent, name="parent"), key="p").run_id
    durable.tick()
    clock.advance(1000)
    durable.tick()
    assert len(durable.runs(workflow="child", unfinished=True)) == 2
    if why == "cancelled":
        durable.cancel(run_id)
        assert [run.holds_key for run in durable.runs(workflow="child")] == [False, True], "nothing moved in between"
    else:
        broken[0] = True
        for _ in range(1 if why == "failed" else 3):
            for run in durable.runs(workflow="child", unfinished=True):
                if run.runs_after_id is None:
                    durable.send_event(run.id, "go")
            durable.tick()
        if durable.run(run_id).status is not Status.FAILED:  # it waits for both of them
            let_go(durable)
        assert durable.run(run_id).status is Status.FAILED
        broken[0] = False
    durable.retry(run_id)
    let_go(durable)
    assert ended(durable, run_id) == ("completed", {"a": 1, "b": 2})


@pytest.mark.parametrize("policy", ["use_existing", "run_again"])
@pytest.mark.parametrize("when", ["taken while cancelled", "held before"])
def test_a_child_whose_key_another_run_has(durable: Durable, kind: str, when: str, policy: str) -> None:
    """The call begins anew, by the rules of any start: it joins the holder, or waits behind it."""
    child = child_of(kind)

    async def parent(ctx: Any) -> Any:
        return await ctx.call(child, 1, key="d", on_duplicate=policy)

    if when == "held before":
        durable.start(child, 9, key="d")
    run_id = durable.start(define(kind, parent, name="parent"), key="p").run_id
    durable.tick()
    durable.cancel(run_id)
    if when != "held before":
        durable.start(child, 9, key="d")
        durable.tick()
    durable.retry(run_id)
    let_go(durable)
    assert ended(durable, run_id) == ("completed", 9 if policy == "use_existing" else 1)


def test_a_child_that_was_pruned(durable: Durable, clock: Clock, kind: str) -> None:
    """There is nothing to go on with: the call begins anew."""
    child = child_of(kind)

    async def parent(ctx: Any) -> Any:
        return await ctx.call(child, 1)

    run_id = durable.start(define(kind, parent, name="parent")).run_id
    durable.tick()
    durable.cancel(run_id)
    clock.advance(1000)
    assert durable.prune(older_than=0, workflow="child").runs == 1
    durable.retry(run_id)
    let_go(durable)
    assert ended(durable, run_id) == ("completed", 1)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_child_that_failed_unseen(durable: Durable, kind: str, recorded: bool) -> None:
    """Its parent ended before it could look: it would fail at once, so the child is retried with it."""
    child = child_of(kind)

    async def parent(ctx: Any) -> Any:
        return await ctx.parallel({name: call(name) for name in "ab"})

    def call(name: str) -> Any:
        async def branch(ctx: Any) -> Any:
            return await ctx.call(child, ord(name), key=name)

        return branch

    run_id = durable.start(define(kind, parent, name="parent")).run_id
    durable.tick()
    broken[0] = True
    for run in durable.runs(workflow="child", unfinished=True):
        durable.send_event(run.id, "go")
    durable.tick()
    assert durable.run(run_id).status is Status.FAILED
    if recorded:  # the other branch had got as far as the record, and was cut off before it could see it
        failure = next(run for run in durable.runs(workflow="child")).error
        assert failure is not None
        change(
            durable,
            "UPDATE durable_steps SET status = 'failed', error = :error, finished_at = started_at"
            " WHERE kind = 'call' AND status = 'waiting'",
            error=history.error_text(failure),
        )
    broken[0] = False
    durable.retry(run_id)
    durable.tick()
    assert ended(durable, run_id) == ("completed", {"a": 97, "b": 98})
    assert len(durable.runs(workflow="child")) == 2


def test_a_child_with_the_workflow_and_the_key_of_the_run_itself(durable: Durable, kind: str) -> None:
    """It had replaced the run. The run has the key back before the child asks for it, and its call begins anew."""
    flows: list[Any] = []

    async def again(ctx: Any, n: int) -> Any:
        if n == 2:
            await ctx.wait_for_event("never")
        return await ctx.call(flows[0], (n or 0) + 1, key="s", on_duplicate="cancel_existing")

    flows.append(define(kind, again, name="again"))
    first = durable.start(flows[0], 0, key="s").run_id
    durable.tick()
    durable.cancel(key="s")
    assert [str(run.status) for run in durable.runs()] == ["cancelled"] * 3
    durable.retry(first)
    assert [run.id for run in durable.runs(unfinished=True)] == [first]
    assert durable.check() == []
    durable.tick()
    newest = durable.runs(limit=1)[0]
    assert (newest.status, newest.holds_key) == (Status.WAITING, True)
    assert durable.check() == []


def test_a_call_whose_child_waits_for_the_run_by_now_begins_anew(durable: Durable, kind: str) -> None:
    """Somebody retried the failed child, which then joined the run that had not ended yet: no two wait for each other."""
    flows: dict[str, Any] = {}

    async def child(ctx: Any, _: Any) -> Any:
        def work() -> None:
            if broken[0]:
                raise Boom("broken")

        await ctx.run("work", work)
        return await ctx.call(flows["parent"], key="p")

    async def calls(ctx: Any) -> Any:
        return await ctx.call(flows["child"])

    async def waits(ctx: Any) -> Any:
        await ctx.wait_for_event("go")
        raise Boom("b")

    async def parent(ctx: Any, _: Any) -> Any:
        return await ctx.parallel({"a": calls, "b": waits}, on_error="complete_all")

    flows |= {"child": define(kind, child, name="child"), "parent": define(kind, parent, name="parent")}
    broken[0] = True
    run_id = durable.start(flows["parent"], key="p").run_id
    durable.tick()
    inner = durable.runs(workflow="child")[0].id
    assert durable.run(inner).status is Status.FAILED
    broken[0] = False
    durable.retry(inner)
    durable.tick()
    assert durable.run(inner).status is Status.WAITING
    durable.send_event(run_id, "go")
    take_turn(durable._engine, claim(durable, run_id), flows["parent"].definition, stay=False)
    assert [str(durable.run(one).status) for one in (run_id, inner)] == ["failed", "waiting"], "it has not looked yet"
    durable.retry(run_id)
    durable.tick()
    assert durable.runs(unfinished=True) == []
    assert durable.check() == []


def test_calls_nested_deeper_than_the_stack_are_cancelled_and_retried(durable: Durable, kind: str) -> None:
    flows: list[Any] = []

    async def deep(ctx: Any, n: int) -> int:
        if n == 0:
            await ctx.wait_for_event("go")
            return 0
        return int(await ctx.call(flows[0], n - 1)) + 1

    flows.append(define(kind, deep, name="deep"))
    run_id = durable.start(flows[0], 600).run_id
    durable.tick()
    for _ in range(2):
        assert len(durable.runs(unfinished=True)) == 601
        durable.cancel(run_id)
        assert durable.runs(unfinished=True) == []
        durable.retry(run_id)
    durable.send_event(durable.runs(limit=1)[0].id, "go")
    durable.tick()
    assert ended(durable, run_id) == ("completed", 600)
