"""A start, checked and ready to be decided on: what its producer asked for, and what the workflow's definition says."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from durable_cli.core.keys import check_key
from durable_cli.core.policies import check_policies, parse_on_duplicate
from durable_cli.definition import Definition
from durable_cli.errors import KeyContended, WorkflowMoved
from durable_cli.model import Location, OnDuplicate, Policies, Workflow
from durable_cli.places import COMMANDS
from durable_cli.values import MAX_VALUE_BYTES

T = TypeVar("T")
MERGES = 4
"""How often a start merges its input anew because the older one changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Request:
    """`run_id` is made by the caller, so that an unknown commit can be looked up.

    `policies` are the workflow's own, which each start writes to its row; `on_duplicate` and `timeout_ms` are what
    this start uses. `at`: not before this moment (ms UTC). `parent`: the row of the run whose child this is.
    `limit`: of an input, in bytes.
    `merged`: for a workflow with `merge=`, the older input that was read and what the two make together. `replayed`:
    the row of activity that told of this input when it was dropped or superseded.
    """

    run_id: str
    workflow: str
    location: Location
    policies: Policies
    on_duplicate: OnDuplicate
    key: str | None
    input: str
    timeout_ms: int | None = None
    at: int | None = None
    moved: bool = False
    parent: int | None = None
    merges: bool = False
    merged: tuple[str, str] | None = None
    schedule: str | None = None
    limit: int = MAX_VALUE_BYTES
    replayed: int | None = None

    def merge(self, definition: Definition, older: str) -> Request:
        """The request with its input merged into an older one that it would replace. Raises InvalidInput."""
        return replace(self, merged=(older, definition.merge_inputs(older, self.input, limit=self.limit)))


class MergeFirst(Exception):
    """The start would replace `older`, and the workflow merges inputs: that is done outside the transaction."""

    def __init__(self, older: str) -> None:
        super().__init__()
        self.older = older


def request_for(
    definition: Definition,
    input: object,
    *,
    run_id: str,
    key: str | None = None,
    on_duplicate: str | OnDuplicate | None = None,
    timeout_ms: int | None = None,
    at: int | None = None,
    moved: bool = False,
    parent: int | None = None,
    schedule: str | None = None,
    limit: int,
) -> Request:
    """A checked start of a loaded workflow. A key given wins over the workflow's own expression. `limit`: of the
    input, as the engine has it.

    Raises InvalidInput, InvalidKey, InvalidName, InvalidDefinition; nothing is written yet.
    """
    policy = definition.on_duplicate if on_duplicate is None else parse_on_duplicate(on_duplicate)
    check_policies(definition.reuse, policy)
    text = definition.accept_input(input, limit=limit)
    return Request(
        run_id=run_id,
        workflow=definition.name,
        location=definition.location,
        policies=definition.policies,
        on_duplicate=policy,
        key=check_key(key) if key is not None else definition.key_for(text),
        input=text,
        timeout_ms=definition.timeout_ms if timeout_ms is None else timeout_ms,
        at=at,
        moved=moved,
        parent=parent,
        merges=definition.merge is not None,
        limit=limit,
        schedule=schedule,
    )


def merging(definition: Definition, request: Request, attempt: Callable[[Request], T]) -> T:
    """Attempt a start, merging inputs in between where the workflow does. Raises KeyContended when the older input
    changed again and again.
    """
    for _ in range(MERGES):
        try:
            return attempt(request)
        except MergeFirst as first:
            request = request.merge(definition, first.older)
    raise KeyContended()


def has_moved(known: Workflow, request: Request) -> tuple[str, str] | None:
    """From where to where the code has moved; None if it has not. Raises WorkflowMoved if that is not allowed."""
    old, new = known.location, request.location
    if (old.file, old.qualname) == (new.file, new.qualname):
        return None
    from_place, to_place = f"{old.file}:{old.qualname}", f"{new.file}:{new.qualname}"
    if not request.moved and (old.file == COMMANDS or os.path.exists(old.file)):
        raise WorkflowMoved(
            f"workflow {request.workflow!r} is recorded from another place",
            facts=(f"recorded: {from_place}", f"this one: {to_place}"),
            hint="add --moved if the code has moved here; else give one of them another name=",
        )
    return from_place, to_place
