"""Schedules: fired once, by the rules of the key, through clocks that jump and code that breaks."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from enginekit import change, define_job

from durable_cli import Debounce, Durable, workflow
from durable_cli.declaring import declared, schedule
from durable_cli.errors import (
    AlreadyDefined,
    InvalidCron,
    InvalidDefinition,
    InvalidInput,
    InvalidKey,
    InvalidZone,
    KeyTaken,
    ScheduleNotFound,
    ScheduleTaken,
    UsageError,
)
from durable_cli.model import Schedule, Status
from durable_cli.testing import Clock

S, M, H, D = 1000, 60_000, 3_600_000, 86_400_000


def find(durable: Durable, name: str = "s") -> Schedule:
    return durable.find_schedule(name)


def outcomes(durable: Durable, name: str = "s") -> list[str]:
    """What became of its due times, oldest first."""
    return [fire.outcome for fire in durable.schedule_fires(name, limit=100)][::-1]


def kinds(durable: Durable) -> list[str]:
    return [row.kind for row in durable.activity()][::-1]


def minutely(durable: Durable, name: str = "s", **options: Any) -> None:
    durable.schedule(name, "* * * * *", define_job(), timezone="UTC", **options)


# -- firing ----------------------------------------------------------------------------------------------------------


def test_each_due_time_starts_one_run(durable: Durable, clock: Clock) -> None:
    """Not before it is due; once when it is; with the schedule's input and key."""
    minutely(durable, input={"n": 1}, key="k")
    durable.tick()
    assert durable.runs() == []
    for _ in range(3):
        clock.advance(M)
        assert durable.tick().fired == 1
        assert durable.tick().fired == 0
    runs = durable.runs()
    assert [(run.status, run.input, run.key) for run in runs] == [(Status.COMPLETED, '{"n":1}', "k")] * 3
    one = find(durable)
    assert (one.fires, one.skips, one.missed, one.last_outcome) == (3, 0, 0, "created")
    assert (one.last_fire_at, one.next_fire_at) == (clock.now, clock.now + M)
    assert one.last_run_id == runs[0].id
    assert [fire.due_at for fire in durable.schedule_fires("s")] == [clock.now, clock.now - M, clock.now - 2 * M]


def test_a_worker_fires_too(durable: Durable, clock: Clock) -> None:
    """A sweep of the worker's loop fires what is due, and says when to look again."""
    minutely(durable)
    worker = durable.worker()
    clock.advance(M)
    worker.sweep()
    assert worker.counts.fired == 1
    clock.advance(M - 200)
    while worker.busy or durable.runs(unfinished=True):
        worker.sweep()
    assert 0 < worker.sweep() <= 0.2


@pytest.mark.parametrize(
    ("policy", "outcome", "skips", "statuses"),
    [
        ("use_existing", "existing", 1, ["pending"]),
        ("error", "key_taken", 1, ["pending"]),
        ("cancel_existing", "replaced", 0, ["cancelled", "pending"]),
        ("run_again", "merged", 0, ["pending"]),  # the holder was not started yet: it takes the newer input
        ("send_event:again", "event_sent", 0, ["pending"]),
    ],
)
def test_overlap_follows_the_policy(
    durable: Durable, clock: Clock, policy: str, outcome: str, skips: int, statuses: list[str]
) -> None:
    """I14: a fire whose key is taken does what the policy says; it is recorded with the schedule's name, is no
    failure, and the schedule goes on."""
    minutely(durable, key="k", on_duplicate=policy)
    holder = durable.start(define_job(), key="k")
    clock.advance(M)
    worker = durable.worker(concurrency=1)
    worker.stop.set()  # fires nothing and executes nothing
    worker.sweep()
    assert find(durable).fires == 0
    fire_only(durable)
    one = find(durable)
    assert outcomes(durable) == [outcome]
    assert (one.fires, one.skips, one.failures, one.last_error) == (1, skips, 0, None)
    assert (one.last_skip_at is not None) == bool(skips)
    assert [str(run.status) for run in durable.runs(key="k")][::-1] == statuses
    told = durable.activity(kinds=["key_duplicate"])
    assert [row.details["schedule"] for row in told] == ["s"]
    assert told[0].run_id == holder.run_id
    clock.advance(M)
    fire_only(durable)
    assert find(durable).fires == 2
    assert sum(durable.stats().readds.values()) == 2


def fire_only(durable: Durable) -> None:
    """Fire what is due, and execute nothing."""
    from durable_cli.firing import fire
    from durable_cli.store import schedules

    engine = durable._engine
    for seen in engine.database.read(lambda tx: schedules.due(tx, engine.now())):
        fire(engine, seen)


def test_a_key_that_reuse_keeps_is_a_skip(durable: Durable, clock: Clock) -> None:
    """reuse="never": the first fire runs, those after it are told the finished holder, for ever, without a failure."""
    durable.schedule("s", "* * * * *", define_job(reuse="never"), timezone="UTC", key="once")
    for _ in range(7):
        clock.advance(M)
        durable.tick()
    assert outcomes(durable) == ["created"] + ["existing"] * 6
    assert find(durable).paused_at is None
    assert len(durable.runs()) == 1


def test_without_a_key_fires_overlap(durable: Durable, clock: Clock) -> None:
    """A keyless fire starts although the last run goes on."""
    minutely(durable)
    for _ in range(3):
        clock.advance(M)
        fire_only(durable)
    assert [run.status for run in durable.runs()] == [Status.PENDING] * 3


def test_the_workflows_own_key_applies(durable: Durable, clock: Clock) -> None:
    """A schedule without a key of its own takes the one that the workflow derives; its own wins."""

    @workflow(name="keyed", key="a:{id}")
    def keyed(ctx: Any, what: dict[str, Any]) -> None:
        ctx.run("x", lambda: None)

    durable.schedule("s", "* * * * *", keyed, {"id": 7}, timezone="UTC")
    durable.schedule("own", "* * * * *", keyed, {"id": 7}, timezone="UTC", key="mine")
    clock.advance(M)
    durable.tick()
    assert {run.key for run in durable.runs()} == {"a:7", "mine"}


def test_trigger_uses_the_key(durable: Durable, clock: Clock) -> None:
    """I02: a fire by hand takes the key; the next one by the clock is its duplicate. The due time stays."""
    minutely(durable, key="k")
    before = find(durable).next_fire_at
    started = durable.trigger_schedule("s")
    assert durable.run(started.run_id).key == "k"
    assert find(durable).next_fire_at == before
    assert durable.trigger_schedule("s").outcome == "existing"
    clock.advance(M)
    fire_only(durable)
    assert outcomes(durable) == ["created", "existing", "existing"]
    assert [fire.due_at for fire in durable.schedule_fires("s")] == [clock.now, None, None]


def test_trigger_of_a_taken_key_under_error(durable: Durable) -> None:
    """The caller is told who holds it; it is counted as a skip."""
    minutely(durable, key="k", on_duplicate="error")
    first = durable.trigger_schedule("s")
    with pytest.raises(KeyTaken) as caught:
        durable.trigger_schedule("s")
    assert caught.value.holder_id == first.run_id
    assert (find(durable).fires, find(durable).skips) == (2, 1)


def test_trigger_of_a_paused_schedule(durable: Durable) -> None:
    """It fires by hand, and stays paused."""
    minutely(durable)
    durable.pause_schedule("s")
    assert durable.trigger_schedule("s").outcome == "created"
    assert find(durable).paused_at is not None


# -- missed fires, and clocks ----------------------------------------------------------------------------------------


def test_three_hours_of_downtime_are_one_fire(durable: Durable, clock: Clock) -> None:
    """I04: one catch-up for 180 missed minutes, one row that has their number; then each minute as ever."""
    minutely(durable, key="k")
    clock.advance(3 * H + 40 * S)
    assert durable.tick().fired == 1
    assert len(durable.runs()) == 1
    told = durable.activity()
    assert [(row.kind, row.details) for row in told] == [
        ("schedule_missed", {"schedule": "s", "missed": 180, "caught_up": True})
    ]
    assert told[0].run_id == durable.runs()[0].id
    assert find(durable).missed == 180
    clock.advance(20 * S)
    assert durable.tick().fired == 1
    assert find(durable).missed == 180


def test_skip_records_and_does_not_fire(durable: Durable, clock: Clock) -> None:
    """I03: a night asleep with catchup="skip" leaves a record, a counter, and no run."""
    durable.schedule("s", "0 3 * * *", define_job(), timezone="UTC", catchup="skip")
    clock.advance(3 * D)
    counts = durable.tick()
    assert (counts.fired, counts.missed) == (0, 3)
    assert durable.runs() == []
    assert [row.details for row in durable.activity(kinds=["schedule_missed"])] == [
        {"schedule": "s", "missed": 3, "caught_up": False}
    ]
    one = find(durable)
    assert (one.missed, one.fires, one.last_fire_at) == (3, 0, None)
    assert one.next_fire_at is not None
    assert one.next_fire_at > clock.now


def test_the_same_process_asleep_is_one_catch_up(durable: Durable, clock: Clock) -> None:
    """A worker that was suspended finds the wall clock ahead of its own waits: one fire, the rest counted."""
    minutely(durable)
    worker = durable.worker()
    clock.advance(M)
    worker.sweep()
    clock.advance(8 * H)  # no time has passed for time.monotonic
    worker.sweep()
    worker.sweep()
    assert worker.counts.fired == 2
    assert worker.counts.missed == 8 * 60 - 1


def test_beside_a_due_minute_two_runs_never_start(durable: Durable, clock: Clock) -> None:
    """I11: started 0.8 s before a due minute with one missed, the catch-up and the regular fire are one."""
    minutely(durable)
    clock.advance(2 * M - 800)
    durable.tick()
    assert durable.runs() == []
    clock.advance(800)
    durable.tick()
    assert len(durable.runs()) == 1
    assert (find(durable).fires, find(durable).missed) == (1, 1)


def test_two_hours_ahead_and_back(durable: Durable, clock: Clock) -> None:
    """K01: the clock jumps ahead, something fires, it is set back. The schedule goes on at the next minute; the due
    time that was fired is not fired again when the clock comes to it a second time."""
    minutely(durable)
    clock.advance(2 * H)
    durable.tick()
    jumped = find(durable).last_fire_at
    clock.advance(-2 * H)
    durable.tick()
    assert find(durable).next_fire_at == clock.now + M  # and not two hours of silence
    for _ in range(125):
        clock.advance(M)
        fire_only(durable)
    due = [fire.due_at for fire in durable.schedule_fires("s", limit=1000)]
    assert len(due) == len(set(due)) == 125
    assert due.count(jumped) == 1


def test_a_small_step_back_does_not_fire_again(durable: Durable, clock: Clock) -> None:
    """NTP takes two seconds back across a minute that was fired."""
    minutely(durable)
    clock.advance(M + S)
    durable.tick()
    clock.advance(-2 * S)
    durable.tick()
    assert find(durable).next_fire_at == clock.now + S + M
    clock.advance(S)
    durable.tick()
    assert find(durable).fires == 1


def test_a_clock_set_back_by_an_hour_repeats_nothing(durable: Durable, clock: Clock) -> None:
    """An hour of minutes that were all fired: none fires again, and the first new one does."""
    minutely(durable)
    for _ in range(60):
        clock.advance(M)
        fire_only(durable)
    clock.advance(-H)
    for _ in range(61):
        clock.advance(M)
        fire_only(durable)
    assert find(durable).fires == 61


def test_fifty_years_ahead_and_back(durable: Durable, clock: Clock) -> None:
    """A clock with a flat battery freezes nothing: after it is put right, the next minute fires."""
    minutely(durable)
    clock.advance(50 * 365 * D)
    durable.tick()
    clock.advance(-50 * 365 * D)
    durable.tick()
    clock.advance(M)
    assert durable.tick().fired == 1


def test_the_zone_stays_when_the_machine_travels(
    durable: Durable, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: made in Berlin without a zone named, it fires by Berlin's clock from Tokyo, also when asked for anew."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    job = define_job()
    durable.schedule("s", "0 12 * * *", job)
    before = find(durable)
    assert (before.timezone, before.next_fire_at) == ("Europe/Berlin", clock.now + 3 * H)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    durable.schedule("s", "0 12 * * *", job)
    assert find(durable) == before
    clock.advance(2 * D)
    durable.tick()
    assert find(durable).next_fire_at == clock.now + 3 * H
    assert find(durable).missed == 2


@pytest.mark.parametrize("tz", ["CET-1CEST,M3.5.0,M10.5.0/3", "EST", "Nowhere/Town"])
def test_a_system_zone_without_a_name_is_not_guessed(
    durable: Durable, monkeypatch: pytest.MonkeyPatch, tz: str
) -> None:
    """I13: TZ that names no place is refused where no zone was given, and nothing is stored."""
    monkeypatch.setenv("TZ", tz)
    with pytest.raises(InvalidZone):
        durable.schedule("s", "0 12 * * *", define_job())
    assert durable.schedules() == []


def test_jitter_moves_the_start_and_not_the_due_time(durable: Durable, clock: Clock) -> None:
    """Each start comes up to the jitter later, at a moment that every process computes alike; none is lost."""
    durable.schedule("s", "0 * * * *", define_job(), timezone="UTC", jitter="20m")
    starts = []
    for _ in range(24 * 60):
        clock.advance(M)
        fire_only(durable)
    for fire in durable.schedule_fires("s", limit=100):
        assert fire.due_at is not None
        assert 0 <= fire.at - fire.due_at <= 21 * M
        starts.append(fire.at - fire.due_at)
    assert len(starts) in (23, 24)
    assert len(set(starts)) > 5
    assert find(durable).missed == 0


# -- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [{"cron": "*/5 * * * *"}, {"timezone": "Asia/Kathmandu"}, {"input": {"n": 2}}, {"key": "k"}, {"jitter": "1s"}],
    ids=str,
)
def test_a_change_fires_nothing(durable: Durable, clock: Clock, changed: dict[str, Any]) -> None:
    """I08: whatever changes, the next fire is computed from now, and what was due is not replayed."""
    job = define_job()
    durable.schedule("s", "* * * * *", job, {"n": 1}, timezone="UTC")
    clock.advance(3 * M + S)
    asked = {"cron": "* * * * *", "input": {"n": 1}, "timezone": "UTC"} | changed
    durable.schedule("s", asked.pop("cron"), job, asked.pop("input"), **asked)
    durable.tick()
    assert durable.runs() == []
    one = find(durable)
    assert one.next_fire_at is not None
    assert one.next_fire_at > clock.now


def test_asking_for_the_same_changes_nothing(durable: Durable, clock: Clock) -> None:
    """A program that declares its schedule at each start neither postpones nor replays a fire."""
    minutely(durable, input={"a": 1, "b": 2})
    before = find(durable)
    clock.advance(30 * S)
    minutely(durable, input={"b": 2, "a": 1})
    assert find(durable) == before


def test_pause_and_resume(durable: Durable, clock: Clock) -> None:
    """Paused, nothing fires; resumed, it goes on from now: what came due meanwhile is neither fired nor missed."""
    minutely(durable)
    durable.pause_schedule("s", reason="holidays")
    clock.advance(H)
    durable.tick()
    assert (find(durable).paused_reason, durable.runs()) == ("holidays", [])
    durable.resume_schedule("s")
    durable.tick()
    assert durable.runs() == []
    clock.advance(M)
    durable.tick()
    assert (find(durable).fires, find(durable).missed) == (1, 0)
    assert kinds(durable) == ["schedule_paused"]


def test_removed_it_is_gone(durable: Durable, clock: Clock) -> None:
    """Its runs stay; the name is free; unknown names are told with a near one."""
    minutely(durable, "nightly")
    clock.advance(M)
    durable.tick()
    durable.remove_schedule("nightly")
    clock.advance(M)
    durable.tick()
    assert (len(durable.runs()), durable.schedules()) == (1, [])
    minutely(durable, "nightly")
    with pytest.raises(ScheduleNotFound, match="nightyl") as caught:
        durable.pause_schedule("nightyl")
    assert caught.value.hint == "did you mean nightly?"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": ""}, InvalidKey),
        ({"key": "é" * 128}, InvalidKey),
        ({"timezone": "CET"}, InvalidZone),
        ({"timezone": "Mars/Base"}, InvalidZone),
        ({"on_duplicate": "queue"}, UsageError),
        ({"catchup": "all"}, UsageError),
        ({"jitter": "2d"}, UsageError),
        ({"cron": "0 0 31 2 *"}, InvalidCron),
        ({"cron": "*/10 * * * * *"}, InvalidCron),
        ({"input": "seven"}, InvalidInput),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_with_nothing_written(
    durable: Durable, options: dict[str, Any], error: type[Exception]
) -> None:
    """A06, J05: a bad key never becomes a keyless schedule, a bad expression never a stored one."""

    @workflow(name="typed")
    def typed(ctx: Any, n: int = 1) -> None:
        ctx.run("x", lambda: None)

    asked = {"cron": "* * * * *", "timezone": "UTC"} | options
    with pytest.raises(error):
        durable.schedule("s", asked.pop("cron"), typed, asked.pop("input", 5), **asked)
    assert durable.schedules() == []


def test_a_policy_that_never_fits_is_refused(durable: Durable) -> None:
    """B09: run_again on a workflow whose key is used once."""
    with pytest.raises(UsageError, match="run_again"):
        durable.schedule("s", "* * * * *", define_job(reuse="never"), key="k", on_duplicate="run_again", timezone="UTC")


# -- isolation -------------------------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module of that text and forgets what was imported; gives its name."""
    name = f"code_{tmp_path.name.replace('-', '_')}"
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)

    def write(text: str) -> str:
        from durable_cli.definition import definitions, forget

        (tmp_path / f"{name}.py").write_text("from durable_cli import schedule, workflow\n" + text)
        sys.modules.pop(name, None)
        for definition in definitions():
            if definition.location.file.startswith(str(tmp_path.resolve())):
                forget(definition.name)
        importlib.invalidate_caches()
        sys.dont_write_bytecode = True
        return name

    return write


JOB = """
@workflow
def coded(ctx, n: int = 1) -> int:
    return ctx.run("x", lambda: n)
"""


def test_broken_code_pauses_its_schedule_and_no_other(
    durable: Durable, clock: Clock, module: Callable[[str], str]
) -> None:
    """I14: five failures in a row pause it, with the reason; the other schedule fires all the while."""
    from durable_cli.loading import load_target

    name = module(JOB)
    broken = load_target(f"{name}:coded", app_dir=Path.cwd(), known=durable.workflow)
    durable.schedule("broken", "* * * * *", broken, timezone="UTC")
    minutely(durable, "good")
    module("raise RuntimeError('gone to lunch')")
    for n in range(1, 8):
        clock.advance(M)
        counts = durable.tick()
        assert counts.fired == 1
        assert (find(durable, "broken").paused_at is not None) == (n >= 5)
        assert (counts.errors > 0) == (n <= 5)
    one = find(durable, "broken")
    assert "gone to lunch" in (one.paused_reason or "")
    assert "gone to lunch" in (one.last_error or "")
    assert outcomes(durable, "broken") == ["failed"] * 5
    assert find(durable, "good").fires == 7
    assert kinds(durable) == ["schedule_failed"] * 5 + ["schedule_paused"]

    module(JOB)
    durable.resume_schedule("broken")
    clock.advance(M)
    durable.tick()
    assert (find(durable, "broken").fires, find(durable, "broken").last_error) == (1, None)


class Left(BaseException):
    """As gevent's Timeout: no Exception."""


def _leave(*_: Any) -> Any:
    raise Left("for lunch")


class Picky:
    """A type whose validation ends the process that asks."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(lambda value: sys.exit(3) if value == "late" else value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"key": lambda what: sys.exit(3) if what else "k"}, "sys.exit(3) was called"),
        ({"merge": lambda old, new: sys.exit(3), "on_duplicate": "run_again"}, "sys.exit(3) was called"),
        ({"merge": _leave, "debounce": Debounce("1h")}, "Left: for lunch"),
    ],
    ids=["key", "merge", "merge of a debounce"],
)
def test_users_code_that_is_asked_ends_no_process(
    durable: Durable, clock: Clock, options: dict[str, Any], why: str
) -> None:
    """Whatever it raises has failed this due time: the tick goes on, and other schedules fire (I14)."""

    @workflow(name="asked", **options)
    def asked(ctx: Any, what: Any = None) -> Any:
        return ctx.run("x", lambda: what)

    key = None if "key" in options else "k"
    durable.start(asked, key=key, delay="1d")
    durable.schedule("asks", "* * * * *", asked, key=key, timezone="UTC")
    change(durable, "UPDATE durable_schedules SET input = '1'")
    minutely(durable, "good")
    clock.advance(M)
    counts = durable.tick()
    one = find(durable, "asks")
    assert (counts.fired, counts.errors, one.failures) == (1, 1, 1)
    assert why in (one.last_error or "")
    with pytest.raises(UsageError, match=re.escape(why)):
        durable.trigger_schedule("asks")


def test_a_validator_that_ends_the_process_is_a_refusal(durable: Durable) -> None:
    """As for a start, so for a fire whose stored input is refused only now."""

    @workflow(name="picky")
    def picky(ctx: Any, what: Picky) -> Any:
        return ctx.run("x", lambda: 1)

    durable.schedule("s", "* * * * *", picky, input="early", timezone="UTC")
    change(durable, """UPDATE durable_schedules SET input = '"late"'""")
    for ask in (lambda: durable.start(picky, "late"), lambda: durable.trigger_schedule("s")):
        with pytest.raises(InvalidInput, match=r"sys.exit\(3\) was called"):
            ask()
    assert durable.runs() == []


def test_success_resets_the_count(durable: Durable, clock: Clock, module: Callable[[str], str]) -> None:
    """Four failures, one success, four failures: it is not paused."""
    from durable_cli.loading import load_target

    name = module(JOB)
    code = load_target(f"{name}:coded", app_dir=Path.cwd(), known=durable.workflow)
    durable.schedule("s", "* * * * *", code, timezone="UTC")
    for good in (False, True, False):
        module(JOB if good else "raise RuntimeError('no')")
        for _ in range(1 if good else 4):
            clock.advance(M)
            durable.tick()
    assert (find(durable).failures, find(durable).paused_at) == (4, None)


@pytest.mark.parametrize(
    ("column", "value"), [("cron", "every now and then"), ("timezone", "Mars/Base"), ("input", '"no number"')]
)
def test_what_was_stored_and_cannot_be_read(durable: Durable, clock: Clock, column: str, value: str) -> None:
    """A row that somebody spoiled, or an input that the code no longer takes: told on the schedule, paused after five,
    and the others fire."""

    @workflow(name="typed")
    def typed(ctx: Any, n: int = 1) -> None:
        ctx.run("x", lambda: None)

    durable.schedule("bad", "* * * * *", typed, 1, timezone="UTC")
    minutely(durable, "good")
    change(durable, f"UPDATE durable_schedules SET {column} = :value WHERE name = 'bad'", value=value)
    for _ in range(6):
        clock.advance(M)
        assert durable.tick().fired == 1
    one = find(durable, "bad")
    assert one.paused_at is not None
    assert one.failures == 5
    assert durable.schedules()


def test_the_file_refuses_a_second_fire(durable: Durable, clock: Clock) -> None:
    """A due time is claimed by a row that is unique, whatever the code believes."""
    from durable_cli.model import ScheduleFire
    from durable_cli.store import schedules

    minutely(durable)
    one = find(durable)
    fire = ScheduleFire(clock.now, clock.now, "created", None, 0, None)
    engine = durable._engine
    engine.database.write(lambda tx: schedules.record(tx, one.row_id, fire))
    with pytest.raises(Exception, match="UNIQUE"):
        engine.database.write(lambda tx: schedules.record(tx, one.row_id, fire))


def test_late_look_at_a_fire_that_somebody_else_made(durable: Durable, clock: Clock) -> None:
    """I06: who saw it due, slept, and comes to fire it after another did, fires nothing."""
    from durable_cli.firing import fire

    minutely(durable)
    clock.advance(M)
    seen = find(durable)
    durable.tick()
    assert fire(durable._engine, seen) is None
    assert len(durable.runs()) == 1


@pytest.mark.parametrize("change_it", ["pause", "remove", "cron"])
def test_changed_after_it_was_seen(durable: Durable, clock: Clock, change_it: str) -> None:
    """Paused, removed or changed between the look and the transaction: nothing fires."""
    from durable_cli.firing import fire

    minutely(durable)
    clock.advance(M)
    seen = find(durable)
    if change_it == "pause":
        durable.pause_schedule("s")
    elif change_it == "remove":
        durable.remove_schedule("s")
    else:
        durable.schedule("s", "0 * * * *", define_job(), timezone="UTC")
    assert fire(durable._engine, seen) is None
    assert durable.runs() == []


def test_old_fires_are_forgotten(durable: Durable, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a schedule that fires each minute does not grow for ever."""
    monkeypatch.setattr("durable_cli.store.schedules.KEPT_FIRES", 5)
    minutely(durable)
    for _ in range(9):
        clock.advance(M)
        fire_only(durable)
    assert [fire.due_at for fire in durable.schedule_fires("s")] == [clock.now - n * M for n in range(5)]


# -- @schedule and sync ----------------------------------------------------------------------------------------------


def sync(durable: Durable, *modules: str) -> dict[str, Any]:
    """What a sync did, without what is empty."""
    done = durable.sync_schedules(modules, app_dir=Path.cwd())
    told = {name: getattr(done, name) for name in ("added", "changed", "unchanged", "back", "vanished")}
    told["failed"] = sorted(done.failed)
    return {name: names for name, names in told.items() if names}


def test_code_is_the_truth_about_its_schedules(durable: Durable, clock: Clock, module: Callable[[str], str]) -> None:
    """Added, unchanged, changed (nothing fires by it), vanished (marked, fires no more) and back again."""
    name = module('@schedule("* * * * *", key="k", timezone="UTC")' + JOB)
    assert sync(durable, name) == {"added": ["coded"]}
    assert sync(durable, name) == {"unchanged": ["coded"]}
    clock.advance(5 * M)
    name = module('@schedule("0 * * * *", key="k", timezone="UTC")' + JOB)
    assert sync(durable, name) == {"changed": ["coded"]}
    durable.tick()
    assert durable.runs() == []
    name = module(JOB)
    assert sync(durable, name) == {"vanished": ["coded"]}
    assert sync(durable, name) == {}
    clock.advance(2 * H)
    durable.tick()
    assert durable.runs() == []
    name = module('@schedule("0 * * * *", key="k", timezone="UTC")' + JOB)
    assert sync(durable, name) == {"back": ["coded"]}
    durable.tick()
    assert durable.runs() == []
    assert find(durable, "coded").vanished_at is None


def test_a_module_that_fails_to_import_removes_nothing(durable: Durable, module: Callable[[str], str]) -> None:
    """A typo is not "all removed"."""
    name = module('@schedule("* * * * *", timezone="UTC")' + JOB)
    sync(durable, name)
    name = module("raise RuntimeError('typo')")
    assert sync(durable, name) == {"failed": [name]}
    assert find(durable, "coded").active


def test_a_schedule_that_is_refused_stops_no_other(durable: Durable, module: Callable[[str], str]) -> None:
    """A zone that does not exist: told by name, the rest is brought in, and the bad one is not "vanished"."""
    good = '@schedule("* * * * *", timezone="UTC", name="good")'
    name = module(f'{good}\n@schedule("* * * * *", timezone="UTC", name="zoned"){JOB}')
    assert sync(durable, name) == {"added": ["zoned", "good"]}
    name = module(f'{good}\n@schedule("* * * * *", timezone="Mars/Base", name="zoned"){JOB}')
    assert sync(durable, name) == {"unchanged": ["good"], "failed": ["zoned"]}
    assert find(durable, "zoned").active


def test_by_hand_and_by_code_do_not_mix(durable: Durable, module: Callable[[str], str]) -> None:
    """A name belongs to one of them: code does not take over what was made by hand, nor the other way round, and what
    the code declares cannot be removed while it does."""
    minutely(durable, "coded")
    name = module('@schedule("0 * * * *", timezone="UTC")' + JOB)
    assert sync(durable, name) == {"failed": ["coded"]}
    durable.remove_schedule("coded")
    sync(durable, name)
    with pytest.raises(ScheduleTaken):
        minutely(durable, "coded")
    with pytest.raises(ScheduleTaken):
        durable.remove_schedule("coded")
    sync(durable, module(JOB))
    durable.remove_schedule("coded")


def test_a_pause_by_hand_outlives_a_sync(durable: Durable, module: Callable[[str], str]) -> None:
    """Who paused it had a reason."""
    name = module('@schedule("* * * * *", timezone="UTC")' + JOB)
    sync(durable, name)
    durable.pause_schedule("coded")
    sync(durable, module('@schedule("0 * * * *", timezone="UTC")' + JOB))
    assert (find(durable, "coded").cron, find(durable, "coded").paused_reason) == ("0 * * * *", "by hand")


def test_a_vanished_schedule_of_another_module_is_left(durable: Durable, module: Callable[[str], str]) -> None:
    """Syncing one module says nothing about the schedules of others."""
    name = module('@schedule("* * * * *", timezone="UTC")' + JOB)
    sync(durable, name)
    Path("elsewhere.py").write_text("from durable_cli import workflow\n@workflow\ndef e(ctx): pass\n")
    assert sync(durable, "./elsewhere.py") == {}
    assert find(durable, "coded").active


def test_decorators_stack() -> None:
    """Several schedules on one workflow, which stays what it was."""

    @schedule("0 3 * * *", key="k")
    @schedule("0 15 * * *", key="k", name="afternoon")
    @workflow(name="twice")
    def twice(ctx: Any) -> str:
        return "called"

    assert [(one.spec.name, one.spec.cron) for one in declared([twice.definition])] == [
        ("afternoon", "0 15 * * *"),
        ("twice", "0 3 * * *"),
    ]
    assert twice(None) == "called"


@pytest.mark.parametrize(
    "options",
    [
        {"cron": "* * * *"},
        {"cron": "60 * * * *"},
        {"cron": 5},
        {"key": 7},
        {"timezone": 1},
        {"on_duplicate": "queue"},
        {"on_duplicate": "run_again"},
        {"catchup": "all"},
        {"jitter": "soon"},
        {"name": "a b"},
    ],
    ids=str,
)
def test_bad_options_fail_at_import(options: dict[str, Any]) -> None:
    """With the workflow and its place in the message."""

    @workflow(name="target", reuse="never")
    def target(ctx: Any) -> None: ...

    with pytest.raises(InvalidDefinition, match="@schedule of workflow 'target'"):
        schedule(**({"cron": "0 3 * * *"} | options))(target)


def test_two_schedules_of_one_name_are_refused() -> None:
    """Also of two workflows: which one would it be?"""

    @workflow(name="one")
    def one(ctx: Any) -> None: ...

    @workflow(name="other")
    def other(ctx: Any) -> None: ...

    schedule("0 3 * * *", name="n")(one)
    with pytest.raises(AlreadyDefined, match="'n' is declared already"):
        schedule("0 4 * * *", name="n")(other)
    with pytest.raises(AlreadyDefined):
        schedule("0 4 * * *", name="n")(one)


def test_below_the_workflow_is_refused() -> None:
    """The order of the decorators is told."""
    with pytest.raises(InvalidDefinition, match="belongs on a workflow") as caught:
        schedule("0 3 * * *")(lambda ctx: None)  # type: ignore[type-var]
    assert caught.value.hint == "write @schedule(...) above @workflow"
