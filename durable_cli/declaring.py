"""`@schedule`: when a workflow is started by itself, said beside its code.

Declaring writes nothing: `durable worker MODULE` and `durable schedules sync MODULE` bring what the code says into the
file. What can be checked without a file and without croniter is checked here, when the module is imported.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from durable_cli.core.policies import check_policies
from durable_cli.core.schedules import Spec, check_spec
from durable_cli.core.timing import Duration
from durable_cli.definition import UNSET, Definition, WorkflowFunction, definitions
from durable_cli.errors import AlreadyDefined, InvalidDefinition, UsageError
from durable_cli.model import OnDuplicate

W = TypeVar("W", bound=WorkflowFunction[..., Any])


@dataclass(frozen=True, eq=False)
class Declared:
    """A schedule as the code declares it. `input` UNSET: the workflow's default."""

    spec: Spec
    definition: Definition
    input: object = UNSET


_declared: weakref.WeakKeyDictionary[Definition, tuple[Declared, ...]] = weakref.WeakKeyDictionary()
"""By the definition it belongs to: a workflow that is defined anew (a reload) declares anew."""


def schedule(
    cron: str,
    *,
    key: str | None = None,
    timezone: str | None = None,
    input: object = UNSET,
    on_duplicate: str | OnDuplicate | None = None,
    catchup: str = "one",
    jitter: Duration | None = None,
    name: str | None = None,
) -> Callable[[W], W]:
    """Start a workflow whenever a cron expression is due. Stands above `@workflow`; several may be stacked.

    `key`: literal; without one (and without a `key=` of the workflow) a fire starts although the last run goes on.
    `timezone`: an IANA name, else the system's when the schedule is made. `on_duplicate`: what a fire gets whose key is
    taken (default: the workflow's). `catchup`: due times that nobody was there for are one fire together ("one"), or
    recorded only ("skip"). `jitter`: each start is later by a delay of up to this. `name` (default: the workflow's) is
    unique in a database. Options that do not fit raise InvalidDefinition, a name that is taken AlreadyDefined.
    """

    def declare(function: W) -> W:
        if not isinstance(function, WorkflowFunction):
            raise InvalidDefinition(
                f"@schedule belongs on a workflow, not on {getattr(function, '__name__', type(function).__name__)!r}",
                hint="write @schedule(...) above @workflow",
            )
        definition = function.definition
        where = f"@schedule of workflow {definition.name!r} ({definition.place})"
        try:
            spec = check_spec(
                name=definition.name if name is None else name,
                cron=cron,
                timezone=timezone,
                key=key,
                on_duplicate=on_duplicate,
                catchup=catchup,
                jitter=jitter,
            )
            check_policies(definition.reuse, spec.on_duplicate or definition.on_duplicate)
        except UsageError as problem:
            raise InvalidDefinition(f"{where}: {problem.message}", facts=problem.facts, hint=problem.hint) from None
        _refuse_taken(spec.name, definition, where)
        mine = Declared(spec, definition, input)
        _declared[definition] = (*_declared.get(definition, ()), mine)
        return function

    return declare


def _refuse_taken(name: str, definition: Definition, where: str) -> None:
    for other in declared(definitions()):
        if other.spec.name == name and (other.definition is definition or not _same(other.definition, definition)):
            raise AlreadyDefined(
                f"{where}: a schedule {name!r} is declared already",
                facts=(f"it belongs to workflow {other.definition.name!r} ({other.definition.place})",),
                hint='give one of them another name: @schedule(..., name="...")',
            )


def _same(one: Definition, other: Definition) -> bool:
    return one.location.file == other.location.file and one.location.qualname == other.location.qualname


def declared(workflows: Iterable[Definition]) -> Iterator[Declared]:
    """The schedules that these workflows declare."""
    for definition in workflows:
        yield from _declared.get(definition, ())
