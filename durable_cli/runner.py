"""One owned run, from replay to its next rest or its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from durable_cli import settling
from durable_cli.capture import captured
from durable_cli.definition import Definition
from durable_cli.engine import Engine
from durable_cli.errors import DurableError, ProgrammingError, StepFailed, Unreadable, Unstorable
from durable_cli.execution import (
    Broken,
    Execution,
    Leave,
    Lost,
    Progress,
    Stop,
    Suspend,
    TimedOut,
    Undo,
)
from durable_cli.faces import AsyncFace, PlainFace, call_within, run_operation
from durable_cli.failing import error_message, error_type
from durable_cli.logs import RunLog
from durable_cli.model import Claim, Run, RunError, Status, Step
from durable_cli.operations import Operations
from durable_cli.store import events, history, runs, transitions
from durable_cli.store.database import Tx
from durable_cli.tracebacks import calls_us_wrongly, user_traceback
from durable_cli.undoing import UNDO_BRANCH, undo_all


@dataclass(frozen=True, slots=True)
class Rested:
    """The run waits until `due_at` (ms UTC; None: until something comes). `claim`: the one to go on with, where the
    owner stays by it (a time-out has raised the epoch)."""

    due_at: int | None
    claim: Claim


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
    stay: bool = True,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], None] = silent,
) -> Turn:
    """Replay the run, execute what has no record, and write how it rests or ends.

    `stay`: the owner stays by a resting run; else the run is let go. Exceptions of the workflow end up in the run.
    What leaves here is an error of the file (the run goes back, if that can be written) or a BaseException of the
    caller's, such as KeyboardInterrupt (the run goes back).
    """
    engine.taken_up(claim)
    turn = _Turn(engine, claim, definition, stay, stop or threading.Event(), progress)
    try:
        with captured():
            return turn.take()
    except BaseException:
        turn.try_to_give_back()
        raise
    finally:
        engine.let_go(claim)
        engine.let_go(turn.claim)  # a time-out has raised the epoch


class _Turn:
    def __init__(
        self,
        engine: Engine,
        claim: Claim,
        definition: Definition,
        stay: bool,
        stop: threading.Event,
        progress: Callable[[Progress], None],
    ) -> None:
        self.engine = engine
        self.claim = claim
        self.definition = definition
        self.stay = stay
        self.stop = stop
        self.progress = progress

    def take(self) -> Turn:
        execution = self._execution()
        if execution is None:
            return Gone()
        try:
            try:
                result = self._logged_call(execution)
            except (Exception, SystemExit) as error:
                return self._failed(execution, error)
            if execution.undoing:
                return self._undo(execution)
            turn = self._end(execution, Status.COMPLETED, result=result)
            if execution.operations == 0:
                _warn_of_no_operation(self.definition)
            return turn
        except Suspend as rest:
            return self._rest(execution, rest.due_at)
        except Stop:
            self.engine.abandon([self.claim])
            return Stopped()
        except Lost:
            return Gone()
        except Broken as broken:
            raise broken.error from None

    def _execution(self) -> Execution | None:
        def facts(tx: Tx) -> tuple[Run, list[Step]] | None:
            if not runs.ours(tx, self.claim.row_id, self.claim.owner_id, self.claim.epoch):
                return None
            return runs.get(tx, self.claim.row_id), history.of_run(tx, self.claim.row_id)

        found = self.engine.database.read(facts)
        if found is None:
            return None
        run, recorded = found
        return Execution(
            engine=self.engine,
            run=run,
            claim=self.claim,
            history={(step.branch, step.seq): step for step in recorded},
            face=AsyncFace() if self.definition.is_async else PlainFace(),
            stop=self.stop,
            progress=self.progress,
            log=RunLog(self.engine, self.claim),
            undoing=run.status is Status.COMPENSATING,
            crashes=run.crashes,
        )

    # -- calling the function --

    def _logged_call(self, execution: Execution) -> str | None:
        try:
            return self._call(execution)
        finally:
            execution.log.flush()

    def _call(self, execution: Execution) -> str | None:
        """Call the workflow function; its result as JSON text. Raises what it raised, or what spoiled the execution.

        A run that undoes what it did is only replayed, to learn its compensations: None.
        """
        if execution.overdue():
            self._timed_out(execution)
        operations = Operations(execution)
        arguments = self._arguments(execution.run)
        failure: BaseException | None = None
        result: object = None
        try:
            result = call_within(
                execution.face, self.definition.function, operations, arguments, self._time_left(execution)
            )
        except BaseException as error:
            failure = error
        if execution.undoing and isinstance(failure, Exception | SystemExit | Leave | None):
            if isinstance(failure, Lost | Stop | Broken):
                raise failure
            return None
        try:
            operations.conclude(failure)
        except TimedOut:
            self._timed_out(execution)
        except Undo:
            return None
        try:
            return self.definition.result.dump(result, limit=self.engine.max_value_bytes)
        except Unstorable as error:
            name = self.definition.name
            raise Unstorable(
                f"the result of workflow {name!r} cannot be stored: {error}", value_type=error.value_type
            ) from None

    def _arguments(self, run: Run) -> tuple[object, ...]:
        try:
            return self.definition.arguments(run.input)
        except Unreadable as error:
            raise Unreadable(f"run {run.id}, column input: {error}") from None

    def _time_left(self, execution: Execution) -> float | None:
        deadline = execution.run.deadline_at
        return None if deadline is None or execution.undoing else (deadline - self.engine.now()) / 1000

    def _timed_out(self, execution: Execution) -> NoReturn:
        """The run's time is over. What still executes is fenced off by a new epoch, which is ours."""
        execution.log.flush()

        def write(tx: Tx) -> Claim | None:
            if not runs.ours(tx, self.claim.row_id, self.claim.owner_id, self.claim.epoch):
                return None
            return replace(self.claim, epoch=transitions.fence_off(tx, self.claim.row_id))

        claim = self.engine.database.write(write)
        if claim is None:
            raise Lost()
        self.engine.let_go(self.claim)
        self.engine.taken_up(claim)
        self.claim = claim  # not the execution's: a thread may still be inside of it
        raise _Overdue(settling.timeout_error(execution.run))

    # -- failing and undoing --

    def _failed(self, execution: Execution, failure: Exception | SystemExit) -> Turn:
        """The function failed: undo what has a compensation, newest first, or end.

        Code that broke a rule of replay, or a record that cannot be read, undoes nothing: mended, the run can go on.
        """
        if execution.undoing:
            return self._undo(execution)
        error = run_error(failure, execution)
        mendable = isinstance(failure, ProgrammingError | Unreadable)
        # Asked of the file: a step that went on when the run's time was over may be recorded, and we not know of it.
        if mendable or not self.engine.database.read(lambda tx: history.to_undo(tx, self.claim.row_id)):
            return self._end(execution, Status.FAILED, error=error)
        if not self._begin_to_undo(error):
            return Gone()
        return self.take() if isinstance(failure, _Overdue) else self._undo(execution)

    def _begin_to_undo(self, error: RunError) -> bool:
        def write(tx: Tx) -> bool:
            ours = runs.ours(tx, self.claim.row_id, self.claim.owner_id, self.claim.epoch)
            if ours:
                settling.begin_to_undo(tx, runs.get(tx, self.claim.row_id), error, now=self.engine.now())
            return ours

        return self.engine.database.write(write)

    def _undo(self, execution: Execution) -> Turn:
        # The function has been left, by whatever way; what is recorded from here on is on a branch of its own.
        execution.undoing, execution.gone, execution.poison = False, None, None
        execution.run = replace(execution.run, status=Status.COMPENSATING, deadline_at=None)
        done = sorted(
            (step for step in execution.history.values() if step.undo_order is not None),
            key=lambda step: step.undo_order or 0,
            reverse=True,
        )
        operations = Operations(execution, UNDO_BRANCH)
        failed = run_operation(execution.face, lambda: undo_all(operations, execution, done))
        status = Status.COMPENSATION_FAILED if failed else Status.COMPENSATED
        error = self.engine.database.read(lambda tx: runs.get(tx, self.claim.row_id)).error
        return self._end(execution, status, error=error)

    # -- resting and ending --

    def _rest(self, execution: Execution, due_at: int | None) -> Turn:
        deadline = execution.run.deadline_at
        if deadline is not None and (due_at is None or deadline < due_at):
            due_at = deadline

        def write(tx: Tx) -> Turn:
            if not runs.ours(tx, self.claim.row_id, self.claim.owner_id, self.claim.epoch):
                return Gone()
            # A run that undoes what it did waits for nothing that could come.
            undoing = execution.run.status is Status.COMPENSATING
            new = not undoing and events.something_new(tx, self.claim.row_id)
            due = self.engine.now() if new else due_at
            transitions.rest(tx, self.claim.row_id, due, stay=self.stay)
            return Rested(due, self.claim)

        return self.engine.database.write(write)

    def _end(
        self, execution: Execution, status: Status, *, result: str | None = None, error: RunError | None = None
    ) -> Turn:
        claim = self.claim
        due = False

        def write(tx: Tx) -> Ended | None:
            nonlocal due
            if not runs.ours(tx, claim.row_id, claim.owner_id, claim.epoch):
                return None
            run = runs.get(tx, claim.row_id)
            reuse = self.definition.reuse
            heir = settling.end(tx, run, status, now=self.engine.now(), result=result, error=error, reuse=reuse)
            promoted = None if heir is None else self.engine.claim_promoted(tx, heir, claim.owner_id)
            due = run.parent_row is not None or (heir is not None and promoted is None)
            return Ended(status, promoted, execution.operations)

        def landed(tx: Tx) -> Ended | None:
            run = runs.get(tx, claim.row_id)
            same = run.status is status and run.epoch == claim.epoch
            return Ended(status, None, execution.operations) if same else None

        turn = self.engine.database.write(write, landed=landed) or Gone()
        if due:
            self.engine.ring()
        return turn

    def try_to_give_back(self) -> None:
        """The run goes back, if that can be written; else the lock of this process tells the rest."""
        try:
            self.engine.abandon([self.claim])
        except DurableError:
            pass


_warned: set[str] = set()


def _warn_of_no_operation(definition: Definition) -> None:
    """Legal, and almost always a mistake: said once for each workflow in a process."""
    if definition.name in _warned:
        return
    _warned.add(definition.name)
    import logging  # late: a crontab's run has no other use for it

    logging.getLogger("durable").warning(
        "workflow %r (%s) ended without a single operation: nothing of it was recorded, so all of it would have run "
        "again after a crash; do the work in ctx.run(...)",
        definition.name,
        definition.place,
    )


class _Overdue(Exception):
    """Carries the error of a run whose time is over to where failures are handled."""

    def __init__(self, error: RunError) -> None:
        super().__init__(error.message)
        self.error = error


def run_error(error: BaseException, execution: Execution) -> RunError:
    """Why the run failed, in the words of whoever failed: the step's own error where a step's failure ended it."""
    if isinstance(error, _Overdue):
        return error.error
    step = _failed_step(error)
    if step is not None and step is error:
        return RunError(
            type=step.error_type,
            message=step.error_message,
            step=step.step,
            attempt=step.attempts,
            traceback=step.traceback,
            branch=step.place[0] or None,
            seq=step.place[1],
            fields={name: getattr(step, name) for name in step.carried} or None,
        )
    # Code that broke a rule is to be mended; no operation has to be tried again then.
    mendable = isinstance(error, ProgrammingError | Unreadable)
    branch, seq = (None if mendable else execution.place_of(error)) or (None, None)
    return RunError(
        type=error_type(error),
        message=error_message(error),
        step=step.step if step else None,
        attempt=step.attempts if step else None,
        traceback=user_traceback(error) if not isinstance(error, DurableError) or calls_us_wrongly(error) else None,
        branch=branch or None,
        seq=seq,
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
