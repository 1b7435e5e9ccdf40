"""The programming model as a table: every operation, in a body that is run as plain and as `async` code.

A case says what an uninterrupted run gives. Names of steps are unique in a case, so that side effects can be counted.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from modelkit import Boom, Steps
from pydantic import BaseModel

from durable_cli import Retry
from durable_cli.errors import BranchesFailed, ChildFailed, StepFailed, WaitTimeout

THRICE: Final = Retry(max_attempts=3, base="1s", jitter=0)


@dataclass(frozen=True)
class Case:
    """`result`: of an uninterrupted run (None for one that fails). `events`, `inputs`: what comes from outside once the
    run waits for it. `branches`: how many steps may be going on at once. `child`: the body of the child it calls.
    """

    name: str
    body: Callable[[Any, Steps], Awaitable[Any]]
    result: Any = None
    status: str = "completed"
    error: str | None = None
    events: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    branches: int = 1
    child: Callable[[Any, Steps], Awaitable[Any]] | None = None

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []


def case(**facts: Any) -> Callable[[Callable[[Any, Steps], Awaitable[Any]]], Callable[[Any, Steps], Awaitable[Any]]]:
    """The function is the body of a case of its name."""

    def add(body: Callable[[Any, Steps], Awaitable[Any]]) -> Callable[[Any, Steps], Awaitable[Any]]:
        CASES.append(Case(name=body.__name__, body=body, **facts))
        return body

    return add


# -- steps and recorded values -------------------------------------------------------------------------------------


@case(result=[1, 2, 3])
async def run(ctx: Any, it: Steps) -> Any:
    return [await ctx.run(name, it.do(name, value)) for name, value in (("a", 1), ("b", 2), ("c", 3))]


@case(result=["a", 7, "b"])
async def run_with_retry(ctx: Any, it: Steps) -> Any:
    first = await ctx.run("a", it.do("a", "a"))
    return [first, await ctx.run("r", it.fail("r", times=2, then=7), retry=THRICE), await ctx.run("b", it.do("b", "b"))]


@case(result=["Boom", 1])
async def run_that_fails_and_is_caught(ctx: Any, it: Steps) -> Any:
    try:
        await ctx.run("f", it.fail("f"))
    except StepFailed as error:
        return [error.error_type, await ctx.run("a", it.do("a", 1))]


@case(status="failed", error="Boom")
async def run_that_fails(ctx: Any, it: Steps) -> Any:
    await ctx.run("a", it.do("a", 1))
    await ctx.run("f", it.fail("f"))


@case(result=[True, True, True, True])
async def now_uuid_random(ctx: Any, it: Steps) -> Any:
    moment, name, number = await ctx.now(), await ctx.uuid(), await ctx.random()
    kept = await ctx.run("a", it.do("a", [moment.isoformat(), str(name), number]))
    types = isinstance(moment, dt.datetime) and isinstance(name, uuid.UUID) and isinstance(number, float)
    return [types, kept[0] == moment.isoformat(), kept[1] == str(name), kept[2] == number]


@case(result=["Timeout", 1])
async def step_timeout(ctx: Any, it: Steps) -> Any:
    try:
        await ctx.run("h", it.hang("h"), timeout=0.01)
    except StepFailed as error:
        return [error.error_type, await ctx.run("a", it.do("a", 1))]


# -- waits ---------------------------------------------------------------------------------------------------------


@case(result=[1, True, 2])
async def sleep(ctx: Any, it: Steps) -> Any:
    first = await ctx.run("a", it.do("a", 1))
    before = await ctx.now()
    await ctx.sleep("s", "1s")
    slept = await ctx.now() - before
    return [first, slept >= dt.timedelta(seconds=1), await ctx.run("b", it.do("b", 2))]


@case(result=[1, 2])
async def sleep_until(ctx: Any, it: Steps) -> Any:
    first = await ctx.run("a", it.do("a", 1))
    await ctx.sleep_until("s", await ctx.now() + dt.timedelta(seconds=1))
    return [first, await ctx.run("b", it.do("b", 2))]


@case(result=[{"n": 5}, None, {"n": 5}, 2], events={"e": {"n": 5}, "null": None})
async def wait_for_event(ctx: Any, it: Steps) -> Any:
    got = await ctx.wait_for_event("e", timeout="1h")
    null = await ctx.wait_for_event("null", default="absent", timeout="1h")
    return [got, null, await ctx.wait_for_event("e"), await ctx.run("b", it.do("b", 2))]


@case(result=["default", None, "nothing came for 'z' in time", 2])
async def wait_for_event_that_never_comes(ctx: Any, it: Steps) -> Any:
    got = [
        await ctx.wait_for_event("x", timeout="1s", default="default"),
        await ctx.wait_for_event("y", timeout="1s", default=None),
    ]
    try:
        await ctx.wait_for_event("z", timeout="1s")
    except WaitTimeout as error:
        got.append(error.error_message)
    return [*got, await ctx.run("b", it.do("b", 2))]


@case(result=[["y", 8], 2], events={"y": 8})
async def wait_for_any(ctx: Any, it: Steps) -> Any:
    return [await ctx.wait_for_any(["x", "y"], timeout="1h"), await ctx.run("b", it.do("b", 2))]


@case(result=[{"x": 7, "y": 8}, "late", 2], events={"x": 7, "y": 8, "z": 9})
async def wait_for_all(ctx: Any, it: Steps) -> Any:
    got = await ctx.wait_for_all(["x", "y"])
    late = await ctx.wait_for_all(["z", "never"], timeout="1s", default="late")
    return [got, late, await ctx.run("b", it.do("b", 2))]


class Form(BaseModel):
    count: int


@case(
    result=["hello", "red", True, {"n": 1}, 3, "nobody", 2],
    inputs={"text": "hello", "choice": "red", "approval": "yes", "form": {"n": 1}, "model": {"count": "3"}},
)
async def wait_for_input(ctx: Any, it: Steps) -> Any:
    got = [
        await ctx.wait_for_input("text", prompt="?"),
        await ctx.wait_for_input("choice", type="choice", choices=["red", "blue"]),
        await ctx.wait_for_input("approval", type="approval"),
        await ctx.wait_for_input("form", type="form"),
        (await ctx.wait_for_input("model", type=Form)).count,
        await ctx.wait_for_input("nobody", timeout="1s", default="nobody"),
    ]
    return [*got, await ctx.run("b", it.do("b", 2))]


# -- branches ------------------------------------------------------------------------------------------------------


@case(result=[{"left": 3, "right": [4, 9]}, 2], branches=2, events={"e": 9})
async def parallel(ctx: Any, it: Steps) -> Any:
    async def left(ctx: Any) -> Any:
        await ctx.sleep("s", "1s")
        return await ctx.run("l1", it.do("l1", 1)) + await ctx.run("l2", it.do("l2", 2))

    async def right(ctx: Any) -> Any:
        return [await ctx.run("r1", it.do("r1", 4)), await ctx.wait_for_event("e")]

    both = await ctx.parallel({"left": left, "right": right})
    return [both, await ctx.run("b", it.do("b", 2))]


@case(result=["Boom", 2], branches=3)
async def parallel_fail_fast(ctx: Any, it: Steps) -> Any:
    async def waits(ctx: Any) -> Any:
        await ctx.run("w", it.do("w", 1))
        await ctx.sleep("long", "10m")
        await ctx.run("never", it.do("never", 1))

    async def fails(ctx: Any) -> Any:
        await ctx.sleep("short", "1s")
        await ctx.run("f", it.fail("f"))

    try:
        await ctx.parallel({"waits": waits, "fails": fails})
    except StepFailed as error:
        return [error.error_type, await ctx.run("b", it.do("b", 2))]


@case(result=[["f", "g"], {"ok": 1}, "2 of 3 branches failed: f: step 'f' failed: Boom: f; g: g", 2], branches=3)
async def parallel_complete_all(ctx: Any, it: Steps) -> Any:
    async def f(ctx: Any) -> Any:
        await ctx.run("f", it.fail("f"))

    async def ok(ctx: Any) -> Any:
        await ctx.sleep("short", "1s")
        return await ctx.run("ok", it.do("ok", 1))

    async def g(ctx: Any) -> Any:
        await ctx.sleep("longer", "2s")
        raise Boom("g")

    try:
        await ctx.parallel({"f": f, "ok": ok, "g": g}, on_error="complete_all")
    except BranchesFailed as error:
        told = [list(error.errors), error.results, error.message]
        return [*told, await ctx.run("b", it.do("b", 2))]


@case(result=[{"x": {"y": 1, "z": 2}, "w": 3}, 2], branches=3)
async def nested_parallel(ctx: Any, it: Steps) -> Any:
    async def y(ctx: Any) -> Any:
        await ctx.sleep("s", "1s")
        return await ctx.run("y", it.do("y", 1))

    async def z(ctx: Any) -> Any:
        return await ctx.run("z", it.do("z", 2))

    async def x(ctx: Any) -> Any:
        return await ctx.parallel({"y": y, "z": z})

    async def w(ctx: Any) -> Any:
        return await ctx.run("w", it.do("w", 3))

    both = await ctx.parallel({"x": x, "w": w})
    return [both, await ctx.run("b", it.do("b", 2))]


@case(result=["Boom", 2], branches=4)
async def nested_parallel_that_is_closed_from_outside(ctx: Any, it: Steps) -> Any:
    async def y(ctx: Any) -> Any:
        await ctx.run("y", it.do("y", 1))
        await ctx.sleep("long", "10m")
        return await ctx.run("never", it.do("never", 1))

    async def z(ctx: Any) -> Any:
        return await ctx.run("z", it.do("z", 2))

    async def x(ctx: Any) -> Any:
        return await ctx.parallel({"y": y, "z": z})

    async def w(ctx: Any) -> Any:
        await ctx.sleep("s", "1s")
        await ctx.run("f", it.fail("f"))

    try:
        await ctx.parallel({"x": x, "w": w})
    except StepFailed as error:
        return [error.error_type, await ctx.run("b", it.do("b", 2))]


@case(result=[[2, 4, 6, 8], 2], branches=2)
async def map_items(ctx: Any, it: Steps) -> Any:
    items = await ctx.map("m", it.item("m"), [1, 2, 3, 4], concurrency=2)
    return [items, await ctx.run("b", it.do("b", 2))]


@case(result=[["quick", 1], 2, "later"], branches=2, events={"late@t": "later"})
async def race(ctx: Any, it: Steps) -> Any:
    async def slow(ctx: Any) -> Any:
        await ctx.run("s1", it.do("s1", 1))
        await ctx.wait_for_any(["late", "never"])
        await ctx.run("never", it.do("never", 1))

    async def quick(ctx: Any) -> Any:
        await ctx.sleep("s", "1s")
        return await ctx.run("q", it.do("q", 1))

    winner = await ctx.race({"slow": slow, "quick": quick})
    second = await ctx.run("b", it.do("b", 2))
    await ctx.sleep("t", "1s")
    return [winner, second, await ctx.wait_for_event("late")]


@case(result=["no branch succeeded: f: step 'f' failed: Boom: f; g: step 'g' failed: Boom: g", 2], branches=2)
async def race_that_nobody_wins(ctx: Any, it: Steps) -> Any:
    async def f(ctx: Any) -> Any:
        await ctx.sleep("s", "1s")
        await ctx.run("f", it.fail("f"))

    async def g(ctx: Any) -> Any:
        await ctx.run("g", it.fail("g"))

    try:
        await ctx.race({"f": f, "g": g})
    except BranchesFailed as error:
        return [error.message, await ctx.run("b", it.do("b", 2))]


# -- children ------------------------------------------------------------------------------------------------------


async def _child(ctx: Any, it: Steps) -> Any:
    first = await ctx.run("c1", it.do("c1", 10))
    await ctx.sleep("cs", "1s")
    return first + await ctx.run("c2", it.do("c2", 20))


async def _failing_child(ctx: Any, it: Steps) -> Any:
    await ctx.run("c1", it.do("c1", 10), compensate=it.do("undo c1"))
    await ctx.run("c2", it.fail("c2"))


@case(result=[1, 30, 2], child=_child)
async def call(ctx: Any, it: Steps) -> Any:
    first = await ctx.run("a", it.do("a", 1))
    return [first, await ctx.call(it.child), await ctx.run("b", it.do("b", 2))]


@case(result=["Boom", 2], child=_failing_child)
async def call_of_one_that_fails(ctx: Any, it: Steps) -> Any:
    try:
        await ctx.call(it.child)
    except ChildFailed as error:
        return [error.error_type, await ctx.run("b", it.do("b", 2))]


@case(result=[10, 2], child=_child)
async def start(ctx: Any, it: Steps) -> Any:
    return [len(await ctx.start(it.child)), await ctx.run("b", it.do("b", 2))]


@case(result=[{"l": 30, "r": 1}], child=_child, branches=3)
async def call_in_a_branch(ctx: Any, it: Steps) -> Any:
    async def left(ctx: Any) -> Any:
        return await ctx.call(it.child)

    async def right(ctx: Any) -> Any:
        return await ctx.run("r", it.do("r", 1))

    return [await ctx.parallel({"l": left, "r": right})]


# -- compensation --------------------------------------------------------------------------------------------------


@case(status="compensated", error="Boom")
async def compensate(ctx: Any, it: Steps) -> Any:
    for name in ("a", "b"):
        await ctx.run(name, it.do(name, 1), compensate=it.do(f"undo {name}"))
    await ctx.sleep("s", "1s")
    await ctx.run("c", it.do("c", 1), compensate=it.fail("undo c", times=1), compensate_retry=THRICE)
    await ctx.run("f", it.fail("f"))


@case(status="compensation_failed", error="Boom")
async def compensate_in_vain(ctx: Any, it: Steps) -> Any:
    await ctx.run("a", it.do("a", 1), compensate=it.do("undo a"))
    await ctx.run("b", it.do("b", 1), compensate=it.fail("undo b"))
    await ctx.run("f", it.fail("f"))


@case(status="compensated", error="Boom", branches=3)
async def compensate_in_branches(ctx: Any, it: Steps) -> Any:
    async def loser(ctx: Any) -> Any:
        async def inner(ctx: Any) -> Any:
            await ctx.run("n", it.do("n", 1), compensate=it.do("undo n"))
            await ctx.wait_for_event("x")
            await ctx.run("never", it.do("never", 1))

        await ctx.parallel({"inner": inner})

    async def winner(ctx: Any) -> Any:
        await ctx.run("w", it.do("w", 1), compensate=it.do("undo w"))
        await ctx.sleep("s", "1s")
        await ctx.run("f", it.fail("f"))

    await ctx.run("a", it.do("a", 1), compensate=it.do("undo a"))
    await ctx.parallel({"loser": loser, "winner": winner})
