"""Trouble of other systems (tests/cases.md), C: cancel and cancel_existing."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from enginekit import Boom, snapshot

from durable_cli import Durable, KeyTaken, Status, workflow


@pytest.mark.parametrize("ends", ["compensated", "compensation_failed"])
@pytest.mark.parametrize("reuse", ["after_close", "after_failure", "never"])
def test_a_compensating_holder_is_left_alone_and_then_follows_reuse(
    durable: Durable, db: Path, clock: Any, reuse: str, ends: str
) -> None:
    """C09: from inside its compensation: cancelling and replacing answer with it and change no field; when it has
    ended, the key is what `reuse` says."""
    seen: list[Any] = []

    def undo(_: object) -> None:
        with Durable(db, clock=clock) as other:
            before = snapshot(other)
            [run] = other.runs(key="k")
            cancelled = other.cancel(run.id)
            for entrance in (other.start, other.execute):
                with pytest.raises(KeyTaken) as taken:
                    entrance(flow, key="k", on_duplicate="cancel_existing")
                seen.append((taken.value.holder_id, taken.value.holder_status, taken.value.exit_status))
            seen.append((cancelled.cancelled, cancelled.status, snapshot(other) == before))
        if ends == "compensation_failed":
            raise Boom("cannot be undone")

    def fail() -> None:
        raise Boom("no")

    @workflow(name="flow", reuse=reuse)  # type: ignore[arg-type]
    def flow(ctx: Any) -> None:
        ctx.run("reserve", lambda: None, compensate=undo)
        ctx.run("pay", fail)

    run = durable.execute(flow, key="k").run
    assert run.status == ends
    assert seen == [(run.id, "compensating", 75)] * 2 + [(0, "compensating", True)]
    again = durable.start(flow, key="k")
    assert again.outcome == ("existing" if reuse == "never" else "created")
    assert durable.check() == []


@pytest.mark.parametrize("reuse", ["after_close", "after_failure"])
def test_who_replaces_a_run_that_has_just_ended_gets_the_answer_for_what_it_is(db: Path, reuse: str) -> None:
    """C10: replacing at the moment the holder ends: either it was cancelled for the new run, or it completed without
    a mark and `reuse` decided. Never both."""

    @workflow(name="flow", reuse=reuse)  # type: ignore[arg-type]
    def flow(ctx: Any) -> int:
        return ctx.run("work", lambda: 1)  # type: ignore[no-any-return]

    told: dict[str, int] = {}
    with Durable(db) as one, Durable(db) as other:
        for n in range(60):
            key = f"k{n}"
            first = one.start(flow, key=key).run_id
            thread = threading.Thread(target=one.execute, args=(flow,), kwargs={"key": key})
            thread.start()
            time.sleep(n % 12 / 4000)
            try:
                answer = other.start(flow, key=key, on_duplicate="cancel_existing")
            except KeyTaken as taken:
                outcome, named = "taken", (taken.holder_id, str(taken.holder_status))
            else:
                outcome, named = str(answer.outcome), None
            thread.join(30)
            assert named in (None, (first, "completed"))
            old = one.run(first)
            told[outcome] = told.get(outcome, 0) + 1
            if outcome == "replaced":
                assert (old.status, old.error and old.error.type, old.holds_key) == (
                    Status.CANCELLED,
                    "Replaced",
                    False,
                )
            else:
                assert (old.status, old.error, old.result) == (Status.COMPLETED, None, "1")
                assert outcome == ("created" if reuse == "after_close" else "taken")
        assert one.check() == []
    assert sum(told.values()) == 60
