"""Trouble of other systems (tests/cases.md), A: who may start."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from crashkit import until
from enginekit import snapshot

from durable_cli import Durable, KeyTaken, workflow


def test_what_a_worker_executes_is_not_executed_by_anybody_else(db: Path) -> None:
    """A12: while a worker executes the holder, each entrance answers with it, and the body runs once."""
    began, gate, calls = threading.Event(), threading.Event(), []

    @workflow(name="held")
    def held(ctx: Any, n: int = 0) -> int:
        def work() -> int:
            calls.append(n)
            began.set()
            gate.wait(30)
            return n

        return ctx.run("work", work)  # type: ignore[no-any-return]

    with Durable(db) as mine, Durable(db) as workers:
        stop = threading.Event()
        worker = workers.worker(stop=stop)
        thread = threading.Thread(target=worker.work)
        thread.start()
        try:
            run_id = mine.start(held, 1, key="k").run_id
            assert began.wait(30)
            before = snapshot(mine)
            executed = mine.execute(held, 2, key="k")
            assert (executed.executed, executed.start and executed.start.outcome) == (False, "existing")
            assert executed.run.id == mine.start(held, 2, key="k").run_id == run_id
            for entrance in (mine.start, mine.execute):
                with pytest.raises(KeyTaken) as taken:
                    entrance(held, 2, key="k", on_duplicate="error")
                assert taken.value.holder_id == run_id
            assert mine.tick().claimed == 0
            assert snapshot(mine) == before
            gate.set()
            until(lambda: mine.run(run_id).finished, "the end")
        finally:
            gate.set()
            stop.set()
            worker.wake()
            thread.join(30)
        assert (calls, mine.run(run_id).result) == ([1], "1")
