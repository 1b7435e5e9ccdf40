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

from durable_cli import settling
from durable_cli.core.keys import check_step_name
from durable_cli.core.replay import Mismatch, Recorded, child_branch, inside, position
from durable_cli.entering import BRANCH_ONLY, Scope, current_branch
from durable_cli.errors import BranchesFailed, DurableError, UsageError
from durable_cli.execution import Closed, Leave, Suspend, Undo
from durable_cli.failing import error_message, error_type, non_determinism
from durable_cli.model import RunError, Step, StepStatus
from durable_cli.operations import Operations, StepOptions
from durable_cli.store import history, runs
from durable_cli.store.database import Tx

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
        self.decided = decided
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
        if isinstance(outcome.leave, Leave) and not isinstance(outcome.leave, BRANCH_ONLY):
            self.operations.leave(outcome.leave)
        with self._lock:
            self.outcomes[name] = outcome
            if outcome.leave is not None and not isinstance(outcome.leave, Leave):
                self.scope.closed = True  # the process is being left: no branch begins anything new
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
        self.outcomes = {name: self.outcomes[name] for name in bodies}  # not in the order in which they ended
        for outcome in self.outcomes.values():
            if outcome.leave is not None and not isinstance(outcome.leave, Leave):
                raise outcome.leave
        if execution.poison is not None:
            raise execution.poison
        for outcome in self.outcomes.values():
            if outcome.leave is not None and not isinstance(outcome.leave, BRANCH_ONLY):
                raise outcome.leave
        if not self.decided:
            self._leave_undecided()

    def _leave_undecided(self) -> None:
        """Leave where nothing can be decided now."""
        if self.operations.execution.undoing:
            raise self.operations.leave(Undo())
        if self.first is not None:
            return
        if any(isinstance(one.leave, Closed) for one in self.outcomes.values()):
            raise self.operations.leave(Closed())  # an operation around this one has decided
        resting = [one.leave for one in self.outcomes.values() if isinstance(one.leave, Suspend)]
        if resting:
            moments = [leave.due_at for leave in resting if leave.due_at is not None]
            raise self.operations.leave(Suspend(min(moments, default=None)))

    def errors(self) -> dict[str, Exception]:
        """The branches that failed, by name."""
        return {name: one.error for name, one in self.outcomes.items() if one.error is not None}

    def cut_off(self) -> list[str]:
        """The branches that were left when the operation was decided without them."""
        return [name for name, one in self.outcomes.items() if one.leave is not None]

    def values(self) -> dict[str, Any]:
        """The values of the branches that completed, by name."""
        return {name: one.value for name, one in self.outcomes.items() if one.completed}


async def _end_of(inner: Operations, body: Callable[[Operations], Awaitable[Any]]) -> _Outcome:
    failure: BaseException | None = None
    value: Any = None
    token = current_branch.set(inner)
    try:
        value = await body(inner)
    except BaseException as error:
        failure = error
    finally:
        current_branch.reset(token)
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
    """Do all bodies at once; their values by name. A failed one raises as `on_error` says (said, when it ended)."""
    if on_error not in (FAIL_FAST, COMPLETE_ALL):
        raise UsageError(f'on_error={on_error!r}: it is "fail_fast" or "complete_all"')
    _check_concurrency(concurrency)
    with operations.entered(kind, name) as found:
        decided = isinstance(found, Recorded)
        step = await _begun(operations, kind, name, list(bodies), found)
        fast = on_error == FAIL_FAST and not decided
        group = _Group(operations, step, decided=decided, decisive=lambda one: fast and one.error is not None)
        await group.run_all(bodies, concurrency)
        if decided:
            return _as_decided(operations, step, group)
        errors = group.errors()
        if not errors:
            await _record_end(operations, _ended(operations, step, None, None))
            return group.values()
        first = group.first or ""
        error = errors[first] if first else _failed(step, group)
        await _record_end(operations, _ended(operations, step, first, error, errors, group.cut_off()))
        raise _noted(operations, step, error)


def _as_decided(operations: Operations, step: Step, group: _Group) -> dict[str, Any]:
    """What was decided, from branches that were replayed; NonDeterminism where they went another way."""
    first, errors = (step.details or {}).get("decided"), group.errors()
    if step.status is StepStatus.COMPLETED and len(group.values()) == len(group.outcomes):
        return group.values()
    if step.status is StepStatus.FAILED and first in errors:
        raise _noted(operations, step, errors[str(first)])
    ended = len(errors) + len(group.values())
    if step.status is StepStatus.FAILED and not first and errors and ended == len(group.outcomes):
        raise _noted(operations, step, _failed(step, group))
    raise _otherwise(operations, step)


def _failed(step: Step, group: _Group) -> BranchesFailed:
    errors = group.errors()
    what = "no branch succeeded" if step.kind == "race" else f"{len(errors)} of {len(group.outcomes)} branches failed"
    return BranchesFailed(
        f"{what}: " + "; ".join(_told(errors)),
        errors=errors,
        results=group.values(),
        place=(step.branch, step.seq),
    )


def _noted(operations: Operations, step: Step, error: Exception) -> Exception:
    """The error that leaves an operation, noted as its."""
    operations.execution.raised.append((error, (step.branch, step.seq)))
    return error


def _otherwise(operations: Operations, step: Step) -> DurableError:
    """The branches of a decided operation did not do again what they are recorded with."""
    decided = (step.details or {}).get("decided")
    how = f"{step.status} by branch {decided!r}" if decided else str(step.status)
    found = Mismatch(
        position((step.branch, step.seq)),
        f"{step.kind} {step.name!r} {how}",
        f"{step.kind} {step.name!r} with branches that end otherwise",
    )
    return operations.execution.spoil(non_determinism(operations.execution.run.workflow, found))


def _told(errors: Mapping[str, Exception]) -> list[str]:
    return [f"{name}: {error}" for name, error in list(errors.items())[:3]] + ["..."] * (len(errors) > 3)


async def race(operations: Operations, bodies: Mapping[str, Callable[[Operations], Awaitable[Any]]]) -> tuple[str, Any]:
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
                await _record_end(operations, _ended(operations, step, winner, None))
            elif not group.outcomes[winner].completed:
                raise _otherwise(operations, step)
            return winner, group.outcomes[winner].value
        errors = group.errors()
        if len(errors) < len(group.outcomes):
            raise _otherwise(operations, step)
        error = _failed(step, group)
        if not decided:
            await _record_end(operations, _ended(operations, step, "", error, errors))
        raise _noted(operations, step, error)


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


async def _record_end(operations: Operations, step: Step) -> None:
    """Record what was decided. Children whose end only the others waited for are cancelled with it."""
    execution = operations.execution

    def write(tx: Tx) -> Step:
        run, path = execution.run, inside((step.branch, step.seq))
        for row_id in sorted(history.children_waited_for(tx, run.row_id, inside=path)):
            child = runs.get(tx, row_id)
            if child.parent_row == run.row_id:
                reason = f"the branch of run {run.id} that waited for it was not needed any more"
                settling.cancel(tx, child, now=execution.now(), reason=reason)
        return step

    await operations.write(write)


def _ended(
    operations: Operations,
    step: Step,
    decided: str | None,
    error: Exception | None,
    errors: Mapping[str, Exception] | None = None,
    cut_off: Sequence[str] = (),
) -> Step:
    now = operations.execution.now()
    details = {**(step.details or {}), "decided": decided}
    if error is None:
        return replace(step, status=StepStatus.COMPLETED, finished_at=now, result="null", details=details)
    # Where a retry begins again: the operations whose failures ended the branches.
    found = [operations.execution.place_of(one) for one in (errors or {}).values()]
    places = [list(place) for place in found if place is not None]
    told = RunError(
        error_type(error),
        error_message(error),
        step=step.name,
        branch=step.branch or None,
        seq=step.seq,
    )
    details["failed"] = places
    if cut_off:
        details["cut_off"] = list(cut_off)
    return replace(step, status=StepStatus.FAILED, finished_at=now, error=told, details=details)
