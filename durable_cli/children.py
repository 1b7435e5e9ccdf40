"""Runs that a run starts: `ctx.call` waits for the end of one, `ctx.start` goes on at once.

A child is started in the transaction that records the operation, by the same rules as any start; what it answers is
its parent's to see. Its end wakes the parent in the transaction that ends it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from durable_cli import starting
from durable_cli.core.replay import Recorded
from durable_cli.definition import Definition, WorkflowFunction
from durable_cli.errors import InvalidInput, InvalidKey, KeyContended, KeyTaken, UsageError, WorkflowMoved
from durable_cli.execution import Suspend
from durable_cli.failing import step_failed
from durable_cli.model import OnDuplicate, RunError, Status, Step, StepStatus
from durable_cli.operations import Operations
from durable_cli.request import MERGES, MergeFirst, Request, request_for
from durable_cli.store import runs
from durable_cli.store.database import Tx
from durable_cli.values import Codec, codec


def definition_of(workflow: object) -> Definition:
    """The definition of a decorated function; UsageError for anything else."""
    if isinstance(workflow, WorkflowFunction):
        return workflow.definition
    raise UsageError(f"a child is a function decorated with @workflow, not {type(workflow).__name__}")


async def call(
    operations: Operations, workflow: object, input: object, key: str | None, on_duplicate: str | OnDuplicate | None
) -> Any:
    """`ctx.call`: the result of a child. Raises ChildFailed when it did not complete, or its start was refused."""
    definition = definition_of(workflow)
    with operations.entered("call", definition.name) as found:
        if isinstance(found, Recorded):
            return _value(operations, found.step, definition.result)
        before = found.before
        if before is None:
            step = await _begun(operations, definition, "call", input, key, on_duplicate)
        else:
            if not await _has_ended(operations, before):
                raise operations.leave(Suspend(None))
            step = await operations.write(lambda tx: _look(tx, operations, before))
        if step.status is StepStatus.WAITING:
            raise operations.leave(Suspend(None))
        return _value(operations, step, definition.result)


async def start(
    operations: Operations, workflow: object, input: object, key: str | None, on_duplicate: str | OnDuplicate | None
) -> str:
    """`ctx.start`: start a child and go on. Its id, or that of the run that the start's policy answers with. Raises
    StepFailed when its start was refused."""
    definition = definition_of(workflow)
    with operations.entered("start", definition.name) as found:
        if isinstance(found, Recorded):
            step = found.step
        else:
            step = await _begun(operations, definition, "start", input, key, on_duplicate)
        return str(_value(operations, step, codec(str)))


_REFUSALS: Final = (InvalidInput, InvalidKey, WorkflowMoved, KeyContended)
"""What refuses the start of a child besides a taken key; some of it says users' code, which may say otherwise later."""


async def _begun(
    operations: Operations,
    definition: Definition,
    kind: str,
    input: object,
    key: str | None,
    on_duplicate: str | OnDuplicate | None,
) -> Step:
    """Start the child and record the operation. A refusal is recorded as its failure: a replay that asked again, and
    was answered, would go another way than the function went after it."""
    try:
        request = _request(operations, definition, input, key, on_duplicate)
        return await _recorded_start(operations, definition, kind, request)
    except _REFUSALS as error:
        row = operations.row(kind, definition.name, StepStatus.WAITING)
        failed = _failed(operations, row, RunError(type(error).__name__, error.message))
    return await operations.write(lambda tx: failed)


async def _recorded_start(operations: Operations, definition: Definition, kind: str, request: Request) -> Step:
    """Merges inputs in between where the child's workflow does."""
    for _ in range(MERGES):
        try:
            asked = request
            return await operations.write(lambda tx, asked=asked: _begin(tx, operations, asked, kind))  # type: ignore[misc]
        except MergeFirst as first:
            request = request.merge(definition, first.older)
    raise KeyContended()


def _request(
    operations: Operations,
    definition: Definition,
    input: object,
    key: str | None,
    on_duplicate: str | OnDuplicate | None,
) -> Request:
    execution = operations.execution
    return request_for(
        definition,
        input,
        run_id=execution.engine.new_id(),
        key=key,
        on_duplicate=on_duplicate,
        parent=execution.run.row_id,
        limit=execution.engine.max_value_bytes,
    )


def _begin(tx: Tx, operations: Operations, request: Request, kind: str) -> Step:
    waiting = operations.row(kind, request.workflow, StepStatus.WAITING)
    try:
        with tx.savepoint():
            return _started(tx, operations, request, waiting, kind)
    except _Deadlock as deadlock:
        return _failed(operations, waiting, RunError("Deadlock", str(deadlock)))


class _Deadlock(Exception):
    """The child could only end after the run that is about to wait for it."""


def _started(tx: Tx, operations: Operations, request: Request, waiting: Step, kind: str) -> Step:
    engine = operations.execution.engine
    started = starting.start(tx, request, now=engine.now(), alive=engine.alive, owner_id=None)
    if started.result is None:
        assert started.refusal is not None
        return _failed(operations, waiting, _refused(started.refusal))
    child = runs.by_id(tx, started.result.run_id)
    assert child is not None
    begun = replace(waiting, child_row=child.row_id)
    if kind == "start":
        now = engine.now()
        return replace(begun, status=StepStatus.COMPLETED, finished_at=now, result=f'"{child.id}"')
    if runs.needs(tx, child.row_id, operations.execution.run.row_id):
        waits = "waits, itself, for this call" if child.runs_after_row is None else "would wait behind a run that does"
        raise _Deadlock(f"run {child.id} of {child.workflow!r} (key {child.key!r}) {waits}; nothing was started")
    return _look(tx, operations, begun)


async def _has_ended(operations: Operations, step: Step) -> bool:
    """Is there an end of the child to record? Of many children, mostly one has ended when the run is woken."""
    return await operations.read(lambda tx: step.child_row is None or runs.get(tx, step.child_row).finished)


def _look(tx: Tx, operations: Operations, step: Step) -> Step:
    """What the call is now: its child's end, if it has come."""
    if step.child_row is None:
        return _failed(operations, step, RunError("ChildGone", "the child was pruned before its end was seen"))
    child = runs.get(tx, step.child_row)
    if not child.finished:
        return step
    if child.status is Status.COMPLETED:
        now = operations.execution.now()
        return replace(step, status=StepStatus.COMPLETED, finished_at=now, result=child.result)
    error = child.error or RunError("Unknown", "")
    told = RunError(error.type, f"{error.message} (run {child.id} of {child.workflow!r} is {child.status})")
    return _failed(operations, step, told)


def _failed(operations: Operations, step: Step, error: RunError) -> Step:
    told = replace(error, step=step.name, attempt=1, branch=step.branch or None, seq=step.seq)
    return replace(step, status=StepStatus.FAILED, finished_at=operations.execution.now(), error=told)


def _refused(refusal: KeyTaken) -> RunError:
    return RunError("KeyTaken", refusal.message)


def _value(operations: Operations, step: Step, values: Codec) -> Any:
    if step.status is StepStatus.FAILED:
        raise step_failed(step)
    return operations.replayed(step, values)
