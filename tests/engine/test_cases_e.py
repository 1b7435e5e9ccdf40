"""Trouble of other systems (tests/cases.md), E: events to the holder."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from enginekit import CRASHED, die, in_child, told

from durable_cli import Durable, KeyTaken, Status, workflow


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_that_sends_before_the_wait_is_heard_at_the_wait(durable: Durable, killed: bool) -> None:
    """E01: the holder is still in its first step; also where its process dies before it gets to the wait."""
    first = [killed]

    @workflow(name="flow")
    def flow(ctx: Any, what: Any = None) -> Any:
        def step() -> Any:
            answer = durable.start(flow, "v2", key="k", on_duplicate="send_event:e") if first[0] or not killed else None
            assert answer is None or (answer.outcome, answer.run_id) == ("event_sent", ctx.run_id)
            if first[0]:
                die()
            return what

        return [ctx.run("first", step), ctx.wait_for_event("e", timeout="1h", default="nothing")]

    if killed:
        assert in_child(lambda: durable.execute(flow, "v1", key="k")) == CRASHED
        first[0] = False
    run = durable.execute(flow, "v1", key="k").run
    assert (run.status, json.loads(run.result or "")) == (Status.COMPLETED, ["v1", "v2"])
    assert [row.details["outcome"] for row in told(durable, "k", "key_duplicate")][:1] == ["send_event"]


@pytest.mark.parametrize("reuse", ["after_close", "after_failure"])
def test_a_start_that_sends_to_a_holder_that_ends_has_one_answer(db: Path, reuse: str) -> None:
    """E03: at the moment the holder ends, the input is an event of an unfinished holder, or that of a new run, or it
    is refused by the key that is kept; the sum is the number of starts."""

    @workflow(name="flow", reuse=reuse)  # type: ignore[arg-type]
    def flow(ctx: Any, what: Any = None) -> Any:
        return ctx.run("work", lambda: what)

    count = {"event_sent": 0, "created": 0, "taken": 0}
    with Durable(db) as one, Durable(db) as other:
        for n in range(60):
            key = f"k{n}"
            first = one.start(flow, "first", key=key).run_id
            thread = threading.Thread(target=one.execute, args=(flow, "first"), kwargs={"key": key})
            thread.start()
            try:
                answer = other.start(flow, n, key=key, on_duplicate="send_event:e")
            except KeyTaken as taken:
                count["taken"] += 1
                assert (taken.holder_id, taken.holder_status) == (first, "completed")
            else:
                count[str(answer.outcome)] += 1
                if answer.outcome == "event_sent":
                    assert (answer.run_id, answer.holder_status) == (first, answer.holder_status)
                    assert answer.holder_status in ("pending", "running")
                    events = "SELECT payload FROM durable_events WHERE run_id = :row"
                    row = one.run(first).row_id
                    rows = one._engine.database.read(lambda tx, row=row: tx.rows(events, row=row))
                    assert [json.loads(event["payload"]) for event in rows] == [n]
                else:
                    assert json.loads(one.run(answer.run_id).input) == n
            thread.join(30)
        assert one.check() == []
    assert sum(count.values()) == 60
    assert count["taken" if reuse == "after_close" else "created"] == 0
