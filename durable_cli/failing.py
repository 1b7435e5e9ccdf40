"""What the failures of operations are called and raised as: the same on the first pass and on every replay."""

from __future__ import annotations

from durable_cli.core import timing
from durable_cli.core.policies import Retry
from durable_cli.core.replay import Mismatch
from durable_cli.errors import ChildFailed, HttpFailed, NonDeterminism, ShellFailed, StepFailed, WaitTimeout
from durable_cli.model import RunError, Step
from durable_cli.usercode import text_of


def called(branch: str) -> str:
    """A branch for a person."""
    return f"branch {branch!r}" if branch else "the function"


def non_determinism(workflow: str, found: Mismatch) -> NonDeterminism:
    """The error for a replay that went another way than the record."""
    asked = f"asked for {found.asked}" if found.asked else "ended"
    return NonDeterminism(
        f"workflow {workflow!r} {asked} at {found.position}, where {found.expected} is recorded; the code around the "
        "steps has to do the same on every replay: mend it, then `durable retry RUN --foreground` goes on",
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
    return error.error_message if isinstance(error, StepFailed) and error.carried else text_of(error)


def retry_after_ms(error: BaseException) -> int:
    """How long the other side asked to wait (an HTTP Retry-After); 0 where it did not."""
    asked = getattr(error, "retry_after_ms", 0)
    return asked if isinstance(asked, int) else 0


def delay_ms(retry: Retry, failures: int, dice: float) -> int:
    """How long to wait after so many failed attempts."""
    return timing.backoff_ms(
        attempt=failures,
        backoff=retry.backoff,
        base_ms=retry.base_ms,
        max_delay_ms=retry.max_delay_ms,
        jitter=retry.jitter,
        dice=dice,
    )
