"""`@workflow`: a function becomes a workflow, checked when it is defined.

Identity is (resolved file, qualified name): a function is the same workflow whether its file runs as `__main__`, is
imported as `flows` or is loaded as `./flows.py`. A function defined inside another one is fine for a program that
starts and executes it itself, but its location (`<locals>` in the qualified name) cannot be loaded by another process,
unless importing the module defines it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, cast, overload

from durable_cli.core.keys import brief, check_workflow_name
from durable_cli.core.policies import (
    Debounce,
    Retry,
    check_policies,
    listed,
    parse_on_duplicate,
    parse_policies,
)
from durable_cli.core.timing import Duration
from durable_cli.defined import UNSET, Definition, Unset, definitions, forget, loaded_definition, register
from durable_cli.errors import InvalidDefinition, UsageError
from durable_cli.keyrules import Cel, key_rule
from durable_cli.model import OnDuplicate, Reuse, StartResult
from durable_cli.places import locate
from durable_cli.values import resolve

__all__ = [
    "UNSET",
    "Definition",
    "Retry",
    "Unset",
    "WorkflowFunction",
    "check_policies",
    "definitions",
    "forget",
    "loaded_definition",
    "parse_on_duplicate",
    "refuse_start_options",
    "register",
    "workflow",
]

P = ParamSpec("P")
R = TypeVar("R")


class WorkflowFunction(Generic[P, R]):
    """What `@workflow` makes of a function: call it as before (in unit tests), or start it."""

    definition: Definition
    __wrapped__: Callable[P, R]

    def __init__(self, function: Callable[P, R], definition: Definition) -> None:
        functools.update_wrapper(self, function)
        self.definition = definition

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<workflow {self.definition.name!r} ({self.definition.place})>"

    def start(
        self,
        input: object = UNSET,
        *,
        key: str | None = None,
        on_duplicate: str | OnDuplicate | None = None,
        **options: Any,
    ) -> StartResult:
        """`Durable().start(...)` on the default file, with all its options."""
        from durable_cli.client import Durable

        with Durable() as engine:
            return engine.start(self, input, key=key, on_duplicate=on_duplicate, **options)


def refuse_start_options(unknown: Iterable[str]) -> None:
    """`UsageError` for an option that a start does not have; `reuse` gets told where it belongs."""
    for option in unknown:
        if option == "reuse":
            raise UsageError("reuse is set on the workflow, not by a start", hint='write @workflow(reuse="...")')
        raise UsageError(f"a start has no option {option!r}")


# -- @workflow -----------------------------------------------------------------------------------------------------

_OPTIONS: Final = (
    "name",
    "reuse",
    "on_duplicate",
    "key",
    "singleton",
    "debounce",
    "merge",
    "timeout",
    "max_hold",
    "on_max_hold",
    "on_mismatch",
)
_NOT_YET: Final = ("concurrency", "rate_limit", "throttle", "batch")
_OF_STEPS: Final = ("retry", "retries", "max_attempts", "backoff", "max_retries")


@overload
def workflow(function: Callable[P, R], /) -> WorkflowFunction[P, R]: ...


@overload
def workflow(
    *,
    name: str | None = None,
    reuse: Literal["after_close", "after_failure", "never"] | Reuse = "after_close",
    on_duplicate: str | OnDuplicate = "use_existing",
    key: Callable[[Any], object] | str | Cel | None = None,
    singleton: bool = False,
    debounce: Debounce | None = None,
    merge: Callable[[Any, Any], Any] | None = None,
    timeout: Duration | None = None,
    max_hold: Duration | None = None,
    on_max_hold: Literal["report", "cancel"] = "report",
    on_mismatch: Literal["record", "error"] = "record",
) -> Callable[[Callable[P, R]], WorkflowFunction[P, R]]: ...


def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    reuse: str = "after_close",
    on_duplicate: str | OnDuplicate = "use_existing",
    **options: Any,
) -> Any:
    """Make a workflow of a function that takes a context and at most one input.

    `name` (default: the function's) is unique in a database. `reuse`: may a new start take the key of a finished run?
    `on_duplicate`: what a start gets whose key is taken. `key`: how the key follows from the input (a function of it,
    a template `"article:{id}"`, or `cel("...")`); `singleton`: one run of this workflow at a time. `debounce`: a keyed
    start waits for newer ones. `merge(old, new)`: the input where a newer one would replace an older one (default: the
    newer). `timeout`: how long a run may take, from the moment it may begin. `max_hold`: an unfinished run that holds
    its key longer is reported, or cancelled (`on_max_hold`). `on_mismatch`: "error" refuses a duplicate with another
    input. Options that do not fit raise InvalidDefinition, a name that another function has AlreadyDefined.
    """

    def define(function: Callable[..., Any]) -> WorkflowFunction[..., Any]:
        local = sys._getframe(1).f_locals
        return _define(function, name, reuse, on_duplicate, options, local)

    if function is None:
        return define
    return _define(function, name, reuse, on_duplicate, options, sys._getframe(1).f_locals)


def _define(
    function: Callable[..., Any],
    name: str | None,
    reuse: object,
    on_duplicate: object,
    options: dict[str, Any],
    local: dict[str, Any],
) -> WorkflowFunction[..., Any]:
    if not isinstance(function, types.FunctionType):
        raise InvalidDefinition(
            f"@workflow belongs on a function made with `def`, not on {type(function).__name__} {brief(function)}"
        )
    inner = inspect.unwrap(function)
    location, line = locate(function), inner.__code__.co_firstlineno
    try:
        _refuse_options(set(options) - set(_OPTIONS))
        parameter, default = _input_of(function)
        rule = key_rule(options.get("key"), singleton=_flag("singleton", options))
        definition = Definition(
            name=check_workflow_name(function.__name__ if name is None else name),
            function=function,
            is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inner),
            policies=parse_policies(reuse, on_duplicate, options, key_rule=rule.source if rule else None),
            location=location,
            line=line,
            parameter=parameter,
            default=default,
            key_rule=rule,
            merge=_merge_of(options),
            resolved=_resolve_local(function, parameter, local) if "<locals>" in location.qualname else {},
        )
    except UsageError as problem:
        where = f"workflow {name or function.__name__!r} ({location.file}:{line})"
        raise InvalidDefinition(f"{where}: {problem.message}", facts=problem.facts, hint=problem.hint) from None
    register(definition)
    return WorkflowFunction(function, definition)


def _flag(name: str, options: dict[str, Any]) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise InvalidDefinition(f"{name}={brief(value)}: it is True or False")
    return value


def _merge_of(options: dict[str, Any]) -> Callable[[Any, Any], Any] | None:
    merge = options.get("merge")
    if merge is not None and not callable(merge):
        raise InvalidDefinition(f"merge={brief(merge)}: it is a function of the old input and the new one")
    return cast("Callable[[Any, Any], Any] | None", merge)


def _refuse_options(unknown: Iterable[str]) -> None:
    for option in unknown:
        if option in _NOT_YET:
            raise InvalidDefinition(f"the option {option!r} does not exist yet")
        if option in _OF_STEPS:
            raise InvalidDefinition(
                f"there is no option {option!r}: steps are retried, not workflows",
                hint='write ctx.run("name", function, retry=Retry(max_attempts=3))',
            )
        near = difflib.get_close_matches(option, _OPTIONS, 1)
        meant = f"; did you mean {near[0]!r}?" if near else f"; the options are {listed(_OPTIONS)}"
        raise InvalidDefinition(f"there is no option {option!r}{meant}")


def _input_of(function: types.FunctionType) -> tuple[str | None, object]:
    """Name and default of the input parameter; (None, UNSET) for a function that takes the context only."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidDefinition("the function is a generator (it has a `yield`); a workflow returns its result")
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidDefinition(f"the parameter `{parameter}` is never given: {_ONE_INPUT}")
    if not parameters or parameters[0].name in ("self", "cls"):
        raise InvalidDefinition(f"the first parameter has to be the context: {_ONE_INPUT}")
    if len(parameters) > 2:
        raise InvalidDefinition(
            f"it has {len(parameters)} parameters: {_ONE_INPUT}",
            hint="put several values into one: a dataclass, a TypedDict, a pydantic model or a dict",
        )
    if len(parameters) == 1:
        return None, UNSET
    default = parameters[1].default
    return parameters[1].name, UNSET if default is inspect.Parameter.empty else default


_ONE_INPUT: Final = "a workflow takes the context and at most one input"


def _resolve_local(function: Callable[..., Any], parameter: str | None, local: dict[str, Any]) -> dict[str, object]:
    """The annotations of a function inside a function, whose names only the frame that defines it may know."""
    resolved = {}
    for name in (parameter, "return"):
        try:
            if name is not None:
                resolved[name] = resolve(function, name, dict(local))
        except NameError:
            continue
    return resolved
