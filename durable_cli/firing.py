"""Firing schedules: by whoever looks first.

No process is the leader, and nothing is believed that the file does not say. To fire is one write transaction: read the
schedule again, decide by the clock of this moment (`core.schedules`), start the run by the ordinary rules of its key,
claim the due time and move on to the next. Who comes second finds another row than the one it had seen, and leaves.

Each schedule fires on its own. One whose code cannot be loaded, whose stored expression cannot be read or whose input
is refused has failed at this due time; that is recorded on it, and the others fire. Five such failures in a row pause
it. A taken key is no failure. Errors of the file (and of a process at its limits) are nobody's failure: they are
raised, and what was due stays due.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from durable_cli import starting
from durable_cli.core.schedules import BROKEN_RETRY_MS, MAX_FAILURES, Fire, Rule, Wait, decide, look_back
from durable_cli.definition import UNSET, Definition
from durable_cli.engine import Engine
from durable_cli.errors import (
    FILE_ERRORS,
    DurableError,
    KeyContended,
    ScheduleNotFound,
    TooManyThreads,
)
from durable_cli.foreground import landed_start
from durable_cli.loading import load_workflow
from durable_cli.model import ActivityKind, Schedule, ScheduleFire, Workflow
from durable_cli.request import Request, merging, request_for
from durable_cli.store import activity, schedules, workflows
from durable_cli.store.database import Tx

OF_THE_MOMENT = (*FILE_ERRORS, KeyContended, TooManyThreads)
"""Errors that say nothing about a schedule."""


def rule_of(schedule: Schedule) -> Rule:
    """When it fires. Raises InvalidCron, InvalidZone: what was stored may have become unreadable."""
    from durable_cli.core.cron import parse, zone

    cron, where = parse(schedule.cron), zone(schedule.timezone)
    return Rule(schedule.name, cron, where, schedule.catchup, schedule.jitter_ms)


# -- firing ----------------------------------------------------------------------------------------------------------


def fire(
    engine: Engine, seen: Schedule, *, load: Callable[[Workflow], Definition | None] = load_workflow
) -> ScheduleFire | None:
    """Fire a schedule, if it is due and still as it was seen. Raises OF_THE_MOMENT only.

    `load` gives the code of a workflow, None if that takes a while: then nothing was done, and it stays due.
    """
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
        definition = load(_workflow(engine, seen))
        if definition is None:
            return None
        return merging(
            definition,
            _request(engine, seen, definition),
            lambda request: engine.write(
                lambda tx: _fire_in(tx, engine, seen, rule, request), landed=lambda tx: _landed(tx, seen, request)
            ),
        )
    except OF_THE_MOMENT:
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


def _workflow(engine: Engine, schedule: Schedule) -> Workflow:
    known = engine.database.read(lambda tx: workflows.get(tx, schedule.workflow))
    assert known is not None
    return known


def _request(engine: Engine, schedule: Schedule, definition: Definition) -> Request:
    return request_for(
        definition,
        UNSET if schedule.input is None else json.loads(schedule.input),
        run_id=engine.new_id(),
        key=schedule.key,
        on_duplicate=schedule.on_duplicate,
        schedule=schedule.name,
    )


def _fire_in(tx: Tx, engine: Engine, seen: Schedule, rule: Rule, request: Request | None) -> ScheduleFire | None:
    """The transaction of a fire. None: it was no longer as seen, or is not due by the clock of now."""
    now = engine.now()
    if schedules.get(tx, seen.name) != seen:
        return None
    decision = _decide(tx, seen, rule, now)
    if isinstance(decision, Wait) or (decision.starts and request is None):
        return None
    if decision.starts:
        assert request is not None
        outcome, run_id = _told(starting.start(tx, request, now=now, alive=engine.alive, owner_id=None))
        fire = ScheduleFire(decision.due_at, now, outcome, run_id, decision.missed, None)
    else:
        fire = ScheduleFire(decision.due_at, now, "missed", None, decision.missed, None)
    schedules.record(tx, seen.row_id, fire)
    schedules.wait_for(tx, seen.row_id, next_at=decision.next.next_at, wake_at=decision.next.wake_at, now=now)
    if decision.missed:
        told = {"missed": decision.missed, "caught_up": decision.starts}
        _note(tx, ActivityKind.SCHEDULE_MISSED, seen, now, run_id=fire.run_id, **told)
    return fire


def _told(started: starting.Started) -> tuple[str, str]:
    """The outcome of a start, and the run it is about."""
    if started.refusal is not None:
        return "key_taken", started.refusal.holder_id
    assert started.result is not None
    return str(started.result.outcome), started.result.run_id


def _landed(tx: Tx, seen: Schedule, request: Request) -> ScheduleFire | None:
    """Whether a commit whose outcome is unknown is there: a late fire names the run, if it made one."""
    for fire in schedules.fires(tx, seen.name, 10):
        if fire.run_id == request.run_id:
            return fire
    return None


def _failed(engine: Engine, seen: Schedule, rule: Rule | None, error: Exception) -> ScheduleFire | None:
    """This due time failed: record why, go on to the next, and pause after five in a row."""
    reason = error.message if isinstance(error, DurableError) else f"{type(error).__name__}: {error}"

    def write(tx: Tx) -> ScheduleFire | None:
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
        return fire

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
    definition = load_workflow(_workflow(engine, seen))

    def write(tx: Tx, request: Request) -> starting.Started:
        now = engine.now()
        schedule = must_get(tx, name)
        started = starting.start(tx, request, now=now, alive=engine.alive, owner_id=None)
        schedules.record(tx, schedule.row_id, ScheduleFire(None, now, *_told(started), 0, None))
        return started

    return merging(
        definition,
        _request(engine, seen, definition),
        lambda request: engine.write(
            lambda tx: write(tx, request), landed=lambda tx: landed_start(tx, request, engine)
        ),
    )


def must_get(tx: Tx, name: str) -> Schedule:
    """The schedule of that name. Raises ScheduleNotFound, with a near name."""
    found = schedules.get(tx, name)
    if found is not None:
        return found
    import difflib

    near = difflib.get_close_matches(name, [one.name for one in schedules.every(tx)], 1)
    raise ScheduleNotFound(
        f"there is no schedule {name!r}", hint=f"did you mean {near[0]}?" if near else "durable schedules list"
    )
