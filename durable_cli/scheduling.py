"""Schedules: made and changed by hand or by code, fired by whoever looks first.

No process is the leader, and nothing is believed that the file does not say. To fire is one write transaction: read the
schedule again, decide by the clock of this moment (`core.schedules`), start the run by the ordinary rules of its key,
claim the due time and move on to the next. Who comes second finds another row than the one it had seen, and leaves.

Each schedule fires on its own. One whose code cannot be loaded, whose stored expression cannot be read or whose input
is refused has failed at this due time; that is recorded on it, and the others fire. Five such failures in a row pause
it. A taken key is no failure. Errors of the file are nobody's failure: they are raised, and what was due stays due.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from durable_cli import starting
from durable_cli.core.schedules import (
    BROKEN_RETRY_MS,
    MAX_FAILURES,
    Fire,
    Rule,
    Spec,
    Wait,
    decide,
    following,
    look_back,
)
from durable_cli.definition import UNSET, Definition
from durable_cli.engine import Engine
from durable_cli.errors import (
    AlreadyScheduled,
    DatabaseReadOnly,
    DatabaseUnusable,
    DiskError,
    DiskFull,
    DurableError,
    KeyContended,
    OutcomeUnknown,
    ScheduleNotFound,
)
from durable_cli.loading import load_workflow
from durable_cli.model import ActivityKind, Schedule, ScheduleFire
from durable_cli.request import Request, merging, request_for
from durable_cli.store import activity, schedules, workflows
from durable_cli.store.database import Tx

OF_THE_FILE = (DatabaseUnusable, DatabaseReadOnly, DiskError, DiskFull, OutcomeUnknown, KeyContended)
"""Errors that say nothing about a schedule."""


def rule_of(schedule: Schedule) -> Rule:
    """When it fires. Raises InvalidCron, InvalidZone: what was stored may have become unreadable."""
    from durable_cli.core.cron import parse, zone

    cron, where = parse(schedule.cron), zone(schedule.timezone)
    return Rule(schedule.name, cron, where, schedule.catchup, schedule.jitter_ms)


# -- firing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fired:
    """What became of a due time."""

    schedule: str
    fire: ScheduleFire


def fire_due(engine: Engine) -> list[Fired]:
    """Fire what is due now, each schedule on its own. Raises errors of the file only."""
    found = engine.database.read(lambda tx: schedules.due(tx, engine.now()))
    return [fired for schedule in found if (fired := _fire(engine, schedule)) is not None]


def _fire(engine: Engine, seen: Schedule) -> Fired | None:
    """Fire one schedule, if it is due and still as it was seen."""
    try:
        rule = rule_of(seen)
    except DurableError as error:
        return _failed(engine, seen, None, error)
    try:
        decision = engine.database.read(lambda tx: _decide(tx, seen, rule, engine.now()))
        if isinstance(decision, Wait):
            _wait(engine, seen, rule)
            return None
        if not decision.starts:
            return engine.database.write(lambda tx: _fire_in(tx, engine, seen, rule, None))
        definition = _load(engine, seen)
        return merging(
            definition,
            _request(engine, seen, definition),
            lambda request: engine.write(
                lambda tx: _fire_in(tx, engine, seen, rule, request), landed=lambda tx: _landed(tx, seen, request)
            ),
        )
    except OF_THE_FILE:
        raise
    except Exception as error:  # also what a user's key function or `merge` comes up with
        return _failed(engine, seen, rule, error)


def _decide(tx: Tx, schedule: Schedule, rule: Rule, now: int) -> Fire | Wait:
    since = min(now, schedule.next_fire_at if schedule.next_fire_at is not None else now)
    claimed = schedules.claimed(tx, schedule.row_id, since)
    if schedule.computed_at > now:
        ahead = look_back(rule, schedule.next_fire_at, now, claimed)
        if ahead.next_at is None or ahead.next_at > now:
            return ahead
    if schedule.next_fire_at is None:
        return Wait(None, None)
    return decide(rule, schedule.next_fire_at, now, claimed)


def _wait(engine: Engine, seen: Schedule, rule: Rule) -> None:
    """Nothing fires: note what it waits for, by the clock of now."""

    def write(tx: Tx) -> None:
        now = engine.now()
        if schedules.get(tx, seen.name) != seen:
            return
        decision = _decide(tx, seen, rule, now)
        if isinstance(decision, Wait):
            schedules.wait_for(tx, seen.row_id, next_at=decision.next_at, wake_at=decision.wake_at, now=now)

    engine.database.write(write)


def _load(engine: Engine, schedule: Schedule) -> Definition:
    known = engine.database.read(lambda tx: workflows.get(tx, schedule.workflow))
    assert known is not None
    return load_workflow(known)


def _request(engine: Engine, schedule: Schedule, definition: Definition) -> Request:
    return request_for(
        definition,
        UNSET if schedule.input is None else json.loads(schedule.input),
        run_id=engine.new_id(),
        key=schedule.key,
        on_duplicate=schedule.on_duplicate,
        schedule=schedule.name,
    )


def _fire_in(tx: Tx, engine: Engine, seen: Schedule, rule: Rule, request: Request | None) -> Fired | None:
    """The transaction of a fire. None: it was no longer as seen, or is not due by the clock of now."""
    now = engine.now()
    if schedules.get(tx, seen.name) != seen:
        return None
    decision = _decide(tx, seen, rule, now)
    if isinstance(decision, Wait) or (decision.starts and request is None):
        return None
    if decision.starts:
        assert request is not None
        outcome, run_id = _start(tx, engine, request, now)
    else:
        outcome, run_id = "missed", None
    fire = ScheduleFire(decision.due_at, now, outcome, run_id, decision.missed, None)
    schedules.record(tx, seen.row_id, fire)
    schedules.wait_for(tx, seen.row_id, next_at=decision.next.next_at, wake_at=decision.next.wake_at, now=now)
    if decision.missed:
        _note(tx, ActivityKind.SCHEDULE_MISSED, seen, now, run_id=run_id, missed=decision.missed, caught_up=decision.starts)
    return Fired(seen.name, fire)


def _start(tx: Tx, engine: Engine, request: Request, now: int) -> tuple[str, str]:
    """Start the run by the rules of its key: the outcome, and the run it is about."""
    started = starting.start(tx, request, now=now, alive=engine.alive, owner_id=None)
    if started.refusal is not None:
        return "key_taken", started.refusal.holder_id
    assert started.result is not None
    return str(started.result.outcome), started.result.run_id


def _landed(tx: Tx, seen: Schedule, request: Request) -> Fired | None:
    """Whether a commit whose outcome is unknown is there: the newest fire names the run, if it made one."""
    for fire in schedules.fires(tx, seen.name, 1):
        if fire.run_id == request.run_id:
            return Fired(seen.name, fire)
    return None


def _failed(engine: Engine, seen: Schedule, rule: Rule | None, error: Exception) -> Fired | None:
    """This due time failed: record why, go on to the next, and pause after five in a row."""
    reason = error.message if isinstance(error, DurableError) else f"{type(error).__name__}: {error}"

    def write(tx: Tx) -> Fired | None:
        now = engine.now()
        if schedules.get(tx, seen.name) != seen:
            return None
        if rule is None:
            due_at, missed, ahead = seen.next_fire_at, 0, Wait(now + BROKEN_RETRY_MS, now + BROKEN_RETRY_MS)
        else:
            decision = _decide(tx, seen, rule, now)
            if isinstance(decision, Wait):
                return None
            due_at, missed, ahead = decision.due_at, decision.missed, decision.next
        fire = ScheduleFire(due_at, now, "failed", None, missed, reason)
        schedules.record(tx, seen.row_id, fire)
        schedules.wait_for(tx, seen.row_id, next_at=ahead.next_at, wake_at=ahead.wake_at, now=now)
        _note(tx, ActivityKind.SCHEDULE_FAILED, seen, now, reason=reason, failures=seen.failures + 1)
        if seen.failures + 1 >= MAX_FAILURES:
            why = f"it failed {seen.failures + 1} times in a row: {reason}"
            schedules.pause(tx, seen.row_id, reason=why, now=now)
            _note(tx, ActivityKind.SCHEDULE_PAUSED, seen, now, reason=why)
        return Fired(seen.name, fire)

    return engine.database.write(write)


def _note(
    tx: Tx, kind: ActivityKind, schedule: Schedule, now: int, *, run_id: str | None = None, **details: object
) -> None:
    activity.schedule_event(
        tx, kind, at=now, schedule=schedule.name, workflow=schedule.workflow, key=schedule.key, run_id=run_id, **details
    )


def trigger(engine: Engine, name: str) -> starting.Started:
    """Fire a schedule by hand, with its key, policy and input; its next due time stays. Paused ones too.

    Raises ScheduleNotFound and what a start raises; a taken key is in the answer.
    """
    seen = engine.database.read(lambda tx: must_get(tx, name))
    definition = _load(engine, seen)

    def write(tx: Tx, request: Request) -> starting.Started:
        now = engine.now()
        schedule = must_get(tx, name)
        started = starting.start(tx, request, now=now, alive=engine.alive, owner_id=None)
        if started.refusal is not None:
            outcome, run_id = "key_taken", started.refusal.holder_id
        else:
            assert started.result is not None
            outcome, run_id = str(started.result.outcome), started.result.run_id
        schedules.record(tx, schedule.row_id, ScheduleFire(None, now, outcome, run_id, 0, None))
        return started

    request = _request(engine, seen, definition)
    return merging(definition, request, lambda request: engine.write(lambda tx: write(tx, request)))


# -- making and changing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Put:
    """What became of a schedule that was asked for. `change`: added, changed, unchanged or back (it had vanished)."""

    change: str
    schedule: Schedule
    keyless: bool
    """Its fires have no key: one starts although the last run goes on."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A schedule that was asked for, checked whole and ready to be written. `file`: of the code that declares it."""

    spec: Spec
    request: Request
    input: str | None
    file: str | None


def wanted(spec: Spec, definition: Definition, input: object, file: str | None) -> Wanted:
    """Check a schedule against its workflow, as its fires will be. Raises InvalidCron, InvalidZone, InvalidInput,
    InvalidKey, InvalidDefinition.
    """
    from durable_cli.core.cron import parse, zone

    parse(spec.cron)
    if spec.timezone is not None:
        zone(spec.timezone)
    request = request_for(definition, input, run_id="", key=spec.key, on_duplicate=spec.on_duplicate)
    return Wanted(spec, request, None if input is UNSET else request.input, file)


def put(tx: Tx, wanted: Wanted, *, default_zone: str, now: int, write: bool = True) -> Put:
    """Make a schedule, or change it. A change computes the next fire from now, and fires nothing.

    `write` False: only what would become of it (nothing is written). Raises AlreadyScheduled where code has the name
    and this is made by hand, or the other way round, and WorkflowMoved.
    """
    known = schedules.get(tx, wanted.spec.name)
    if known is not None and (known.file is None) != (wanted.file is None):
        raise _taken(known, wanted)
    new = _as_row(wanted, known, default_zone, now)
    keyless = wanted.request.key is None
    if known is not None and _asks_the_same(known, new):
        return Put("unchanged", known, keyless)
    change = "added" if known is None else "back" if known.vanished_at is not None else "changed"
    if write:
        _write(tx, new, wanted, now)
    return Put(change, new if not write else must_get(tx, new.name), keyless)


def _as_row(wanted: Wanted, known: Schedule | None, default_zone: str, now: int) -> Schedule:
    """The schedule as it will be. Nobody said a zone: the one it has stays, if nobody had said that one either."""
    spec = wanted.spec
    if spec.timezone is not None:
        timezone = spec.timezone
    else:
        timezone = known.timezone if known is not None and not known.timezone_given else default_zone
    schedule = Schedule(
        row_id=0,
        name=spec.name,
        workflow=wanted.request.workflow,
        cron=spec.cron,
        timezone=timezone,
        timezone_given=spec.timezone is not None,
        key=spec.key,
        on_duplicate=spec.on_duplicate,
        input=wanted.input,
        catchup=spec.catchup,
        jitter_ms=spec.jitter_ms,
        file=wanted.file,
        created_at=known.created_at if known else now,
        computed_at=now,
        next_fire_at=None,
        wake_at=None,
        paused_at=known.paused_at if known else None,
        paused_reason=known.paused_reason if known else None,
        vanished_at=None,
        last_fire_at=None,
        last_outcome=None,
        last_run_id=None,
        last_skip_at=None,
        last_error=None,
        fires=0,
        skips=0,
        missed=0,
        failures=0,
    )
    return schedule


_ASKED = (
    "workflow", "cron", "timezone", "timezone_given", "key", "on_duplicate", "input", "catchup", "jitter_ms", "file",
    "vanished_at",
)  # fmt: skip


def _asks_the_same(one: Schedule, other: Schedule) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _ASKED)
