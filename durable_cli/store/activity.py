"""SQL for what happened to keys and around them. One function a kind of row; texts and ids only, since activity outlives runs."""

from __future__ import annotations

import json
from typing import Any

from durable_cli.model import ActivityKind
from durable_cli.store.database import Notice, Tx

_INSERT = """
INSERT INTO durable_activity (at, kind, workflow, key, run_id, outcome, input_changed, details)
VALUES (:at, :kind, :workflow, :key, :run_id, :outcome, :input_changed, :details)
"""


_EVENTS = {
    ActivityKind.KEY_DUPLICATE: "key.duplicate",
    ActivityKind.KEY_HANDED_OFF: "key.handoff",
    ActivityKind.KEY_RELEASED: "key.release",
    ActivityKind.KEY_RETAKEN: "key.retake",
    ActivityKind.KEY_PRUNED: "key.prune",
    ActivityKind.KEY_HELD_LONG: "key.held_long",
    ActivityKind.KEY_REPLAYED: "key.replay",
    ActivityKind.WORKFLOW_MOVED: "workflow.moved",
    ActivityKind.SCHEDULE_MISSED: "schedule.missed",
    ActivityKind.SCHEDULE_FAILED: "schedule.failed",
    ActivityKind.SCHEDULE_PAUSED: "schedule.paused",
    ActivityKind.CLOCK_JUMPED: "clock.jumped",
}


def _insert(
    tx: Tx,
    kind: ActivityKind,
    *,
    at: int,
    workflow: str | None,
    key: str | None,
    run_id: str | None,
    outcome: str | None = None,
    input_changed: bool | None = None,
    details: dict[str, object] | None = None,
) -> None:
    told: dict[str, object] = {
        "workflow": workflow,
        "key": key,
        "run_id": run_id,
        "outcome": outcome,
        "input_changed": input_changed,
    }
    told.update(details or {})
    tx.notices.append(Notice(_EVENTS[kind], {name: value for name, value in told.items() if value is not None}))
    tx.insert(
        _INSERT,
        at=at,
        kind=str(kind),
        workflow=workflow,
        key=key,
        run_id=run_id,
        outcome=outcome,
        input_changed=None if input_changed is None else int(input_changed),
        details=json.dumps(details or {}, separators=(",", ":")),
    )


def _value(text: str) -> object:
    """The value of a JSON text; the text itself where it is damaged: that must not stop a start."""
    try:
        value: object = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def duplicate(
    tx: Tx,
    *,
    at: int,
    workflow: str,
    key: str,
    holder_id: str,
    outcome: str,
    input_changed: bool,
    input: str | None = None,
    runs_after: str | None = None,
    schedule: str | None = None,
    replayed: int | None = None,
) -> None:
    """A start met a taken key. `input`: JSON text of the one that will not run, when it differs. `replayed`: the row
    of activity whose input this start brings again."""
    details: dict[str, object] = {} if input is None else {"input": _value(input)}
    if runs_after is not None:
        details["runs_after"] = runs_after
    if schedule is not None:
        details["schedule"] = schedule
    if replayed is not None:
        details["replayed"] = replayed
    _insert(
        tx,
        ActivityKind.KEY_DUPLICATE,
        at=at,
        workflow=workflow,
        key=key,
        run_id=holder_id,
        outcome=outcome,
        input_changed=input_changed,
        details=details,
    )


def handed_off(tx: Tx, *, at: int, workflow: str, key: str, from_id: str, to_id: str, reason: str) -> None:
    """The key went from one run to another; `reason`: start, replaced or promoted."""
    _insert(
        tx,
        ActivityKind.KEY_HANDED_OFF,
        at=at,
        workflow=workflow,
        key=key,
        run_id=to_id,
        details={"from": from_id, "to": to_id, "reason": reason},
    )


def released(tx: Tx, *, at: int, workflow: str, key: str, run_id: str, by: str) -> None:
    """Somebody let a finished holder's key go."""
    _insert(tx, ActivityKind.KEY_RELEASED, at=at, workflow=workflow, key=key, run_id=run_id, details={"by": by})


def retaken(tx: Tx, *, at: int, workflow: str, key: str, run_id: str, from_id: str | None) -> None:
    """A retried run took its key back, from a newer run or (None) from nobody."""
    _insert(tx, ActivityKind.KEY_RETAKEN, at=at, workflow=workflow, key=key, run_id=run_id, details={"from": from_id})


def pruned(tx: Tx, *, at: int, workflow: str, key: str, run_id: str) -> None:
    """A finished holder was pruned, which freed its key."""
    _insert(tx, ActivityKind.KEY_PRUNED, at=at, workflow=workflow, key=key, run_id=run_id)


def held_long(tx: Tx, *, at: int, workflow: str, key: str, run_id: str, held_ms: int, action: str) -> None:
    """An unfinished holder has held its key longer than the workflow's max_hold; `action`: report or cancel."""
    details: dict[str, object] = {"held_ms": held_ms, "action": action}
    _insert(tx, ActivityKind.KEY_HELD_LONG, at=at, workflow=workflow, key=key, run_id=run_id, details=details)


def replayed(tx: Tx, *, at: int, workflow: str, key: str, run_id: str, row: int, did: str) -> None:
    """Somebody started the input of that row of activity again, on purpose; `did`: the outcome of the start."""
    details: dict[str, object] = {"replayed": row, "start": did}
    _insert(tx, ActivityKind.KEY_REPLAYED, at=at, workflow=workflow, key=key, run_id=run_id, details=details)


_REPLAYED_AS = """
SELECT run_id FROM durable_activity
WHERE workflow = :workflow AND key = :key AND id > :row
  AND kind = 'key_replayed' AND json_extract(details, '$.replayed') = :row
ORDER BY id DESC LIMIT 1
"""


def replayed_as(tx: Tx, *, workflow: str, key: str, row: int) -> str | None:
    """The run that the input of a row of activity went to when it was started again."""
    found: str | None = tx.value(_REPLAYED_AS, workflow=workflow, key=key, row=row)
    return found


_NEWEST_LOST = """
SELECT id FROM durable_activity
WHERE workflow = :workflow AND key = :key AND kind = 'key_duplicate' AND input_changed = 1
  AND CASE WHEN json_valid(details) THEN json_type(details, '$.input') END IS NOT NULL
ORDER BY id DESC LIMIT 1
"""


def newest_lost(tx: Tx, *, workflow: str, key: str) -> int | None:
    """The newest row of activity that tells of an input that did not run."""
    found: int | None = tx.value(_NEWEST_LOST, workflow=workflow, key=key)
    return found


_WORKFLOWS_OF_KEY = """
SELECT name FROM durable_workflows w
WHERE EXISTS (SELECT 1 FROM durable_activity a WHERE a.workflow = w.name AND a.key = :key)
"""


def workflows_of_key(tx: Tx, key: str) -> list[str]:
    """The names of the workflows that have activity of the key, sorted."""
    return sorted(row["name"] for row in tx.rows(_WORKFLOWS_OF_KEY, key=key))


_TOLD = """
SELECT 1 FROM durable_activity
WHERE kind = 'key_held_long' AND workflow = :workflow AND key = :key AND run_id = :run_id AND at >= :since
"""


def told_held_long(tx: Tx, *, workflow: str, key: str, run_id: str, since: int) -> bool:
    """Has that been recorded of this run since it took its key?"""
    return tx.value(_TOLD, workflow=workflow, key=key, run_id=run_id, since=since) is not None


def moved(tx: Tx, *, at: int, workflow: str, from_place: str, to_place: str) -> None:
    """A workflow's code is recorded from another place now."""
    _insert(
        tx,
        ActivityKind.WORKFLOW_MOVED,
        at=at,
        workflow=workflow,
        key=None,
        run_id=None,
        details={"from": from_place, "to": to_place},
    )


def clock_jumped(tx: Tx, *, at: int, reason: str) -> None:
    """The wall clock was set, or is wrong; `reason`: what speaks against it."""
    _insert(tx, ActivityKind.CLOCK_JUMPED, at=at, workflow=None, key=None, run_id=None, details={"reason": reason})


_PROMOTED_AFTER = """
SELECT run_id FROM durable_activity
WHERE workflow = :workflow AND key = :key AND kind = 'key_handed_off'
  AND json_extract(details, '$.from') = :run_id AND json_extract(details, '$.reason') = 'promoted'
ORDER BY id DESC LIMIT 1
"""


def promoted_after(tx: Tx, *, workflow: str, key: str, run_id: str) -> str | None:
    """The run that took the key when `run_id` ended with one waiting behind it."""
    found: str | None = tx.value(_PROMOTED_AFTER, workflow=workflow, key=key, run_id=run_id)
    return found


def schedule_event(
    tx: Tx,
    kind: ActivityKind,
    *,
    at: int,
    schedule: str,
    workflow: str,
    key: str | None,
    run_id: str | None = None,
    **details: object,
) -> None:
    """Something happened to a schedule: due times were missed, a fire failed, it was paused."""
    _insert(tx, kind, at=at, workflow=workflow, key=key, run_id=run_id, details={"schedule": schedule, **details})


def newest(tx: Tx) -> dict[str, Any] | None:
    """The row written last, with all that it says."""
    return tx.row("SELECT * FROM durable_activity ORDER BY id DESC LIMIT 1")


def there(tx: Tx, row: dict[str, Any] | None) -> bool:
    """Is this very row there? Its number alone is given to another one when its transaction is rolled back."""
    return row is not None and tx.row("SELECT * FROM durable_activity WHERE id = :id", id=row["id"]) == row
