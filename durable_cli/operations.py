"""The operations that a workflow function may use: one implementation for plain and for `async` code.

An operation is a coroutine here. `AsyncContext` awaits it; `Context` drives it by hand, since its `Face` answers every
question at once and the coroutine never suspends. Each operation takes the next place on its branch, asks the record
(`core.replay`), and either gives back what was recorded or executes and records it.

Three things leave the workflow function by a BaseException, so that `except Exception` around a step does not swallow
them: a rest (`Suspend`), a request to stop (`Stop`) and the loss of the run to somebody else (`Lost`). One that is
swallowed all the same is raised again by the next operation.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from durable_cli.core import lifecycle, replay, timing
from durable_cli.core.keys import check_step_name
from durable_cli.core.replay import Fresh, Mismatch, Place, Recorded
from durable_cli.definition import Retry
from durable_cli.errors import (
    Abort,
    ConcurrentOperation,
    DurableError,
    NestedOperation,
    NonDeterminism,
    StepFailed,
    Unreadable,
    Unstorable,
    UsageError,
)
from durable_cli.model import Claim, Run, RunError, Step, StepStatus
from durable_cli.tracebacks import user_traceback
from durable_cli.values import Codec, codec, result_codec


class Suspend(BaseException):
    """The run has to rest until `due_at`."""

    def __init__(self, due_at: int) -> None:
        super().__init__()
        self.due_at = due_at


class Stop(BaseException):
    """This process was asked to stop; the run stays resumable."""


class Lost(BaseException):
    """The run is not ours any more: cancelled, replaced, or taken by another process."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What happened just now in a run, for whoever watches it. `due_at`: when a resting run goes on."""

    kind: str
    run_id: str
    step: str
    attempt: int = 1
    message: str | None = None
    due_at: int | None = None


class Recorder(Protocol):
    """Where records go. Both answer False when the run is not ours any more."""

    def record(self, claim: Claim, step: Step) -> bool: ...

    def still_ours(self, claim: Claim) -> bool: ...


class Face(Protocol):
    """How plain and `async` code differ: calling a step, and waiting for the file."""

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    async def blocking(self, function: Callable[[], bool]) -> bool: ...


@dataclass(slots=True)
class Execution:
    """One owned run between two rests: what all its branches share."""

    run: Run
    claim: Claim
    history: dict[Place, Step]
    recorder: Recorder
    face: Face
    now: Callable[[], int]
    dice: Callable[[], float]
    stop: threading.Event
    progress: Callable[[Progress], None]
    unwinding: BaseException | None = None
    poison: DurableError | None = None
    operations: int = 0
    crashes: int = 0
    """Owners that died since the last record: so many attempts of the next operation were cut off."""

    def tell(self, kind: str, step: str, **more: Any) -> None:
        """Say what happened to whoever watches."""
        self.progress(Progress(kind, self.run.id, step, **more))

    def leave(self, how: BaseException) -> BaseException:
        """Note that the function is being left, and return what to raise."""
        self.unwinding = how
        return how

    def spoil(self, error: DurableError) -> DurableError:
        """Note what the run fails with, whatever the code catches: it broke a rule, or a record cannot be read."""
        self.poison = self.poison or error
        return error


@dataclass(frozen=True, slots=True)
class _Attempt:
    execution: Execution
    place: Place
    number: int


_attempt: ContextVar[tuple[_Attempt, ...]] = ContextVar("durable_attempt", default=())
"""The steps that this thread or task is inside of, the innermost last (a step may execute another run)."""


class Operations:
    """The operations of one branch of one run."""

    def __init__(self, execution: Execution, branch: str = "") -> None:
        self.execution = execution
        self.branch = branch
        self.asked = 0
        self._busy = threading.Lock()

    # -- what a step may use --

    def attempt(self) -> int:
        """The number of the current attempt of the step we are inside of, from 1."""
        inside = self._inside()
        if inside is None:
            raise UsageError("ctx.attempt tells of the current step; use it inside a step function")
        return inside.number

    def idempotency_key(self) -> str:
        """The same text for every attempt of one step, and for no other: inside the step, or (as an argument of the
        call that makes it) of the next one.
        """
        inside = self._inside()
        branch, seq = inside.place if inside else (self.branch, self.asked + 1)
        return ":".join(part for part in (self.execution.run.id, branch, str(seq)) if part)

    def heartbeat(self) -> None:
        """Leave the step here and now if its run was cancelled, replaced or taken over."""
        execution = self.execution
        if execution.unwinding is not None:
            raise execution.unwinding
        if not execution.recorder.still_ours(execution.claim):
            raise execution.leave(Lost())

    def _inside(self) -> _Attempt | None:
        for attempt in reversed(_attempt.get()):
            if attempt.execution is self.execution:
                return attempt
        return None

    # -- the operations --

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        retry: Retry | None,
    ) -> Any:
        """`ctx.run`: call a function once, record its result, and give it back as its JSON reads."""
        if retry is not None and not isinstance(retry, Retry):
            raise UsageError(f"retry= of step {name!r} takes a Retry(...), not {type(retry).__name__}")
        if not callable(function):
            raise UsageError(f"step {name!r} needs a function to call, got {type(function).__name__}")
        values = result_codec(function)
        with self._entered("run", name) as found:
            if isinstance(found, Recorded):
                return self._replayed(found.step, values)
            return await self._attempt_step(name, function, args, kwargs, retry or Retry(), values, found.before)

    async def value(self, kind: str, make: Callable[[], object], annotation: object) -> Any:
        """`ctx.now`, `ctx.uuid`, `ctx.random`: a value made once and recorded."""
        values = codec(annotation)
        with self._entered(kind, kind) as found:
            if isinstance(found, Recorded):
                return self._replayed(found.step, values)
            text = values.dump(make())
            moment = self.execution.now()
            await self._record(self._step_row(kind, kind, StepStatus.COMPLETED, started_at=moment, result=text))
            return values.load(text)

    def moment(self) -> dt.datetime:
        """This moment, as `ctx.now` records it."""
        return dt.datetime.fromtimestamp(self.execution.now() / 1000, dt.UTC)

    def _replayed(self, step: Step, values: Codec) -> Any:
        if step.status is StepStatus.FAILED:
            raise _step_failed(step)
        assert step.result is not None
        try:
            return values.load(step.result)
        except Unreadable as error:
            run = self.execution.run.id
            raise self.execution.spoil(
                Unreadable(f"run {run}, step {step.name!r}, column result: {error}")
            ) from None

    async def _attempt_step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        retry: Retry,
        values: Codec,
        before: Step | None,
    ) -> Any:
        execution = self.execution
        if before is not None and before.due_at is not None and before.due_at > execution.now():
            raise execution.leave(Suspend(before.due_at))
        attempts = (before.attempts if before else 0) + execution.crashes + 1
        failures = before.failures if before else 0
        started_at = before.started_at if before else execution.now()
        execution.tell("step_started", name, attempt=attempts)
        inside = _Attempt(execution, (self.branch, self.asked), attempts)
        token = _attempt.set((*_attempt.get(), inside))
        try:
            result = await execution.face.call(function, args, kwargs)
            text = values.dump(result)
        except (Exception, SystemExit) as error:
            row = self._step_row("run", name, StepStatus.FAILED, started_at=started_at, attempts=attempts)
            await self._failed(row, error, failures + 1, retry)
            raise AssertionError("unreachable") from None
        finally:
            _attempt.reset(token)
        await self._record(
            self._step_row(
                "run",
                name,
                StepStatus.COMPLETED,
                started_at=started_at,
                attempts=attempts,
                failures=failures,
                result=text,
            )
        )
        execution.tell("step_completed", name, attempt=attempts)
        return values.load(text)

    async def _failed(self, row: Step, error: Exception | SystemExit, failures: int, retry: Retry) -> None:
        """Record an attempt that raised, and leave by the rest before the next one or by the step's failure."""
        execution = self.execution
        if execution.poison is not None:
            raise execution.poison from None
        fatal = isinstance(error, (Abort, Unstorable, SystemExit))
        what = lifecycle.decide_attempt(
            failures=failures,
            max_attempts=retry.max_attempts,
            retryable=not fatal and isinstance(error, retry.retry_on),
        )
        moment = execution.now()
        told = RunError(
            type=type(error).__name__,
            message=_message(error),
            step=row.name,
            attempt=row.attempts,
            traceback=user_traceback(error),
            branch=self.branch or None,
            seq=self.asked,
        )
        if what is lifecycle.AttemptEnd.FAIL:
            step = replace(row, failures=failures, finished_at=moment, error=told)
            await self._record(step)
            execution.tell("step_failed", row.name, attempt=row.attempts, message=f"{told.type}: {told.message}")
            raise _step_failed(step) from None
        delay = timing.backoff_ms(
            attempt=failures,
            backoff=retry.backoff,
            base_ms=retry.base_ms,
            max_delay_ms=retry.max_delay_ms,
            jitter=retry.jitter,
            dice=execution.dice(),
        )
        due_at = moment + delay
        await self._record(
            replace(
                row, status=StepStatus.RETRYING, failures=failures, finished_at=None, due_at=due_at, error=told
            )
        )
        execution.tell(
            "step_retrying",
            row.name,
            attempt=row.attempts,
            message=f"{told.type}: {told.message}",
            due_at=due_at,
        )
        raise execution.leave(Suspend(due_at)) from None

    def _step_row(
        self,
        kind: str,
        name: str,
        status: StepStatus,
        *,
        started_at: int,
        attempts: int = 1,
        failures: int = 0,
        result: str | None = None,
    ) -> Step:
        return Step(
            branch=self.branch,
            seq=self.asked,
            kind=kind,
            name=name,
            status=status,
            attempts=attempts,
            failures=failures,
            started_at=started_at,
            finished_at=self.execution.now(),
            due_at=None,
            result=result,
            error=None,
        )

    async def _record(self, step: Step) -> None:
        execution = self.execution
        accepted = await execution.face.blocking(lambda: execution.recorder.record(execution.claim, step))
        if not accepted:
            raise execution.leave(Lost())
        execution.crashes = 0

    # -- entering one --

    def _entered(self, kind: str, name: str) -> _Entered:
        return _Entered(self, kind, name)

    def enter(self, kind: str, name: str) -> Recorded | Fresh:
        """Take the next place for the operation (`kind`, `name`), if the rules allow an operation here and now."""
        execution = self.execution
        if execution.poison is not None:
            raise execution.poison
        inside = self._inside()
        if inside is not None:
            raise execution.spoil(
                NestedOperation(
                    f"ctx.{kind} {name!r} was used inside a step ({replay.position(inside.place)} of workflow "
                    f"{execution.run.workflow!r}); a step may only use ctx.heartbeat, ctx.attempt and "
                    "ctx.idempotency_key: move the operation out of the step function"
                )
            )
        if not self._busy.acquire(blocking=False):
            raise execution.spoil(
                ConcurrentOperation(
                    f"ctx.{kind} {name!r} began while another operation of this context (operation {self.asked}) "
                    f"was going on in workflow {execution.run.workflow!r}; one context does one thing at a time"
                )
            )
        try:
            return self._take_place(kind, name)
        except BaseException:
            self._busy.release()
            raise

    def exit(self) -> None:
        """The operation has ended."""
        self._busy.release()

    def _take_place(self, kind: str, name: str) -> Recorded | Fresh:
        execution = self.execution
        if execution.unwinding is not None:
            raise execution.unwinding
        check_step_name(name)
        place = (self.branch, self.asked + 1)
        found = replay.match(execution.history, place, kind, name)
        if isinstance(found, Mismatch):
            raise execution.spoil(non_determinism(execution.run.workflow, found))
        self.asked += 1
        execution.operations += 1
        if isinstance(found, Fresh) and execution.stop.is_set():
            raise execution.leave(Stop())
        return found


class _Entered:
    """`with` around one operation: enters it, and lets the context go afterwards."""

    def __init__(self, operations: Operations, kind: str, name: str) -> None:
        self._operations, self._kind, self._name = operations, kind, name

    def __enter__(self) -> Recorded | Fresh:
        return self._operations.enter(self._kind, self._name)

    def __exit__(self, *_: object) -> None:
        self._operations.exit()


def non_determinism(workflow: str, found: Mismatch) -> NonDeterminism:
    """The error for a replay that went another way than the record."""
    asked = f"asked for {found.asked}" if found.asked else "ended"
    return NonDeterminism(
        f"workflow {workflow!r} {asked} at {found.position}, where {found.expected} is recorded; the code around the "
        "steps has to do the same on every replay: mend it, then `durable retry` goes on",
        workflow=workflow,
        position=found.position,
        expected=found.expected,
        asked=found.asked,
    )


def _step_failed(step: Step) -> StepFailed:
    error = step.error or RunError("Unknown", "")
    return StepFailed(
        step.name,
        error_type=error.type,
        error_message=error.message,
        attempts=step.attempts,
        traceback=error.traceback,
        place=(step.branch, step.seq),
    )


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the step called sys.exit({error.code!r})"
    return str(error)[:8192]


def drive(operation: Awaitable[Any]) -> Any:
    """Run an operation to its end in plain code: with a plain Face it never suspends."""
    try:
        next(operation.__await__())
    except StopIteration as end:
        return end.value
    raise RuntimeError("an operation suspended in plain code")

