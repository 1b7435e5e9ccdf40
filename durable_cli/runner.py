"""One owned run, from replay to its next rest or its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from durable_cli import settling
from durable_cli.context import AsyncContext, AsyncFace, Context, PlainFace
from durable_cli.core import replay
from durable_cli.definition import Definition
from durable_cli.engine import Engine
from durable_cli.errors import DurableError, StepFailed, Unreadable, Unstorable
from durable_cli.model import Claim, Run, RunError, Status, Step
from durable_cli.operations import Execution, Lost, Operations, Progress, Stop, Suspend, non_determinism
from durable_cli.store import history, runs
from durable_cli.store.database import Tx
from durable_cli.tracebacks import user_traceback


@dataclass(frozen=True, slots=True)
class Rested:
    """The run waits until `due_at` (ms UTC)."""

    due_at: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is finished. `promoted`: the claim on the run that took its key, where this process is to execute it.
    `operations`: how many the function used.
    """

    status: Status
    promoted: Claim | None
    operations: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """This process was asked to stop: the run was given back."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The run was not ours any more."""


Turn = Rested | Ended | Stopped | Gone


def silent(_: Progress) -> None:
    """For callers that watch nothing."""


def take_turn(
    engine: Engine,
    claim: Claim,
    definition: Definition,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], None] = silent,
) -> Turn:
    """Replay the run, execute what has no record, and write how it rests or ends.

    Exceptions of the workflow end up in the run. What leaves here is an error of the file (the run goes back, if
    that can be written) or a BaseException of the caller's, such as KeyboardInterrupt (the run goes back).
    """
    engine.taken_up(claim)
    try:
        return _take_turn(engine, claim, definition, stop or threading.Event(), progress)
    except BaseException:
        _try_to_give_back(engine, claim)
        raise
    finally:
        engine.let_go(claim)


def _take_turn(
    engine: Engine,
    claim: Claim,
    definition: Definition,
    stop: threading.Event,
    progress: Callable[[Progress], None],
) -> Turn:
    def facts(tx: Tx) -> tuple[Run, dict[replay.Place, Step]] | None:
        if not runs.ours(tx, claim.row_id, claim.owner_id, claim.epoch):
            return None
        recorded = history.of_run(tx, claim.row_id)
        return runs.get(tx, claim.row_id), {(step.branch, step.seq): step for step in recorded}

    found = engine.database.read(facts)
    if found is None:
        return Gone()
    run, recorded = found
    execution = Execution(
        run=run,
        claim=claim,
        history=recorded,
        recorder=engine,
        face=AsyncFace() if definition.is_async else PlainFace(),
        now=engine.now,
        dice=engine.dice,
        stop=stop,
        progress=progress,
        crashes=run.crashes,
    )
    try:
        result = _call(execution, definition)
    except Suspend as rest:
        return _rest(engine, claim, rest.due_at)
    except Stop:
        engine.abandon([claim])
        return Stopped()
    except Lost:
        return Gone()
    except (Exception, SystemExit) as error:
        return _end(engine, execution, definition, Status.FAILED, error=_run_error(error))
    return _end(engine, execution, definition, Status.COMPLETED, result=result)


def _call(execution: Execution, definition: Definition) -> str:
    """Call the workflow function; its result as JSON text. Raises what it raised, or what spoiled the execution."""
    operations = Operations(execution)
    failure: BaseException | None = None
    result: object = None
    arguments = _arguments(execution.run, definition)
    try:
        if definition.is_async:
            import asyncio

            result = asyncio.run(definition.function(AsyncContext(operations), *arguments))
        else:
            result = definition.function(Context(operations), *arguments)
    except BaseException as error:
        failure = error
    # What the function swallowed counts all the same.
    if execution.poison is not None:
        raise execution.poison
    if execution.unwinding is not None:
        raise execution.unwinding
    left = replay.left_over(execution.history, "", operations.asked)
    if left is not None and (failure is None or isinstance(failure, Exception)):
        raise non_determinism(execution.run.workflow, left) from failure
    if failure is not None:
        raise failure
    try:
        return definition.result.dump(result)
    except Unstorable as error:
        raise Unstorable(
            f"the result of workflow {definition.name!r} cannot be stored: {error}", value_type=error.value_type
        ) from None


def _arguments(run: Run, definition: Definition) -> tuple[object, ...]:
    try:
        return definition.arguments(run.input)
    except Unreadable as error:
        raise Unreadable(f"run {run.id}, column input: {error}") from None


def _run_error(error: BaseException) -> RunError:
    """Why the run failed, in the words of whoever failed: the step's own error where a step's failure ended it."""
    step = _failed_step(error)
    if step is not None and step is error:
        return RunError(
            type=step.error_type,
            message=step.error_message,
            step=step.step,
            attempt=step.attempts,
            traceback=step.traceback,
            branch=step.place[0],
            seq=step.place[1],
        )
    message = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else str(error)[:8192]
    return RunError(
        type=type(error).__name__,
        message=message,
        step=step.step if step else None,
        attempt=step.attempts if step else None,
        traceback=None if isinstance(error, DurableError) else user_traceback(error),
        branch=step.place[0] if step else None,
        seq=step.place[1] if step else None,
    )


def _failed_step(error: BaseException) -> StepFailed | None:
    """The failed step that led to this error: itself, or what it was raised from or while handling."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, StepFailed):
            return at
        seen.add(id(at))
        at = at.__cause__ or at.__context__
    return None


def _rest(engine: Engine, claim: Claim, due_at: int) -> Turn:
    def write(tx: Tx) -> bool:
        ours = runs.ours(tx, claim.row_id, claim.owner_id, claim.epoch)
        if ours:
            runs.rest(tx, claim.row_id, due_at)
        return ours

    return Rested(due_at) if engine.database.write(write) else Gone()


def _end(
    engine: Engine,
    execution: Execution,
    definition: Definition,
    status: Status,
    *,
    result: str | None = None,
    error: RunError | None = None,
) -> Turn:
    claim = execution.claim

    def write(tx: Tx) -> Ended | None:
        finished = settling.finish(
            tx, claim, status, now=engine.now(), result=result, error=error, reuse=definition.reuse
        )
        if not finished.accepted:
            return None
        heir = finished.promoted
        promoted = None if heir is None else engine.claim_promoted(tx, heir, claim.owner_id)
        return Ended(status, promoted, execution.operations)

    def landed(tx: Tx) -> Ended | None:
        run = runs.get(tx, claim.row_id)
        same = run.status is status and run.epoch == claim.epoch
        return Ended(status, None, execution.operations) if same else None

    return engine.database.write(write, landed=landed) or Gone()


def _try_to_give_back(engine: Engine, claim: Claim) -> None:
    try:
        engine.abandon([claim])
    except DurableError:
        pass  # the file is what failed; the lock of this process tells the rest
