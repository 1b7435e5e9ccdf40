"""durable: at most one run a key, and no finished step twice, in one SQLite file.

    from durable_cli import Context, Durable, Retry, workflow

Names are imported when first used, so that `durable --help` and a crontab's second copy stay cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable_cli.client import Durable as Durable
    from durable_cli.context import AsyncContext as AsyncContext
    from durable_cli.context import Context as Context
    from durable_cli.core.policies import Debounce as Debounce
    from durable_cli.declaring import schedule as schedule
    from durable_cli.definition import Retry as Retry
    from durable_cli.definition import workflow as workflow
    from durable_cli.errors import Abort as Abort
    from durable_cli.errors import AlreadyDefined as AlreadyDefined
    from durable_cli.errors import AlreadyFinished as AlreadyFinished
    from durable_cli.errors import AlreadyReplayed as AlreadyReplayed
    from durable_cli.errors import AmbiguousRun as AmbiguousRun
    from durable_cli.errors import BranchesFailed as BranchesFailed
    from durable_cli.errors import Cancelled as Cancelled
    from durable_cli.errors import CannotCancel as CannotCancel
    from durable_cli.errors import ChildFailed as ChildFailed
    from durable_cli.errors import ClockSuspect as ClockSuspect
    from durable_cli.errors import ConcurrentOperation as ConcurrentOperation
    from durable_cli.errors import CrashLoop as CrashLoop
    from durable_cli.errors import DatabaseCorrupt as DatabaseCorrupt
    from durable_cli.errors import DatabaseLocked as DatabaseLocked
    from durable_cli.errors import DatabaseNotFound as DatabaseNotFound
    from durable_cli.errors import DatabaseReadOnly as DatabaseReadOnly
    from durable_cli.errors import DatabaseReplaced as DatabaseReplaced
    from durable_cli.errors import DatabaseTooNew as DatabaseTooNew
    from durable_cli.errors import DatabaseUnusable as DatabaseUnusable
    from durable_cli.errors import DiskError as DiskError
    from durable_cli.errors import DiskFull as DiskFull
    from durable_cli.errors import DurableError as DurableError
    from durable_cli.errors import EngineFileOpened as EngineFileOpened
    from durable_cli.errors import HttpFailed as HttpFailed
    from durable_cli.errors import InputMismatch as InputMismatch
    from durable_cli.errors import InputNotFound as InputNotFound
    from durable_cli.errors import InvalidConfig as InvalidConfig
    from durable_cli.errors import InvalidCron as InvalidCron
    from durable_cli.errors import InvalidDefinition as InvalidDefinition
    from durable_cli.errors import InvalidDuration as InvalidDuration
    from durable_cli.errors import InvalidInput as InvalidInput
    from durable_cli.errors import InvalidKey as InvalidKey
    from durable_cli.errors import InvalidName as InvalidName
    from durable_cli.errors import InvalidZone as InvalidZone
    from durable_cli.errors import KeyContended as KeyContended
    from durable_cli.errors import KeyNotFound as KeyNotFound
    from durable_cli.errors import KeyTaken as KeyTaken
    from durable_cli.errors import MissingExtra as MissingExtra
    from durable_cli.errors import ModuleFailed as ModuleFailed
    from durable_cli.errors import NestedOperation as NestedOperation
    from durable_cli.errors import NetworkFilesystem as NetworkFilesystem
    from durable_cli.errors import NoKey as NoKey
    from durable_cli.errors import NonDeterminism as NonDeterminism
    from durable_cli.errors import NotFinished as NotFinished
    from durable_cli.errors import NotFound as NotFound
    from durable_cli.errors import NotOver as NotOver
    from durable_cli.errors import NotResumable as NotResumable
    from durable_cli.errors import NotRetryable as NotRetryable
    from durable_cli.errors import NotWaiting as NotWaiting
    from durable_cli.errors import OutcomeUnknown as OutcomeUnknown
    from durable_cli.errors import RunNotFound as RunNotFound
    from durable_cli.errors import ScheduleNotFound as ScheduleNotFound
    from durable_cli.errors import ScheduleTaken as ScheduleTaken
    from durable_cli.errors import ShellFailed as ShellFailed
    from durable_cli.errors import StepFailed as StepFailed
    from durable_cli.errors import StepTimeout as StepTimeout
    from durable_cli.errors import Unreadable as Unreadable
    from durable_cli.errors import UnsafeCode as UnsafeCode
    from durable_cli.errors import Unstorable as Unstorable
    from durable_cli.errors import UsageError as UsageError
    from durable_cli.errors import WaitTimeout as WaitTimeout
    from durable_cli.errors import WorkflowMoved as WorkflowMoved
    from durable_cli.errors import WorkflowNotFound as WorkflowNotFound
    from durable_cli.foreground import Execution as Execution
    from durable_cli.http import HttpResult as HttpResult
    from durable_cli.keyrules import cel as cel
    from durable_cli.model import Activity as Activity
    from durable_cli.model import Key as Key
    from durable_cli.model import Outcome as Outcome
    from durable_cli.model import Run as Run
    from durable_cli.model import Schedule as Schedule
    from durable_cli.model import StartResult as StartResult
    from durable_cli.model import Status as Status
    from durable_cli.model import Step as Step
    from durable_cli.shell import ShellResult as ShellResult

_HOME = {
    "client": ("Durable",),
    "context": ("AsyncContext", "Context"),
    "core.policies": ("Debounce",),
    "declaring": ("schedule",),
    "definition": ("Retry", "workflow"),
    "errors": (
        "Abort",
        "AlreadyDefined",
        "AlreadyFinished",
        "AlreadyReplayed",
        "AmbiguousRun",
        "BranchesFailed",
        "Cancelled",
        "CannotCancel",
        "ChildFailed",
        "ClockSuspect",
        "ConcurrentOperation",
        "CrashLoop",
        "DatabaseCorrupt",
        "DatabaseLocked",
        "DatabaseNotFound",
        "DatabaseReadOnly",
        "DatabaseReplaced",
        "DatabaseTooNew",
        "DatabaseUnusable",
        "DiskError",
        "DiskFull",
        "DurableError",
        "EngineFileOpened",
        "HttpFailed",
        "InputMismatch",
        "InputNotFound",
        "InvalidConfig",
        "InvalidCron",
        "InvalidDefinition",
        "InvalidDuration",
        "InvalidInput",
        "InvalidKey",
        "InvalidName",
        "InvalidZone",
        "KeyContended",
        "KeyNotFound",
        "KeyTaken",
        "MissingExtra",
        "ModuleFailed",
        "NestedOperation",
        "NetworkFilesystem",
        "NoKey",
        "NonDeterminism",
        "NotFinished",
        "NotFound",
        "NotOver",
        "NotResumable",
        "NotRetryable",
        "NotWaiting",
        "OutcomeUnknown",
        "RunNotFound",
        "ScheduleNotFound",
        "ScheduleTaken",
        "ShellFailed",
        "StepFailed",
        "StepTimeout",
        "Unreadable",
        "UnsafeCode",
        "Unstorable",
        "UsageError",
        "WaitTimeout",
        "WorkflowMoved",
        "WorkflowNotFound",
    ),
    "foreground": ("Execution",),
    "http": ("HttpResult",),
    "keyrules": ("cel",),
    "model": ("Activity", "Key", "Outcome", "Run", "Schedule", "StartResult", "Status", "Step"),
    "shell": ("ShellResult",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
