"""Trouble of other systems (tests/cases.md), E: events to the holder."""

from __future__ import annotations

import json
import threading
import time
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


def events_of(durable: Durable, run_id: str) -> list[Any]:
    """The payloads of the events that were kept for a run."""
    row_id = durable.run(run_id).row_id
    sql = "SELECT payload FROM durable_events WHERE run_id = :row"
    rows = durable._engine.database.read(lambda tx: tx.rows(sql, row=row_id))
    return [json.loads(row["payload"]) for row in rows]


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
            time.sleep(n % 12 / 4000)
            try:
                answer = other.start(flow, n, key=key, on_duplicate="send_event:e")
            except KeyTaken as taken:
                outcome, named, status = "taken", taken.holder_id, str(taken.holder_status)
            else:
                outcome, named, status = str(answer.outcome), answer.run_id, str(answer.holder_status)
            thread.join(30)
            count[outcome] += 1
            if outcome == "created":
                assert json.loads(one.run(named).input) == n
                continue
            assert named == first
            assert status in (("completed",) if outcome == "taken" else ("pending", "running"))
            assert events_of(one, first) == ([n] if outcome == "event_sent" else [])
        assert one.check() == []
    assert sum(count.values()) == 60
    assert count["taken" if reuse == "after_close" else "created"] == 0
