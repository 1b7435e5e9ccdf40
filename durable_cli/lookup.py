"""Finding runs and keys by what people type, and the lists. Each function reads inside one snapshot."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from durable_cli.errors import AmbiguousRun, KeyNotFound, RunNotFound
from durable_cli.model import Activity, Key, Run, Status
from durable_cli.store import history, reports
from durable_cli.store import runs as run_rows
from durable_cli.store.database import Tx

_SHORTEST_PREFIX = 3
_LOOKED_AT = 1000
"""How many of the newest runs are compared with a name that nobody knows."""


def run(tx: Tx, name: str) -> Run:
    """The run of an id, of a unique prefix (three letters or more), or "last"; with its steps.

    Raises RunNotFound, AmbiguousRun (with the candidates).
    """
    found = run_rows.by_id(tx, _resolve(tx, name))
    assert found is not None
    return with_steps(tx, found)


def _resolve(tx: Tx, name: str) -> str:
    if name == "last":
        newest = run_rows.newest(tx)
        if newest is None:
            raise RunNotFound("there are no runs yet")
        return newest
    if run_rows.by_id(tx, name) is not None:
        return name
    if len(name) < _SHORTEST_PREFIX:
        raise RunNotFound(f"no run {name!r}; a prefix of an id has three letters or more")
    candidates = run_rows.by_prefix(tx, name, 10)
    if not candidates:
        near = _nearest(name, run_rows.newest_ids(tx, _LOOKED_AT))
        raise RunNotFound(f"no run {name!r}", hint=f"did you mean {near}?" if near else "durable runs list")
    if len(candidates) > 1:
        raise AmbiguousRun(f"{name!r} fits more than one run", candidates=tuple(candidates))
    return candidates[0]


def with_steps(tx: Tx, found: Run) -> Run:
    """The run with its recorded operations."""
    return replace(found, steps=tuple(history.of_run(tx, found.row_id)))


def workflow_of(tx: Tx, key: str, workflow: str | None) -> str | None:
    """The one workflow, of that name, that has runs with the key; None if none has. Raises AmbiguousRun."""
    names = [name for name in run_rows.workflows_of_key(tx, key) if workflow in (None, name)]
    if len(names) > 1:
        raise AmbiguousRun(
            f"runs of {len(names)} workflows have the key {key!r}",
            candidates=tuple(names),
            hint=f"add --workflow {names[0]}",
        )
    return names[0] if names else None


def by_key_or_none(tx: Tx, key: str, workflow: str | None) -> Run | None:
    """The holder of a key, else its newest run, else None. Raises AmbiguousRun if several workflows have it."""
    name = workflow_of(tx, key, workflow)
    found = None if name is None else run_rows.first_of_key(tx, key, name)
    return None if found is None else with_steps(tx, found)


def by_key(tx: Tx, key: str, workflow: str | None) -> Run:
    """As `by_key_or_none`; raises KeyNotFound."""
    found = by_key_or_none(tx, key, workflow)
    if found is None:
        raise _key_not_found(tx, key, workflow)
    return found


def _key_not_found(tx: Tx, key: str, workflow: str | None) -> KeyNotFound:
    where = f" of workflow {workflow!r}" if workflow is not None else ""
    return KeyNotFound(f"no run{where} has the key {key!r}", hint=meant_key(tx, key, workflow))


def meant_key(tx: Tx, key: str, workflow: str | None) -> str:
    """The hint where nobody knows a key: one like it, or the list of all."""
    near = _nearest(key, run_rows.newest_keys(tx, workflow, _LOOKED_AT))
    return f"did you mean {shlex.quote(near)}?" if near is not None else "durable keys list"


def _nearest(wanted: str, known: list[str]) -> str | None:
    """What differs from it by a slip of the fingers, if anything does."""
    import difflib  # late: most calls find what they name

    return next(iter(difflib.get_close_matches(wanted, known, 1, cutoff=0.8)), None)


@dataclass(frozen=True, slots=True)
class KeyDetails(Key):
    """A key with everything about it. `all_runs`: the holder first, then newest first; `activity`: newest first."""

    all_runs: list[Run] = field(default_factory=list)
    activity: list[Activity] = field(default_factory=list)

    @property
    def holder(self) -> Run | None:
        """The run that holds the key."""
        return next((one for one in self.all_runs if one.holds_key), None)

    @property
    def waiting(self) -> Run | None:
        """The run that waits behind the holder."""
        return next((one for one in self.all_runs if one.runs_after_row is not None), None)


def key_details(tx: Tx, key: str, workflow: str | None, *, now: int, alive: Callable[[int], bool]) -> KeyDetails:
    """Everything about a key. Raises KeyNotFound, AmbiguousRun."""
    name = workflow_of(tx, key, workflow)
    if name is None:
        raise _key_not_found(tx, key, workflow)
    found = run_rows.of_key(tx, key, name)
    rows = reports.keys(tx, now=now, workflow=name, key=key)
    seen = _key(rows[0], alive)
    facts = {one.name: getattr(seen, one.name) for one in fields(Key)}
    return KeyDetails(**facts, all_runs=found, activity=reports.activity(tx, workflow=name, key=key))


def keys(
    tx: Tx,
    *,
    now: int,
    alive: Callable[[int], bool],
    workflow: str | None,
    held: bool,
    stuck_ms: int | None,
) -> list[Key]:
    """Every key that has runs, the one used last first."""
    rows = reports.keys(tx, now=now, workflow=workflow, held=held, stuck_ms=stuck_ms)
    return [_key(row, alive) for row in rows]


def _key(row: dict[str, object], alive: Callable[[int], bool]) -> Key:
    fields = dict(row)
    owner = fields.pop("owner_id")
    status = fields["status"]
    fields["status"] = None if status is None else Status(str(status))
    fields["owner_alive"] = alive(owner) if isinstance(owner, int) else None
    fields["held_too_long"] = bool(fields["held_too_long"])
    return Key(**fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Question:
    """What a run asks a person. `details`: prompt, type, choices, schema; `until`: when it stops waiting."""

    run_id: str
    workflow: str
    key: str | None
    name: str
    asked_at: int
    until: int | None
    details: dict[str, object]


def questions(tx: Tx, run: str | None) -> list[Question]:
    """What unfinished runs (or this one) ask people now, oldest first."""
    found = []
    for row in history.questions(tx, run):
        details = json.loads(row.pop("details"))
        found.append(Question(**row, details=details))
    return found
