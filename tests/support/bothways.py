"""One workflow body for both faces of the context: written once with `await`, run as a plain and as an async one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

from durable_cli import AsyncContext, Context, workflow
from durable_cli.definition import WorkflowFunction

KINDS: Final = ("plain", "async")
Body = Callable[..., Awaitable[Any]]
_OPERATIONS: Final = frozenset(
    name for name, found in inspect.getmembers(AsyncContext, inspect.iscoroutinefunction) if name[0] != "_"
)


class _Awaitable:
    """A plain context whose operations may be awaited; the rest is passed on."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ctx, name)
        if name not in _OPERATIONS:
            return found

        async def operation(*args: Any, **kwargs: Any) -> Any:
            if name in ("parallel", "race"):
                args = ({branch: plain_branch(body) for branch, body in args[0].items()}, *args[1:])
            return found(*args, **kwargs)

        return operation


def plain_branch(body: Body) -> Callable[[Context], Any]:
    """The branch `async def body(ctx)` for a plain workflow."""
    return lambda ctx: drive(body(_Awaitable(ctx)))


def drive(coroutine: Awaitable[Any]) -> Any:
    """Run a coroutine that never suspends."""
    try:
        coroutine.__await__().__next__()
    except StopIteration as end:
        return end.value
    raise AssertionError("the body suspended in a plain workflow")


def define(kind: str, body: Body, *, name: str = "flow", **options: Any) -> WorkflowFunction[..., Any]:
    """The workflow of that body, `async def body(ctx)` or `async def body(ctx, input)`.

    Every one of a kind is one workflow to the file: defining it again is editing its code.
    """
    takes_input = body.__code__.co_argcount > 1  # type: ignore[attr-defined]
    if kind == "plain":
        if takes_input:

            @workflow(name=name, **options)
            def flow(ctx: Context, what: Any = None) -> Any:
                return drive(body(_Awaitable(ctx), what))
        else:

            @workflow(name=name, **options)
            def flow(ctx: Context) -> Any:
                return drive(body(_Awaitable(ctx)))

        return flow
    if takes_input:

        @workflow(name=name, **options)
        async def async_flow(ctx: AsyncContext, what: Any = None) -> Any:
            return await body(ctx, what)
    else:

        @workflow(name=name, **options)
        async def async_flow(ctx: AsyncContext) -> Any:
            return await body(ctx)

    return async_flow


def step_of(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a step of that kind: itself, or `async def` around it, with the same annotation."""
    if kind == "plain":
        return function

    async def step(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    if "return" in function.__annotations__:
        step.__annotations__["return"] = function.__annotations__["return"]
    else:
        step.__annotations__.pop("return")
    return step
