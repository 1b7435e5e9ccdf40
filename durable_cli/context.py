"""What workflow code calls: thin faces of `operations`, one for plain functions and one for `async def`."""

from __future__ import annotations

import datetime as dt
import inspect
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload

from durable_cli.definition import Retry
from durable_cli.operations import Operations, drive

P = ParamSpec("P")
T = TypeVar("T")


class _Common:
    """What both contexts have."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._operations.execution.run.id

    @property
    def key(self) -> str | None:
        """The key of this run."""
        return self._operations.execution.run.key

    @property
    def attempt(self) -> int:
        """Inside a step: the number of this attempt, from 1; attempts cut off by a crash count. Raises UsageError
        outside a step."""
        return self._operations.attempt()

    @property
    def idempotency_key(self) -> str:
        """Text that is the same for every attempt of one step and for nothing else: pass it to whatever the step
        calls, so that the other side can tell a repeated attempt. As an argument of `ctx.run(...)` it is that of the
        step being started."""
        return self._operations.idempotency_key()

    def heartbeat(self) -> None:
        """For long steps: stops the step here if its run was cancelled, replaced, or taken over (by a BaseException,
        so `finally` blocks run). Reads the file; costs some tens of microseconds."""
        self._operations.heartbeat()


class Context(_Common):
    """The context of a plain workflow function."""

    def run(
        self, name: str, function: Callable[..., T], /, *args: Any, retry: Retry | None = None, **kwargs: Any
    ) -> T:
        """Run a step: call `function(*args, **kwargs)` until it succeeds or `retry` gives up, and record the end.

        A recorded step never runs again: its result is given back. Results are JSON, typed by the function's return
        annotation. Raises StepFailed when the step failed for good.
        """
        result: T = drive(self._operations.step(name, function, args, kwargs, retry))
        return result

    def now(self) -> dt.datetime:
        """The moment (UTC) at which this operation ran first; the same on every replay."""
        moment: dt.datetime = drive(self._operations.value("now", self._operations.moment, dt.datetime))
        return moment

    def uuid(self) -> uuid.UUID:
        """A random UUID, the same on every replay."""
        made: uuid.UUID = drive(self._operations.value("uuid", uuid.uuid4, uuid.UUID))
        return made

    def random(self) -> float:
        """A random number in [0, 1), the same on every replay."""
        made: float = drive(self._operations.value("random", self._operations.execution.dice, float))
        return made


class AsyncContext(_Common):
    """The context of an `async def` workflow function."""

    @overload
    async def run(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        retry: Retry | None = None,
        **kwargs: Any,
    ) -> T: ...

    @overload
    async def run(
        self, name: str, function: Callable[..., T], /, *args: Any, retry: Retry | None = None, **kwargs: Any
    ) -> T: ...

    async def run(
        self, name: str, function: Callable[..., Any], /, *args: Any, retry: Retry | None = None, **kwargs: Any
    ) -> Any:
        """Run a step, as `Context.run`. An `async def` step runs on the event loop, a plain one in a thread."""
        return await self._operations.step(name, function, args, kwargs, retry)

    async def now(self) -> dt.datetime:
        """As `Context.now`."""
        moment: dt.datetime = await self._operations.value("now", self._operations.moment, dt.datetime)
        return moment

    async def uuid(self) -> uuid.UUID:
        """As `Context.uuid`."""
        made: uuid.UUID = await self._operations.value("uuid", uuid.uuid4, uuid.UUID)
        return made

    async def random(self) -> float:
        """As `Context.random`."""
        made: float = await self._operations.value("random", self._operations.execution.dice, float)
        return made


class PlainFace:
    """How a plain workflow calls its steps: here and now. An `async def` step gets an event loop of its own."""

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        if not inspect.iscoroutine(result):
            return result
        import asyncio  # late: most plain workflows never need it

        return asyncio.run(result)

    async def blocking(self, function: Callable[[], bool]) -> bool:
        return function()


class AsyncFace:
    """How an `async` workflow calls its steps, never blocking its event loop."""

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import asyncio

        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        result = await asyncio.to_thread(function, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def blocking(self, function: Callable[[], bool]) -> bool:
        import asyncio

        return await asyncio.to_thread(function)
