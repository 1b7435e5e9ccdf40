"""Steps through the library, plain and `async def` alike: replay, retries, crashes, and what breaks the rules."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import decimal
import itertools
import json
import logging
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from bothways import KINDS, define, step_of
from enginekit import CRASHED, Boom, change, die, in_child, snapshot
from pydantic import BaseModel
from typing_extensions import TypedDict

from durable_cli import Abort, Durable, InvalidInput, KeyTaken, NonDeterminism, Retry, Run, StepFailed, workflow
from durable_cli.definition import WorkflowFunction
from durable_cli.errors import InvalidDefinition, UsageError
from durable_cli.values import MAX_VALUE_BYTES

pytestmark = pytest.mark.parametrize("kind", KINDS)


class Notes:
    """Lines in a file: what code told that may have run in a process that is dead by now."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: object) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, line: str) -> int:
        return self.lines.count(line)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def crash(durable: Durable, flow: WorkflowFunction[..., Any], **start: Any) -> None:
    """Execute the workflow in a process that dies in a step."""
    assert in_child(lambda: durable.execute(flow, **start)) == CRASHED


def error_of(run: Run) -> tuple[str, str]:
    assert run.error is not None, run.status
    return run.error.type, run.error.message


# -- values (CASES G16) --------------------------------------------------------------------------------------------


class Article(BaseModel):
    id: int
    at: dt.datetime


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float


class Row(TypedDict):
    name: str


def _plain_values() -> Any:
    return {"a": (1, 2.5, None), "b": [True, "é", 2**70], "c": {}}


def _tuple() -> tuple[int, str]:
    return 1, "x"


def _int_keys() -> dict[int, str]:
    return {1: "a", 2: "b"}


def _moment() -> dt.datetime:
    return dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)


def _set() -> set[int]:
    return {3, 1, 2}


def _decimal() -> decimal.Decimal:
    return decimal.Decimal("0.10")


def _bytes() -> bytes:
    return b"\x00\xff"


def _article() -> Article:
    return Article(id=7, at=_moment())


def _articles() -> list[Article]:
    return [_article()]


def _point() -> Point:
    return Point(1.0, 2.0)


def _row() -> Row:
    return {"name": "x"}


def _nan() -> float:
    return 1e308


GOOD = [_plain_values, _tuple, _int_keys, _moment, _set, _decimal, _bytes, _article, _articles, _point, _row, _nan]


def comparing(make: Callable[[], Any]) -> Any:
    """A workflow that says whether a step's result equals, in value and type, what the step returned."""

    async def body(ctx: Any) -> bool:
        value = await ctx.run("make", make)
        return bool(value == make()) and type(value) is type(make())

    return body


@pytest.mark.parametrize("make", GOOD, ids=lambda make: make.__name__)
def test_the_next_line_sees_the_same_after_a_crash(
    durable: Durable, notes: Notes, kind: str, make: Callable[[], Any]
) -> None:
    """What a step gives is equal in type and value on the first pass and on replay, and it ran once."""

    def first() -> Any:
        notes.add("ran")
        return make()

    first.__annotations__["return"] = get_type_hints(make)["return"]

    async def body(ctx: Any) -> None:
        value = await ctx.run("make", step_of(kind, first))
        notes.add(f"{type(value)} {sorted(value) if isinstance(value, set) else value!r}")
        await ctx.run("next", lambda: die() if len(notes.lines) < 3 else 0)

    flow = define(kind, body)
    crash(durable, flow, key="k")
    assert durable.execute(flow, key="k").run.status == "completed"
    seen = [line for line in notes.lines if line.startswith("<")]
    assert notes.count("ran") == 1
    assert len(seen) == 2
    assert seen[0] == seen[1]
    if make is not _plain_values:
        assert durable.execute(define(kind, comparing(make)), key="other").run.result == "true"


def _untyped(value: Any) -> Callable[[], Any]:
    def make():  # type: ignore[no-untyped-def]
        return value

    return make


def _wrong() -> int:
    return "text"  # type: ignore[return-value]


def _typed_nan() -> Any:
    return float("nan")


BAD = {
    "datetime": (_untyped(dt.datetime(2026, 1, 1)), "datetime"),
    "set": (_untyped({1}), "set"),
    "decimal": (_untyped(decimal.Decimal(1)), "Decimal"),
    "nan": (_untyped(float("nan")), "nan"),
    "bytes": (_untyped(b"x"), "bytes"),
    "int keys": (_untyped({1: 2}), "int"),
    "model": (_untyped(Article(id=1, at=dt.datetime(2026, 1, 1))), "Article"),
    "lock": (_untyped(threading.Lock()), "lock"),
    "generator": (_untyped(n for n in "ab"), "generator"),
    "wrong type": (_wrong, "int"),
    "typed nan": (_typed_nan, "nan"),
    "too large": (_untyped("x" * MAX_VALUE_BYTES), "1,048,576"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_stored_fails_the_step_at_once(durable: Durable, kind: str, what: str) -> None:
    """Once, whatever the retry policy (the effect is not repeated), naming step and type; nothing of it is kept."""
    make, named = BAD[what]
    calls = []

    def step() -> Any:
        calls.append(1)
        return make()

    if "return" in make.__annotations__:
        step.__annotations__["return"] = get_type_hints(make)["return"]
    else:
        del step.__annotations__["return"]

    async def body(ctx: Any) -> None:
        await ctx.run("make it", step_of(kind, step), retry=Retry(max_attempts=5))

    run = durable.execute(define(kind, body)).run
    assert (run.status, len(calls)) == ("failed", 1)
    assert run.error is not None
    assert (run.error.type, run.error.step, run.error.attempt) == ("Unstorable", "make it", 1)
    assert named in run.error.message
    assert run.steps is not None
    assert [step.status for step in run.steps] == ["failed"]


def test_a_result_of_the_function_that_cannot_be_stored(durable: Durable, kind: str) -> None:
    """The run fails with it; what its steps recorded stays, and a retry after mending runs none of them again."""
    calls = []

    async def body(ctx: Any) -> Any:
        await ctx.run("a", lambda: calls.append(1))
        return {1, 2} if len(calls) == 1 and not mended else "fine"

    mended: list[int] = []
    flow = define(kind, body)
    run = durable.execute(flow, key="k").run
    assert error_of(run)[0] == "Unstorable"
    assert "flow" in error_of(run)[1]
    mended.append(1)
    durable.retry(run.id)
    again = durable.execute(flow, key="k").run
    assert (again.id, again.result, len(calls)) == (run.id, '"fine"', 1)


# -- retries -------------------------------------------------------------------------------------------------------

POLICIES = {
    "constant": (Retry(4, "constant", "10s", jitter=0), [10, 10, 10]),
    "linear": (Retry(4, "linear", "10s", jitter=0), [10, 20, 30]),
    "exponential": (Retry(4, "exponential", "10s", jitter=0), [10, 20, 40]),
    "capped": (Retry(4, "exponential", "10s", max_delay="15s", jitter=0), [10, 15, 15]),
    "jitter": (Retry(4, "constant", "10s", jitter=0.5), None),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_delays_between_attempts(durable: Durable, clock: Any, kind: str, policy: str) -> None:
    """The run is `waiting` and due in between, and holds its key; the last failure ends the step."""
    retry, delays = POLICIES[policy]
    at: list[int] = []
    rests: list[tuple[str, int | None, bool]] = []

    def fail() -> None:
        at.append(clock.now)
        raise Boom("no")

    async def body(ctx: Any) -> None:
        await ctx.run("fail", step_of(kind, fail), retry=retry)

    def watch(progress: Any) -> None:
        if progress.kind == "resting":
            run = durable.run(progress.run_id)
            rests.append((run.status, run.due_at, run.holds_key))
            assert progress.due_at == run.due_at

    run = durable.execute(define(kind, body), key="k", progress=watch).run
    gaps = [(after - before) / 1000 for before, after in itertools.pairwise(at)]
    assert run.status == "failed"
    if delays is None:
        assert all(5 <= gap <= 15 for gap in gaps)
        assert len(set(gaps)) > 1
    else:
        assert gaps == delays
    assert rests == [("waiting", moment, True) for moment in at[1:]]
    assert run.steps is not None
    [step] = run.steps
    assert (step.status, step.attempts, step.failures) == ("failed", 4, 4)
    assert run.error is not None
    assert (run.error.type, run.error.message, run.error.step, run.error.attempt) == ("Boom", "no", "fail", 4)


def _exit() -> None:
    sys.exit(3)


def _raiser(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("fail", "retry_on", "attempts", "told"),
    [
        (_raiser(Abort("stop it")), Exception, 1, ("Abort", "stop it")),
        (_raiser(KeyError("x")), (ValueError, OSError), 1, ("KeyError", "'x'")),
        (_raiser(FileNotFoundError("x")), (ValueError, OSError), 3, ("FileNotFoundError", "x")),
        (_exit, Exception, 1, ("SystemExit", "sys.exit(3) was called")),
        (
            _raiser(ExceptionGroup("many", [ValueError("a")])),
            Exception,
            3,
            ("ExceptionGroup", "many (1 sub-exception)"),
        ),
    ],
    ids=["Abort", "not retried", "subclass retried", "sys.exit", "group"],
)
def test_which_failures_are_retried(
    durable: Durable, kind: str, fail: Any, retry_on: Any, attempts: int, told: tuple[str, str]
) -> None:
    calls = []

    def step() -> None:
        calls.append(1)
        fail()

    async def body(ctx: Any) -> None:
        await ctx.run("s", step_of(kind, step), retry=Retry(3, base="1s", retry_on=retry_on))

    run = durable.execute(define(kind, body)).run
    assert (run.status, len(calls), error_of(run)) == ("failed", attempts, told)


def test_an_error_whose_text_raises(durable: Durable, kind: str) -> None:
    """Any exception ends in the run, one that cannot even be printed too."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    async def body(ctx: Any) -> None:
        await ctx.run("s", step_of(kind, _raiser(Mute())))

    run = durable.execute(define(kind, body)).run
    assert (run.status, error_of(run)[0]) == ("failed", "Mute")


def test_attempts_and_failures_across_crashes(durable: Durable, notes: Notes, kind: str) -> None:
    """An attempt cut off by a crash is shown and raises `ctx.attempt`, and uses none of the budget (G18)."""

    async def body(ctx: Any) -> None:
        def step() -> None:
            notes.add(ctx.attempt)
            if ctx.attempt == 2:
                die()
            raise Boom("no")

        await ctx.run("s", step_of(kind, step), retry=Retry(2, "constant", "1s"))

    flow = define(kind, body)
    crash(durable, flow, key="k")
    waiting = durable.find(key="k")
    assert waiting.steps is not None
    assert [(step.attempts, step.failures, step.status) for step in waiting.steps] == [(1, 1, "retrying")]
    run = durable.execute(flow, key="k").run
    assert notes.lines == ["1", "2", "3"]
    assert run.steps is not None
    assert [(step.attempts, step.failures, step.status) for step in run.steps] == [(3, 2, "failed")]


def test_a_crash_before_any_record_counts_as_an_attempt_too(durable: Durable, notes: Notes, kind: str) -> None:
    async def body(ctx: Any) -> Any:
        def step() -> int:
            notes.add(ctx.attempt)
            return die() if ctx.attempt < 3 else ctx.attempt

        await ctx.run("before", lambda: None)
        return await ctx.run("s", step_of(kind, step))

    flow = define(kind, body)
    crash(durable, flow, key="k")
    crash(durable, flow, key="k")
    run = durable.execute(flow, key="k").run
    assert (notes.lines, run.result) == (["1", "2", "3"], "3")
    assert run.steps is not None
    assert [(step.name, step.attempts, step.failures) for step in run.steps] == [("before", 1, 0), ("s", 3, 0)]
    assert run.crashes == 0


def test_a_due_retry_goes_on_after_a_long_absence(durable: Durable, clock: Any, kind: str) -> None:
    """G11: left while it rests; hours after it was due, the next start goes on at once."""
    calls = []

    def step() -> int:
        calls.append(clock.now)
        if len(calls) == 1:
            raise Boom("no")
        return 7

    async def body(ctx: Any) -> Any:
        return await ctx.run("s", step_of(kind, step), retry=Retry(2, "constant", "1h", jitter=0))

    flow = define(kind, body)
    left = durable.execute(flow, key="k", max_wait=1)
    assert (left.left, left.run.status, left.run.owner) == (True, "waiting", None)
    early = durable.execute(flow, key="k")
    assert (early.executed, early.start and early.start.outcome) == (False, "existing")
    clock.advance(3 * 3_600_000)
    done = durable.execute(flow, key="k")
    assert (done.run.id, done.run.result, len(calls)) == (left.run.id, "7", 2)


# -- failures that the function sees -------------------------------------------------------------------------------


def test_a_caught_failure_is_the_same_on_replay_and_stays_recorded(durable: Durable, notes: Notes, kind: str) -> None:
    """StepFailed carries the record, never the live exception: first pass and replay cannot be told apart."""

    async def body(ctx: Any) -> str:
        def fail() -> None:
            notes.add("ran")
            raise Boom("no")

        try:
            await ctx.run("fail", step_of(kind, fail))
        except StepFailed as error:
            traceback = (error.traceback or "").replace("\n", "|")
            notes.add(f"seen {error} {error.fields()} {error.error_message} {error.place} {traceback}")
        await ctx.run("next", lambda: die() if len(notes.lines) < 3 else 0)
        return "went on"

    flow = define(kind, body)
    crash(durable, flow, key="k")
    run = durable.execute(flow, key="k").run
    ran, *seen = notes.lines
    assert (ran, len(seen), len(set(seen))) == ("ran", 2, 1)
    assert "Boom: no" in seen[0]
    assert "test_steps.py" in seen[0]
    assert "durable_cli" not in seen[0].replace("durable_cli.errors", "")
    assert (run.status, run.result) == ("completed", '"went on"')
    assert run.steps is not None
    assert [step.status for step in run.steps] == ["failed", "completed"]


def test_a_retry_gives_only_the_failed_operation_a_fresh_budget(durable: Durable, kind: str) -> None:
    """Recorded steps stay, caught failures stay, the one that ended the run has all its attempts again."""
    calls: list[str] = []
    working = [""]

    def step(name: str) -> Callable[[], Any]:
        def run() -> str:
            calls.append(name)
            if name not in working:
                raise Boom(name)
            return name

        return step_of(kind, run)

    async def body(ctx: Any) -> str:
        await ctx.run("a", step("a"))
        try:
            await ctx.run("b", step("b"))
        except StepFailed:
            pass
        await ctx.run("c", step("c"), retry=Retry(2, "constant", "1s"))
        return "done"

    flow = define(kind, body)
    working.append("a")
    run = durable.execute(flow, key="k").run
    assert (run.status, calls) == ("failed", ["a", "b", "c", "c"])
    durable.retry(run.id)
    again = durable.execute(flow, key="k").run
    assert (again.id, again.status, calls[4:]) == (run.id, "failed", ["c", "c"])
    working.append("c")
    durable.retry(run.id)
    done = durable.execute(flow, key="k").run
    assert (done.id, done.result, calls[6:]) == (run.id, '"done"', ["c"])
    assert done.steps is not None
    assert [(step.name, step.status, step.attempts) for step in done.steps] == [
        ("a", "completed", 1),
        ("b", "failed", 1),
        ("c", "completed", 5),
    ]


def test_a_failure_wrapped_in_another_error_is_tried_again(durable: Durable, kind: str) -> None:
    """`raise Other from error`: the run tells the user's error and the step; a retry tries that step again."""
    working: list[int] = []

    def fail() -> str:
        if not working:
            raise Boom("no")
        return "yes"

    async def body(ctx: Any) -> Any:
        try:
            return await ctx.run("fail", step_of(kind, fail))
        except StepFailed as error:
            raise LookupError("wrapped") from error

    flow = define(kind, body)
    run = durable.execute(flow, key="k").run
    assert error_of(run) == ("LookupError", "wrapped")
    assert run.error is not None
    assert run.error.step == "fail"
    working.append(1)
    durable.retry(run.id)
    assert durable.execute(flow, key="k").run.result == '"yes"'


def test_a_run_that_failed_outside_its_steps_is_replayed_by_a_retry(durable: Durable, kind: str) -> None:
    calls = []

    async def body(ctx: Any) -> str:
        await ctx.run("a", lambda: calls.append(1))
        if not mended:
            raise ValueError("outside")
        return "done"

    mended: list[int] = []
    flow = define(kind, body)
    run = durable.execute(flow, key="k").run
    assert error_of(run) == ("ValueError", "outside")
    assert run.error is not None
    assert "test_steps.py" in (run.error.traceback or "")
    mended.append(1)
    durable.retry(run.id)
    assert durable.execute(flow, key="k").run.result == '"done"'
    assert len(calls) == 1


# -- non-determinism -----------------------------------------------------------------------------------------------

# what the mended-wrongly function does: operations ("run" + name, or the kind), and how it ends
OTHER_WAYS: dict[str, tuple[list[str], str, tuple[str, str | None, str | None]]] = {
    "other name": (["run a", "run x"], "return", ("operation 2", "run 'b'", "run 'x'")),
    "other kind": (["run a", "now"], "return", ("operation 2", "run 'b'", "now 'now'")),
    "missing": (["run b"], "return", ("operation 1", "run 'a'", "run 'b'")),
    "surplus": (["run x", "run a", "run b"], "return", ("operation 1", "run 'a'", "run 'x'")),
    "returns early": (["run a"], "return", ("operation 2", "run 'b'", None)),
    "raises early": (["run a"], "raise", ("operation 2", "run 'b'", None)),
    "does nothing": ([], "return", ("operation 1", "run 'a'", None)),
}


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("way", OTHER_WAYS)
def test_replayed_code_that_goes_another_way(durable: Durable, kind: str, way: str, swallow: bool) -> None:
    """The run fails naming workflow, position, expected and asked, whatever the code catches; nothing is lost, and a
    retry after mending goes on."""
    script: list[Any] = [["run a", "run b"], "raise"]
    calls: list[str] = []
    caught: list[NonDeterminism] = []

    async def one(ctx: Any, operation: str) -> None:
        word, _, name = operation.partition(" ")
        if word == "now":
            await ctx.now()
        else:
            await ctx.run(name, step_of(kind, lambda: calls.append(name)))

    async def body(ctx: Any) -> str:
        operations, end = script
        for operation in operations:
            try:
                await one(ctx, operation)
            except NonDeterminism as error:
                caught.append(error)
                if not swallow:
                    raise
        if end == "raise":
            raise ValueError("outside")
        return "done"

    flow = define(kind, body)
    run = durable.execute(flow, key="k").run
    before = durable.run(run.id).steps
    script[:], expected = OTHER_WAYS[way][:2], OTHER_WAYS[way][2]
    durable.retry(run.id)
    wrong = durable.execute(flow, key="k").run
    assert (wrong.id, wrong.status, error_of(wrong)[0]) == (run.id, "failed", "NonDeterminism")
    for word in ("'flow'", *(part for part in expected if part)):
        assert word in error_of(wrong)[1]
    for error in caught:
        assert (error.workflow, error.position, error.expected, error.asked) == ("flow", *expected)
        assert error.fields()["workflow"] == "flow"
    assert bool(caught) == (expected[2] is not None)
    assert wrong.steps == before, "nothing was lost and nothing was added"
    assert calls == ["a", "b"]
    script[:] = [["run a", "run b", "run c"], "return"]
    durable.retry(run.id)
    mended = durable.execute(flow, key="k").run
    assert (mended.id, mended.result, calls) == (run.id, '"done"', ["a", "b", "c"])


# -- nesting, concurrency ------------------------------------------------------------------------------------------

NESTED = ("run", "now", "uuid", "random")


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("operation", NESTED)
def test_an_operation_inside_a_step(durable: Durable, kind: str, operation: str, swallow: bool) -> None:
    """The run fails with a named error, also when the step swallows it, and the step is not recorded; after mending,
    a retry goes on."""
    mended: list[int] = []

    async def body(ctx: Any) -> str:
        async def nest() -> str:
            if mended:
                return "mended"
            try:
                await (ctx.run("inner", lambda: 1) if operation == "run" else getattr(ctx, operation)())
            except Exception:
                if not swallow:
                    raise
            return "nested"

        def plain_nest() -> str:
            from bothways import drive

            return drive(nest())

        await ctx.run("before", lambda: None)
        result: str = await ctx.run("outer", plain_nest if kind == "plain" else nest, retry=Retry(3))
        return result

    flow = define(kind, body)
    run = durable.execute(flow, key="k").run
    assert (run.status, error_of(run)[0]) == ("failed", "NestedOperation")
    assert f"ctx.{operation}" in error_of(run)[1]
    assert "operation 2 of workflow 'flow'" in error_of(run)[1]
    assert run.steps is not None
    assert [step.name for step in run.steps] == ["before"]
    mended.append(1)
    durable.retry(run.id)
    assert durable.execute(flow, key="k").run.result == '"mended"'


def test_what_a_step_may_use(durable: Durable, kind: str) -> None:
    """heartbeat, attempt, idempotency_key, run_id, key; and another run of another workflow."""

    async def inner_body(ctx: Any) -> int:
        return int(await ctx.run("inner step", lambda: 5))

    inner = define("plain", inner_body, name="inner")
    seen: list[Any] = []

    async def body(ctx: Any) -> Any:
        def step() -> Any:
            ctx.heartbeat()
            seen.append((ctx.attempt, ctx.idempotency_key, ctx.run_id, ctx.key))
            return durable.execute(inner, key="other").run.result

        return await ctx.run("s", step)

    run = durable.execute(define(kind, body), key="k").run
    assert run.result == '"5"'
    assert seen == [(1, f"{run.id}:1", run.id, "k")]


def test_two_operations_at_once(durable: Durable, kind: str) -> None:
    """From threads or from asyncio.gather: the run fails with a named error, whatever the code catches."""
    second_done = threading.Event()

    async def body(ctx: Any) -> str:
        if kind == "async":

            async def first() -> int:
                for _ in range(100):
                    await asyncio.sleep(0)
                return 1

            await asyncio.gather(ctx.run("a", first), ctx.run("b", lambda: 2), return_exceptions=True)
            return "swallowed"
        started = threading.Event()

        def slow() -> int:
            started.set()
            second_done.wait(10)
            return 1

        async def run(name: str, function: Any) -> None:
            await ctx.run(name, function)

        from bothways import drive

        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(lambda: drive(run("a", slow)))
            started.wait(10)
            two = pool.submit(lambda: drive(run("b", lambda: 2)))
            two.exception()
            second_done.set()
            one.exception()
        return "swallowed"

    run = durable.execute(define(kind, body)).run
    assert (run.status, error_of(run)[0]) == ("failed", "ConcurrentOperation")
    assert "'b'" in error_of(run)[1]


def test_eight_runs_in_eight_threads_do_not_see_each_other(durable: Durable, kind: str) -> None:
    """The step that a thread is inside of is that thread's."""

    async def body(ctx: Any, n: Any) -> Any:
        first = await ctx.run("a", step_of(kind, lambda: n))
        return await ctx.run("b", step_of(kind, lambda: [first, ctx.attempt]))

    flow = define(kind, body)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: durable.execute(flow, n, key=f"k{n}").run.result, range(16)))
    assert [json.loads(result or "") for result in results] == [[n, 1] for n in range(16)]


# -- damaged values ------------------------------------------------------------------------------------------------

UNREADABLE = ["{not json", '"NaN', "[NaN]", "[" * 100_000]


@pytest.mark.parametrize("damage", UNREADABLE, ids=["no json", "cut", "nan", "deep"])
@pytest.mark.parametrize("column", ["input", "result"])
def test_a_stored_value_that_cannot_be_read(durable: Durable, kind: str, column: str, damage: str) -> None:
    """Fails that run, naming run, step and column; other runs, lists, counts and starts on its key still work."""
    broken: list[int] = []

    async def body(ctx: Any, what: Any) -> Any:
        value = await ctx.run("s", step_of(kind, lambda: 1))
        if not broken:
            raise ValueError("outside")
        return value

    flow = define(kind, body)
    healthy = durable.execute(define(kind, body, name="healthy"), 1, key="k").run
    run = durable.execute(flow, {"v": 1}, key="k").run
    if column == "input":
        change(durable, "UPDATE durable_runs SET input = :text WHERE public_id = :id", text=damage, id=run.id)
    else:
        change(durable, "UPDATE durable_steps SET result = :text WHERE run_id = :id", text=damage, id=run.row_id)
    broken.append(1)
    durable.retry(run.id)
    duplicate = durable.start(flow, {"v": 2}, key="k")
    assert (duplicate.outcome, duplicate.run_id) == ("existing", run.id)
    failed = durable.execute(flow, {"v": 2}, key="k").run
    assert (failed.id, error_of(failed)[0]) == (run.id, "Unreadable")
    for word in (run.id, f"column {column}", *(["'s'"] if column == "result" else [])):
        assert word in error_of(failed)[1]
    assert {one.id for one in durable.runs()} == {run.id, healthy.id}
    assert durable.stats().runs["failed"] == 2
    assert len(durable.keys()) == 2
    assert durable.key("flow", "k").holder is not None
    assert durable.activity()
    assert durable.run(run.id).status == "failed"
    assert durable.start(flow, {"v": 3}, key="k").outcome == "created"


@pytest.mark.parametrize("policy", ["use_existing", "error", "cancel_existing", "run_again"])
def test_starts_on_the_key_of_a_damaged_holder(durable: Durable, kind: str, policy: str) -> None:
    """The damaged input counts as another one; the start is answered as ever."""

    async def body(ctx: Any, what: Any) -> Any:
        return await ctx.run("s", lambda: what)

    flow = define(kind, body)
    run_id = durable.start(flow, 1, key="k").run_id
    change(durable, "UPDATE durable_runs SET input = '{not json' WHERE public_id = :id", id=run_id)
    refused = pytest.raises(KeyTaken) if policy == "error" else contextlib.nullcontext()
    with refused:
        durable.start(flow, 2, key="k", on_duplicate=policy)
    [row] = durable.activity(kinds=["key_duplicate"])
    assert row.details["input_changed"] is True
    assert durable.check() == []


def test_damaged_activity_is_still_listed(durable: Durable, kind: str) -> None:
    flow = define(kind, _returns_nothing)
    durable.start(flow, key="k")
    durable.start(flow, key="k")
    change(durable, "UPDATE durable_activity SET details = '{not json'")
    [row] = durable.activity()
    assert row.details["outcome"] == "use_existing"


# -- recorded values, idempotency ----------------------------------------------------------------------------------


def test_now_uuid_and_random_are_recorded(durable: Durable, clock: Any, notes: Notes, kind: str) -> None:
    """The same on every replay, two of them differ, and the moment is the clock's."""

    async def body(ctx: Any) -> None:
        values = [await ctx.now(), await ctx.uuid(), await ctx.random(), await ctx.uuid(), await ctx.random()]
        assert isinstance(values[0], dt.datetime)
        assert values[0].utcoffset() == dt.timedelta(0)
        assert isinstance(values[1], uuid.UUID)
        assert 0 <= values[2] < 1
        assert (values[1], values[2]) != (values[3], values[4])
        notes.add(values)
        await ctx.run("die once", lambda: die() if len(notes.lines) < 2 else 0)

    flow = define(kind, body)
    crash(durable, flow, key="k")
    began = clock.now
    clock.advance(60_000)
    run = durable.execute(flow, key="k").run
    assert run.status == "completed", run.error
    first, second = notes.lines
    assert first == second
    assert repr(dt.datetime.fromtimestamp(began / 1000, dt.UTC)).split(", tzinfo")[0] in first


def test_idempotency_keys_are_stable_and_unique(durable: Durable, notes: Notes, kind: str) -> None:
    """One text for every attempt of a step, also after a crash and a retry, and another for every other step."""

    async def body(ctx: Any) -> None:
        def step(n: int, given: str) -> None:
            assert given == ctx.idempotency_key
            notes.add(f"{n} {given}")
            if n == 2 and len(notes.lines) == 2:
                raise Boom("once")
            if n == 2 and len(notes.lines) == 3:
                die()

        for n in (1, 2, 3):
            await ctx.run("same name", step_of(kind, step), n, ctx.idempotency_key, retry=Retry(2, base="1s"))

    flow = define(kind, body)
    crash(durable, flow, key="k")
    assert durable.execute(flow, key="k").run.status == "completed"
    other = durable.execute(flow, key="k").run
    by_step: dict[str, set[str]] = {}
    for line in notes.lines:
        n, given = line.split()
        by_step.setdefault(n, set()).add(given)
    assert [len(notes.lines)] == [8]
    assert all(len(given) == 2 for given in by_step.values()), "one text a step and run"
    assert len(set.union(*by_step.values())) == 6
    assert any(other.id in given for given in by_step["1"])


def test_attempt_is_for_steps(durable: Durable, kind: str) -> None:
    async def body(ctx: Any) -> Any:
        with pytest.raises(UsageError, match="inside a step"):
            ctx.attempt  # noqa: B018
        return await ctx.run("s", lambda: ctx.attempt)

    assert durable.execute(define(kind, body)).run.result == "1"


# -- leaving -------------------------------------------------------------------------------------------------------


def test_heartbeat_leaves_a_cancelled_run(durable: Durable, kind: str) -> None:
    """At once, by a BaseException: `except Exception` does not see it, `finally` runs, nothing more is recorded."""
    seen: list[str] = []

    async def body(ctx: Any) -> None:
        def step() -> str:
            ctx.heartbeat()
            durable.cancel(ctx.run_id)
            try:
                ctx.heartbeat()
                seen.append("went on")
            except Exception:
                seen.append("caught")
            finally:
                seen.append("finally")
            return "late"

        try:
            await ctx.run("s", step)
        except Exception:
            seen.append("caught outside")
        await ctx.run("never", lambda: seen.append("never"))

    run = durable.execute(define(kind, body), key="k").run
    assert (run.status, seen, run.steps) == ("cancelled", ["finally"], ())
    assert run.error is not None
    assert run.error.type == "Cancelled"


def test_the_late_result_of_a_step_that_never_beats_is_discarded(durable: Durable, kind: str) -> None:
    """C06: the running step ends, its result is dropped, no later step runs."""
    seen: list[str] = []

    async def body(ctx: Any) -> None:
        def step() -> str:
            durable.cancel(ctx.run_id)
            seen.append("ended")
            return "late"

        await ctx.run("s", step)
        await ctx.run("never", lambda: seen.append("never"))

    run = durable.execute(define(kind, body), key="k").run
    assert (run.status, seen, run.steps) == ("cancelled", ["ended"], ())


def test_a_swallowed_departure_is_raised_again_by_the_next_operation(durable: Durable, kind: str) -> None:
    """`except BaseException` around a resting step: nothing after it runs before its retry, on any operation."""
    calls: list[str] = []

    async def body(ctx: Any) -> str:
        def flaky() -> str:
            calls.append("flaky")
            if calls.count("flaky") < 3:
                raise Boom("no")
            return "ok"

        got = "nothing"
        try:
            got = await ctx.run("flaky", step_of(kind, flaky), retry=Retry(3, "constant", "1s"))
        except BaseException:
            pass
        for operation in (ctx.now, ctx.uuid):
            try:
                await operation()
            except BaseException:
                pass
        try:
            await ctx.run("next", lambda: calls.append(got))
        except BaseException:
            pass
        return got

    run = durable.execute(define(kind, body)).run
    assert (run.status, run.result, calls) == ("completed", '"ok"', ["flaky", "flaky", "flaky", "ok"])


def test_finally_blocks_run_at_every_rest(durable: Durable, kind: str) -> None:
    seen: list[str] = []

    async def body(ctx: Any) -> None:
        def flaky() -> None:
            if len(seen) < 2:
                raise Boom("no")

        try:
            await ctx.run("flaky", flaky, retry=Retry(3, "constant", "1s"))
        except Exception:
            seen.append("except")
        finally:
            seen.append("finally")

    assert durable.execute(define(kind, body)).run.status == "completed"
    assert seen == ["finally"] * 3


def test_stop_lets_the_step_end_and_begins_no_other(durable: Durable, kind: str) -> None:
    """The run stays resumable, nobody owns it, and it goes on where it was."""
    stop = threading.Event()
    calls: list[str] = []

    async def body(ctx: Any) -> str:
        def first() -> None:
            calls.append("a")
            stop.set()

        await ctx.run("a", first)
        await ctx.run("b", lambda: calls.append("b"))
        return "done"

    flow = define(kind, body)
    stopped = durable.execute(flow, key="k", stop=stop)
    assert (stopped.interrupted, stopped.executed, calls) == (True, True, ["a"])
    assert (stopped.run.status, stopped.run.owner, stopped.run.holds_key) == ("pending", None, True)
    resumed = durable.resume(stopped.run.id, definition=flow.definition)
    assert (resumed.run.result, calls, resumed.run.crashes) == ('"done"', ["a", "b"], 0)


@pytest.mark.parametrize("where", ["step", "function"])
def test_keyboard_interrupt_gives_the_run_back(durable: Durable, kind: str, where: str) -> None:
    """It reaches the caller; the run is no crash and no failure, and goes on."""
    calls: list[int] = []

    async def body(ctx: Any) -> str:
        def step() -> None:
            calls.append(1)
            if where == "step" and len(calls) == 1:
                raise KeyboardInterrupt

        await ctx.run("s", step)
        if where == "function" and not again:
            raise KeyboardInterrupt
        return "done"

    again: list[int] = []
    flow = define(kind, body)
    with pytest.raises(KeyboardInterrupt):
        durable.execute(flow, key="k")
    run = durable.find(key="k")
    assert (run.status, run.owner, run.crashes) == ("pending", None, 0)
    again.append(1)
    assert durable.execute(flow, key="k").run.result == '"done"'
    assert len(calls) == (2 if where == "step" else 1)


def test_sys_exit_outside_a_step_fails_the_run(durable: Durable, kind: str) -> None:
    async def body(ctx: Any) -> None:
        await ctx.run("s", lambda: None)
        sys.exit("enough")

    run = durable.execute(define(kind, body)).run
    assert (run.status, error_of(run)) == ("failed", ("SystemExit", "sys.exit('enough') was called"))


# -- no step -------------------------------------------------------------------------------------------------------


async def _returns_nothing(ctx: Any) -> None:
    return None


def test_a_workflow_without_any_operation_is_warned_about_once(
    durable: Durable, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Legal; one warning a workflow and process, and none for one that has operations or fails."""

    async def one_step(ctx: Any) -> Any:
        return await ctx.now()

    async def fails(ctx: Any) -> None:
        raise ValueError("x")

    name = f"bare_{kind}"
    flows = [
        define(kind, _returns_nothing, name=name),
        define(kind, _returns_nothing, name=f"{name}_2"),
        define(kind, one_step, name=f"{name}_3"),
        define(kind, fails, name=f"{name}_4"),
    ]
    with caplog.at_level(logging.WARNING, logger="durable"):
        for flow in flows * 2:
            durable.execute(flow)
    warned = [record.getMessage() for record in caplog.records if record.name == "durable"]
    assert len(warned) == 2
    assert f"'{name}'" in warned[0]
    assert f"'{name}_2'" in warned[1]
    assert "ctx.run" in warned[0]


# -- input ---------------------------------------------------------------------------------------------------------


def _typed(kind: str) -> WorkflowFunction[..., Any]:
    if kind == "plain":

        @workflow(name="typed")
        def typed(ctx: Any, article: Article) -> int:
            return ctx.run("s", lambda: article.id)  # type: ignore[no-any-return]

        return typed

    @workflow(name="typed")
    async def async_typed(ctx: Any, article: Article) -> int:
        return await ctx.run("s", lambda: article.id)  # type: ignore[no-any-return]

    return async_typed


@pytest.mark.parametrize("bad", [{}, {"id": "x", "at": 0}, 5, None, "text", object()])
@pytest.mark.parametrize("entrance", ["start", "execute", "explain_start"])
def test_a_bad_input_is_refused_before_anything_is_written(
    durable: Durable, db: Path, kind: str, bad: Any, entrance: str
) -> None:
    more = {"execute": False} if entrance == "explain_start" else {}
    with pytest.raises(InvalidInput, match="'typed'"):
        getattr(durable, entrance)(_typed(kind), bad, key="k", **more)
    with pytest.raises(InvalidInput, match="needs an input"):
        getattr(durable, entrance)(_typed(kind), key="k", **more)
    assert not db.exists()


def test_the_validated_input_is_what_is_stored(durable: Durable, kind: str) -> None:
    """As JSON and as a model alike, rebuilt as the annotated type."""
    flow = _typed(kind)
    for given in ({"id": "7", "at": "2026-11-29T12:00:00Z"}, Article(id=7, at=_moment())):
        run = durable.execute(flow, given).run
        assert json.loads(run.input) == {"id": 7, "at": "2026-11-29T12:00:00Z"}
        assert run.result == "7"


def test_an_absent_input_is_the_default_else_null(durable: Durable, kind: str) -> None:
    """The default is stored: editing it later changes no run that exists."""

    @workflow(name="defaulted")
    def defaulted(ctx: Any, n: int = 5) -> int:
        return ctx.run("s", lambda: n)  # type: ignore[no-any-return]

    @workflow(name="nothing")
    def nothing(ctx: Any, what: Any) -> Any:
        return ctx.run("s", lambda: what)

    @workflow(name="none")
    def none(ctx: Any) -> Any:
        return ctx.run("s", lambda: 1)

    assert [durable.execute(flow).run.input for flow in (defaulted, nothing, none)] == ["5", "null", "null"]
    with pytest.raises(InvalidInput, match="takes no input"):
        durable.start(none, 5)
    assert durable.start(none, None).outcome == "created"

    @workflow(name="wrong")
    def wrong(ctx: Any, n: int = "x") -> int:  # type: ignore[assignment]
        return n

    before = snapshot(durable)
    with pytest.raises(InvalidDefinition, match="default"):
        durable.start(wrong)
    assert snapshot(durable) == before


def test_an_input_of_more_than_1_mib_is_refused(durable: Durable, db: Path, kind: str) -> None:
    """At the limit it is taken; one byte more is refused before anything is written."""

    async def body(ctx: Any, what: Any) -> Any:
        return await ctx.run("s", lambda: len(what))

    flow = define(kind, body)
    with pytest.raises(InvalidInput, match=r"1,048,57\d"):
        durable.start(flow, "x" * (MAX_VALUE_BYTES - 1))
    assert not db.exists()
    assert durable.execute(flow, "x" * (MAX_VALUE_BYTES - 2)).run.result == str(MAX_VALUE_BYTES - 2)


@pytest.mark.parametrize("name", ["", 5, "a" * 256, "a\0", None])
def test_a_bad_name_of_a_step_fails_the_run(durable: Durable, kind: str, name: Any) -> None:
    async def body(ctx: Any) -> None:
        await ctx.run(name, lambda: None)

    assert error_of(durable.execute(define(kind, body)).run)[0] == "InvalidName"


@pytest.mark.parametrize("bad", ["function", "retry"])
def test_a_step_called_wrongly_fails_the_run_with_a_clear_error(durable: Durable, kind: str, bad: str) -> None:
    async def body(ctx: Any) -> None:
        if bad == "function":
            await ctx.run("s", 5)
        else:
            await ctx.run("s", lambda: None, retry=3)

    run = durable.execute(define(kind, body)).run
    assert error_of(run)[0] == "UsageError"
    assert ("'s'" if bad == "function" else "Retry(...)") in error_of(run)[1]


def test_an_adopted_run_never_counts_itself_as_a_duplicate(durable: Durable, kind: str) -> None:
    """D05: recovered, retried and resting runs go on without a word about their key."""
    calls: list[int] = []

    def step() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise Boom("no")
        return 1

    async def body(ctx: Any) -> Any:
        return await ctx.run("s", step_of(kind, step), retry=Retry(2, base="1s"))

    flow = define(kind, body)
    run = durable.execute(flow, key="k").run
    assert run.status == "failed"
    durable.retry(run.id)
    assert durable.resume(run.id, definition=flow.definition).run.status == "completed"
    assert durable.activity() == []


# -- event loops and tasks -----------------------------------------------------------------------------------------


def test_executing_where_an_event_loop_is_running(durable: Durable, kind: str) -> None:
    """From a notebook, a web handler, or an async step that executes another run."""

    async def inner_body(ctx: Any) -> Any:
        async def step() -> int:
            return 5

        return await ctx.run("s", step)

    inner = define(kind, inner_body, name="inner")

    async def body(ctx: Any) -> Any:
        async def step() -> Any:
            return durable.execute(inner).run.result

        return await ctx.run("s", step)

    async def handler() -> Any:
        return durable.execute(define(kind, body)).run.result

    assert asyncio.run(handler()) == '"5"'


def test_an_operation_that_nobody_waits_for(durable: Durable, kind: str) -> None:
    """The function returns while a step of it goes on: the run fails and says so, it does not complete without it."""
    started, go_on = threading.Event(), threading.Event()
    tasks: list[Any] = []

    async def body(ctx: Any) -> str:
        from bothways import drive

        async def one() -> None:
            with contextlib.suppress(Exception):  # it ends in the run; the thread itself has nobody to tell
                await ctx.run("forgotten", slow)

        def slow() -> None:
            started.set()
            go_on.wait(10)

        if kind == "plain":
            threading.Thread(target=lambda: drive(one()), daemon=True).start()
            started.wait(10)
        else:
            tasks.append(asyncio.create_task(one()))
            await asyncio.to_thread(started.wait, 10)
            asyncio.get_running_loop().call_later(0, go_on.set)
        return "returned"

    run = durable.execute(define(kind, body)).run
    go_on.set()
    assert (run.status, error_of(run)[0]) == ("failed", "ConcurrentOperation")
    assert "operation 1" in error_of(run)[1]


def test_a_cancelled_error_that_is_nobodys_cancellation_is_a_failure(durable: Durable, kind: str) -> None:
    """A step that awaits a cancelled task fails, with retries, instead of ending the process that executes it."""
    calls: list[int] = []

    async def body(ctx: Any) -> Any:
        async def step() -> int:
            calls.append(1)
            if len(calls) == 1:
                task = asyncio.create_task(asyncio.sleep(0))
                task.cancel()
                await task
            return 1

        return await ctx.run("s", step, retry=Retry(2, base="1s"))

    run = durable.execute(define(kind, body)).run
    assert (run.result, len(calls)) == ("1", 2)
