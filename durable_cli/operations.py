"""The operations that a workflow function may use: one implementation for plain and for `async` code.

An operation is a coroutine here. `AsyncContext` awaits it; `Context` drives it by hand, since its `Face` answers every
question at once and the coroutine never suspends. Each operation takes the next place on its branch, asks the record
(`core.replay`), and either gives back what was recorded or executes and records it. This module has places, steps and
recorded values; `waits`, `branches` and `children` have the rest.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from durable_cli.core import lifecycle, replay, timing
from durable_cli.core.keys import check_step_name
from durable_cli.core.policies import Retry
from durable_cli.core.replay import Fresh, Mismatch, Place, Recorded
from durable_cli.errors import (
    FILE_ERRORS,
    Abort,
    ChildFailed,
    ConcurrentOperation,
    HttpFailed,
    NestedOperation,
    NonDeterminism,
    ProgrammingError,
    ShellFailed,
    StepFailed,
    Unreadable,
    Unstorable,
    UsageError,
    WaitTimeout,
)
from durable_cli.execution import Broken, Closed, Compensation, Execution, Leave, Lost, Stop, Suspend, TimedOut, Undo
from durable_cli.model import RunError, Step, StepStatus
from durable_cli.store import history, runs
from durable_cli.store.database import Tx
from durable_cli.tracebacks import user_traceback
from durable_cli.values import Codec, codec, result_codec

T = TypeVar("T")

BRANCH_ONLY: Final = (Suspend, Closed, Undo)
"""Departures that concern one branch: the others go on, be it only to what they have on record."""


class Scope:
    """What the branches of one operation share: once closed, none of them begins anything new."""

    def __init__(self, *, closed: bool = False) -> None:
        self.closed = closed


@dataclass(slots=True)
class Attempt:
    """A step that is executing. `abandoned`: its time was over, and its result will not be used."""

    execution: Execution
    place: Place
    number: int
    name: str
    abandoned: bool = False


current_attempts: ContextVar[tuple[Attempt, ...]] = ContextVar("durable_attempts", default=())
"""The steps that this thread or task is inside of, the innermost last (a step may execute another run)."""

current_branch: ContextVar[Operations | None] = ContextVar("durable_branch", default=None)
"""The branch whose code, around its steps, this thread or task executes."""


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step is to be executed."""

    kind: str = "run"
    retry: Retry = Retry()  # noqa: RUF009 (frozen)
    timeout_ms: int | None = None
    compensate: Callable[..., Any] | None = None
    compensate_retry: Retry | None = None


class Operations:
    """The operations of one branch of one run."""

    def __init__(self, execution: Execution, branch: str = "", scopes: tuple[Scope, ...] = ()) -> None:
        self.execution = execution
        self.branch = branch
        self.scopes = scopes
        self.asked = 0
        self.leaving: Leave | None = None
        self.ended = False
        self._busy = threading.Lock()
        self._aside: list[Place] = []

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
        """Leave the step here and now if its run was cancelled, replaced or taken over, or its time is over."""
        inside = self._inside()
        if inside is not None and inside.abandoned:
            raise Lost()
        if self.execution.gone is not None:
            raise self.execution.gone
        if not self.execution.engine.still_ours(self.execution.claim):
            raise self.leave(Lost())

    def _inside(self) -> Attempt | None:
        for attempt in reversed(current_attempts.get()):
            if attempt.execution is self.execution:
                return attempt
        return None

    # -- steps and recorded values --

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> Any:
        """`ctx.run`: call a function once, record its result, and give it back as its JSON reads."""
        if not callable(function):
            raise UsageError(f"step {name!r} needs a function to call, got {type(function).__name__}")
        values = result_codec(function)
        with self.entered(options.kind, name) as found:
            if isinstance(found, Recorded):
                result = self.replayed(found.step, values)
            else:
                result = await self._execute(name, function, args, kwargs, options, values, found.before)
        if options.compensate is not None:
            retry = options.compensate_retry
            self.execution.compensations[self.branch, self.asked] = Compensation(
                name, options.compensate, retry, values
            )
        return result

    async def value(self, kind: str, make: Callable[[], object], annotation: object) -> Any:
        """`ctx.now`, `ctx.uuid`, `ctx.random`: a value made once and recorded."""
        values = codec(annotation)
        with self.entered(kind, kind) as found:
            if isinstance(found, Recorded):
                return self.replayed(found.step, values)
            text = values.dump(make(), limit=self.execution.engine.max_value_bytes)
            await self.record(self.row(kind, kind, StepStatus.COMPLETED, result=text))
            return values.load(text)

    def moment(self) -> dt.datetime:
        """This moment, as `ctx.now` records it."""
        return dt.datetime.fromtimestamp(self.execution.now() / 1000, dt.UTC)

    def replayed(self, step: Step, values: Codec) -> Any:
        """What an ended operation gives: its value, or the failure it raised."""
        if step.status is StepStatus.FAILED:
            raise step_failed(step)
        assert step.result is not None
        try:
            return values.load(step.result)
        except Unreadable as error:
            where = f"run {self.execution.run.id}, step {step.name!r}, column result"
            raise self.execution.spoil(Unreadable(f"{where}: {error}")) from None

    async def _execute(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
        values: Codec,
        before: Step | None,
    ) -> Any:
        execution = self.execution
        if before is not None and before.due_at is not None and before.due_at > execution.now():
            raise self.leave(Suspend(before.due_at))
        row = self.row(
            options.kind,
            name,
            StepStatus.COMPLETED,
            started_at=before.started_at if before else None,
            attempts=(before.attempts if before else 0) + execution.crashes + 1,
            failures=before.failures if before else 0,
        )
        # A cancel that has returned by now shall be seen: no later step of the run ever begins.
        if not await self.read(lambda tx: runs.ours(tx, *execution.claim.fence)):
            raise self.leave(Lost())
        execution.tell("step_started", name, attempt=row.attempts)
        inside = Attempt(execution, (self.branch, self.asked), row.attempts, name)
        token = current_attempts.set((*current_attempts.get(), inside))
        try:
            result = await execution.face.call(function, args, kwargs, options.timeout_ms)
            if execution.poison is not None:
                raise execution.poison  # the step swallowed it: what it gives is not to be recorded
            text = values.dump(result, limit=execution.engine.max_value_bytes)
        except (Exception, SystemExit) as error:
            inside.abandoned = True
            await self._flush()
            await self._failed(row, error, options.retry)
            raise AssertionError("unreachable") from None
        finally:
            current_attempts.reset(token)
        await self._flush()
        done = replace(row, result=text, finished_at=execution.now())
        await self.record(done, undo=options.compensate is not None)
        execution.tell("step_completed", name, attempt=row.attempts)
        return values.load(text)

    async def _flush(self) -> None:
        """Write what the step printed, before its end is on record."""
        if self.execution.log.pending:
            await self.execution.face.blocking(self.execution.log.flush)

    async def _failed(self, row: Step, error: Exception | SystemExit, retry: Retry) -> None:
        """Record an attempt that raised, and leave by the rest before the next one or by the step's failure."""
        execution = self.execution
        if execution.poison is not None:
            if row.kind != "compensate":
                raise execution.poison from None
            error, execution.poison = execution.poison, None  # the other compensations shall be called all the same
        failures = row.failures + 1
        fatal = isinstance(error, (Abort, Unstorable, SystemExit, ProgrammingError)) or getattr(error, "final", None) is True
        what = lifecycle.decide_attempt(
            failures=failures,
            max_attempts=retry.max_attempts,
            retryable=not fatal and isinstance(error, retry.retry_on),
        )
        moment = execution.now()
        told = self._told(row, error)
        message = f"{told.type}: {told.message}"
        if what is lifecycle.AttemptEnd.FAIL:
            step = replace(row, status=StepStatus.FAILED, failures=failures, finished_at=moment, error=told)
            await self.record(step)
            execution.tell("step_failed", row.name, attempt=row.attempts, message=message)
            raise step_failed(step) from None
        due_at = moment + max(retry_after_ms(error), _delay_ms(retry, failures, execution.engine.dice()))
        status = StepStatus.RETRYING
        await self.record(
            replace(row, status=status, failures=failures, finished_at=None, due_at=due_at, error=told)
        )
        execution.tell("step_retrying", row.name, attempt=row.attempts, message=message, due_at=due_at)
        raise self.leave(Suspend(due_at)) from None

    def _told(self, row: Step, error: BaseException) -> RunError:
        carried = error.carried if isinstance(error, StepFailed) else ()
        return RunError(
            type=error_type(error),
            message=error_message(error),
            step=row.name,
            attempt=row.attempts,
            traceback=None if carried else user_traceback(error),
            branch=self.branch or None,
            seq=self.asked,
            fields={name: getattr(error, name) for name in carried} or None,
        )

    def row(
        self,
        kind: str,
        name: str,
        status: StepStatus,
        *,
        started_at: int | None = None,
        attempts: int = 1,
        failures: int = 0,
        result: str | None = None,
    ) -> Step:
        """The record of the operation at the current place."""
        now = self.execution.now()
        return Step(
            branch=self.branch,
            seq=self.asked,
            kind=kind,
            name=name,
            status=status,
            attempts=attempts,
            failures=failures,
            started_at=now if started_at is None else started_at,
            finished_at=now if status in (StepStatus.COMPLETED, StepStatus.FAILED) else None,
            due_at=None,
            result=result,
            error=None,
        )

    async def record(self, step: Step, *, undo: bool = False) -> None:
        """Write a record, or leave because the run is not ours any more. `undo`: it has a compensation."""

        def write(tx: Tx) -> Step:
            order = history.next_undo_order(tx, self.execution.run.row_id) if undo else None
            return replace(step, undo_order=order)

        await self.write(write)

    async def write(self, make: Callable[[Tx], Step]) -> Step:
        """Record the operation that `make` makes inside the transaction (fenced: leaves if the run is not ours)."""
        execution = self.execution
        aside, self._aside = self._aside, []

        def made(tx: Tx) -> Step:
            for place in aside:
                history.set_aside(tx, execution.run.row_id, *place)
            return make(tx)

        try:
            recorded = await execution.face.blocking(lambda: execution.engine.record(execution.claim, made))
        except FILE_ERRORS as error:
            raise self.leave(Broken(error)) from error
        if recorded is None:
            raise self.leave(Lost())
        execution.crashes = 0
        execution.history[self.branch, self.asked] = recorded
        if execution.engine.replay_every_step and recorded.finished_at is not None:
            raise self.leave(Suspend(execution.now()))
        return recorded

    async def read(self, question: Callable[[Tx], T]) -> T:
        """Ask the file something."""
        execution = self.execution
        try:
            return await execution.face.blocking(lambda: execution.engine.database.read(question))
        except FILE_ERRORS as error:
            raise self.leave(Broken(error)) from error

    # -- entering and leaving --

    def leave(self, how: Leave) -> Leave:
        """Note that this branch (or, by what is none of `BRANCH_ONLY`, the whole run) is left; what to raise."""
        self.leaving = how
        if not isinstance(how, BRANCH_ONLY):
            self.execution.gone = self.execution.gone or how
        return how

    def entered(self, kind: str, name: str) -> _Entered:
        """`with` around one operation."""
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
                    f"ctx.{kind} {name!r} was used inside step {inside.name!r} ({replay.position(inside.place)} of "
                    f"workflow {execution.run.workflow!r}); a step may only use ctx.heartbeat, ctx.attempt and "
                    "ctx.idempotency_key: move the operation out of the step function"
                )
            )
        current = current_branch.get()
        if current is not None and current is not self and current.execution is execution:
            raise execution.spoil(
                ConcurrentOperation(
                    f"ctx.{kind} {name!r} was used on the context of {_called(self.branch)} inside of "
                    f"{_called(current.branch)} of workflow {execution.run.workflow!r}; a branch uses the context that "
                    "it is called with"
                )
            )
        if not self._busy.acquire(blocking=False):
            raise execution.spoil(
                ConcurrentOperation(
                    f"ctx.{kind} {name!r} began while another operation of this context (operation {self.asked}) "
                    f"was going on in workflow {execution.run.workflow!r}; one context does one thing at a time: "
                    "use ctx.parallel, ctx.map or ctx.race"
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
        if self.leaving is not None:
            raise self.leaving
        if execution.gone is not None:
            raise self.leave(execution.gone)
        if self.ended:
            raise execution.spoil(
                ConcurrentOperation(
                    f"ctx.{kind} {name!r} was used on the context of {_called(self.branch)} of workflow "
                    f"{execution.run.workflow!r}, which has ended"
                )
            )
        check_step_name(name)
        place = (self.branch, self.asked + 1)
        found = replay.match(execution.history, place, kind, name)
        if isinstance(found, Mismatch):
            if not execution.history[place].after_retry:
                raise execution.spoil(non_determinism(execution.run.workflow, found))
            self._set_aside(place)
            found = Fresh(None)
        self.asked += 1
        execution.operations += 1
        # Branches that began have to be replayed in any case, to learn what they have to undo.
        if isinstance(found, Fresh) and not (found.before is not None and kind in replay.GROUPS):
            self._check_may_begin()
        return found

    def _set_aside(self, place: Place) -> None:
        """What was recorded from here on followed a failure that a retry took back: the function goes another way
        now. The records go with the next one that is written."""
        behind = replay.from_here_on(self.execution.history, place)
        for one in behind:
            del self.execution.history[one]
        self._aside.extend(behind)

    def _check_may_begin(self) -> None:
        """Leave where nothing new may begin."""
        execution = self.execution
        if self.closed:
            raise self.leave(Closed())
        if execution.undoing:
            raise self.leave(Undo())
        if execution.stop.is_set():
            raise self.leave(Stop())
        if execution.overdue():
            raise self.leave(TimedOut())

    @property
    def closed(self) -> bool:
        """Has another branch decided, so that nobody needs this one any more?"""
        return any(scope.closed for scope in self.scopes)

    def check_at_rest(self) -> None:
        """The function has returned: an operation that still goes on (a task or a thread nobody waited for) would be
        lost. Asked before an event loop ends and cancels it."""
        execution = self.execution
        if self._busy.locked() and execution.poison is None and execution.gone is None:
            raise execution.spoil(
                ConcurrentOperation(
                    f"workflow {execution.run.workflow!r} returned while operation {self.asked} of its context was "
                    "going on; await it (or wait for its thread) before the function ends"
                )
            )

    def conclude(self, failure: BaseException | None) -> None:
        """A function (the workflow's, or a branch's) has returned, or raised `failure`: raise what really ended it.

        What the code swallowed counts all the same; and an end before the record's is non-determinism.
        """
        execution = self.execution
        self.ended = True
        if failure is not None and not isinstance(failure, (Exception, SystemExit, Leave)):
            raise failure  # KeyboardInterrupt and its like: the process is being left
        if failure is None:
            self.check_at_rest()
        if execution.poison is not None:
            raise execution.poison
        if self.leaving is not None:
            raise self.leaving
        if execution.gone is not None:
            raise execution.gone
        if failure is None or isinstance(failure, Exception):
            left = replay.left_over(execution.history, self.branch, self.asked)
            if left is not None:
                raise execution.spoil(non_determinism(execution.run.workflow, left)) from failure
        if failure is not None:
            raise failure


class _Entered:
    """`with` around one operation: enters it, and lets the context go afterwards."""

    def __init__(self, operations: Operations, kind: str, name: str) -> None:
        self._operations, self._kind, self._name = operations, kind, name

    def __enter__(self) -> Recorded | Fresh:
        return self._operations.enter(self._kind, self._name)

    def __exit__(self, *_: object) -> None:
        self._operations.exit()


def _called(branch: str) -> str:
    return f"branch {branch!r}" if branch else "the function"


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


_FAILURES: dict[str, type[StepFailed]] = {
    "WaitTimeout": WaitTimeout,
    "call": ChildFailed,
    "shell": ShellFailed,
    "http": HttpFailed,
}
"""What is raised instead of StepFailed: by the kind of the operation, else by the type of the error."""


def step_failed(step: Step) -> StepFailed:
    """The exception that a failed operation raises, on the first pass and on every replay."""
    error = step.error or RunError("Unknown", "")
    kind = _FAILURES.get(step.kind) or _FAILURES.get(error.type, StepFailed)
    failed = kind(
        step.name,
        error_type=error.type,
        error_message=error.message,
        attempts=step.attempts,
        traceback=error.traceback,
        place=(step.branch, step.seq),
    )
    for name in kind.carried:
        setattr(failed, name, (error.fields or {}).get(name))
    return failed


def error_type(error: BaseException) -> str:
    """The name of an exception's class, as users know it."""
    return "Timeout" if type(error).__name__ == "StepTimeout" else type(error).__name__


def error_message(error: BaseException) -> str:
    """What an exception says, at most 8 KiB."""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r}) was called"
    if isinstance(error, StepFailed) and error.carried:
        return error.error_message
    try:
        return str(error)[:8192]
    except Exception as problem:
        return f"(its text cannot be made: {type(problem).__name__})"


def retry_after_ms(error: BaseException) -> int:
    """How long the other side asked to wait (an HTTP Retry-After); 0 where it did not."""
    asked = getattr(error, "retry_after_ms", 0)
    return asked if isinstance(asked, int) else 0


def _delay_ms(retry: Retry, failures: int, dice: float) -> int:
    return timing.backoff_ms(
        attempt=failures,
        backoff=retry.backoff,
        base_ms=retry.base_ms,
        max_delay_ms=retry.max_delay_ms,
        jitter=retry.jitter,
        dice=dice,
    )


def drive(operation: Awaitable[Any]) -> Any:
    """Run an operation to its end in plain code: with a plain Face it never suspends."""
    try:
        next(operation.__await__())
    except StopIteration as end:
        return end.value
    raise RuntimeError("an operation suspended in plain code")
