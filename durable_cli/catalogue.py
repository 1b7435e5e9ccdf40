"""What a file knows of its workflows."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from durable_cli.errors import WorkflowNotFound
from durable_cli.model import Schedule, Workflow
from durable_cli.store import schedules, workflows
from durable_cli.store.database import Tx


@dataclass(frozen=True, slots=True)
class WorkflowDetails:
    """A workflow: policies and place of its code, its runs by status, how many keys they hold, its schedules."""

    workflow: Workflow
    runs: dict[str, int]
    keys_held: int
    schedules: list[Schedule]


def every(tx: Tx) -> list[WorkflowDetails]:
    """All of them, by name."""
    counts, fires = workflows.counts(tx), schedules.every(tx)
    found = (workflows.get(tx, name) for name in workflows.names(tx))
    return [_details(one, counts, fires) for one in found if one is not None]


def one(tx: Tx, name: str) -> WorkflowDetails:
    """One of them. Raises WorkflowNotFound."""
    found = workflows.get(tx, name)
    if found is None:
        near = difflib.get_close_matches(name, workflows.names(tx), 1)
        hint = f"did you mean {near[0]}?" if near else "durable workflows list"
        raise WorkflowNotFound(f"the database knows no workflow {name!r}", hint=hint)
    return _details(found, workflows.counts(tx, name), schedules.every(tx))


def _details(found: Workflow, counts: dict[str, tuple[dict[str, int], int]], fires: list[Schedule]) -> WorkflowDetails:
    runs, held = counts.get(found.name, ({}, 0))
    return WorkflowDetails(found, runs, held, [fire for fire in fires if fire.workflow == found.name])
