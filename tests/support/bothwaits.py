"""As `bothways`, for bodies that use every operation: branches are written with `await` too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bothways import drive

from durable_cli import AsyncContext, Context, workflow
from durable_cli.definition import WorkflowFunction

_PLAIN = frozenset(
    (
        *("now", "uuid", "random", "run", "map", "parallel", "race", "call", "start"),
        *("sleep", "sleep_until", "wait_for_event", "wait_for_any", "wait_for_all", "wait_for_input"),
    )
)


class _Awaitable:
    """A plain context whose operations may be awaited, and whose branches are coroutine functions."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ctx, name)
        if name not in _PLAIN:
            return found

        async def operation(*args: Any, **kwargs: Any) -> Any:
            if name in ("parallel", "race"):
                args = ({key: _plain(branch) for key, branch in args[0].items()}, *args[1:])
            return found(*args, **kwargs)

        return operation


def _plain(branch: Callable[[Any], Awaitable[Any]]) -> Callable[[Context], Any]:
    return lambda ctx: drive(branch(_Awaitable(ctx)))


def define(kind: str, body: Callable[..., Awaitable[Any]], *, name: str = "flow", **options: Any) -> WorkflowFunction:
    """The workflow of `async def body(ctx, input)`, plain or async."""
    if kind == "plain":

        @workflow(name=name, **options)
        def flow(ctx: Context, what: Any = None) -> Any:
            return drive(body(_Awaitable(ctx), what))

        return flow

    @workflow(name=name, **options)
    async def async_flow(ctx: AsyncContext, what: Any = None) -> Any:
        return await body(ctx, what)

    return async_flow


Branches = Mapping[str, Callable[[Any], Awaitable[Any]]]
