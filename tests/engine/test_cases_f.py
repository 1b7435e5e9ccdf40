"""Trouble of other systems (tests/cases.md), F: debounce."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from enginekit import duplicates

from durable_cli import Debounce, Durable, Status, workflow

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


def define(period: str = "30s", timeout: str | None = None) -> Any:
    @workflow(name="burst", debounce=Debounce(period, timeout=timeout))
    def burst(ctx: Any, what: Any = None) -> Any:
        return ctx.run("work", lambda: what)

    return burst


def test_a_reader_never_sees_half_of_a_debounced_start(db: Path) -> None:
    """F02: input and due time change together: here the input is the moment of its start."""
    moment, over, seen = [1_800_000_000_000], threading.Event(), set()
    burst = define()
    with Durable(db, clock=lambda: moment[0]) as it, Durable(db) as reader:
        run_id = it.start(burst, moment[0], key="k").run_id

        def look() -> None:
            while not over.is_set():
                run = reader.run(run_id)
                seen.add((run.due_at or 0) - int(run.input))

        thread = threading.Thread(target=look)
        thread.start()
        for _ in range(150):
            moment[0] += 7
            assert it.start(burst, moment[0], key="k").run_id == run_id
        over.set()
        thread.join(30)
    assert seen == {30 * SECOND}


@pytest.mark.parametrize("timeout", [None, "5m"])
def test_a_steady_stream_puts_a_run_off_for_ever_or_to_the_cap(
    durable: Durable, clock: Any, timeout: str | None
) -> None:
    """F03: 100 starts, 20 s apart, with a period of 30 s: never begun, and what there is to see says why; with a cap
    of 5 minutes a run begins each 5 minutes at most."""
    burst = define(timeout=timeout)
    began, first_at = [], clock.now
    for n in range(100):
        durable.start(burst, n, key="k")
        for _ in range(2):
            clock.advance(10 * SECOND)
            if durable.tick().claimed:
                began.append(clock.now)
    runs = durable.runs(key="k")
    if timeout is None:
        [run] = runs
        assert (run.status, run.due_at, json.loads(run.input)) == (Status.PENDING, clock.now + 10 * SECOND, 99)
        [key] = durable.keys()
        assert (key.held_since, key.readds_24h, began) == (first_at, 99, [])
        return
    assert began[0] == first_at + 5 * MINUTE
    assert {later - earlier for earlier, later in itertools.pairwise(began)} == {5 * MINUTE}
    assert [json.loads(run.result or "-1") for run in runs][::-1][:2] == [14, 29]


@pytest.mark.parametrize("size", [2, 7, 50])
def test_a_burst_is_one_run_whatever_the_clock_shows(durable: Durable, clock: Any, size: int) -> None:
    """F04: across a full minute (and a full period): one run, the last input, one id in all answers."""
    burst = define()
    clock.advance(30 * SECOND - clock.now % (30 * SECOND) - size // 2)  # half of the burst on each side
    answers = []
    for n in range(size):
        answers.append(durable.start(burst, n, key="k", on_duplicate="error"))
        clock.advance(1)
    assert {answer.run_id for answer in answers} == {answers[0].run_id}
    assert [str(answer.outcome) for answer in answers] == ["created"] + ["merged"] * (size - 1)
    assert {row["outcome"] for row in duplicates(durable, "k")} == {"debounced"}
    clock.advance(30 * SECOND)
    assert durable.tick().claimed == 1
    [run] = durable.runs()
    assert run.result == str(size - 1)


@pytest.mark.parametrize("timeout", [None, "5m"])
def test_a_keyed_schedule_is_debounced_up_to_the_cap(durable: Durable, clock: Any, timeout: str | None) -> None:
    """F06: each minute into a period of two: put off for ever, or begun at the cap. Without a key each fire runs."""
    burst = define("2m", timeout)
    durable.schedule("keyed", "* * * * *", burst, timezone="UTC", key="k")
    durable.schedule("keyless", "* * * * *", burst, timezone="UTC")
    for _ in range(10):
        clock.advance(MINUTE)
        durable.tick()
    runs = durable.runs()
    assert [run.status for run in runs if run.key is None] == [Status.COMPLETED] * 10
    keyed = [run.status for run in runs if run.key == "k"][::-1]
    assert keyed == [Status.PENDING] if timeout is None else keyed[:1] == [Status.COMPLETED]
    direct = durable.start(burst, 1)
    assert (direct.outcome, durable.run(direct.run_id).due_at) == ("created", clock.now)


def test_a_debounced_run_that_came_due_while_all_was_off_is_due_now(durable: Durable, clock: Any) -> None:
    """G11: as a sleep, a wait and a retry are."""
    run_id = durable.start(define(), 5, key="k").run_id
    clock.advance(30 * SECOND - 1)
    assert durable.tick().claimed == 0
    clock.advance(3 * HOUR)
    assert durable.tick().claimed == 1
    assert durable.run(run_id).result == "5"


def test_what_a_burst_dropped_can_be_told_afterwards(durable: Durable, clock: Any) -> None:
    """N03: four inputs in their order with their moments; the counts add up to the starts."""
    burst = define()
    moments = []
    for n in range(5):
        durable.start(burst, {"n": n}, key="k")
        moments.append(clock.now)
        clock.advance(SECOND)
    rows = durable.activity(key="k")[::-1]
    assert [(row.at, row.details["input"]) for row in rows] == [(moments[n + 1], {"n": n}) for n in range(4)]
    assert [lost.input for lost in durable.lost_inputs("k")] == [{"n": n} for n in range(4)]
    stats = durable.stats()
    assert {name: count for name, count in stats.readds.items() if count} == {"debounced": 4}
    assert sum(stats.readds.values()) + len(durable.runs()) == 5
