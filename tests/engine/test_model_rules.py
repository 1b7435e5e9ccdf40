"""What the table of `test_model` cannot say: retries that open branches again, errors that are the same on every pass,
and code that breaks a rule inside of branches. Plain and `async` alike.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from bothways import KINDS, define, drive, step_of
from enginekit import Boom

from durable_cli import Durable, KeyTaken, Retry, Run, Status, StepFailed
from durable_cli.errors import BranchesFailed, ChildFailed, NotWaiting, WaitTimeout

pytestmark = pytest.mark.parametrize("kind", KINDS)


class Steps:
    """Steps that are counted, and that fail as long as they are `broken`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.counts: Counter[str] = Counter()
        self.broken = True
        self.child: Any = None

    def do(self, name: str, value: Any = 1) -> Callable[..., Any]:
        def step(*_: Any) -> Any:
            self.counts[name] += 1
            return value

        return step_of(self.kind, step)

    def fail(self, name: str, value: Any = 1) -> Callable[..., Any]:
        def step(*_: Any) -> Any:
            self.counts[name] += 1
            if self.broken:
                raise Boom(name)
            return value

        return step_of(self.kind, step)


def step(name: str, function: Callable[..., Any], **options: Any) -> Callable[[Any], Awaitable[Any]]:
    """A branch of one step."""

    async def branch(ctx: Any) -> Any:
        return await ctx.run(name, function, **options)

    return branch


def finish(durable: Durable, run_id: str) -> Run:
    """Let the run go on to its end, by ticks and jumps of the clock."""
    clock = durable._engine.now
    for _ in range(50):
        durable.tick()
        left = durable.runs(unfinished=True)
        due = [run.due_at for run in left if run.due_at is not None]
        if not due:
            break
        clock.now = max(clock.now, *due)  # type: ignore[attr-defined]
    return durable.run(run_id)


def error_of(run: Run) -> tuple[str, str]:
    assert run.error is not None, run.status
    return run.error.type, run.error.message


# -- retry opens again what had failed -----------------------------------------------------------------------------


async def _in_a_branch(ctx: Any, it: Steps) -> Any:
    return await ctx.parallel({"b": step("b", it.do("b")), "a": step("a", it.fail("a"))}, concurrency=1)


async def _in_a_map(ctx: Any, it: Steps) -> Any:
    def double(item: int) -> int:
        it.counts[f"m{item}"] += 1
        if it.broken and item == 2:
            raise Boom("2")
        return item * 2

    return await ctx.map("m", step_of(it.kind, double), [1, 2, 3], concurrency=1)


async def _several(ctx: Any, it: Steps) -> Any:
    async def after_a_caught_one(ctx: Any) -> Any:
        try:
            await ctx.run("caught", it.fail("caught"))
        except StepFailed as error:
            return [error.error_type, await ctx.run("c", it.fail("c"))]

    branches = {"a": step("a", it.fail("a")), "b": step("b", it.do("b")), "c": after_a_caught_one}
    return await ctx.parallel(branches, on_error="complete_all")


async def _nested(ctx: Any, it: Steps) -> Any:
    async def inner(ctx: Any) -> Any:
        first = await ctx.run("first", it.do("first"))
        branches = {"x": step("x", it.fail("x")), "y": step("y", it.do("y")), "z": step("z", it.fail("z"))}
        return [first, await ctx.parallel(branches, on_error="complete_all")]

    return await ctx.parallel({"w": step("w", it.do("w")), "inner": inner}, concurrency=1)


async def _race(ctx: Any, it: Steps) -> Any:
    return (await ctx.race({"a": step("a", it.fail("a"))}))[1]


async def _code(ctx: Any, it: Steps) -> Any:
    async def branch(ctx: Any) -> Any:
        first = await ctx.run("first", it.do("first"))
        if it.broken:
            raise Boom("in the code")
        return first

    async def outer(ctx: Any) -> Any:
        return await ctx.parallel({"a": branch, "b": step("b", it.do("b"))}, on_error="complete_all")

    return await ctx.parallel({"outer": outer})


async def _child(ctx: Any, it: Steps) -> Any:
    return [await ctx.run("a", it.do("a")), await ctx.call(it.child)]


async def _child_in_a_branch(ctx: Any, it: Steps) -> Any:
    async def branch(ctx: Any) -> Any:
        return await ctx.call(it.child)

    return await ctx.parallel({"c": branch, "b": step("b", it.do("b"))})


async def _wait(ctx: Any, it: Steps) -> Any:
    async def branch(ctx: Any) -> Any:
        return await ctx.wait_for_event("e", timeout="1m")

    return await ctx.parallel({"e": branch, "b": step("b", it.do("b"))})


@pytest.mark.parametrize(
    ("body", "result", "again"),
    [
        (_in_a_branch, {"a": 1, "b": 1}, {"a"}),
        (_in_a_map, [2, 4, 6], {"m2"}),
        (_several, {"a": 1, "b": 1, "c": ["Boom", 1]}, {"a", "c"}),
        (_nested, {"inner": [1, {"x": 1, "y": 1, "z": 1}], "w": 1}, {"x", "z"}),
        (_race, 1, {"a"}),
        (_code, {"outer": {"a": 1, "b": 1}}, set()),
        (_child, [1, 7], {"c2"}),
        (_child_in_a_branch, {"c": 7, "b": 1}, {"c2"}),
        (_wait, {"e": 5, "b": 1}, set()),
    ],
)
def test_a_retry_tries_again_what_failed_and_nothing_else(
    durable: Durable, kind: str, body: Any, result: Any, again: set[str]
) -> None:
    """The operations whose failures ended the run get a fresh budget, in branches, items and children too; what is
    recorded stays, and so do the failures that the code caught.
    """
    it = Steps(kind)

    async def child(ctx: Any) -> Any:
        await ctx.run("c1", it.do("c1"))
        return await ctx.run("c2", it.fail("c2", 7))

    it.child = define(kind, child, name="child")

    async def flow_body(ctx: Any) -> Any:
        return [await body(ctx, it), await ctx.run("end", it.do("end"))][0]

    run_id = durable.start(define(kind, flow_body), key="k").run_id
    for _ in range(2):  # what is still broken fails anew, and can be tried again
        assert finish(durable, run_id).status is Status.FAILED
        before = it.counts.copy()
        durable.retry(run_id)
    it.broken = False
    durable.send_event(run_id, "e", 5)
    run = finish(durable, run_id)
    assert (run.status, run.error) == (Status.COMPLETED, None)
    assert run.result is not None
    assert json.loads(run.result) == result
    fresh = it.counts - before
    assert set(fresh) - {"end", "m3"} == again
    assert all(count == 1 for count in fresh.values())
    assert len(durable.runs(workflow="child")) <= 1, "a child is retried in place"
    assert durable.check() == []


def test_a_child_that_somebody_retried_before_is_waited_for(durable: Durable, kind: str) -> None:
    """A retry of the parent goes on with the result of a child that was retried by itself; a child that cannot be
    retried in place (it has undone its steps) is started anew."""
    it = Steps(kind)

    async def child(ctx: Any, undoes: bool) -> Any:
        await ctx.run("c1", it.do("c1"), compensate=it.do("undo") if undoes else None)
        return await ctx.run("c2", it.fail("c2", 7))

    it.child = define(kind, child, name="child")

    async def body(ctx: Any, undoes: bool) -> Any:
        return await ctx.call(it.child, undoes)

    flow = define(kind, body)
    for undoes in (False, True):
        it.broken = True
        run_id = durable.start(flow, undoes).run_id
        assert finish(durable, run_id).status is Status.FAILED
        it.broken = False
        if not undoes:
            durable.retry(durable.runs(workflow="child")[0].id)
            durable.tick()
        durable.retry(run_id)
        assert finish(durable, run_id).result == "7"
    assert [str(run.status) for run in durable.runs(workflow="child")] == ["completed", "compensated", "completed"]


# -- the same on every pass ----------------------------------------------------------------------------------------


def test_errors_are_the_same_on_the_first_pass_and_on_every_replay(durable: Durable, kind: str) -> None:
    """StepFailed, WaitTimeout, ChildFailed and BranchesFailed: type, message and fields."""
    it = Steps(kind)
    seen: dict[str, list[Any]] = {}

    async def child(ctx: Any) -> Any:
        await ctx.run("c", it.fail("c"))

    it.child = define(kind, child, name="child")

    def told(error: Exception) -> Any:
        if isinstance(error, BranchesFailed):
            inner = {name: told(one) for name, one in error.errors.items()}
            return [str(error), list(error.errors), inner, error.results, error.place]
        assert isinstance(error, StepFailed)
        return [type(error), str(error), error.fields(), error.place, error.error_type]

    async def raises(ctx: Any) -> Any:
        await ctx.sleep("short", 1)
        raise StepFailed("own", error_type="T", error_message="m", attempts=1)

    async def late(ctx: Any) -> Any:
        await ctx.wait_for_event("e", timeout=2)

    async def body(ctx: Any) -> Any:
        async def step_(ctx: Any) -> Any:
            await ctx.run("f", it.fail("f"))

        async def wait_(ctx: Any) -> Any:
            await ctx.wait_for_event("never", timeout=1)

        async def call_(ctx: Any) -> Any:
            await ctx.call(it.child)

        async def parallel_(ctx: Any) -> Any:
            branches = {"late": late, "ok": step("ok", it.do("ok")), "f": step_, "own": raises}
            await ctx.parallel(branches, on_error="complete_all")

        async def fast_(ctx: Any) -> Any:
            await ctx.parallel({"late": late, "own": raises})

        async def race_(ctx: Any) -> Any:
            await ctx.race({"late": late, "f": step_})

        ways = (step_, wait_, call_, parallel_, fast_, race_)
        for number, way in enumerate(ways):
            try:
                await way(ctx)
            except (StepFailed, BranchesFailed) as error:
                seen.setdefault(f"{number} {way.__name__}", []).append(told(error))
        await ctx.sleep("last", 1)
        return len(ways)

    run_id = durable.start(define(kind, body)).run_id
    assert finish(durable, run_id).result == "6"
    assert len(seen) == 6
    for way, passes in seen.items():
        assert len(passes) > 1, way
        assert all(one == passes[0] for one in passes), way
    assert [seen[f"{number} {way}"][0][0] for number, way in enumerate(("step_", "wait_", "call_"))] == [
        StepFailed,
        WaitTimeout,
        ChildFailed,
    ]


def test_results_come_in_the_order_of_the_branches(durable: Durable, kind: str) -> None:
    """Whichever ended first: code that goes through them in a loop would be another one on each replay."""
    it = Steps(kind)

    async def slow(ctx: Any) -> Any:
        await ctx.sleep("s", 1)
        return await ctx.run("slow", it.do("slow"))

    async def body(ctx: Any) -> Any:
        orders = []
        for _ in range(2):
            both = await ctx.parallel({"slow": slow, "b": step("b", it.do("b")), "a": step("a", it.do("a"))})
            orders.append(list(both))
        return orders

    run = finish(durable, durable.start(define(kind, body)).run_id)
    assert run.result == '[["slow","b","a"],["slow","b","a"]]'


# -- what breaks a rule --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["names", "items", "another", "more", "fewer", "winner", "failure"])
def test_replayed_branches_that_go_another_way(durable: Durable, kind: str, way: str) -> None:
    """Other branches, items or operations than are recorded fail the run with NonDeterminism, whatever the code
    catches; mended and retried, it goes on.
    """
    it = Steps(kind)
    other = False

    async def branch(ctx: Any) -> Any:
        name = "other" if other and way == "another" else "one"
        first = await ctx.run(name, it.do(name))
        if way == "more" and other:
            await ctx.run("extra", it.do("extra"))
        if not (way == "fewer" and other):
            await ctx.run("two", it.do("two"))
        if way == "winner" and other:  # no record stands against it, but the winner had been over
            await ctx.run("extra", it.do("extra"))
        return first

    async def failing(ctx: Any) -> Any:
        if not (way == "failure" and other):
            raise Boom("x")

    async def both(ctx: Any) -> Any:
        if way == "items":
            return await ctx.map("m", step_of(kind, lambda item: item), [1, 2, 3] if other else [1, 2])
        if way == "winner":
            return list(await ctx.race({"a": branch}))
        if way == "failure":
            return await ctx.parallel({"a": failing, "b": branch}, on_error="complete_all")
        return await ctx.parallel({"b" if way == "names" and other else "a": branch})

    async def body(ctx: Any) -> Any:
        try:
            found = await both(ctx)
        except BranchesFailed as error:
            found = str(error)
        except Exception:
            found = "swallowed"
        await ctx.sleep("s", 1)
        return found

    run_id = durable.start(define(kind, body)).run_id
    durable.tick()
    recorded = it.counts.copy()
    other = True
    run = finish(durable, run_id)
    assert (run.status, error_of(run)[0]) == (Status.FAILED, "NonDeterminism")
    assert it.counts == recorded
    other = False
    durable.retry(run_id)
    assert finish(durable, run_id).status is Status.COMPLETED
    assert it.counts == recorded


@pytest.mark.parametrize("way", ["outer", "sibling", "ended"])
def test_a_context_used_in_the_wrong_branch(durable: Durable, kind: str, way: str) -> None:
    """The context of the function or of another branch inside of a branch, and that of a branch which is over."""
    it = Steps(kind)

    async def body(ctx: Any) -> Any:
        contexts: list[Any] = []

        async def first(inner: Any) -> Any:
            contexts.append(inner)
            await inner.run("a", it.do("a"))

        async def second(inner: Any) -> Any:
            used = {"outer": ctx, "sibling": contexts[0], "ended": inner}[way]
            await used.run("b", it.do("b"))

        try:
            await ctx.parallel({"first": first, "second": second}, concurrency=1)
            await contexts[0].run("c", it.do("c"))
        except Exception:
            pass
        return "swallowed"

    run = durable.execute(define(kind, body)).run
    assert (run.status, error_of(run)[0]) == (Status.FAILED, "ConcurrentOperation")
    assert "branch '/1:first'" in error_of(run)[1] or way == "outer"
    assert it.counts["c"] == 0


def test_a_context_used_when_its_branch_is_over(durable: Durable, kind: str) -> None:
    """By a thread or a task that the branch left behind: what it did would be on no pass but this one."""
    it = Steps(kind)

    async def body(ctx: Any) -> Any:
        over: Any = asyncio.Event() if kind == "async" else threading.Event()
        left: list[Any] = []

        async def branch(inner: Any) -> Any:
            async def later() -> None:
                if kind == "async":
                    await over.wait()
                else:
                    over.wait()
                try:
                    await inner.run("late", it.do("late"))
                except Exception:
                    pass

            if kind == "async":
                left.append(asyncio.ensure_future(later()))
            else:
                left.append(threading.Thread(target=lambda: drive(later())))
                left[0].start()
            return await inner.run("a", it.do("a"))

        await ctx.parallel({"branch": branch})
        over.set()
        if kind == "async":
            await left[0]
        else:
            left[0].join()
        return "swallowed"

    run = durable.execute(define(kind, body)).run
    assert (run.status, error_of(run)[0]) == (Status.FAILED, "ConcurrentOperation")
    assert "which has ended" in error_of(run)[1]
    assert it.counts["late"] == 0


def test_a_swallowed_rest_in_a_branch_is_raised_again(durable: Durable, kind: str) -> None:
    """Code that catches even a BaseException neither goes on early nor ends the branch."""
    it = Steps(kind)

    async def swallows(ctx: Any) -> Any:
        for name in ("s1", "s2"):
            try:
                await ctx.sleep(name, 60)
            except BaseException:
                pass
        return "early"

    async def goes_on(ctx: Any) -> Any:
        try:
            await ctx.sleep("s", 90)
        except BaseException:
            pass
        return await ctx.run("b", it.do("b"))

    async def body(ctx: Any) -> Any:
        return await ctx.parallel({"x": swallows, "y": goes_on})

    run_id = durable.start(define(kind, body)).run_id
    durable.tick()
    run = durable.run(run_id)
    assert (run.status, it.counts["b"]) == (Status.WAITING, 0)
    began = run.created_at
    run = finish(durable, run_id)
    assert run.result == '{"x":"early","y":1}'
    assert run.finished_at == began + 120_000


def test_sys_exit_in_a_branch_fails_the_branch(durable: Durable, kind: str) -> None:
    """In a step and around it: the branch has failed, the others go on as `on_error` says."""
    it = Steps(kind)

    async def around(ctx: Any) -> Any:
        raise SystemExit(3)

    async def inside(ctx: Any) -> Any:
        def leave() -> None:
            raise SystemExit(4)

        await ctx.run("exit", step_of(kind, leave))

    async def body(ctx: Any) -> Any:
        try:
            await ctx.parallel(
                {"around": around, "inside": inside, "b": step("b", it.do("b"))}, on_error="complete_all"
            )
        except BranchesFailed as error:
            return [list(error.errors), error.results, "sys.exit(3)" in str(error), "sys.exit(4)" in str(error)]

    assert durable.execute(define(kind, body)).run.result == '[["around","inside"],{"b":1},true,true]'


def test_keyboard_interrupt_in_a_branch_leaves_the_process(durable: Durable, kind: str) -> None:
    """No other branch begins anything; the run goes back, and goes on elsewhere."""
    it = Steps(kind)
    pressed = [True]

    def press() -> None:
        if pressed:
            pressed.pop()
            raise KeyboardInterrupt

    async def body(ctx: Any) -> Any:
        branches = {"a": step("a", step_of(kind, press)), "b": step("b", it.do("b"))}
        return await ctx.parallel(branches, concurrency=1)

    flow = define(kind, body)
    with pytest.raises(KeyboardInterrupt):
        durable.execute(flow, key="k")
    assert (it.counts["b"], durable.find(key="k").status) == (0, Status.PENDING)
    assert durable.execute(flow, key="k").run.result == '{"a":null,"b":1}'


def test_concurrency_is_honoured(durable: Durable, kind: str) -> None:
    """So many items or branches at once and no more; without it, all of a few."""
    now, most = 0, 0
    lock = threading.Lock()

    def enter() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)

    def leave() -> None:
        nonlocal now
        with lock:
            now -= 1

    if kind == "async":

        async def work(item: int) -> int:
            enter()
            await asyncio.sleep(0.005)
            leave()
            return item
    else:

        def work(item: int) -> int:  # type: ignore[misc]
            enter()
            time.sleep(0.005)
            leave()
            return item

    async def body(ctx: Any, at_once: int | None) -> Any:
        await ctx.map("m", work, range(8), concurrency=at_once)

    flow = define(kind, body)
    for at_once, expected in ((1, 1), (3, 3), (None, 8)):
        most = 0
        assert durable.execute(flow, at_once).run.status is Status.COMPLETED
        assert most <= expected
        assert most > 1 or at_once == 1


def test_a_branch_of_a_plain_workflow_is_plain(durable: Durable, kind: str) -> None:
    """A coroutine that nobody would await is refused by name; an async workflow takes both."""

    async def branch(_: Any) -> int:
        return 1

    if kind == "plain":
        from durable_cli import Context, workflow

        @workflow(name="flow")
        def flow(ctx: Context) -> Any:
            return ctx.parallel({"a": branch})

        assert error_of(durable.execute(flow).run)[0] == "UsageError"
        return

    async def body(ctx: Any) -> Any:
        return await ctx.parallel({"a": branch, "b": lambda _: 2})

    assert durable.execute(define(kind, body)).run.result == '{"a":1,"b":2}'


# -- branches that nobody needs any more ---------------------------------------------------------------------------


def test_what_a_loser_waits_for_concerns_nobody(durable: Durable, clock: Any, kind: str) -> None:
    """Its event wakes nobody (again and again), its question is not asked, its child is cancelled; a later wait for the
    same event gets it.
    """
    it = Steps(kind)

    async def child(ctx: Any) -> Any:
        await ctx.sleep("long", "1d")
        await ctx.run("never", it.do("never"))

    it.child = define(kind, child, name="child")

    async def body(ctx: Any) -> Any:
        async def event(ctx: Any) -> Any:
            await ctx.wait_for_event("e")

        async def question(ctx: Any) -> Any:
            await ctx.wait_for_input("q")

        async def call(ctx: Any) -> Any:
            await ctx.call(it.child)

        async def winner(ctx: Any) -> Any:
            await ctx.sleep("s", 1)
            return "w"

        won = await ctx.race({"event": event, "question": question, "call": call, "winner": winner})
        await ctx.wait_for_event("go")
        return [won, await ctx.wait_for_event("e")]

    run_id = durable.start(define(kind, body)).run_id
    durable.tick()
    assert [one.name for one in durable.inputs()] == ["q"]
    clock.advance(1000)
    durable.tick()
    assert durable.inputs() == []
    assert [run.status for run in durable.runs(workflow="child")] == [Status.CANCELLED]
    with pytest.raises(NotWaiting):
        durable.send_event(run_id, "e", 1, buffer=False)
    durable.send_event(run_id, "e", 5)
    counts = durable.tick()
    assert (counts.rested, durable.run(run_id).due_at) == (0, None), "an event that nobody waits for wakes nobody"
    durable.send_event(run_id, "go")
    durable.tick()
    assert durable.run(run_id).result == '[["winner","w"],5]'
    assert it.counts["never"] == 0


def test_two_branches_wait_for_one_event(durable: Durable, clock: Any, kind: str) -> None:
    """Both get it; but one whose time was over before it came does not, whoever looks first and however late."""

    async def body(ctx: Any) -> Any:
        async def hasty(ctx: Any) -> Any:
            return await ctx.wait_for_event("e", timeout=10, default="too late")

        async def patient(ctx: Any) -> Any:
            return await ctx.wait_for_event("e")

        return await ctx.parallel({"hasty": hasty, "patient": patient})

    flow = define(kind, body)
    for wait_ms, hasty in ((10_000, "1"), (10_001, '"too late"')):
        run_id = durable.start(flow).run_id
        durable.tick()
        clock.advance(wait_ms)
        durable.send_event(run_id, "e", 1)
        durable.tick()
        assert durable.run(run_id).result == f'{{"hasty":{hasty},"patient":1}}'


# -- undoing -------------------------------------------------------------------------------------------------------


def test_a_compensation_that_breaks_a_rule_stops_no_other(durable: Durable, kind: str) -> None:
    """It uses the context: it has failed, the others are called, and the first error stays the run's."""
    it = Steps(kind)

    async def body(ctx: Any) -> Any:
        async def nested(_: Any) -> None:
            await ctx.run("nested", it.do("nested"))

        def plain_nested(_: Any) -> None:
            nested(None).__await__().__next__()

        await ctx.run("a", it.do("a"), compensate=it.do("undo a"))
        await ctx.run("b", it.do("b"), compensate=nested if kind == "async" else plain_nested)
        await ctx.run("c", it.do("c"), compensate=it.do("undo c"))
        await ctx.sleep("s", 1)
        await ctx.run("f", it.fail("f"))

    run_id = durable.start(define(kind, body)).run_id
    run = finish(durable, run_id)
    assert (run.status, error_of(run)) == (Status.COMPENSATION_FAILED, ("Boom", "f"))
    assert (it.counts["undo a"], it.counts["undo c"], it.counts["nested"]) == (1, 1, 0)


def test_a_run_that_undoes_rests_whatever_comes(durable: Durable, clock: Any, kind: str) -> None:
    """An event that it had waited for does not wake it while a compensation waits for its next attempt; it cannot be
    cancelled or replaced, holds its key, and the child it waited for is cancelled."""
    it = Steps(kind)

    async def child(ctx: Any) -> Any:
        await ctx.sleep("long", "1d")

    it.child = define(kind, child, name="child")

    async def body(ctx: Any) -> Any:
        async def event(ctx: Any) -> Any:
            await ctx.wait_for_event("e")

        async def call(ctx: Any) -> Any:
            await ctx.call(it.child)

        await ctx.run("a", it.do("a"), compensate=it.fail("undo"), compensate_retry=Retry(9, base="1m", jitter=0))
        await ctx.parallel({"event": event, "call": call})

    flow = define(kind, body, timeout="1h")
    run_id = durable.start(flow, key="k").run_id
    durable.tick()
    clock.advance(3_600_000)
    durable.tick()
    run = durable.run(run_id)
    assert (run.status, run.holds_key, it.counts["undo"]) == (Status.COMPENSATING, True, 1)
    assert [one.status for one in durable.runs(workflow="child")] == [Status.CANCELLED]
    durable.send_event(run_id, "e")
    for _ in range(3):
        assert durable.tick().rested == 0
    assert it.counts["undo"] == 1
    assert durable.cancel(run_id).cancelled == 0
    with pytest.raises(KeyTaken):
        durable.start(flow, key="k", on_duplicate="cancel_existing")
    assert durable.run(run_id).status is Status.COMPENSATING
    it.broken = False
    assert finish(durable, run_id).status is Status.COMPENSATED
    assert error_of(durable.run(run_id))[0] == "Timeout"
