"""Schedules made and changed: by hand (`add`), or by code (`sync`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from durable_cli import starting
from durable_cli.core.schedules import Rule, Spec, Wait, following
from durable_cli.declaring import Declared
from durable_cli.definition import UNSET, Definition
from durable_cli.engine import Engine
from durable_cli.errors import DurableError, ScheduleTaken
from durable_cli.firing import OF_THE_MOMENT, must_get, rule_of
from durable_cli.model import ActivityKind, Schedule
from durable_cli.request import Request, request_for
from durable_cli.store import activity, schedules
from durable_cli.store.database import Tx
from durable_cli.values import same_value
from durable_cli.zones import system_zone


@dataclass(frozen=True, slots=True)
class Wanted:
    """A schedule that was asked for, checked whole and ready to be written. `file`: of the code that declares it."""

    spec: Spec
    request: Request
    input: str | None
    file: str | None

    @property
    def keyless(self) -> bool:
        """Its fires have no key: one starts although the last run goes on."""
        return self.request.key is None


def wanted(spec: Spec, definition: Definition, input: object, file: str | None = None) -> Wanted:
    """Check a schedule against its workflow, as its fires will be. Raises InvalidCron, InvalidZone, InvalidInput,
    InvalidKey, UsageError.
    """
    from durable_cli.core.cron import parse, zone

    parse(spec.cron)
    if spec.timezone is not None:
        zone(spec.timezone)
    request = request_for(definition, input, run_id="", key=spec.key, on_duplicate=spec.on_duplicate)
    return Wanted(spec, request, None if input is UNSET else request.input, file)


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a schedule that is asked for. `change`: added, changed, unchanged, or back (it had vanished)."""

    change: str
    name: str
    workflow: str
    keyless: bool
    rule: Rule
    settings: dict[str, Any]
    known: Schedule | None


def plan(known: Schedule | None, wanted: Wanted, default_zone: str | None = None) -> Plan:
    """What `put` would do. `default_zone`: where nobody said one; None is the system's. Raises InvalidZone, and
    ScheduleTaken where code has the name and this is made by hand, or the other way round.
    """
    from durable_cli.core.cron import parse, zone

    if known is not None and (known.file is None) != (wanted.file is None):
        raise _taken(known, wanted)
    spec = wanted.spec
    settings: dict[str, Any] = {
        "cron": spec.cron,
        "timezone": spec.timezone if spec.timezone is not None else _unsaid_zone(known, default_zone),
        "timezone_given": spec.timezone is not None,
        "key": spec.key,
        "on_duplicate": spec.on_duplicate,
        "input": wanted.input,
        "catchup": spec.catchup,
        "jitter_ms": spec.jitter_ms,
        "file": wanted.file,
    }
    rule = Rule(spec.name, parse(spec.cron), zone(settings["timezone"]), spec.catchup, spec.jitter_ms)
    if known is None:
        change = "added"
    elif known.vanished_at is not None:
        change = "back"
    else:
        there = {name: getattr(known, name) for name in settings}
        if _same_input(known.input, wanted.input):
            there["input"] = wanted.input
        change = "unchanged" if known.workflow == wanted.request.workflow and there == settings else "changed"
    return Plan(change, spec.name, wanted.request.workflow, wanted.keyless, rule, settings, known)


def _same_input(one: str | None, other: str | None) -> bool:
    return one == other if one is None or other is None else same_value(one, other)


def _unsaid_zone(known: Schedule | None, default_zone: str | None) -> str:
    """Nobody said a zone: the one it was made with stays when the machine travels."""
    return known.timezone if known is not None and not known.timezone_given else default_zone or system_zone()


def _taken(known: Schedule, wanted: Wanted) -> ScheduleTaken:
    if wanted.file is None:
        return ScheduleTaken(
            f"schedule {known.name!r} is declared by code",
            facts=(f"in {known.file}",),
            hint="change it there, then sync",
        )
    return ScheduleTaken(
        f"schedule {known.name!r} was made by hand, and {wanted.file} declares one of that name",
        hint=f"durable schedules remove {known.name}",
    )


def put(engine: Engine, wanted: Wanted, *, default_zone: str | None = None) -> Plan:
    """Make a schedule, or change it. A change computes the next fire from now, and fires nothing.

    Raises as `plan`, and WorkflowMoved.
    """

    def write(tx: Tx) -> Plan:
        now = engine.now()
        found = plan(schedules.get(tx, wanted.spec.name), wanted, default_zone)
        workflow_id = starting.write_workflow(tx, wanted.request, now)
        if found.change != "unchanged":
            claimed = schedules.claimed(tx, found.known.row_id, now) if found.known else ()
            ahead = following(found.rule, now, claimed)
            schedules.put(
                tx,
                name=found.name,
                workflow_id=workflow_id,
                next_at=ahead.next_at,
                wake_at=ahead.wake_at,
                now=now,
                **found.settings,
            )
        return found

    return engine.write(write)


def remove(engine: Engine, name: str) -> Schedule:
    """Delete a schedule; its runs stay. Raises ScheduleNotFound, ScheduleTaken (the code would make it anew)."""

    def write(tx: Tx) -> Schedule:
        schedule = must_get(tx, name)
        if schedule.file is not None and schedule.vanished_at is None and os.path.exists(schedule.file):
            raise ScheduleTaken(
                f"schedule {name!r} is declared by code, which would make it anew",
                facts=(f"in {schedule.file}",),
                hint=f"durable schedules pause {name}",
            )
        schedules.remove(tx, schedule.row_id)
        return schedule

    return engine.database.write(write)


def pause(engine: Engine, name: str, reason: str | None = None) -> Schedule:
    """Fire it no more until it is resumed. Raises ScheduleNotFound. One that is paused stays as it is."""

    def write(tx: Tx) -> Schedule:
        schedule, now, why = must_get(tx, name), engine.now(), reason or "by hand"
        if schedule.paused_at is None:
            schedules.pause(tx, schedule.row_id, reason=why, now=now)
            activity.schedule_event(
                tx,
                ActivityKind.SCHEDULE_PAUSED,
                at=now,
                schedule=name,
                workflow=schedule.workflow,
                key=schedule.key,
                reason=why,
            )
        return must_get(tx, name)

    return engine.database.write(write)


def resume(engine: Engine, name: str) -> Schedule:
    """Fire it again, from now on: what came due meanwhile is not caught up with. Raises ScheduleNotFound, and
    InvalidCron or InvalidZone where what is stored cannot be read.
    """

    def write(tx: Tx) -> Schedule:
        schedule, now = must_get(tx, name), engine.now()
        if schedule.paused_at is not None:
            ahead = _from_now(tx, schedule, now)
            schedules.wait_for(tx, schedule.row_id, next_at=ahead.next_at, wake_at=ahead.wake_at, now=now)
            schedules.resume(tx, schedule.row_id)
        return must_get(tx, name)

    return engine.write(write)


def _from_now(tx: Tx, schedule: Schedule, now: int) -> Wait:
    return following(rule_of(schedule), now, schedules.claimed(tx, schedule.row_id, now))


# -- by code ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync did, by names of schedules. `failed`: why a module, or a schedule in it, could not be brought in."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    back: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    failed: dict[str, DurableError] = field(default_factory=dict)


def sync(
    engine: Engine, declared: Sequence[Declared], roots: Iterable[str], *, default_zone: str | None = None
) -> Synced:
    """Bring what code declares into the file. Of the schedules whose code lies in `roots` (files, and directories of
    packages), those that are declared no more are marked, and fire no more.
    """
    done = Synced()
    for one in declared:
        file = one.definition.location.file
        try:
            found = put(engine, wanted(one.spec, one.definition, one.input, file), default_zone=default_zone)
        except OF_THE_MOMENT:
            raise
        except DurableError as error:
            done.failed[one.spec.name] = error
        else:
            getattr(done, found.change).append(found.name)
    names, inside = {one.spec.name for one in declared}, tuple(roots)

    def write(tx: Tx) -> None:
        for schedule in schedules.every(tx):
            if schedule.vanished_at is None and schedule.name not in names and _lies_in(schedule.file, inside):
                schedules.vanish(tx, schedule.row_id, engine.now())
                done.vanished.append(schedule.name)

    engine.database.write(write)
    return done


def _lies_in(file: str | None, roots: Iterable[str]) -> bool:
    return file is not None and any(file == root or file.startswith(root.rstrip(os.sep) + os.sep) for root in roots)
