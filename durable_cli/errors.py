"""Every error of durable: one tree, each class with its exit code and its fields.

`code` (the class name in snake_case) is what `--json` prints; `fields()` are printed beside it. `facts` are up to
three indented lines for a person and `hint` is one command or change that mends it. The docstring of a class is its
default message. Exit codes are those of `durable help exit-codes`.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final


class DurableError(Exception):
    """durable could not do this."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "", *, facts: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n")[0])
        self.facts = facts
        self.hint = hint

    @property
    def message(self) -> str:
        """One line for a person: what was wrong and where."""
        return str(self.args[0])

    @property
    def exit_status(self) -> int:
        """The exit code of this error (an instance may choose between two of them)."""
        return self.exit_code

    @classmethod
    def code(cls) -> str:
        """The class name in snake_case, as `--json` prints it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def fields(self) -> dict[str, object]:
        """What a program wants to know besides the message; JSON values only."""
        return {}


# -- 2: what was asked cannot be meant -----------------------------------------------------------------------------


class UsageError(DurableError):
    """The call is wrong."""

    exit_code = 2


class InvalidKey(UsageError):
    """A key is text of 1 to 255 bytes in UTF-8 without NUL."""


class InvalidInput(UsageError):
    """The input does not fit the workflow."""


class InvalidName(UsageError):
    """This is not a name."""


class InvalidDefinition(UsageError):
    """The workflow is defined with options that do not fit."""


class InvalidDuration(UsageError):
    """A duration is a timedelta, a number of seconds, or text such as "1h30m"."""


class InvalidCron(UsageError):
    """This is not a cron expression that is accepted."""

    def __init__(self, expression: str, *, field: str, reason: str, hint: str | None = None) -> None:
        where = "" if field == "expression" else f"{field}: "
        super().__init__(f"cron expression {expression!r}: {where}{reason}", hint=hint)
        self.expression = expression
        self.field = field
        self.reason = reason

    def fields(self) -> dict[str, object]:
        return {"expression": self.expression, "field": self.field, "reason": self.reason}


class InvalidZone(UsageError):
    """This is not the name of a time zone."""

    def __init__(self, message: str, *, zone: str, candidates: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=f"write {' or '.join(candidates)}" if candidates else None)
        self.zone = zone
        self.candidates = candidates

    def fields(self) -> dict[str, object]:
        return {"zone": self.zone, "candidates": list(self.candidates)}


class AmbiguousRun(UsageError):
    """More than one run fits."""

    def __init__(self, message: str, *, candidates: tuple[str, ...], hint: str | None = None) -> None:
        super().__init__(message, facts=candidates[:3], hint=hint)
        self.candidates = candidates

    def fields(self) -> dict[str, object]:
        return {"candidates": list(self.candidates)}


class WorkflowMoved(UsageError):
    """A workflow of this name is recorded from another place."""


class AlreadyDefined(UsageError):
    """Two workflows have one name."""


# -- 3: not there --------------------------------------------------------------------------------------------------


class NotFound(DurableError):
    """Nothing there."""

    exit_code = 3


class RunNotFound(NotFound):
    """No such run."""


class KeyNotFound(NotFound):
    """No run has this key."""


class WorkflowNotFound(NotFound):
    """No such workflow."""


class ScheduleNotFound(NotFound):
    """No such schedule."""


class ModuleNotFound(NotFound):
    """No such module or file."""


class InputNotFound(NotFound):
    """The key has no dropped or superseded input (of that number)."""


class DatabaseNotFound(NotFound):
    """No database there."""


# -- 4: the state does not allow it --------------------------------------------------------------------------------


class Refused(DurableError):
    """The state of the run does not allow this."""

    exit_code = 4

    def __init__(
        self,
        message: str = "",
        *,
        run_id: str | None = None,
        status: str | None = None,
        facts: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, facts=facts, hint=hint)
        self.run_id = run_id
        self.status = status

    def fields(self) -> dict[str, object]:
        return {"run_id": self.run_id, "status": self.status}


class NotFinished(Refused):
    """The run is not finished."""


class NoKey(Refused):
    """The run does not hold a key."""


class NotRetryable(Refused):
    """Only a failed or cancelled run can be retried."""


class NotResumable(Refused):
    """The run cannot be resumed here now."""


class CannotCancel(Refused):
    """A compensating run cannot be cancelled."""


class AlreadyFinished(Refused):
    """The run is finished."""


class NotWaiting(Refused):
    """The run is not waiting for this event."""


class ScheduleTaken(Refused):
    """The name of this schedule belongs to code, or to one that was made by hand."""


class AlreadyReplayed(Refused):
    """The newest dropped input of the key was started again before; naming it starts it once more."""


class NotOver(Refused):
    """The run is not over."""

    exit_code = 8


# -- keys ----------------------------------------------------------------------------------------------------------


class KeyTaken(DurableError):
    """The key is held by another run.

    Exit 75 while the holder is unfinished (trying again helps), 6 when `reuse` keeps the key of a finished one.
    """

    exit_code = 75

    def __init__(
        self,
        message: str,
        *,
        holder_id: str,
        holder_status: str,
        finished: bool,
        facts: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, facts=facts, hint=hint)
        self.holder_id = holder_id
        self.holder_status = holder_status
        self.finished = finished

    @property
    def exit_status(self) -> int:
        return 6 if self.finished else 75

    def fields(self) -> dict[str, object]:
        return {"holder_id": self.holder_id, "holder_status": self.holder_status}


class InputMismatch(KeyTaken):
    """The key is held by a run with another input, and the workflow's `on_mismatch` is "error"."""


class KeyContended(DurableError):
    """The key changed hands again and again while this call ran; nothing was written, trying again is safe."""

    exit_code = 75


# -- the file ------------------------------------------------------------------------------------------------------


class DatabaseLocked(KeyContended):
    """The database stayed locked for 30 s; nothing was written, trying again is safe."""


class DiskFull(DurableError):
    """No space left for the database."""

    exit_code = 75


class DatabaseReadOnly(DurableError):
    """The database cannot be written."""

    exit_code = 78


class DatabaseUnusable(DurableError):
    """The database cannot be used."""

    exit_code = 78


class DatabaseCorrupt(DatabaseUnusable):
    """The database is damaged."""


class DatabaseTooNew(DatabaseUnusable):
    """The database was written by a newer durable."""


class DatabaseReplaced(DatabaseUnusable):
    """The database file was deleted or replaced while it was in use."""


class NetworkFilesystem(DatabaseUnusable):
    """The database lies on a network or virtual-machine file system, where SQLite loses data."""


class ClockSuspect(DurableError):
    """The clock seems to have jumped."""

    exit_code = 75


class OutcomeUnknown(DurableError):
    """The disk failed while the change was written, and whether it is there cannot be told."""

    exit_code = 75


class DiskError(DurableError):
    """The disk failed."""


FILE_BROKEN: Final = (DatabaseReadOnly, DatabaseUnusable, OutcomeUnknown, DiskError)
"""Waiting does not help, and limping on with such a file loses work."""

FILE_ERRORS: Final = (DatabaseLocked, DiskFull, *FILE_BROKEN)
"""What is wrong with the file, and with nothing that anybody asked for."""


class TooManyThreads(DurableError):
    """This process may have no more threads now; trying again later helps."""

    exit_code = 75


class InvalidConfig(DurableError):
    """The configuration is wrong."""

    exit_code = 78


class UnsafeCode(InvalidConfig):
    """The file that holds a workflow's code, or a directory above it, can be changed by others."""


# -- inside a workflow ---------------------------------------------------------------------------------------------


class ModuleFailed(DurableError):
    """The user's module raised while it was imported."""

    def __init__(
        self, message: str, *, facts: tuple[str, ...] = (), hint: str | None = None, traceback: str | None = None
    ) -> None:
        super().__init__(message, facts=facts, hint=hint)
        self.traceback = traceback  # begins in the user's file


class Abort(DurableError):
    """Raise this in a step to fail it at once, whatever its retry policy."""


class StepFailed(DurableError):
    """A step failed for good.

    Raised in the workflow function by the operation that failed, on the first pass and on every replay alike, so it
    carries the recorded text of the error and never the live exception.
    """

    carried: ClassVar[tuple[str, ...]] = ()
    """Attributes that the record keeps besides the text."""

    def __init__(
        self,
        step: str,
        *,
        error_type: str,
        error_message: str,
        attempts: int,
        traceback: str | None = None,
        place: tuple[str, int] = ("", 0),
    ) -> None:
        super().__init__(f"step {step!r} failed: {error_type}: {error_message}")
        self.step = step
        self.error_type = error_type
        self.error_message = error_message
        self.attempts = attempts
        self.traceback = traceback
        self.place = place

    def fields(self) -> dict[str, object]:
        return {"step": self.step, "type": self.error_type, "attempts": self.attempts}


class WaitTimeout(StepFailed):
    """Nothing came in time, and the wait had no default."""


class ChildFailed(StepFailed):
    """The run that `ctx.call` waited for did not complete."""


class ShellFailed(StepFailed):
    """The command of `ctx.shell` could not be run, was killed, or did not exit with 0.

    `exit_code` is None where a signal (`signal`, its number) or a timeout ended it, or where how it ended is lost. As in
    a shell, 127 means that there is no such program and 126 that it cannot be executed. `output`: its last lines.
    """

    carried = ("exit_code", "signal", "output")
    exit_code: int | None = None  # type: ignore[assignment, misc]
    signal: int | None = None
    output: str | None = None

    @property
    def exit_status(self) -> int:
        return 1

    def fields(self) -> dict[str, object]:
        return {**super().fields(), "exit_code": self.exit_code, "signal": self.signal}


class HttpFailed(StepFailed):
    """The request of `ctx.http` got no answer (`status` None), or another one than was expected.

    `retry_after_ms`: how long the other side asked to wait. `final`: trying again cannot help.
    """

    carried = ("status",)
    status: int | None = None
    retry_after_ms: int = 0
    final: bool = False

    def fields(self) -> dict[str, object]:
        return {**super().fields(), "status": self.status}


class BranchesFailed(DurableError):
    """Branches of `ctx.parallel`, `ctx.map` or `ctx.race` failed.

    `errors`: the exception of each failed branch by its name; `results`: the value of each that completed.
    """

    def __init__(
        self,
        message: str,
        *,
        errors: dict[str, Exception],
        results: dict[str, object],
        place: tuple[str, int] = ("", 0),
    ) -> None:
        super().__init__(message)
        self.errors = errors
        self.results = results
        self.place = place

    def fields(self) -> dict[str, object]:
        return {"failed": list(self.errors)}


class MissingExtra(DurableError):
    """A part of durable is not installed."""

    final = True  # of a step: trying again cannot help


class StepTimeout(DurableError):
    """The attempt took longer than its timeout."""


class ProgrammingError(DurableError):
    """The workflow's code breaks a rule of replay. The run fails whatever the code catches; mend it and `retry`."""


class NonDeterminism(ProgrammingError):
    """Replayed code asked for another operation than the one recorded at that place."""

    def __init__(self, message: str, *, workflow: str, position: str, expected: str | None, asked: str | None) -> None:
        super().__init__(message)
        self.workflow = workflow
        self.position = position
        self.expected = expected
        self.asked = asked

    def fields(self) -> dict[str, object]:
        return {
            "workflow": self.workflow,
            "position": self.position,
            "expected": self.expected,
            "asked": self.asked,
        }


class NestedOperation(ProgrammingError):
    """An operation of the context was used inside a step function."""


class ConcurrentOperation(ProgrammingError):
    """Two operations ran at once on one context."""


class Unstorable(DurableError):
    """This value cannot be stored as JSON."""

    def __init__(self, message: str, *, value_type: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.value_type = value_type


class Unreadable(DurableError):
    """A stored value can no longer be read."""


class CrashLoop(DurableError):
    """The process that executed the run died five times in a row."""


class Cancelled(DurableError):
    """The run was cancelled."""

    exit_code = 5


# -- in durable itself ---------------------------------------------------------------------------------------------


class InternalError(DurableError):
    """A bug in durable."""

    exit_code = 70


class EngineFileOpened(PermissionError):
    """Code in this process opened a file that durable has open.

    A `PermissionError`, so that code which walks and copies folders skips the file as it skips others it may not
    read. Opening it a second time in one process would drop durable's locks and lose commits.
    """
