"""Deleting what is old (SPEC 3.6), many starts in one transaction, and what listeners are told."""

from __future__ import annotations

import datetime as dt
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from enginekit import FINISHED, define_job, duplicates, live_owner, put, snapshot, told

from durable_cli import Context, Debounce, Durable, InvalidInput, InvalidKey, KeyTaken, workflow
from durable_cli.core.clocks import LEAP_MS, STEP_MS, Mark, suspect
from durable_cli.errors import ClockSuspect, DurableError, UsageError
from durable_cli.listeners import EVENTS
from durable_cli.model import ActivityKind
from durable_cli.store import activity
from durable_cli.store import pruning as pruning_rows

DAY = 86_400_000


# -- which runs go -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reuse", ["after_close", "after_failure", "never"])
@pytest.mark.parametrize("status", FINISHED)
def test_an_old_holder_is_deleted_and_its_key_is_free(durable: Durable, clock: Any, status: str, reuse: str) -> None:
    """B04: `never` lasts as long as the run is kept, and no longer; the report counts such keys, and so does the dry
    run, which changes nothing."""
    job = define_job(reuse)
    old = put(durable, job, status, key="k")
    young = put(durable, job, status, key="l")
    clock.advance(30 * DAY)
    durable._engine.database.write(
        lambda tx: tx.change(
            "UPDATE durable_runs SET finished_at = :now WHERE public_id = :id", now=clock.now, id=young
        )
    )
    before = snapshot(durable)
    assert durable.prune(older_than="30d", dry_run=True).runs == 0, "thirty days are not more than thirty days"
    clock.advance(1)
    would = durable.prune(older_than="30d", dry_run=True)
    assert snapshot(durable) == before
    done = durable.prune(older_than="30d")
    assert (done.runs, done.keys_freed, done.never_keys_freed) == (1, 1, int(reuse == "never"))
    assert (would.runs, would.keys_freed, would.never_keys_freed) == (1, 1, int(reuse == "never"))
    assert [run.id for run in durable.runs()] == [young]
    assert told(durable, "k")[-1].kind == "key_pruned"
    assert told(durable, "k")[-1].run_id == old
    assert durable.start(job, key="k").outcome == "created"
    assert durable.check() == []


def test_what_goes_on_is_never_deleted(durable: Durable, clock: Any) -> None:
    """Every unfinished run stays, and one that waits behind a holder, however old."""
    job = define_job()
    ids = [put(durable, job, status, key=status) for status in ("pending", "running", "waiting", "compensating")]
    holder = put(durable, job, "running", key="k", owner=live_owner(durable))
    waiting = durable.start(job, 2, key="k", on_duplicate="run_again").run_id
    durable.start(job, key="later", delay="1000d")
    clock.advance(365 * DAY)
    assert durable.prune(older_than="1d", trust_clock=True).runs == 0
    assert {*ids, holder, waiting} <= {run.id for run in durable.runs()}


def test_only_of_one_workflow_or_of_some_statuses(durable: Durable, clock: Any) -> None:
    one, two = define_job(name="one"), define_job(name="two")
    for job in (one, two):
        for status in ("completed", "failed", "cancelled"):
            put(durable, job, status, key=status)
    clock.advance(2 * DAY)
    assert durable.prune(older_than="1d", workflow="one", status=["failed"]).runs == 1
    assert durable.prune(older_than="1d", workflow="one", status=["failed", "cancelled"]).runs == 1
    assert durable.prune(older_than="1d", status=["completed"]).runs == 2
    assert durable.prune(older_than="1d", workflow="nothing").runs == 0
    assert sorted((run.workflow, str(run.status)) for run in durable.runs()) == [
        ("two", "cancelled"),
        ("two", "failed"),
    ]


def test_a_newer_holder_is_left_alone(durable: Durable, clock: Any) -> None:
    """H03: an old run that lost its key is deleted, and nothing of the key is touched."""
    job = define_job()
    old = put(durable, job, "completed", key="k")
    clock.advance(2 * DAY)
    new = put(durable, job, "running", key="k", owner=live_owner(durable))
    before = durable.run(new)
    done = durable.prune(older_than="1d")
    assert (done.runs, done.keys_freed) == (1, 0)
    assert durable.run(new) == before
    assert durable.start(job, key="k").run_id == new
    assert old not in {run.id for run in durable.runs()}
    assert durable.check() == []


def test_steps_events_and_logs_go_along(durable: Durable, clock: Any) -> None:
    job = define_job()
    run_id = put(durable, job, "completed", key="k")
    waiting = durable.start(job, key="w").run_id
    durable.send_event(waiting, "e", 1)
    durable.cancel(waiting)
    clock.advance(2 * DAY)
    assert durable.prune(older_than="1d").runs == 2
    for table in ("durable_runs", "durable_steps", "durable_events", "durable_logs"):
        count = durable._engine.database.read(lambda tx, table=table: tx.value(f"SELECT count(*) FROM {table}"))  # type: ignore[misc]
        assert count == 0, table
    assert run_id
    assert durable.check() == []


def test_parents_and_children(durable: Durable, clock: Any) -> None:
    """A finished child that its parent has seen goes, a finished parent goes and its child stays."""
    job = define_job(name="child")

    @workflow(name="parent")
    def parent(ctx: Context, rest: bool = False) -> Any:
        got = ctx.call(job, 5)
        started = ctx.start(job, 6)
        if rest:
            ctx.sleep("rest", "365d")
        return [got, started]

    seen = durable.start(parent, True).run_id
    durable.tick()
    assert durable.run(seen).status == "waiting"
    ended = durable.execute(parent).run.id
    assert durable.run(ended).status == "completed"
    clock.advance(2 * DAY)
    durable.start(job, 7)
    assert durable.prune(older_than="1d").runs >= 3
    left = {run.id: run for run in durable.runs()}
    assert seen in left
    assert ended not in left
    clock.advance(365 * DAY)
    done = durable.resume(seen)
    assert done.run.status == "completed"
    assert json.loads(done.run.result or "")[0] == 5
    assert durable.check() == []


def test_a_child_whose_end_is_still_waited_for_stays(durable: Durable, clock: Any) -> None:
    """Its parent has not looked since (no worker was there): its result is not lost with it."""
    job = define_job(name="child")

    @workflow(name="parent")
    def parent(ctx: Context) -> Any:
        return ctx.call(job, 5)

    start = durable.start(parent).run_id
    engine = durable._engine

    def claim(tx: Any, owner_id: int) -> Any:
        from durable_cli.model import Claim
        from durable_cli.store import runs, transitions

        run = runs.by_id(tx, start)
        assert run is not None
        return Claim(run.row_id, run.id, owner_id, transitions.claim(tx, run.row_id, owner_id, clock.now) or 0)

    from durable_cli.runner import take_turn

    take_turn(engine, engine.write_as_owner(claim), parent.definition, stay=False)
    [child] = durable.runs(workflow="child")
    durable.resume(child.id, definition=job.definition)
    clock.advance(60 * DAY)
    assert durable.prune(older_than="30d").runs == 0
    assert durable.resume(start, definition=parent.definition).run.result == "5"
    clock.advance(60 * DAY)
    assert durable.prune(older_than="30d").runs == 2


def test_it_goes_in_batches(durable: Durable, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each a transaction of its own; the numbers are of all of them."""
    monkeypatch.setattr("durable_cli.pruning._BATCH", 10)
    job = define_job("never")
    ids = [durable.start(job, n, key=f"k{n}").run_id for n in range(35)]
    for run_id in ids:
        durable.cancel(run_id)
    durable.start(job, key="stays")
    clock.advance(2 * DAY)
    sizes: list[int] = []
    real = __import__("durable_cli.store.pruning", fromlist=["x"]).delete_runs
    monkeypatch.setattr(
        "durable_cli.pruning.pruning.delete_runs", lambda tx, rows: sizes.append(len(rows)) or real(tx, rows)
    )
    done = durable.prune(older_than="1d")
    assert (done.runs, done.keys_freed, done.never_keys_freed) == (35, 35, 35)
    assert [size for size in sizes if size] == [10, 10, 10, 5]
    assert len(durable.runs()) == 1


def test_stopped_in_between_the_rest_is_left(durable: Durable, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable_cli.pruning._BATCH", 2)
    job = define_job()
    for n in range(6):
        durable.cancel(durable.start(job, key=f"k{n}").run_id)
    clock.advance(2 * DAY)
    real = __import__("durable_cli.store.pruning", fromlist=["x"]).delete_runs
    calls: list[int] = []

    def breaks(tx: Any, rows: list[int]) -> int:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return int(real(tx, rows))

    monkeypatch.setattr("durable_cli.pruning.pruning.delete_runs", breaks)
    with pytest.raises(KeyboardInterrupt):
        durable.prune(older_than="1d")
    assert len(durable.runs()) == 2
    assert durable.check() == []
    monkeypatch.setattr("durable_cli.pruning.pruning.delete_runs", real)
    assert durable.prune(older_than="1d").runs == 2


def test_a_batch_goes_over_nothing_again(durable: Durable, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins where the one before ended, so what has to stay is looked at once, runs and activity alike."""
    monkeypatch.setattr("durable_cli.pruning._BATCH", 2)
    monkeypatch.setattr("durable_cli.pruning._ACTIVITY_BATCH", 2)
    job, other = define_job(), define_job(name="other")
    for n in range(5):
        for each in (job, other):
            durable.cancel(durable.start(each, key=f"k{n}").run_id)
            durable.start(each, 2, key=f"k{n}")
            durable.cancel(key=f"k{n}", workflow=each.definition.name)
    clock.advance(8 * DAY)
    seen: list[Any] = []
    for name in ("old_runs", "old_activity"):
        real = getattr(pruning_rows, name)
        monkeypatch.setattr(
            pruning_rows,
            name,
            lambda *args, real=real, **kwargs: seen.append((real, args[1])) or real(*args, **kwargs),
        )
    done = durable.prune(older_than="1d", workflow="other")
    assert (done.runs, len(durable.runs())) == (10, 10)
    assert len(seen) == len(set(seen)) > 6
    rows = durable.activity(limit=None)
    assert {(row.workflow, row.kind) for row in rows} == {("job", "key_handed_off"), ("other", "key_pruned")}
    assert done.activity == 5


# -- activity ------------------------------------------------------------------------------------------------------


def test_activity_of_a_key_lives_as_long_as_its_runs_and_a_week(durable: Durable, clock: Any) -> None:
    """N02: pruning a run leaves its activity readable for seven days at least, and for as long as any run has the key."""
    job = define_job()
    gone, again = put(durable, job, "completed", key="gone"), put(durable, job, "completed", key="again")
    durable.start(job, 1, key="gone")
    for run in durable.runs(unfinished=True):
        durable.cancel(run.id)
    durable.start(job, 2, key="again")
    rows = {key: len(told(durable, key)) for key in ("gone", "again")}
    clock.advance(2 * DAY)
    assert durable.prune(older_than="1d").runs == 3
    assert {key: len(told(durable, key)) for key in rows} == {"gone": rows["gone"] + 1, "again": rows["again"]}
    assert gone in {row.details.get("from") for row in told(durable, "gone")}, "it names a run that is not there"
    clock.advance(6 * DAY)
    assert durable.prune(older_than="1d").activity == rows["gone"], "those of the first moment are eight days old"
    assert [row.kind for row in told(durable, "gone")] == ["key_pruned"]
    clock.advance(2 * DAY)
    would = durable.prune(older_than="1d", dry_run=True).activity
    assert durable.prune(older_than="1d").activity == would
    assert told(durable, "gone") == []
    assert len(told(durable, "again")) == rows["again"]
    assert again not in {run.id for run in durable.runs()}
    assert durable.stats().handoffs == sum(row.kind == "key_handed_off" for row in durable.activity())


# -- the clock -----------------------------------------------------------------------------------------------------

NOW = 1_800_000_000_000
MARK = Mark(NOW, "boot", 5_000_000)


@pytest.mark.parametrize(
    ("mark", "now", "newest", "trusted"),
    [
        (None, Mark(NOW, "boot", 1), None, True),
        (None, Mark(NOW, None, None), NOW, True),
        (None, Mark(NOW - STEP_MS, None, None), NOW, True),
        (None, Mark(NOW - STEP_MS - 1, None, None), NOW, False),
        (None, Mark(0, None, None), NOW, False),
        (MARK, Mark(NOW, "boot", 5_000_000), NOW, True),
        (MARK, Mark(NOW + DAY, "boot", 5_000_000 + DAY), NOW, True),
        (MARK, Mark(NOW + 800 * DAY, "boot", 5_000_000 + 800 * DAY), NOW, True),
        (MARK, Mark(NOW + DAY, "boot", 5_000_000), NOW, False),
        (MARK, Mark(NOW + STEP_MS, "boot", 5_000_000), NOW, True),
        (MARK, Mark(NOW + STEP_MS + 1, "boot", 5_000_000), NOW, False),
        (MARK, Mark(NOW + DAY, "boot", 5_000_000 + 2 * DAY), NOW, False),
        (MARK, Mark(NOW - DAY, "boot", 5_000_000), None, False),
        (MARK, Mark(NOW + 50 * 365 * DAY, "other", 7), NOW, False),
        (MARK, Mark(NOW + LEAP_MS, "other", 7), NOW, True),
        (MARK, Mark(NOW + LEAP_MS + 1, None, None), NOW, False),
        (MARK, Mark(NOW - STEP_MS - 1, "other", 7), None, False),
        (MARK, Mark(NOW - STEP_MS, "other", 7), None, True),
        (Mark(NOW, None, None), Mark(NOW + DAY, "boot", 1), NOW, True),
    ],
)
def test_when_a_clock_is_believed(mark: Mark | None, now: Mark, newest: int | None, trusted: bool) -> None:
    """Within a boot by the clock that no step of the wall clock moves; across boots by the past, and by a year."""
    assert (suspect(mark, now, newest) is None) == trusted


@pytest.mark.parametrize("jump", [50 * 365 * DAY, -NOW + 1000, -DAY])
def test_a_clock_that_jumped_deletes_nothing(durable: Durable, clock: Any, jump: int) -> None:
    """1970, yesterday, in fifty years: nothing is deleted, and the message says what may be done."""
    job = define_job()
    put(durable, job, "completed", key="k")
    clock.advance(2 * DAY)
    put(durable, job, "completed", key="l")
    durable.prune(older_than="30d")
    before = snapshot(durable)
    clock.advance(jump)
    with pytest.raises(ClockSuspect, match="nothing was pruned") as refused:
        durable.prune(older_than="1d")
    assert "--trust-clock" in str(refused.value.hint)
    assert snapshot(durable) == before
    clock.advance(-jump)
    assert durable.prune(older_than="1d").runs == 1


def test_a_trusted_clock_is_the_mark_from_then_on(durable: Durable, clock: Any) -> None:
    put(durable, define_job(), "completed", key="k")
    durable.prune(older_than="30d")
    clock.advance(3 * 365 * DAY)
    with pytest.raises(ClockSuspect):
        durable.prune(older_than="1d")
    assert durable.prune(older_than="1d", trust_clock=True).runs == 1
    clock.advance(DAY)
    assert durable.prune(older_than="1d").runs == 0


# -- many starts ---------------------------------------------------------------------------------------------------


class _BrokenZone(dt.tzinfo):
    """A zone is the caller's code too."""

    def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
        raise ValueError("no such place")


def test_many_starts_have_an_answer_each(durable: Durable) -> None:
    """In one transaction and in order; one that is refused stops no other."""

    @workflow(name="typed", key="n:{n}")
    def typed(ctx: Context, input: dict[str, int]) -> None:
        return None

    answers = durable.start_many(
        typed,
        [
            {"input": {"n": 1}},
            {"input": {"n": 1}},
            {"input": {"n": 1}, "on_duplicate": "error"},
            {"input": {"n": "x"}},
            {"input": {}},
            {"input": {"n": 2}, "key": "given"},
            {"input": {"n": 2}, "key": ""},
            {"input": {"n": 3}, "delay": "1h"},
            {"input": {"n": 3}, "at": dt.datetime(2030, 1, 1), "key": "naive"},
            {"input": {"n": 3}, "priority": 1},
            {1: 2, "colour": 3},
            {"input": {"n": 3}, "timeout": 0},
            {"input": {"n": 3}, "at": dt.datetime(2030, 1, 1, tzinfo=_BrokenZone())},
            {"input": {"n": 3}, "at": dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-12)))},
            "not an item",
            {"input": {"n": 1}, "on_duplicate": "cancel_existing"},
        ],
    )
    kinds = [type(one).__name__ if isinstance(one, DurableError) else str(one.outcome) for one in answers]
    assert kinds == [
        "created",
        "existing",
        "KeyTaken",
        InvalidInput.__name__,
        InvalidKey.__name__,
        "created",
        InvalidKey.__name__,
        "created",
        *[UsageError.__name__] * 7,
        "replaced",
    ]
    first, second = answers[0], answers[1]
    assert not isinstance(first, DurableError)
    assert not isinstance(second, DurableError)
    assert first.run_id == second.run_id
    assert isinstance(answers[2], KeyTaken)
    assert answers[2].holder_id == first.run_id
    assert len(durable.runs()) == 4
    assert len(duplicates(durable, "n:1")) == 3
    assert durable.check() == []


def add(old: list[int], new: list[int]) -> list[int]:
    if 13 in new:
        raise ValueError("unlucky")
    return old + new


def test_many_starts_merge_outside_of_their_transaction(durable: Durable, db: Path) -> None:
    """The user's function keeps nobody from writing; all items go into one transaction, with the answers and the
    record that they would have one after the other; each pair is merged once."""
    calls: list[tuple[list[int], list[int]]] = []
    with Durable(db, clock=durable._engine.now) as other:

        def merge(old: list[int], new: list[int]) -> list[int]:
            calls.append((old, new))
            other.cancel(other.start(define_job()).run_id)  # would wait for our transaction, and fail
            return add(old, new)

        @workflow(name="sum", debounce=Debounce("1h"), merge=merge)
        def summed(ctx: Context, numbers: list[int]) -> None:
            return None

        durable.start(summed, [0], key="b")
        items = [{"input": [n], "key": key} for n, key in enumerate("aabab", 1)]
        items += [{"input": [13], "key": "a"}, {"input": [7], "key": "a"}, {"input": ["x"]}, {"input": [8]}]
        answers = durable.start_many(summed, items)
    kinds = [type(one).__name__ if isinstance(one, DurableError) else str(one.outcome) for one in answers]
    assert kinds == ["created", *["merged"] * 4, "InvalidInput", "merged", "InvalidInput", "created"]
    assert {run.key: json.loads(run.input) for run in durable.runs(workflow="sum")} == {
        "a": [1, 2, 4, 7],
        "b": [0, 3, 5],
        None: [8],
    }
    assert [one["input"] for one in duplicates(durable, "a")] == [[1], [1, 2], [1, 2, 4]]
    assert len(calls) == len({str(call) for call in calls}) == 6


def test_many_starts_whose_older_input_changes_meanwhile(durable: Durable, db: Path) -> None:
    """Merged again with what is there now; an item that is overtaken again and again is refused, the others start."""
    with Durable(db, clock=durable._engine.now) as other:
        overtaken: list[int] = []

        def merge(old: list[int], new: list[int]) -> list[int]:
            if new == [1] and len(overtaken) < often:
                overtaken.append(1)
                other.start(newest, [0], key="k")
            return old + new

        @workflow(name="sum", debounce=Debounce("1h"), merge=merge)
        def summed(ctx: Context, numbers: list[int]) -> None:
            return None

        newest = summed
        for often, said in ((2, ["merged", "created"]), (99, ["KeyContended", "created"])):
            overtaken.clear()
            durable.start(summed, [9], key="k")
            answers = durable.start_many(summed, [{"input": [1], "key": "k"}, {"input": [2]}])
            kinds = [type(one).__name__ if isinstance(one, DurableError) else str(one.outcome) for one in answers]
            assert kinds == said
            input = json.loads(durable.find(key="k").input)
            assert input == ([9, 0, 0, 1] if often == 2 else [9, 0, 0, 0, 0])
            durable.cancel(key="k")


def test_many_starts_of_nothing_and_what_breaks_off(durable: Durable) -> None:
    """What is no start's own fault takes all of them back."""
    job = define_job()
    assert durable.start_many(job, []) == []
    real = durable._engine.new_id
    calls: list[int] = []

    def breaks() -> str:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real()

    durable._engine.new_id = breaks
    with pytest.raises(KeyboardInterrupt):
        durable.start_many(job, [{"key": f"k{n}"} for n in range(5)])
    durable._engine.new_id = real
    assert durable.runs() == []


# -- listeners -----------------------------------------------------------------------------------------------------


def test_listeners_are_told_after_the_commit(durable: Durable, caplog: pytest.LogCaptureFixture) -> None:
    """Each event with its fields, in order; what a callback does with the library is allowed; the same is logged."""
    job = define_job()
    heard: list[tuple[str, dict[str, Any]]] = []

    def listen(event: str, fields: dict[str, Any]) -> None:
        assert durable.runs(), "it may look, and what it is told of is there"
        heard.append((event, fields))

    stop = durable.on("*", listen)
    only: list[str] = []
    durable.on("key.duplicate", lambda event, fields: only.append(fields["outcome"]))
    with caplog.at_level(logging.INFO, logger="durable.events"):
        first = durable.start(job, 1, key="k").run_id
        durable.start(job, 2, key="k")
        second = durable.start(job, 3, key="k", on_duplicate="cancel_existing").run_id
        durable.execute(job, 3, key="k")
        durable.release_key(second, by="me")
        durable.retry(first)
    assert [event for event, _ in heard] == [
        "run.started",
        "key.duplicate",
        "key.duplicate",
        "run.cancelled",
        "key.handoff",
        "run.started",
        "key.duplicate",
        "run.completed",
        "key.release",
        "key.retake",
    ]
    assert only == ["use_existing", "cancel_existing", "use_existing"]
    assert heard[4][1] | {"from": first, "to": second, "reason": "replaced"} == heard[4][1]
    assert [record.durable["event"] for record in caplog.records if hasattr(record, "durable")] == [  # type: ignore[attr-defined]
        event for event, _ in heard
    ]
    stop()
    durable.cancel(first)
    assert len(heard) == 10
    with pytest.raises(UsageError, match="key.duplicate"):
        durable.on("key.stolen", listen)


def test_whatever_is_told_can_be_listened_for() -> None:
    """Each kind of activity and each status has its event's name."""
    assert set(activity._EVENTS) == set(ActivityKind)
    assert {*activity._EVENTS.values(), *(f"run.{status}" for status in FINISHED)} <= set(EVENTS)


def test_ending_a_listener_twice_ends_it_once(durable: Durable) -> None:
    """And no other registration, of the same function either."""
    job, heard = define_job(), []
    listen = lambda event, fields: heard.append(event)  # noqa: E731
    ends = [durable.on("run.started", listen) for _ in range(2)]
    durable.start(job)
    for _ in range(2):
        ends[0]()
    durable.start(job)
    ends[1]()
    durable.start(job)
    assert len(heard) == 3


def test_a_listener_that_raises_changes_nothing(durable: Durable, caplog: pytest.LogCaptureFixture) -> None:
    job, heard = define_job(), []

    def breaks(event: str, fields: dict[str, Any]) -> None:
        raise RuntimeError("my own fault")

    durable.on("run.started", breaks)
    durable.on("run.started", lambda event, fields: heard.append(event))
    with caplog.at_level(logging.WARNING, logger="durable.events"):
        answer = durable.start(job, key="k")
    assert durable.run(answer.run_id).holds_key
    assert heard == ["run.started"]
    assert "my own fault" in caplog.text


def test_a_listener_may_start_runs(durable: Durable) -> None:
    """Also from inside `execute`, which holds nothing while it tells."""
    job, next_job = define_job(), define_job(name="next")
    durable.on("run.completed", lambda event, fields: fields["workflow"] == "job" and durable.start(next_job, key="n"))
    done = durable.execute(job, 1, key="k")
    assert done.run.status == "completed"
    assert durable.find(key="n").status == "pending"


def test_nothing_is_told_of_what_was_not_committed(durable: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    job, heard = define_job(), []
    durable.start(job, key="k")
    durable.on("*", lambda event, fields: heard.append(event))
    monkeypatch.setattr(
        "durable_cli.store.activity.handed_off", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        durable.start(job, key="k", on_duplicate="cancel_existing")
    assert heard == []
    assert durable.find(key="k").status == "pending"


def test_a_tick_tells_of_what_it_ends(durable: Durable, clock: Any) -> None:
    """A listener hears of time-outs too: of whatever this process commits."""

    @workflow(name="hasty", timeout="10s")
    def hasty(ctx: Context) -> None:
        return None

    durable.start(hasty, key="k")
    clock.advance(11_000)
    heard: list[tuple[str, str]] = []
    durable.on("*", lambda event, fields: heard.append((event, fields.get("error", ""))))
    durable.tick()
    assert [(event, error.split(":")[0]) for event, error in heard] == [("run.failed", "Timeout")]
