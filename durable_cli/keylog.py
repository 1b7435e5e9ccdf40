"""What happened to a key from its first start on, in order, with each input that did not run as a diff."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from durable_cli import lookup
from durable_cli.core.diff import Diff, diff
from durable_cli.core.plain import parse
from durable_cli.errors import AmbiguousRun, InputNotFound, KeyNotFound
from durable_cli.model import Activity, ActivityKind, Outcome, Policy, Run
from durable_cli.store import activity as activity_rows
from durable_cli.store import reports
from durable_cli.store import runs as run_rows
from durable_cli.store.database import Tx

CREATED: Final = "run_created"
_NAMES: Final = ("from", "to", "runs_after")  # runs that the details of a row of activity name besides its own


@dataclass(frozen=True, slots=True)
class Lost:
    """An input that did not run: dropped, or superseded by a newer one.

    `activity`: the row that tells of it. `superseded`: it would have run, had no newer start come. `against_id`: the
    run whose input ran instead, or will; `diff`: from that input to this one, None where that run was pruned.
    """

    activity: Activity
    input: object
    superseded: bool
    against_id: str | None
    diff: Diff | None


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """One entry of a key's log. `kind` is a kind of activity, or `run_created`: a start that made a run, whose input as
    it is now is in `details`. `id`: the row of activity."""

    at: int
    kind: str
    workflow: str
    key: str
    run_id: str | None
    details: dict[str, object]
    id: int | None = None
    lost: Lost | None = None


@dataclass(frozen=True, slots=True)
class Replayable:
    """An input that did not run and can be started again; `replayed_as`: the run that it went to when it was."""

    lost: Lost
    replayed_as: str | None


def log(tx: Tx, key: str, workflow: str | None) -> list[KeyEvent]:
    """All that is known of a key, oldest first: runs that are there, and activity, which outlives them.

    Raises KeyNotFound, AmbiguousRun.
    """
    name = _workflow_of(tx, key, workflow)
    runs = run_rows.of_key(tx, key, name)
    rows = reports.activity(tx, workflow=name, key=key)[::-1]
    lost = {one.activity.id: one for one in lost_inputs(rows, runs)}
    return merged(sorted(runs, key=lambda run: run.row_id), rows, lost)


def _workflow_of(tx: Tx, key: str, workflow: str | None) -> str:
    """The workflow that is meant; perhaps only activity is left of its runs."""
    name = lookup.workflow_of(tx, key, workflow)
    if name is not None:
        return name
    names = [one for one in activity_rows.workflows_of_key(tx, key) if workflow in (None, one)]
    if not names:
        raise KeyNotFound(f"nothing is known of the key {key!r}", hint=lookup.meant_key(tx, key, workflow))
    if len(names) > 1:
        raise AmbiguousRun(
            f"{len(names)} workflows had the key {key!r}", candidates=tuple(names), hint=f"add --workflow {names[0]}"
        )
    return names[0]


def merged(runs: Sequence[Run], rows: Sequence[Activity], lost: Mapping[int, Lost]) -> list[KeyEvent]:
    """Runs and rows of activity as one sequence. Each is in order by itself, whatever the clock said.

    Between them the moment decides, and first of all that nothing happens to a run before it is there.
    """
    events: list[KeyEvent] = []
    ahead = {run.id for run in runs}
    at_run = 0
    for row in rows:
        named = {row.run_id, *(row.details.get(name) for name in _NAMES)} & ahead
        while at_run < len(runs) and (named or runs[at_run].created_at < row.at):
            events.append(_created(runs[at_run]))
            ahead.discard(runs[at_run].id)
            named.discard(runs[at_run].id)
            at_run += 1
        events.append(
            KeyEvent(
                row.at, row.kind, row.workflow or "", row.key or "", row.run_id, row.details, row.id, lost.get(row.id)
            )
        )
    return events + [_created(run) for run in runs[at_run:]]


def _created(run: Run) -> KeyEvent:
    details = {"status": str(run.status), "input": _value(run.input)}
    return KeyEvent(run.created_at, CREATED, run.workflow, run.key or "", run.id, details)


def lost_inputs(rows: Sequence[Activity], runs: Iterable[Run]) -> list[Lost]:
    """Every input of these rows (of one key, oldest first) that did not run, in their order."""
    by_id = {run.id: run for run in runs}
    followers: dict[object, str] = {}
    found = []
    for row in reversed(rows):
        _note_follower(row, followers)
        if _tells_of_lost(row):
            found.append(_lost(row, by_id.get, followers))
    return found[::-1]


def _note_follower(row: Activity, followers: dict[object, str]) -> None:
    """Who replaced whom, of the rows behind the one that is looked at."""
    if row.kind == ActivityKind.KEY_HANDED_OFF and row.details.get("reason") == Outcome.REPLACED:
        followers[row.details.get("from")] = str(row.details.get("to"))


def _tells_of_lost(row: Activity) -> bool:
    return row.kind == ActivityKind.KEY_DUPLICATE and "input" in row.details


def _lost(row: Activity, run_of: Callable[[str], Run | None], followers: Mapping[object, str]) -> Lost:
    outcome = row.details.get("outcome")
    superseded = outcome not in (Policy.USE_EXISTING, Policy.ERROR)
    against = row.run_id
    if outcome == Policy.CANCEL_EXISTING:
        against = followers.get(row.run_id)
    elif row.details.get("runs_after") is not None:
        against = str(row.details["runs_after"])
    run = run_of(against or "")
    value = row.details["input"]
    return Lost(row, value, superseded, against, None if run is None else diff(_value(run.input), value))


def _value(text: str) -> object:
    """A stored input; the text itself where it is damaged."""
    try:
        return parse(text)
    except ValueError:
        return text


def replayable(tx: Tx, key: str, workflow: str | None, row: int | None) -> Replayable:
    """The input that a row of activity tells of, or the newest one of the key that did not run.

    Raises KeyNotFound, AmbiguousRun, InputNotFound.
    """
    name = _workflow_of(tx, key, workflow)
    first = activity_rows.newest_lost(tx, workflow=name, key=key) if row is None else row
    # From that row on: who replaced whom is told behind it.
    rows = [] if first is None else reports.activity(tx, after=first - 1, workflow=name, key=key)[::-1]
    if not rows or rows[0].id != first or not _tells_of_lost(rows[0]):
        what = "no input of it was dropped or superseded" if row is None else f"{row} is no dropped input of it"
        raise InputNotFound(f"key {key!r} of workflow {name!r}: {what}", hint=f"durable keys log {shlex.quote(key)}")
    followers: dict[object, str] = {}
    for one in reversed(rows):
        _note_follower(one, followers)
    lost = _lost(rows[0], lambda run_id: run_rows.by_id(tx, run_id), followers)
    return Replayable(lost, activity_rows.replayed_as(tx, workflow=name, key=key, row=rows[0].id))
