"""Operations that wait: for a moment, for events, for a person.

A waiting operation has a row from the moment it waits. The function is left, the run rests, and when something came
or the time is over it is replayed up to the wait, which then looks again. Looking and recording what was found is one
transaction, so a time-out and an event at one instant have one outcome.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from durable_cli.core.replay import Recorded
from durable_cli.errors import UsageError
from durable_cli.execution import Suspend
from durable_cli.failing import step_failed
from durable_cli.model import RunError, Step, StepStatus
from durable_cli.operations import Operations
from durable_cli.store import events
from durable_cli.store.database import Tx
from durable_cli.values import Codec, canonical


class NoDefault:
    """The type of `NO_DEFAULT`."""

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = NoDefault()
"""No default was given: a time-out raises WaitTimeout."""


async def sleep(operations: Operations, name: str, until: int) -> None:
    """Rest until the moment `until` (ms UTC, as computed the first time)."""
    with operations.entered("sleep", name) as found:
        if isinstance(found, Recorded):
            return
        step = found.before
        if step is None:
            waiting = operations.row("sleep", name, StepStatus.WAITING)
            step = replace(waiting, due_at=until)
            if until > operations.execution.now():
                await operations.record(step)
        assert step.due_at is not None
        now = operations.execution.now()
        if step.due_at > now:
            raise operations.leave(Suspend(step.due_at))
        await operations.record(replace(step, status=StepStatus.COMPLETED, finished_at=now, due_at=None, result="null"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a wait waits for. `mode`: one, any or all of `names`; `more`: what a person is shown."""

    kind: str
    name: str
    names: tuple[str, ...]
    mode: str
    timeout_ms: int | None
    default: object
    more: dict[str, Any]

    def found(self, come: dict[str, events.Event]) -> str | None:
        """The result as JSON text, if what has come is enough."""
        if self.mode == "all":
            enough = len(come) == len(self.names)
            parts = (f"{json.dumps(name)}:{come[name].payload}" for name in self.names if name in come)
            return "{" + ",".join(parts) + "}" if enough else None
        first = min(come.values(), key=lambda event: event.id, default=None)
        if first is None:
            return None
        return first.payload if self.mode == "one" else f"[{json.dumps(first.name)},{first.payload}]"


async def wait(operations: Operations, wanted: Wanted, values: Codec) -> Any:
    """Wait for events or a person's answer; the value, the default, or WaitTimeout."""
    execution = operations.execution
    if not isinstance(wanted.default, NoDefault):
        # Refused before anything waits.
        canonical(wanted.default, place=f"the default of {wanted.name!r}", limit=execution.engine.max_value_bytes)
    with operations.entered(wanted.kind, wanted.name) as found:
        if isinstance(found, Recorded):
            return _value(operations, found.step, values)
        before = found.before
        if before is not None and not await _something_came(operations, wanted, before):
            raise operations.leave(Suspend(before.due_at))
        step = await operations.write(lambda tx: _look(tx, operations, wanted, before))
        if step.status is StepStatus.WAITING:
            execution.tell("waiting", wanted.name, due_at=step.due_at)
            raise operations.leave(Suspend(step.due_at))
        return _value(operations, step, values)


def _value(operations: Operations, step: Step, values: Codec) -> Any:
    if step.status is StepStatus.FAILED:
        raise step_failed(step)
    if step.details is not None and step.details.get("timed_out"):
        assert step.result is not None
        return json.loads(step.result)
    value = operations.replayed(step, values)
    if step.details is not None and step.details.get("mode") == "any":
        return (value[0], value[1])
    return value


async def _something_came(operations: Operations, wanted: Wanted, step: Step) -> bool:
    """Is there anything to record? Of many branches that wait, mostly one has something new when the run is woken."""
    execution = operations.execution

    def look(tx: Tx) -> bool:
        come = _come(tx, operations, wanted, step.due_at)
        over = step.due_at is not None and step.due_at <= execution.now()
        return over or wanted.found(come) is not None or sorted(come) != (step.details or {}).get("seen")

    return await operations.read(look)


def _come(tx: Tx, operations: Operations, wanted: Wanted, until: int | None) -> dict[str, events.Event]:
    """The events that are there, by name."""
    run = operations.execution.run.row_id
    found = {name: events.choose(tx, run, wanted.kind, name, until=until) for name in wanted.names}
    return {name: event for name, event in found.items() if event is not None}


def _look(tx: Tx, operations: Operations, wanted: Wanted, before: Step | None) -> Step:
    """What the wait is now, in the light of what has come."""
    now = operations.execution.now()
    step = before or _first(operations, wanted, now)
    come = _come(tx, operations, wanted, before.due_at if before is not None else None)
    result = wanted.found(come)
    assert step.details is not None
    if result is not None:
        used = come.values() if wanted.mode == "all" else [min(come.values(), key=lambda event: event.id)]
        for event in used:
            events.receive(tx, event.id)
        return replace(step, status=StepStatus.COMPLETED, finished_at=now, due_at=None, result=result)
    if step.due_at is not None and step.due_at <= now:
        return _timed_out(operations, step, wanted, now)
    if wanted.mode == "all":
        for event in come.values():
            events.receive(tx, event.id)
    return replace(step, details={**step.details, "seen": sorted(come)})


def _first(operations: Operations, wanted: Wanted, now: int) -> Step:
    details = {"names": list(wanted.names), "mode": wanted.mode, **wanted.more}
    due_at = None if wanted.timeout_ms is None else now + wanted.timeout_ms
    return replace(operations.row(wanted.kind, wanted.name, StepStatus.WAITING), due_at=due_at, details=details)


def _timed_out(operations: Operations, step: Step, wanted: Wanted, now: int) -> Step:
    if isinstance(wanted.default, NoDefault):
        error = RunError(
            "WaitTimeout",
            f"nothing came for {wanted.name!r} in time",
            step=step.name,
            attempt=1,
            branch=step.branch or None,
            seq=step.seq,
        )
        return replace(step, status=StepStatus.FAILED, finished_at=now, due_at=None, error=error)
    return replace(
        step,
        status=StepStatus.COMPLETED,
        finished_at=now,
        due_at=None,
        result=canonical(wanted.default, limit=operations.execution.engine.max_value_bytes),
        details={**(step.details or {}), "timed_out": True},
    )


def names_of(names: object) -> tuple[str, ...]:
    """The names given to wait_for_any/all: two or more different ones would do, one is enough."""
    if isinstance(names, str) or not isinstance(names, (list, tuple)) or not names:
        raise UsageError("give the names of the events as a list")
    if len(set(names)) != len(names):
        raise UsageError(f"an event is named twice: {list(names)!r}")
    return tuple(names)
