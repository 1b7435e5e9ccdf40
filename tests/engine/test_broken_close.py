"""Closing the object that executes us, from inside of what it executes, takes nothing away from anybody."""

from __future__ import annotations

from typing import Any

import pytest
from bothways import KINDS, define
from enginekit import define_job

from durable_cli import Durable, Status


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("where", ["step", "around", "branch"])
@pytest.mark.parametrize("how", ["execute", "tick"])
def test_a_with_inside_of_a_run_gives_nothing_back(durable: Durable, kind: str, where: str, how: str) -> None:
    """It gave the run back, whose step then ran again, and so for ever."""
    job, calls = define_job(), []

    def step() -> str:
        calls.append(1)
        assert len(calls) == 1
        with durable as same:
            return same.start(job, 1, key="k").run_id

    async def body(ctx: Any) -> Any:
        if where == "branch":
            return (await ctx.parallel({"one": branch if kind == "async" else plain_branch}))["one"]
        if where == "around":
            durable.close()
        return await ctx.run("start", step)

    async def branch(ctx: Any) -> Any:
        durable.close()
        return await ctx.run("start", step)

    def plain_branch(ctx: Any) -> Any:
        durable.close()
        return ctx.run("start", step)

    flow = define(kind, body)
    if how == "execute":
        run = durable.execute(flow, key="k").run
    else:
        run_id = durable.start(flow, key="k").run_id
        durable.tick()
        run = durable.run(run_id)
    assert run.status is Status.COMPLETED, run.error
    assert run.epoch == 1
    assert durable.key("k", workflow="job").holder is not None


def test_outside_it_closes_as_before(durable: Durable) -> None:
    durable.start(define_job(), 1, key="k")
    durable.close()
    assert durable._engine.database._connection is None
    assert len(durable.runs()) == 1
