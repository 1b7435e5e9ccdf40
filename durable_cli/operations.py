"""The operations that a workflow function may use: one implementation for plain and for `async` code.

An operation is a coroutine here. `AsyncContext` awaits it; `Context` drives it by hand, since its `Face` answers every
question at once and the coroutine never suspends. Each operation takes the next place on its branch, asks the record
(`core.replay`), and either gives back what was recorded or executes and records it. This module has places, steps and
recorded values; `waits`, `branches` and `children` have the rest.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from durable_cli.core import lifecycle, replay
from durable_cli.core.policies import Retry
from durable_cli.core.replay import Recorded
from durable_cli.entering import Attempt, Branch, current_attempts
from durable_cli.errors import (
    FILE_ERRORS,
    Abort,
    ProgrammingError,
    StepFailed,
    Unreadable,
    Unstorable,
    UsageError,
)
from durable_cli.execution import Broken, Compensation, Lost, Suspend
from durable_cli.failing import delay_ms, error_message, error_type, retry_after_ms, step_failed
from durable_cli.model import RunError, Step, StepStatus
from durable_cli.store import history, runs
from durable_cli.store.database import Tx
from durable_cli.tracebacks import user_traceback
from durable_cli.values import Codec, codec, result_codec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step is to be executed."""

    kind: str = "run"
    retry: Retry = Retry()  # noqa: RUF009 (frozen)
    timeout_ms: int | None = None
    compensate: Callable[..., Any] | None = None
    compensate_retry: Retry | None = None


class Operations(Branch):
    """The operations of one branch of one run."""

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
        self._tell("step_started", row)
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
        self._tell("step_completed", row)
        return values.load(text)

    def _tell(self, kind: str, row: Step, **more: Any) -> None:
        more |= {"place": (row.branch, row.seq), "names": replay.names(row, self.execution.history)}
        self.execution.tell(kind, row.name, attempt=row.attempts, undo=_undoes(row), **more)

    async def _flush(self) -> None:
        """Write what the step printed, before its end is on record."""
        if self.execution.log.pending:
            await self.execution.face.blocking(self.execution.log.flush)

    async def _failed(self, row: Step, error: Exception | SystemExit, retry: Retry) -> None:
        """Record an attempt that raised, and leave by the rest before the next one or by the step's failure."""
        execution = self.execution
        if execution.poison is not None:
            if row.kind != replay.UNDO:
                raise execution.poison from None
            error, execution.poison = execution.poison, None  # the other compensations shall be called all the same
        failures = row.failures + 1
        fatal = isinstance(error, (Abort, Unstorable, SystemExit, ProgrammingError))
        fatal = fatal or getattr(error, "final", None) is True
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
            self._tell("step_failed", row, message=message)
            raise step_failed(step) from None
        due_at = moment + max(retry_after_ms(error), delay_ms(retry, failures, execution.engine.dice()))
        status = StepStatus.RETRYING
        await self.record(replace(row, status=status, failures=failures, finished_at=None, due_at=due_at, error=told))
        self._tell("step_retrying", row, message=message, due_at=due_at)
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

        def made(tx: Tx) -> Step:
            for place in self._aside:
                history.set_aside(tx, execution.run.row_id, *place)
            return make(tx)

        try:
            recorded = await execution.face.blocking(lambda: execution.engine.record(execution.claim, made))
        except FILE_ERRORS as error:
            raise self.leave(Broken(error)) from error
        if recorded is None:
            raise self.leave(Lost())
        self._aside = []
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


def drive(operation: Awaitable[Any]) -> Any:
    """Run an operation to its end in plain code: with a plain Face it never suspends."""
    try:
        next(operation.__await__())
    except StopIteration as end:
        return end.value
    raise RuntimeError("an operation suspended in plain code")


def _undoes(step: Step) -> bool:
    return step.kind == replay.UNDO
