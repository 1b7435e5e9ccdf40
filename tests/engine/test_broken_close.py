"""Closing the object that executes, from inside of what it executes or from another thread, takes nothing away."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from bothways import KINDS, define
from enginekit import define_job

from durable_cli import Durable, Status, workflow


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
    assert durable.key("job", "k").holder is not None


def test_outside_it_closes_as_before(durable: Durable) -> None:
    durable.start(define_job(), 1, key="k")
    durable.close()
    assert durable._engine.database._connection is None
    assert len(durable.runs()) == 1


@pytest.mark.parametrize("how", ["execute", "work"])
def test_a_with_in_another_thread_gives_nothing_back(db: Path, how: str) -> None:
    """A request handler's `with` around a start: each took the running step from the thread that executed it, and
    the step ran anew beside itself."""
    going_on, go = threading.Event(), threading.Event()
    calls: list[int] = []

    def step() -> str:
        calls.append(1)
        going_on.set()
        assert go.wait(20)
        return "done"

    @workflow(name="slow")
    def slow(ctx: Any) -> str:
        return str(ctx.run("work", step))

    durable, stop = Durable(db), threading.Event()
    owner = "SELECT kind FROM durable_owners"
    if how == "work":
        thread = threading.Thread(target=lambda: durable.work(stop=stop))
        durable.start(slow, key="k")
    else:
        thread = threading.Thread(target=lambda: durable.execute(slow, key="k"))
    thread.start()
    try:
        assert going_on.wait(20)
        for n in range(3):
            with durable as same:
                same.start(define_job(), n)
        run = durable.key("slow", "k").holder
        assert run is not None
        run_id = run.id
        assert (run.status, run.epoch) == (Status.RUNNING, 1)
        kind = durable._engine.database.read(lambda tx: tx.value(owner))
        assert kind == ("worker" if how == "work" else "run")
        go.set()
        assert durable.wait(run_id, timeout=20).status is Status.COMPLETED
    finally:
        go.set()
        stop.set()
        thread.join(20)
    assert calls == [1]
    durable.close()
    assert durable._engine.database.read(lambda tx: tx.value(owner)) is None  # now it gave up being one
