"""Waits, retries, branches, children and compensation, executed by ticks and by workers (SPEC 4.4 to 4.7).

Time is a clock that only the tests move, besides where real time is the subject (time-outs of what executes).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bothways import KINDS, define
from enginekit import CRASHED, Boom, change, die, in_child
from pydantic import BaseModel

from durable_cli import Durable, Retry, Run, Status, changing, workflow
from durable_cli.errors import AlreadyFinished, InvalidInput, NotWaiting, StepFailed, WaitTimeout
from durable_cli.store import events
from durable_cli.testing import Clock

HOUR = 3_600_000


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def started(durable: Durable, flow: Any, what: Any = None, **options: Any) -> str:
    """Start a run and do all that is due."""
    run_id = durable.start(flow, what, **options).run_id
    durable.tick()
    return run_id


def result(durable: Durable, run_id: str) -> Any:
    run = durable.run(run_id)
    assert run.status is Status.COMPLETED, run
    import json

    return json.loads(run.result or "null")


@pytest.fixture(params=["same process", "restarted"])
def again(request: pytest.FixtureRequest, durable: Durable, clock: Clock) -> Iterator[Any]:
    """The library as the process sees it that goes on: the same one, or another that has only the file."""
    if request.param == "same process":
        yield lambda: durable
        return
    opened: list[Durable] = []

    def reopen() -> Durable:
        opened.append(Durable(durable.path, clock=clock, sleep=clock.sleep))
        return opened[-1]

    yield reopen
    for one in opened:
        one.close()


# -- sleeping, and what is due while everything is off -------------------------------------------------------------


async def _sleeps(ctx: Any, _: Any) -> str:
    await ctx.sleep("nap", "1h")
    return "slept"


async def _listens(ctx: Any, _: Any) -> Any:
    return await ctx.wait_for_event("go", timeout="1h", default="nothing came")


async def _retries(ctx: Any, _: Any) -> int:
    def fail_first() -> int:
        if ctx.attempt == 1:
            raise Boom("the first time")
        return int(ctx.attempt)

    return await ctx.run("work", fail_first, retry=Retry(max_attempts=2, base="1h", jitter=0))


@pytest.mark.parametrize(
    ("body", "gives"), [(_sleeps, "slept"), (_listens, "nothing came"), (_retries, 2)], ids=["sleep", "event", "retry"]
)
@pytest.mark.parametrize("late_ms", [0, 3 * HOUR])
def test_what_came_due_while_all_was_off_is_due_now(
    durable: Durable, clock: Clock, again: Any, kind: str, body: Any, gives: Any, late_ms: int
) -> None:
    """G11: a sleep, a wait with a time-out and a retry go on at their moment, not a millisecond before, and at once
    where no process was there for hours; a resting run has no owner."""
    run_id = started(durable, define(kind, body))
    run = durable.run(run_id)
    assert (run.status, run.owner, run.due_at) == (Status.WAITING, None, clock.now + HOUR)
    clock.advance(HOUR - 1)
    assert again().tick().claimed == 0
    clock.advance(1 + late_ms)
    assert again().tick().claimed == 1
    assert result(durable, run_id) == gives


def test_attempts_that_raised_count_across_processes(durable: Durable, clock: Clock, again: Any, kind: str) -> None:
    """Between two attempts the run waits, with the delays 1, 2 and 4 s; the fourth failure ends it."""

    async def body(ctx: Any, _: Any) -> None:
        def fail() -> None:
            raise Boom(f"attempt {ctx.attempt}")

        await ctx.run("work", fail, retry=Retry(max_attempts=4, base="1s", jitter=0))

    run_id = started(durable, define(kind, body))
    for delay in (1000, 2000, 4000):
        assert durable.run(run_id).due_at == clock.now + delay
        clock.advance(delay)
        again().tick()
    run = durable.run(run_id)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert (run.error.type, run.error.message, run.error.attempt) == ("Boom", "attempt 4", 4)


def test_a_step_that_fails_after_a_wait_ends_the_run(durable: Durable, clock: Clock, kind: str) -> None:
    """E06: without retries left the run is failed, its key is free, and the run behind it executes in the same tick."""

    async def body(ctx: Any, what: Any) -> Any:
        event = await ctx.wait_for_event("go") if what == "first" else None

        def work() -> Any:
            if what == "first":
                raise Boom(str(event))
            return what

        return await ctx.run("work", work)

    flow = define(kind, body)
    first = started(durable, flow, "first", key="k")
    second = durable.start(flow, "second", key="k", on_duplicate="run_again").run_id
    durable.send_event(first, "go", 7)
    durable.tick()
    assert durable.run(first).status is Status.FAILED
    assert result(durable, second) == "second"
    assert durable.check() == []


# -- events --------------------------------------------------------------------------------------------------------


async def _two_waits(ctx: Any, _: Any) -> list[Any]:
    await ctx.sleep("before", "1m")
    first = await ctx.wait_for_event("e")
    await ctx.sleep("between", "1m")
    return [first, await ctx.wait_for_event("e"), await ctx.wait_for_event("other", timeout="1s", default="none")]


def test_an_event_sent_early_is_there_and_the_first_received_stays(
    durable: Durable, clock: Clock, again: Any, kind: str
) -> None:
    """E01, E02: of several that were kept the newest is received; later ones change nothing, on no replay and in no
    later wait of that name; `null` is a payload."""
    run_id = started(durable, define(kind, _two_waits))
    durable.send_event(run_id, "e", 2)
    durable.send_event(run_id, "e", 3)
    clock.advance(60_000)
    again().tick()
    durable.send_event(run_id, "e", 4)
    clock.advance(60_000)
    again().tick()
    durable.send_event(run_id, "other")
    again().tick()
    assert result(durable, run_id) == [3, 3, None]
    with pytest.raises(AlreadyFinished):
        durable.send_event(run_id, "e", 5)


@pytest.mark.parametrize(
    ("sent_at", "gives"), [(None, "timed out"), (-1, "event"), (0, "event"), (1, "timed out")], ids=str
)
def test_an_event_and_the_time_out_at_one_instant_have_one_outcome(
    durable: Durable, clock: Clock, again: Any, kind: str, sent_at: int | None, gives: str
) -> None:
    """An event sent at the very moment of the time-out is in time; one sent a millisecond later, before anybody
    looked, is too late, and `buffer=False` says so. On a replay it is the same."""

    async def body(ctx: Any, _: Any) -> list[Any]:
        first = await ctx.wait_for_event("e", timeout="1h", default="timed out")
        await ctx.sleep("replayed", "1m")
        return [first, await ctx.wait_for_event("e", timeout=1, default="timed out")]

    run_id = started(durable, define(kind, body))
    clock.advance(HOUR + (sent_at or 0))
    if sent_at == 1:
        with pytest.raises(NotWaiting):
            durable.send_event(run_id, "e", "event", buffer=False)
    if sent_at is not None:
        durable.send_event(run_id, "e", "event", buffer=sent_at == 1)
    clock.advance(5)
    again().tick()
    clock.advance(60_000)
    again().tick()
    clock.advance(60_000)
    again().tick()
    second = "timed out" if sent_at is None else "event"  # the late one was kept: the next wait of that name has it
    assert result(durable, run_id) == [gives, second]


def test_a_time_out_without_default_raises(durable: Durable, clock: Clock, kind: str) -> None:
    """WaitTimeout, which the function may catch, on the first pass and on the replay; uncaught it ends the run."""
    seen = []

    async def body(ctx: Any, catch: bool) -> str:
        try:
            await ctx.wait_for_event("e", timeout="1m")
        except WaitTimeout as error:
            seen.append(error.error_type)
            if not catch:
                raise
        await ctx.sleep("after", "1m")
        return "caught"

    flow = define(kind, body)
    caught, not_caught = started(durable, flow, True), started(durable, flow, False)
    for _ in range(3):
        clock.advance(60_000)
        durable.tick()
    assert result(durable, caught) == "caught"
    assert seen == ["WaitTimeout"] * 3
    failed = durable.run(not_caught)
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert failed.error.type == "WaitTimeout"


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
def test_any_and_all(durable: Durable, again: Any, kind: str, order: tuple[str, ...]) -> None:
    """`wait_for_any` gives the first that came, `wait_for_all` all of them, whatever the order, and each event counts
    for both waits."""

    async def body(ctx: Any, _: Any) -> list[Any]:
        first = await ctx.wait_for_any(["a", "b", "c"], timeout="1h")
        return [list(first), await ctx.wait_for_all(["a", "b", "c"])]

    run_id = started(durable, define(kind, body))
    for name in order:
        durable.send_event(run_id, name, name.upper())
        again().tick()
    assert result(durable, run_id) == [[order[0], order[0].upper()], {"a": "A", "b": "B", "c": "C"}]


# -- people --------------------------------------------------------------------------------------------------------


class Address(BaseModel):
    street: str
    number: int


@pytest.mark.parametrize(
    ("asked", "bad", "answered", "gives"),
    [
        ({}, 7, "hello", "hello"),
        ({"type": "choice", "choices": ["red", "blue"]}, "green", "blue", "blue"),
        ({"type": "approval"}, "perhaps", "yes", True),
        ({"type": "approval"}, "", False, False),
        ({"type": "form"}, "[1]", '{"a": 1}', {"a": 1}),
        ({"type": Address}, '{"street": "x"}', '{"street": "x", "number": "7"}', "x 7"),
    ],
    ids=["text", "choice", "approved", "rejected", "form", "model"],
)
def test_an_answer_is_checked_and_given(
    durable: Durable, again: Any, kind: str, asked: dict[str, Any], bad: Any, answered: Any, gives: Any
) -> None:
    """A question is listed until it is answered; a wrong answer is refused and changes nothing; a model comes back as
    that model."""

    async def body(ctx: Any, _: Any) -> Any:
        value = await ctx.wait_for_input("ask", prompt="what?", **asked)
        await ctx.sleep("replayed", "1s")
        return f"{value.street} {value.number}" if isinstance(value, Address) else value

    run_id = started(durable, define(kind, body))
    (question,) = durable.inputs()
    assert (question.run_id, question.name, question.details["prompt"]) == (run_id, "ask", "what?")
    with pytest.raises(InvalidInput):
        durable.provide_input(run_id, "ask", bad)
    with pytest.raises(NotWaiting):
        durable.provide_input(run_id, "another", answered)
    durable.provide_input(run_id, "ask", answered)
    assert durable.inputs() == []
    with pytest.raises(NotWaiting):
        durable.provide_input(run_id, "ask", answered)
    again().tick()
    change(durable, "UPDATE durable_runs SET due_at = 0 WHERE status = 'waiting'")
    change(durable, "UPDATE durable_steps SET due_at = 0 WHERE status = 'waiting'")
    again().tick()
    assert result(durable, run_id) == gives


def test_a_question_has_one_answer(durable: Durable, again: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people answer at once: the second one, whose answer was checked while the question was open, is told that
    it is not any more; only one answer is kept."""

    async def body(ctx: Any, _: Any) -> Any:
        return await ctx.wait_for_input("ask", type="approval")

    run_id = started(durable, define(kind, body))
    check = changing.answer

    def slow(*args: Any, **more: Any) -> str:
        monkeypatch.undo()
        text = check(*args, **more)
        durable.provide_input(run_id, "ask", "yes")
        return text

    monkeypatch.setattr(changing, "answer", slow)
    with pytest.raises(NotWaiting, match="does not ask for 'ask' now"):
        durable.provide_input(run_id, "ask", "no")
    row_id = durable.run(run_id).row_id
    kept = durable._engine.database.read(lambda tx: events.of_run(tx, row_id))
    assert [event.payload for event in kept] == ["true"]
    again().tick()
    assert result(durable, run_id) is True


def test_nobody_answers(durable: Durable, clock: Clock, kind: str) -> None:
    """The default is given as it is, once; the question is not listed any more."""

    async def body(ctx: Any, _: Any) -> Any:
        return await ctx.wait_for_input("ask", type="approval", timeout="1h", default=None)

    run_id = started(durable, define(kind, body))
    clock.advance(HOUR)
    durable.tick()
    assert result(durable, run_id) is None
    assert durable.inputs() == []


# -- time-outs of what executes (real time) ------------------------------------------------------------------------


@pytest.fixture
def real(db: Path) -> Iterator[Durable]:
    with Durable(db) as it:
        yield it


def test_the_time_out_of_a_step(real: Durable, kind: str) -> None:
    """An async step is cancelled; a plain one goes on in its thread, and what it gives is not used. The failure can be
    caught, and the run goes on."""
    ended, let_go = [], threading.Event()

    async def body(ctx: Any, _: Any) -> str:
        async def hang() -> str:
            import asyncio

            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return "never"

        def hang_plain() -> str:
            let_go.wait(30)
            ended.append("went on")
            return "late"

        try:
            await ctx.run("hang", hang if kind == "async" else hang_plain, timeout=0.05)
        except StepFailed as error:
            return f"{error.error_type}, then {await ctx.run('next', lambda: 'next')}"
        return "no time-out"

    run_id = started(real, define(kind, body))
    assert result(real, run_id) == "Timeout, then next"
    let_go.set()
    assert [step.name for step in real.run(run_id).steps or ()] == ["hang", "next"]
    if kind == "async":
        assert ended == ["cancelled"]


def test_the_time_out_of_a_run_that_executes(real: Durable, kind: str) -> None:
    """It fails with Timeout while its step still hangs; what the step gives later changes nothing; what it did before
    is undone."""
    let_go, undone = threading.Event(), []

    async def body(ctx: Any, _: Any) -> None:
        async def hang() -> None:
            import asyncio

            await asyncio.sleep(30)

        await ctx.run("before", lambda: "done", compensate=undone.append)
        await ctx.run("hang", hang if kind == "async" else lambda: let_go.wait(30))

    run_id = started(real, define(kind, body, timeout=0.3))
    run = real.run(run_id)
    assert run.status is Status.COMPENSATED
    assert run.error is not None
    assert run.error.type == "Timeout"
    assert undone == ["done"]
    before = real.run(run_id)
    let_go.set()
    for thread in threading.enumerate():
        if thread.name == "durable-step":
            thread.join(10)
    assert real.run(run_id) == before
    assert real.check() == []


def test_the_time_out_of_a_run_that_rests(durable: Durable, clock: Clock, again: Any, kind: str) -> None:
    """It is ended at its deadline although it waits for something later, and who waits behind it goes on."""
    flow = define(kind, _sleeps, timeout="10m")
    first = started(durable, flow, key="k")
    second = durable.start(flow, key="k", on_duplicate="run_again", timeout="2h").run_id
    clock.advance(600_000)
    counts = again().tick()
    assert counts.timed_out + counts.runs["failed"] == 1
    assert durable.run(first).status is Status.FAILED
    assert durable.run(second).status is Status.WAITING
    clock.advance(HOUR)
    again().tick()
    assert result(durable, second) == "slept"


# -- every end promotes --------------------------------------------------------------------------------------------


def _fails(undo: Any) -> Any:
    async def body(ctx: Any, what: Any) -> Any:
        if what == "next":
            return await ctx.run("next", lambda: "next")
        await ctx.run("first", lambda: 1, compensate=undo)

        def work() -> Any:
            if what in ("failed", "compensated"):
                raise Boom("no")

        await ctx.sleep("rest", "1m")
        return await ctx.run("work", work)

    return body


def _undo_fails(_: Any) -> None:
    raise Boom("cannot undo")


@pytest.mark.parametrize(
    ("end", "undo"),
    [
        ("completed", None),
        ("failed", None),
        ("compensated", lambda _: None),
        ("compensation_failed", _undo_fails),
        ("cancelled", None),
        ("timed out", None),
        ("crash loop", None),
        ("replaced", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_end_of_a_holder_promotes(durable: Durable, clock: Clock, kind: str, end: str, undo: Any) -> None:
    """However the holder ends, the run behind it has the key and executes in the same tick."""
    flow = define(kind, _fails(undo), timeout="10m")
    what = {"compensation_failed": "failed", "compensated": "failed"}.get(end, end)
    first = started(durable, flow, what, key="k")
    second = durable.start(flow, "next", key="k", on_duplicate="run_again").run_id
    clock.advance(60_000)
    if end == "cancelled":
        durable.cancel(first)
    elif end == "timed out":
        clock.advance(HOUR)
    elif end == "crash loop":
        change(
            durable,
            "INSERT INTO durable_owners (id, pid, kind, created_at) VALUES (4000, 4194304, 'run', 0)",
        )
        change(
            durable,
            "UPDATE durable_runs SET status = 'running', owner_id = 4000, crashes = 4, due_at = NULL"
            " WHERE public_id = :id",
            id=first,
        )
    elif end == "replaced":
        third = durable.start(flow, "next", key="k", on_duplicate="cancel_existing").run_id
    durable.tick()
    if end == "replaced":
        assert result(durable, third) == "next"
    assert durable.run(first).status == {
        "timed out": "failed", "crash loop": "failed", "replaced": "cancelled"
    }.get(end, end)  # fmt: skip
    assert result(durable, second) == "next"
    assert durable.run(second).holds_key
    assert durable.check() == []


def test_cancelling_a_waiting_run_and_its_holder(durable: Durable, clock: Clock, kind: str) -> None:
    """C08: the end of the run behind touches the holder in nothing; that of the holder starts the run behind, once."""
    flow = define(kind, _fails(None))
    holder = started(durable, flow, "completed", key="k")
    first = durable.start(flow, "next", key="k", on_duplicate="run_again").run_id
    before = durable.run(holder)
    durable.cancel(first)
    assert durable.tick().claimed == 0
    assert durable.run(holder) == before
    second = durable.start(flow, "next", key="k", on_duplicate="run_again").run_id
    durable.cancel(holder)
    assert durable.tick().claimed == 1
    assert result(durable, second) == "next"
    assert durable.tick().claimed == 0


# -- compensation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["tick", "foreground"])
def test_compensation_goes_on_after_a_crash(durable: Durable, db: Path, tmp_path: Path, kind: str, by: str) -> None:
    """Killed in the middle of undoing: what was undone is not undone again, the rest is, newest first; the outcome and
    the first error stay; meanwhile the run holds its key and cannot be cancelled or replaced."""
    log = tmp_path / "undone"
    killer = tmp_path / "killer"

    def undo(name: str) -> None:
        with log.open("a") as file:
            file.write(f"{name} ")
        if name == "two" and killer.exists():
            killer.unlink()
            die()

    async def body(ctx: Any, _: Any) -> None:
        for name in ("one", "two", "three"):
            await ctx.run(name, lambda name=name: name, compensate=undo)

        def fail() -> None:
            raise Boom("the first error")

        await ctx.run("last", fail)

    flow = define(kind, body)
    killer.touch()
    run_id = durable.start(flow, key="k").run_id

    def execute() -> None:
        with Durable(db, clock=lambda: durable._engine.now()) as it:
            it.tick() if by == "tick" else it.resume(run_id, definition=flow.definition)

    assert in_child(execute) == CRASHED
    run = durable.run(run_id)
    assert (run.status, run.holds_key) == (Status.COMPENSATING, True)
    assert durable.cancel(run_id).cancelled == 0
    assert log.read_text() == "three two "
    durable.tick()
    run = durable.run(run_id)
    assert run.status is Status.COMPENSATED
    assert run.error is not None
    assert run.error.message == "the first error"
    assert log.read_text() == "three two two one "


# -- branches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
@pytest.mark.parametrize("operation", ["parallel", "race"])
def test_branches_replay_exactly_whatever_finished_first(
    durable: Durable, again: Any, kind: str, order: tuple[str, ...], operation: str
) -> None:
    """The branches end in every order; all of them, or the winner, are the same on each replay, and no step runs a
    second time. The losers of a race begin nothing new."""
    ran: list[str] = []

    async def body(ctx: Any, _: Any) -> Any:
        def branch(name: str) -> Any:
            async def one(inner: Any) -> str:
                await inner.wait_for_event(f"go {name}")
                return await inner.run("work", lambda: ran.append(name) or name)

            return one

        branches = {name: branch(name) for name in "abc"}
        found = await (ctx.parallel(branches) if operation == "parallel" else ctx.race(branches))
        await ctx.wait_for_event("end")
        return found

    run_id = started(durable, define(kind, body))
    for name in order:
        durable.send_event(run_id, f"go {name}")
        again().tick()
    durable.send_event(run_id, "end")
    again().tick()
    if operation == "parallel":
        assert result(durable, run_id) == {"a": "a", "b": "b", "c": "c"}
        assert ran == list(order)
    else:
        assert result(durable, run_id) == [order[0], order[0]]
        assert ran == [order[0]]


def test_branches_rest_apart_and_nest(durable: Durable, clock: Clock, again: Any, kind: str) -> None:
    """The run is due when its first branch is; a branch may sleep, retry, and branch again."""

    async def body(ctx: Any, _: Any) -> Any:
        async def sleeper(inner: Any) -> str:
            await inner.sleep("long", "3h")
            return "slept"

        async def nested(inner: Any) -> Any:
            async def quick(innermost: Any) -> str:
                await innermost.sleep("short", "1h")
                return "quick"

            async def listener(innermost: Any) -> Any:
                return await innermost.wait_for_event("e", timeout="2h", default="nothing")

            return await inner.parallel({"quick": quick, "listener": listener})

        return await ctx.parallel({"sleeper": sleeper, "nested": nested})

    run_id = started(durable, define(kind, body))
    for _ in range(3):
        assert durable.run(run_id).due_at == clock.now + HOUR
        clock.advance(HOUR)
        again().tick()
    assert result(durable, run_id) == {"sleeper": "slept", "nested": {"quick": "quick", "listener": "nothing"}}


@pytest.mark.parametrize("on_error", ["fail_fast", "complete_all"])
def test_a_branch_that_fails(durable: Durable, kind: str, on_error: str) -> None:
    """fail_fast: the failure is raised and the others begin nothing new; complete_all: all go to their ends first.
    Steps of branches are undone too."""
    did: list[str] = []

    async def body(ctx: Any, _: Any) -> Any:
        async def good(inner: Any) -> None:
            await inner.run("good", lambda: did.append("good"), compensate=lambda _: did.append("undone"))
            await inner.wait_for_event("go on")
            await inner.run("more", lambda: did.append("more"))

        async def bad(inner: Any) -> None:
            await inner.wait_for_event("fail")

            def fail() -> None:
                raise Boom("bad branch")

            await inner.run("bad", fail)

        await ctx.parallel({"good": good, "bad": bad}, on_error=on_error)

    run_id = started(durable, define(kind, body))
    durable.send_event(run_id, "fail")
    durable.tick()
    if on_error == "complete_all":
        assert durable.run(run_id).status is Status.WAITING
        durable.send_event(run_id, "go on")
        durable.tick()
    run = durable.run(run_id)
    assert run.status is Status.COMPENSATED
    assert run.error is not None
    assert "bad branch" in run.error.message
    assert did == (["good", "undone"] if on_error == "fail_fast" else ["good", "more", "undone"])


def test_many_items(durable: Durable, kind: str) -> None:
    """2,000 items of `map`, a step each, in order, each once also when the run is replayed in the middle."""
    ran: list[int] = []

    async def body(ctx: Any, count: int) -> int:
        def work(item: int) -> int:
            if item == 1000 and ctx.attempt == 1:
                raise Boom("once")
            ran.append(item)
            return item * 2

        results = await ctx.map("items", work, range(count), concurrency=8, retry=Retry(max_attempts=2, base="1s"))
        assert results == [item * 2 for item in range(count)]
        return len(results)

    run_id = started(durable, define(kind, body), 2000)
    assert durable.run(run_id).status is Status.WAITING  # for the second attempt of one item
    change(durable, "UPDATE durable_runs SET due_at = 0 WHERE status = 'waiting'")
    change(durable, "UPDATE durable_steps SET due_at = 0 WHERE status = 'retrying'")
    durable.tick()
    assert result(durable, run_id) == 2000
    assert sorted(ran) == list(range(2000))


# -- children ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["tick", "foreground"])
def execute(request: pytest.FixtureRequest, durable: Durable) -> Any:
    """Execute a workflow to its end, by ticks or in the foreground; its run."""

    def by_ticks(flow: Any, what: Any = None, **options: Any) -> Run:
        return durable.run(started(durable, flow, what, **options))

    def here(flow: Any, what: Any = None, **options: Any) -> Run:
        return durable.execute(flow, what, **options).run

    return by_ticks if request.param == "tick" else here


def test_a_child_gives_its_result_or_its_failure(durable: Durable, execute: Any, kind: str) -> None:
    """Through three generations; a failure is caught where the code catches it; `start` gives the id at once."""

    async def grandchild(ctx: Any, n: int) -> int:
        def work() -> int:
            if n < 0:
                raise Boom("negative")
            return n * 2

        return await ctx.run("work", work)

    inner = define(kind, grandchild, name="grandchild")

    async def child(ctx: Any, n: int) -> int:
        return await ctx.call(inner, n) + 1

    middle = define(kind, child, name="child")

    async def parent(ctx: Any, _: Any) -> list[Any]:
        good = await ctx.call(middle, 20)
        other = await ctx.start(inner, 5)
        try:
            bad = await ctx.call(middle, -1)
        except StepFailed as error:
            bad = error.error_message
        return [good, other, bad]

    run = execute(define(kind, parent, name="parent"))
    good, other, bad = result(durable, run.id)
    assert good == 41
    assert "negative" in bad
    durable.tick()
    assert result(durable, other) == 10
    assert {one.status for one in durable.runs()} == {Status.COMPLETED, Status.FAILED}
    assert durable.check() == []


def test_cancelling_goes_down_to_the_last_child(durable: Durable, kind: str) -> None:
    """All that the run started is cancelled with it, whether it waited for it or not."""

    async def leaf(ctx: Any, _: Any) -> None:
        await ctx.wait_for_event("never")

    last = define(kind, leaf, name="leaf")

    async def middle(ctx: Any, _: Any) -> None:
        await ctx.start(last)
        await ctx.call(last)

    between = define(kind, middle, name="middle")

    async def top(ctx: Any, _: Any) -> None:
        await ctx.call(between)

    run_id = started(durable, define(kind, top, name="top"))
    assert len(durable.runs(unfinished=True)) == 4
    durable.cancel(run_id)
    assert [run.status for run in durable.runs()] == [Status.CANCELLED] * 4
    assert durable.tick().claimed == 0


@pytest.mark.parametrize("policy", ["use_existing", "run_again"])
def test_a_run_that_would_wait_for_itself_fails(durable: Durable, execute: Any, kind: str, policy: str) -> None:
    """A child with the key of its ancestor would wait for it, or behind it, for ever: the call raises, nothing is
    started, and the ancestor goes on."""
    flows: dict[str, Any] = {}

    async def child(ctx: Any, _: Any) -> Any:
        return await ctx.call(flows["parent"], key="k", on_duplicate=policy)

    async def parent(ctx: Any, _: Any) -> str:
        try:
            await ctx.call(flows["child"])
        except StepFailed as error:
            return error.error_type
        return "no deadlock"

    flows |= {"child": define(kind, child, name="child"), "parent": define(kind, parent, name="parent")}
    run = execute(flows["parent"], key="k")
    assert result(durable, run.id) == "Deadlock"
    assert len(durable.runs()) == 2
    assert durable.check() == []


def test_two_runs_that_wait_for_each_other(durable: Durable, kind: str) -> None:
    """Each calls the other by its key: the second call raises, and both end."""
    flows: dict[str, Any] = {}

    def of(other: str) -> Any:
        async def body(ctx: Any, _: Any) -> str:
            await ctx.wait_for_event("go")
            try:
                return str(await ctx.call(flows[other], key=other))
            except StepFailed as error:
                return error.error_type

        return body

    flows |= {"a": define(kind, of("b"), name="a"), "b": define(kind, of("a"), name="b")}
    runs = [started(durable, flows[name], key=name) for name in "ab"]
    for run_id in runs:
        durable.send_event(run_id, "go")
        durable.tick()
    assert [result(durable, run_id) for run_id in runs] == ["Deadlock", "Deadlock"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", ["wait_for_event", "wait_for_input"])
def test_a_default_that_cannot_be_stored_names_its_wait(durable: Durable, kind: str, operation: str) -> None:
    """Before anything waits."""

    async def body(ctx: Any, _: object) -> Any:
        return await getattr(ctx, operation)("the answer", timeout="1s", default=object())

    run = durable.run(started(durable, define(kind, body)))
    assert (run.status, run.steps) == ("failed", ())
    assert "the default of 'the answer'" in run.error.message


def test_a_swallowed_rest_is_raised_again(durable: Durable, clock: Clock) -> None:
    """`except BaseException` around a wait does not make the run go on too early."""

    @workflow
    def stubborn(ctx: Any) -> str:
        try:
            ctx.sleep("rest", "1h")
        except BaseException:
            ctx.run("too early", lambda: 1)
        return "slept"

    run_id = started(durable, stubborn)
    assert [step.name for step in durable.run(run_id).steps or ()] == ["rest"]
    clock.advance(HOUR)
    durable.tick()
    assert result(durable, run_id) == "slept"
