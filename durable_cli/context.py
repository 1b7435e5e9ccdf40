"""What workflow code calls: thin faces of the operations, one for plain functions and one for `async def`.

`Calls` turns arguments into an operation, once for both; a face drives it or awaits it.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from durable_cli import children
from durable_cli.calls import Calls
from durable_cli.core.policies import Retry
from durable_cli.core.timing import Duration
from durable_cli.definition import UNSET, WorkflowFunction
from durable_cli.model import OnDuplicate
from durable_cli.operations import drive
from durable_cli.outside import AsyncOutside, PlainOutside
from durable_cli.waits import NO_DEFAULT

P = ParamSpec("P")
T = TypeVar("T")
OnError = Literal["fail_fast", "complete_all"]


class Context(Calls, PlainOutside):
    """The context of a plain workflow function.

    Every operation is recorded: on a replay it gives back what it gave the first time.
    """

    def run(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        compensate: Callable[[T], Any] | None = None,
        compensate_retry: Retry | None = None,
        **kwargs: Any,
    ) -> T:
        """Run a step: call `function(*args, **kwargs)` until it succeeds or `retry` gives up, and record the end.

        A recorded step never runs again: its result is given back. Results are JSON, typed by the function's return
        annotation. `timeout`: of each attempt; a plain function that is still executing then goes on in its thread,
        and its result is not used. `compensate(result)` undoes the step if the run fails later. Raises StepFailed
        when the step failed for good.
        """
        kwargs |= {"retry": retry, "timeout": timeout, "compensate": compensate, "compensate_retry": compensate_retry}
        result: T = drive(self._run(name, function, args, kwargs))
        return result

    def now(self) -> dt.datetime:
        """The moment (UTC) at which this operation ran first."""
        moment: dt.datetime = drive(self._now())
        return moment

    def uuid(self) -> uuid.UUID:
        """A random UUID."""
        made: uuid.UUID = drive(self._uuid())
        return made

    def random(self) -> float:
        """A random number in [0, 1)."""
        made: float = drive(self._random())
        return made

    def sleep(self, name: str, duration: Duration) -> None:
        """Rest for a duration. The run keeps no thread and no process meanwhile; due while all was off is due now."""
        drive(self._sleep(name, duration))

    def sleep_until(self, name: str, when: dt.datetime) -> None:
        """Rest until a moment (a datetime with a zone)."""
        drive(self._sleep_until(name, when))

    def wait_for_event(self, name: str, *, timeout: Duration | None = None, default: Any = NO_DEFAULT) -> Any:
        """The payload of the event of this name: one sent already, else the next. When `timeout` is over: `default`,
        or WaitTimeout where none was given."""
        return drive(self._wait("one", name, (name,), timeout, default))

    def wait_for_any(self, names: Sequence[str], *, timeout: Duration | None = None, default: Any = NO_DEFAULT) -> Any:
        """(name, payload) of the first of these events to come."""
        return drive(self._wait_many("any", names, timeout, default))

    def wait_for_all(self, names: Sequence[str], *, timeout: Duration | None = None, default: Any = NO_DEFAULT) -> Any:
        """{name: payload} when all of these events have come."""
        return drive(self._wait_many("all", names, timeout, default))

    def wait_for_input(
        self,
        name: str,
        *,
        prompt: str | None = None,
        type: Any = "text",
        choices: Sequence[str] | None = None,
        timeout: Duration | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """What a person answers by `durable input RUN NAME VALUE`.

        `type`: "text" (str), "choice" (one of `choices`), "approval" (bool), "form" (a JSON object), or a pydantic
        model, dataclass or TypedDict (validated, and rebuilt as that).
        """
        return drive(self._input(name, prompt, type, choices, timeout, default))

    def parallel(
        self,
        branches: Mapping[str, Callable[[Context], Any]],
        *,
        concurrency: int | None = None,
        on_error: OnError = "fail_fast",
    ) -> dict[str, Any]:
        """Run branches at once, each `function(ctx)` with a context of its own; their results by name.

        "fail_fast": the first failure is raised, and the others begin nothing new; "complete_all": all go to their
        ends, then BranchesFailed is raised if one failed.
        """
        results: dict[str, Any] = drive(self._parallel(branches, concurrency, on_error))
        return results

    def map(
        self,
        name: str,
        function: Callable[[Any], T],
        items: Iterable[Any],
        *,
        concurrency: int | None = None,
        on_error: OnError = "fail_fast",
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> list[T]:
        """`function(item)` as a step for every item, several at once; the results in the order of the items."""
        results: list[T] = drive(self._map(name, function, items, concurrency, on_error, retry, timeout))
        return results

    def race(self, branches: Mapping[str, Callable[[Context], Any]]) -> tuple[str, Any]:
        """Run branches at once; (name, result) of the first that succeeds. The others begin nothing new."""
        winner: tuple[str, Any] = drive(self._race(branches))
        return winner

    def call(
        self,
        workflow: WorkflowFunction[..., T],
        input: Any = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
    ) -> T:
        """Run another workflow as a child and wait for its result. Raises ChildFailed when it does not complete, or its
        start was refused."""
        result: T = drive(children.call(self._operations, workflow, input, key, on_duplicate))
        return result

    def start(
        self,
        workflow: WorkflowFunction[..., Any],
        input: Any = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
    ) -> str:
        """Start another workflow as a child and go on; the id of its run. Raises StepFailed when its start was refused."""
        run_id: str = drive(children.start(self._operations, workflow, input, key, on_duplicate))
        return run_id


class AsyncContext(Calls, AsyncOutside):
    """The context of an `async def` workflow function: `Context`, to be awaited.

    An `async def` step runs on the event loop, a plain one in a thread; a step's `timeout` cancels it.
    """

    @overload
    async def run(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        compensate: Callable[[T], Any] | None = None,
        compensate_retry: Retry | None = None,
        **kwargs: Any,
    ) -> T: ...

    @overload
    async def run(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        compensate: Callable[[T], Any] | None = None,
        compensate_retry: Retry | None = None,
        **kwargs: Any,
    ) -> T: ...

    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        compensate: Callable[[Any], Any] | None = None,
        compensate_retry: Retry | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `Context.run`."""
        kwargs |= {"retry": retry, "timeout": timeout, "compensate": compensate, "compensate_retry": compensate_retry}
        return await self._run(name, function, args, kwargs)

    async def now(self) -> dt.datetime:
        """As `Context.now`."""
        moment: dt.datetime = await self._now()
        return moment

    async def uuid(self) -> uuid.UUID:
        """As `Context.uuid`."""
        made: uuid.UUID = await self._uuid()
        return made

    async def random(self) -> float:
        """As `Context.random`."""
        made: float = await self._random()
        return made

    async def sleep(self, name: str, duration: Duration) -> None:
        """As `Context.sleep`."""
        await self._sleep(name, duration)

    async def sleep_until(self, name: str, when: dt.datetime) -> None:
        """As `Context.sleep_until`."""
        await self._sleep_until(name, when)

    async def wait_for_event(self, name: str, *, timeout: Duration | None = None, default: Any = NO_DEFAULT) -> Any:
        """As `Context.wait_for_event`."""
        return await self._wait("one", name, (name,), timeout, default)

    async def wait_for_any(
        self, names: Sequence[str], *, timeout: Duration | None = None, default: Any = NO_DEFAULT
    ) -> Any:
        """As `Context.wait_for_any`."""
        return await self._wait_many("any", names, timeout, default)

    async def wait_for_all(
        self, names: Sequence[str], *, timeout: Duration | None = None, default: Any = NO_DEFAULT
    ) -> Any:
        """As `Context.wait_for_all`."""
        return await self._wait_many("all", names, timeout, default)

    async def wait_for_input(
        self,
        name: str,
        *,
        prompt: str | None = None,
        type: Any = "text",
        choices: Sequence[str] | None = None,
        timeout: Duration | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """As `Context.wait_for_input`."""
        return await self._input(name, prompt, type, choices, timeout, default)

    async def parallel(
        self,
        branches: Mapping[str, Callable[[AsyncContext], Awaitable[Any]]],
        *,
        concurrency: int | None = None,
        on_error: OnError = "fail_fast",
    ) -> dict[str, Any]:
        """As `Context.parallel`."""
        results: dict[str, Any] = await self._parallel(branches, concurrency, on_error)
        return results

    async def map(
        self,
        name: str,
        function: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        concurrency: int | None = None,
        on_error: OnError = "fail_fast",
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> list[Any]:
        """As `Context.map`."""
        results: list[Any] = await self._map(name, function, items, concurrency, on_error, retry, timeout)
        return results

    async def race(self, branches: Mapping[str, Callable[[AsyncContext], Awaitable[Any]]]) -> tuple[str, Any]:
        """As `Context.race`."""
        winner: tuple[str, Any] = await self._race(branches)
        return winner

    async def call(
        self,
        workflow: WorkflowFunction[..., Any],
        input: Any = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
    ) -> Any:
        """As `Context.call`."""
        return await children.call(self._operations, workflow, input, key, on_duplicate)

    async def start(
        self,
        workflow: WorkflowFunction[..., Any],
        input: Any = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
    ) -> str:
        """As `Context.start`."""
        return await children.start(self._operations, workflow, input, key, on_duplicate)
