"""How the arguments of `ctx.run(...)` and its like become an operation: once, for both contexts."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from durable_cli import branches, inputs, waits
from durable_cli.core.policies import Retry, parse_timeout
from durable_cli.core.timing import Duration, parse_duration
from durable_cli.errors import UsageError
from durable_cli.operations import Operations, StepOptions
from durable_cli.values import codec

Operation = Coroutine[Any, Any, Any]


class Calls:
    """What both contexts have, and how arguments become an operation."""

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

    def _run(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation:
        return self._operations.step(name, function, args, kwargs, _options(kwargs))

    def _now(self) -> Operation:
        return self._operations.value("now", self._operations.moment, dt.datetime)

    def _uuid(self) -> Operation:
        return self._operations.value("uuid", uuid.uuid4, uuid.UUID)

    def _random(self) -> Operation:
        return self._operations.value("random", self._operations.execution.engine.dice, float)

    def _sleep(self, name: str, duration: Duration) -> Operation:
        return waits.sleep(self._operations, name, self._operations.execution.now() + parse_duration(duration))

    def _sleep_until(self, name: str, when: dt.datetime) -> Operation:
        if not isinstance(when, dt.datetime) or when.tzinfo is None:
            raise UsageError(f"sleep_until {name!r} needs a datetime with a zone, not {when!r}")
        return waits.sleep(self._operations, name, round(when.timestamp() * 1000))

    def _wait(
        self, mode: str, name: str, names: tuple[str, ...], timeout: Duration | None, default: object
    ) -> Operation:
        wanted = waits.Wanted("event", name, names, mode, parse_timeout(timeout), default, {})
        return waits.wait(self._operations, wanted, codec(Any))

    def _wait_many(self, mode: str, names: Sequence[str], timeout: Duration | None, default: object) -> Operation:
        given = waits.names_of(names)
        return self._wait(mode, f"{mode} of {', '.join(given)}"[:255], given, timeout, default)

    def _input(
        self,
        name: str,
        prompt: str | None,
        type: Any,
        choices: Sequence[str] | None,
        timeout: Duration | None,
        default: object,
    ) -> Operation:
        asked = inputs.question(name, prompt, type, choices)
        wanted = waits.Wanted("input", name, (name,), "one", parse_timeout(timeout), default, asked.details)
        return waits.wait(self._operations, wanted, asked.values)

    def _parallel(
        self, branches_: Mapping[str, Callable[[Any], Any]], concurrency: int | None, on_error: str
    ) -> Operation:
        bodies = branches.bodies_of(self._operations, branches_)
        return branches.parallel(
            self._operations, "parallel", "parallel", bodies, concurrency=concurrency, on_error=on_error
        )

    def _map(
        self,
        name: str,
        function: Callable[..., Any],
        items: Iterable[Any],
        concurrency: int | None,
        on_error: str,
        retry: Retry | None,
        timeout: Duration | None,
    ) -> Operation:
        options = StepOptions(retry=retry or Retry(), timeout_ms=parse_timeout(timeout))
        return branches.map_items(
            self._operations,
            name,
            function,
            list(items),
            options=options,
            concurrency=concurrency,
            on_error=on_error,
        )

    def _race(self, branches_: Mapping[str, Callable[[Any], Any]]) -> Operation:
        return branches.race(self._operations, branches.bodies_of(self._operations, branches_))


def _options(kwargs: dict[str, Any]) -> StepOptions:
    """Take durable's own options out of the keyword arguments of `ctx.run`."""
    retry = kwargs.pop("retry", None)
    compensate_retry = kwargs.pop("compensate_retry", None)
    for name, given in (("retry", retry), ("compensate_retry", compensate_retry)):
        if given is not None and not isinstance(given, Retry):
            raise UsageError(f"{name}= takes a Retry(...), not {type(given).__name__}")
    compensate = kwargs.pop("compensate", None)
    if compensate is not None and not callable(compensate):
        raise UsageError(f"compensate= takes a function of the step's result, not {type(compensate).__name__}")
    return StepOptions(
        retry=retry or Retry(),
        timeout_ms=parse_timeout(kwargs.pop("timeout", None)),
        compensate=compensate,
        compensate_retry=compensate_retry,
    )
