"""Branches: several things at once, each on a path of its own, all replay-exact.

The operation has a row from the moment it begins and ends with the record of what was decided: all branches done, one
failed, one won. A replay of a decided operation runs the branches against their records only (their scope is closed,
so nothing new begins) and gives what was decided, whatever the order in which things finished.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from durable_cli.core.keys import check_step_name
from durable_cli.core.replay import Mismatch, Recorded, child_branch, position
from durable_cli.errors import BranchesFailed, DurableError, StepFailed, UsageError
from durable_cli.execution import Closed, Leave, Suspend
from durable_cli.model import RunError, Step, StepStatus
from durable_cli.operations import (
    Operations,
    Scope,
    StepOptions,
    error_message,
    error_type,
    non_determinism,
)

FAIL_FAST, COMPLETE_ALL = "fail_fast", "complete_all"


@dataclass(slots=True)
class _Outcome:
    """How a branch ended this time."""

    value: Any = None
    error: Exception | None = None
    leave: BaseException | None = None

    @property
    def completed(self) -> bool:
        return self.error is None and self.leave is None


class _Group:
    """The branches of one operation. `decisive`: which first end of a branch closes the others."""

    def __init__(self, operations: Operations, step: Step, *, decided: bool, decisive: Callable[[_Outcome], bool]):
        self.operations = operations
        self.step = step
        self.scope = Scope(closed=decided)
        self.decisive = decisive
        self.first: str | None = None
        self.outcomes: dict[str, _Outcome] = {}
        self._lock = threading.Lock()

    def branch(self, name: str) -> Operations:
        """The operations of a branch."""
        path = child_branch((self.step.branch, self.step.seq), name)
        return Operations(self.operations.execution, path, (*self.operations.scopes, self.scope))

    async def run(self, name: str, body: Callable[[Operations], Awaitable[Any]]) -> None:
        """Do one branch and note how it ended."""
        inner = self.branch(name)
        outcome = await _end_of(inner, body)
        if isinstance(outcome.leave, Leave) and not isinstance(outcome.leave, (Suspend, Closed)):
            self.operations.leave(outcome.leave)
        with self._lock:
            self.outcomes[name] = outcome
            if self.first is None and self.decisive(outcome):
                self.first = name
                self.scope.closed = True

    async def run_all(
        self, bodies: Mapping[str, Callable[[Operations], Awaitable[Any]]], concurrency: int | None
    ) -> None:
        """Do all branches; then leave where the run has to rest or is being left."""
        execution = self.operations.execution

        def job(name: str) -> Callable[[], Awaitable[None]]:
            return lambda: self.run(name, bodies[name])

        at_once = execution.engine.branches_at_once or concurrency
        await execution.face.gather([job(name) for name in bodies], at_once)
        if execution.poison is not None:
            raise execution.poison
        for outcome in self.outcomes.values():
            if outcome.leave is not None and not isinstance(outcome.leave, (Suspend, Closed)):
                raise outcome.leave
        if self.first is None:
            self._rest_if_any_does()

    def _rest_if_any_does(self) -> None:
        resting = [one.leave for one in self.outcomes.values() if isinstance(one.leave, Suspend)]
        if resting:
            moments = [leave.due_at for leave in resting if leave.due_at is not None]
            raise self.operations.leave(Suspend(min(moments, default=None)))

    def errors(self) -> dict[str, Exception]:
        """The branches that failed, by name."""
        return {name: one.error for name, one in self.outcomes.items() if one.error is not None}

    def values(self) -> dict[str, Any]:
        """The values of the branches that completed, by name."""
        return {name: one.value for name, one in self.outcomes.items() if one.completed}


async def _end_of(inner: Operations, body: Callable[[Operations], Awaitable[Any]]) -> _Outcome:
    failure: BaseException | None = None
    value: Any = None
    try:
        value = await body(inner)
    except BaseException as error:
        failure = error
    try:
        inner.conclude(failure)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit):
            error = DurableError(error_message(error))
        return _Outcome(error=error)
    except BaseException as leave:
        return _Outcome(leave=leave)
    return _Outcome(value=value)


async def parallel(
    operations: Operations,
    kind: str,
    name: str,
    bodies: Mapping[str, Callable[[Operations], Awaitable[Any]]],
    *,
    concurrency: int | None,
    on_error: str,
) -> dict[str, Any]:
    """Do all bodies at once; their values by name. A failed one raises as `on_error` says."""
    if on_error not in (FAIL_FAST, COMPLETE_ALL):
        raise UsageError(f'on_error={on_error!r}: it is "fail_fast" or "complete_all"')
    _check_concurrency(concurrency)
    with operations.entered(kind, name) as found:
        decided = isinstance(found, Recorded)
        step = await _begun(operations, kind, name, list(bodies), found)
        fast = on_error == FAIL_FAST and not decided
        group = _Group(operations, step, decided=decided, decisive=lambda one: fast and one.error is not None)
        await group.run_all(bodies, concurrency)
        return await _decide(operations, step, group, on_error, decided)


async def _decide(
    operations: Operations, step: Step, group: _Group, on_error: str, decided: bool
) -> dict[str, Any]:
    errors = group.errors()
    if not errors:
        if decided and (step.status is StepStatus.FAILED or len(group.values()) < len(group.outcomes)):
            raise operations.execution.spoil(
                non_determinism(
                    operations.execution.run.workflow,
                    Mismatch(position((step.branch, step.seq)), f"{step.kind} {step.name!r} {step.status}", None),
                )
            )
        if not decided:
            await operations.record(_ended(operations, step, None, None))
        return group.values()
    if on_error == FAIL_FAST:
        name = str((step.details or {}).get("decided") or group.first)
        error = errors.get(name) or next(iter(errors.values()))
    else:
        name = ""
        error = BranchesFailed(
            f"{len(errors)} of {len(group.outcomes)} branches failed: " + "; ".join(_told(errors)),
            errors=errors,
            results=group.values(),
        )
    if not decided:
        await operations.record(_ended(operations, step, name, error, errors))
    raise error


def _told(errors: Mapping[str, Exception]) -> list[str]:
    return [f"{name}: {error}" for name, error in list(errors.items())[:3]] + ["..."] * (len(errors) > 3)


async def race(
    operations: Operations, bodies: Mapping[str, Callable[[Operations], Awaitable[Any]]]
) -> tuple[str, Any]:
    """The first body that succeeds: its name (recorded) and its value. The losers begin no further operation."""
    if not bodies:
        raise UsageError("ctx.race needs at least one branch")
    with operations.entered("race", "race") as found:
        decided = isinstance(found, Recorded)
        step = await _begun(operations, "race", "race", list(bodies), found)
        group = _Group(operations, step, decided=decided, decisive=lambda one: not decided and one.completed)
        await group.run_all(bodies, None)
        winner = (step.details or {}).get("decided") if decided else group.first
        if winner:
            if not decided:
                await operations.record(_ended(operations, step, winner, None))
            return winner, group.outcomes[winner].value
        errors = group.errors()
        error = BranchesFailed("no branch succeeded: " + "; ".join(_told(errors)), errors=errors, results={})
        if not decided:
            await operations.record(_ended(operations, step, "", error, errors))
        raise error


async def map_items(
    operations: Operations,
    name: str,
    function: Callable[[Any], Any],
    items: Sequence[Any],
    *,
    options: StepOptions,
    concurrency: int | None,
    on_error: str,
) -> list[Any]:
    """`function(item)` as a step an item; the results in the order of the items."""

    def body(item: Any) -> Callable[[Operations], Awaitable[Any]]:
        return lambda inner: inner.step(name, function, (item,), {}, options)

    bodies = {str(index): body(item) for index, item in enumerate(items)}
    results = await parallel(operations, "map", name, bodies, concurrency=concurrency, on_error=on_error)
    return [results[str(index)] for index in range(len(bodies))]


def bodies_of(
    operations: Operations, branches: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Callable[[Operations], Awaitable[Any]]]:
    """Branch functions as bodies: each is called with a context of its own."""
    if not isinstance(branches, Mapping):
        raise UsageError("give the branches as a dict: name -> function of a context")

    def body(function: Callable[[Any], Any]) -> Callable[[Operations], Awaitable[Any]]:
        return lambda inner: operations.execution.face.branch(function, inner)

    for name, function in branches.items():
        check_step_name(name)
        if not callable(function):
            raise UsageError(f"branch {name!r} needs a function, got {type(function).__name__}")
    return {name: body(function) for name, function in branches.items()}


def _check_concurrency(concurrency: int | None) -> None:
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise UsageError(f"concurrency={concurrency!r}: it is a whole number of 1 or more")


async def _begun(operations: Operations, kind: str, name: str, names: list[str], found: Any) -> Step:
    """The row of the operation: as recorded, else written now. Other branches than recorded are non-determinism."""
    given = {"items": len(names)} if kind == "map" else {"branches": names}
    step: Step | None = found.step if isinstance(found, Recorded) else found.before
    if step is None:
        step = replace(operations.row(kind, name, StepStatus.WAITING), details=given)
        await operations.record(step)
        return step
    recorded = {key: (step.details or {}).get(key) for key in given}
    if recorded != given:
        place = position((step.branch, step.seq))
        raise operations.execution.spoil(
            non_determinism(
                operations.execution.run.workflow,
                Mismatch(place, f"{kind} {name!r} of {recorded}", f"{kind} {name!r} of {given}"),
            )
        )
    return step


def _ended(
    operations: Operations,
    step: Step,
    decided: str | None,
    error: Exception | None,
    errors: Mapping[str, Exception] | None = None,
) -> Step:
    now = operations.execution.now()
    details = {**(step.details or {}), "decided": decided}
    if error is None:
        return replace(step, status=StepStatus.COMPLETED, finished_at=now, result="null", details=details)
    # Where a retry begins again: the operations whose failures ended the branches.
    places = [list(one.place) for one in (errors or {}).values() if isinstance(one, StepFailed)]
    told = RunError(
        error_type(error),
        error_message(error),
        step=step.name,
        branch=step.branch or None,
        seq=step.seq,
    )
    details["failed"] = places
    return replace(step, status=StepStatus.FAILED, finished_at=now, error=told, details=details)
