"""One owned run between two rests: what all its branches share, and the ways of leaving it.

Some things leave the workflow function by a BaseException, so that `except Exception` around a step does not swallow
them: a rest (`Suspend`), the end of a branch that nobody needs any more (`Closed`), a request to stop (`Stop`), the
loss of the run to somebody else (`Lost`) or of the file (`Broken`), a deadline (`TimedOut`), and the turn to undoing (`Undo`). One that is
swallowed all the same is raised again by the next operation.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from durable_cli.core.replay import Place
from durable_cli.errors import BranchesFailed, DurableError, StepFailed
from durable_cli.model import Claim, Run, Step

if TYPE_CHECKING:
    from durable_cli.core.policies import Retry
    from durable_cli.engine import Engine
    from durable_cli.logs import RunLog
    from durable_cli.operations import Operations
    from durable_cli.values import Codec

T = TypeVar("T")


class Leave(BaseException):
    """The workflow function is being left."""


class Suspend(Leave):
    """The run has to rest until `due_at`; None: until something comes."""

    def __init__(self, due_at: int | None) -> None:
        super().__init__()
        self.due_at = due_at


class Closed(Leave):
    """This branch is not needed any more: another one decided."""


class Stop(Leave):
    """This process was asked to stop; the run stays resumable."""


class Lost(Leave):
    """The run is not ours any more: cancelled, replaced, or taken by another process."""


class Broken(Leave):
    """The file could not be read or written. No failure of the run's: it goes on when the file is mended."""

    def __init__(self, error: DurableError) -> None:
        super().__init__()
        self.error = error


class TimedOut(Leave):
    """The run's time is over."""


class Undo(Leave):
    """The run has failed before and undoes what it did: its function does nothing new."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What happened just now in a run, for whoever watches it. `due_at`: when a resting run goes on;
    `undo`: the step is the compensation of that step; `place`: where in the run it is, names may repeat; `names`: of
    the branches it is in, and its own; `other_input`: the run that a call has taken up has another input than the call
    gave, and keeps it."""

    kind: str
    run_id: str
    step: str
    attempt: int = 1
    message: str | None = None
    due_at: int | None = None
    undo: bool = False
    place: Place | None = None
    names: tuple[str, ...] = ()
    other_input: bool = False


class Face(Protocol):
    """How plain and `async` code differ: calling functions, waiting for the file, doing several things at once."""

    async def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], timeout_ms: int | None
    ) -> Any:
        """Call a step. Raises StepTimeout when it takes longer than `timeout_ms`."""

    async def branch(self, function: Callable[[Any], Any], operations: Operations) -> Any:
        """Call a branch with a context of its own."""

    async def blocking(self, function: Callable[[], T]) -> T:
        """Call something of durable's own that waits for the file."""

    async def gather(self, jobs: list[Callable[[], Awaitable[None]]], concurrency: int | None) -> None:
        """Do jobs at once, at most `concurrency` of them; none of them raises."""


@dataclass(frozen=True, slots=True)
class Compensation:
    """What undoes a completed step: `function(result)`."""

    step: str
    function: Callable[..., Any]
    retry: Retry | None
    values: Codec


@dataclass(slots=True)
class Execution:
    """See the module. `poison`: what the run fails with, whatever the code catches."""

    engine: Engine
    run: Run
    claim: Claim
    history: dict[Place, Step]
    face: Face
    stop: threading.Event
    progress: Callable[[Progress], None]
    log: RunLog
    undoing: bool = False
    gone: Leave | None = None
    """Why the whole run is being left (a rest leaves one branch only)."""
    poison: DurableError | None = None
    operations: int = 0
    crashes: int = 0
    """Owners that died since the last record: so many attempts of the next operation were cut off."""
    compensations: dict[Place, Compensation] = field(default_factory=dict)
    raised: list[tuple[Exception, Place]] = field(default_factory=list)
    """What left branches, and at which operation of theirs; the outermost last."""

    def now(self) -> int:
        """This moment, ms UTC."""
        return self.engine.now()

    def tell(self, kind: str, step: str, **more: Any) -> None:
        """Say what happened to whoever watches."""
        self.progress(Progress(kind, self.run.id, step, **more))

    def spoil(self, error: DurableError) -> DurableError:
        """Note what the run fails with, whatever the code catches: it broke a rule, or a record cannot be read."""
        self.poison = self.poison or error
        return error

    def place_of(self, error: BaseException | None) -> Place | None:
        """The operation whose failure led to this error: its own, or that of what it was raised from or while
        handling."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            if isinstance(error, StepFailed | BranchesFailed):
                return error.place
            for known, place in reversed(self.raised):
                if known is error:
                    return place
            seen.add(id(error))
            error = error.__cause__ or error.__context__
        return None

    def overdue(self) -> bool:
        """Is the run's time over?"""
        deadline = self.run.deadline_at
        return deadline is not None and not self.undoing and self.now() >= deadline
