"""What is raised that is no Exception: a failure of the code that raised it, unless it leaves the run or the process.

Unrecorded it would give the run back, to be tried again by a worker for ever, and escape from `durable run` as a
traceback of ours.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from bothways import KINDS, define

from durable_cli import Durable, Retry, Status, workflow


class GreenTimeout(BaseException):
    """As gevent's Timeout."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _raise(error: BaseException) -> Any:
    raise error


ODD = [
    GreenTimeout("too late"),
    BaseExceptionGroup("many", [GreenTimeout("too late")]),
    asyncio.CancelledError("by a loop of its own"),
]
names = [type(error).__name__ for error in ODD]


@pytest.mark.parametrize("error", ODD, ids=names)
def test_in_a_step_it_fails_the_step(durable: Durable, kind: str, error: BaseException) -> None:
    calls: list[int] = []

    def step() -> None:
        calls.append(1)
        _raise(error)

    async def body(ctx: Any) -> None:
        await ctx.run("fail", step, retry=Retry(3, base="1ms"))

    flow = define(kind, body)
    run = durable.execute(flow, key="k").run
    assert run.status is Status.FAILED
    assert run.error is not None
    assert (run.error.type, run.error.message, run.error.step) == (type(error).__name__, str(error), "fail")
    assert calls == [1, 1, 1]
    assert run.error.attempt == 3
    run_id = durable.start(flow, key="k").run_id
    assert durable.tick().errors == 0
    assert durable.run(run_id).status is Status.WAITING  # for its second attempt
    assert durable.check() == []


@pytest.mark.parametrize("error", ODD, ids=names)
def test_around_the_steps_it_fails_the_run(durable: Durable, kind: str, error: BaseException) -> None:
    undone: list[int] = []

    async def body(ctx: Any) -> None:
        await ctx.run("do", lambda: 7, compensate=undone.append)
        if kind != "plain" and isinstance(error, asyncio.CancelledError):
            await ctx.run("fail", lambda: _raise(error))
        _raise(error)

    run = durable.execute(define(kind, body)).run
    assert run.status is Status.COMPENSATED
    assert run.error is not None
    assert run.error.type == type(error).__name__
    assert undone == [7]


def test_it_may_be_caught_as_any_failure(durable: Durable, kind: str) -> None:
    async def body(ctx: Any) -> str:
        try:
            await ctx.run("fail", lambda: _raise(GreenTimeout("x")))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no"

    run = durable.execute(define(kind, body)).run
    assert run.result == "\"StepFailed: step 'fail' failed: GreenTimeout: x\""


def test_a_step_that_lets_stop_iteration_out_says_so(durable: Durable) -> None:
    """A coroutine may not raise it, and ours are between the step and its record; nothing of that is told."""

    @workflow(name="next")
    def flow(ctx: Any) -> None:
        ctx.run("next", lambda: next(iter([])))

    run = durable.execute(flow).run
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error.traceback is not None
    assert run.error.type == "StopIteration"
    assert "durable_cli" not in run.error.traceback
    assert "contextlib" not in run.error.traceback
    assert "test_broken_exceptions.py" in run.error.traceback


@pytest.mark.parametrize("where", ["branch", "step of a branch", "cause"])
def test_a_traceback_has_no_frames_of_ours(durable: Durable, kind: str, where: str) -> None:
    """Not between two of the user's either, nor in what led to the error; the user's own all stay."""

    def users_own() -> None:
        raise KeyError("mine")

    async def branch(ctx: Any) -> None:
        if where == "branch":
            users_own()
        await ctx.run("fail", users_own)

    async def body(ctx: Any) -> None:
        try:
            await ctx.parallel({"a": branch})
        except Exception as error:
            if where != "cause":
                raise
            raise RuntimeError("from it") from error

    run = durable.execute(define(kind, body)).run
    assert run.error is not None
    told = str(run.error.traceback)
    files = re.findall(r'File "([^"]+)"', told)
    assert {Path(file).name for file in files} <= {"test_broken_exceptions.py", "bothways.py"}
    assert "in body" in told if where != "step of a branch" else "in users_own" in told
    if where == "branch":
        assert told.index("in branch") < told.index("in users_own")
    if where == "cause":
        assert "direct cause" in told


WRONG: dict[str, Any] = {
    "retry": lambda ctx: ctx.run("x", print, retry="often"),
    "nested": lambda ctx: ctx.run("x", lambda: ctx.run("y", print)),
    "input": lambda ctx: ctx.wait_for_input("x", type="nonsense"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_call_names_the_line_that_makes_it(durable: Durable, kind: str, wrong: str) -> None:
    """What we raise for it begins in the user's file and has none of our frames."""

    async def body(ctx: Any) -> None:
        await WRONG[wrong](ctx)

    error = durable.execute(define(kind, body)).run.error
    assert error is not None
    assert "await WRONG[wrong](ctx)" in (error.traceback or "")
    assert f"{error.type}: " in (error.traceback or "")
    assert "durable_cli/" not in (error.traceback or "")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), pytest.fail.Exception("a test's own")], ids=["^C", "pytest"])
def test_what_leaves_the_process_or_the_test_leaves(durable: Durable, error: BaseException) -> None:
    @workflow(name="leaves")
    def flow(ctx: Any) -> None:
        ctx.run("leave", lambda: _raise(error))

    with pytest.raises(type(error)):
        durable.execute(flow)
    assert [(run.status, run.owner) for run in durable.runs()] == [(Status.PENDING, None)]
