"""SQL of lists and counts. Each function is called inside one read snapshot; none knows who is alive.

Searching compares with instr(), never LIKE: a key may hold `%` and `_`, and they are letters like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from durable_cli.model import Activity, Run
from durable_cli.store import runs as run_rows
from durable_cli.store.database import Tx

DAY_MS: Final = 86_400_000

_OF_WORKFLOW: Final = "r.workflow_id = (SELECT id FROM durable_workflows WHERE name = :workflow)"
_RUNS: Final = f"SELECT {run_rows.COLUMNS} FROM {run_rows.TABLES}"
_RUNS_BY: Final = {
    "workflow": _OF_WORKFLOW,
    "key": "r.key = :key",
    "statuses": "r.status IN (SELECT value FROM json_each(:statuses))",
    "unfinished": "r.finished_at IS NULL",
    "since": "r.created_at >= :since",
    "words": """NOT EXISTS (
    SELECT 1 FROM json_each(:words) word
    WHERE instr(r.public_id, word.value) = 0 AND instr(w.name, word.value) = 0
      AND instr(coalesce(r.key, ''), word.value) = 0 AND instr(r.input, word.value) = 0
      AND (NOT coalesce(json_valid(r.error), 0) OR
           instr((r.error ->> 'type') || ': ' || (r.error ->> 'message'), word.value) = 0))""",
}


def _where(by: dict[str, str], given: dict[str, object], always: str = "TRUE") -> str:
    """What a list is narrowed by: the conditions of what is given (lists travel as JSON text), and no others. "Or the
    parameter is null" would keep every index from being used."""
    return "WHERE " + " AND ".join([always, *(by[name] for name, value in given.items() if value is not None)])


SEARCH_FIELDS: Final = ("key", "workflow", "status")


def split_search(search: str | None) -> tuple[dict[str, str], list[str]]:
    """`key:article:42 workflow:sync error` -> ({"key": "article:42", "workflow": "sync"}, ["error"]).

    Words are separated by blanks; a field given twice counts as given last. Other words have to occur somewhere in
    the run's id, workflow, key, input or error.
    """
    fields: dict[str, str] = {}
    words: list[str] = []
    for word in (search or "").split():
        name, colon, rest = word.partition(":")
        if colon and rest and name in SEARCH_FIELDS:
            fields[name] = rest
        else:
            words.append(word)
    return fields, words


def runs(
    tx: Tx,
    *,
    workflow: str | None = None,
    statuses: Sequence[str] = (),
    key: str | None = None,
    unfinished: bool = False,
    since: int | None = None,
    search: str | None = None,
    limit: int | None = None,
) -> list[Run]:
    """Runs, newest first. `since`: created at or after that moment. What is given twice must agree with both."""
    fields, words = split_search(search)
    wanted = _both(list(statuses) or None, fields.get("status"))
    names = _both(None if workflow is None else [workflow], fields.get("workflow"))
    keys = _both(None if key is None else [key], fields.get("key"))
    if wanted == [] or names == [] or keys == []:
        return []
    given: dict[str, object] = {
        "workflow": None if names is None else names[0],
        "key": None if keys is None else keys[0],
        "statuses": None if wanted is None else json.dumps(wanted),
        "unfinished": unfinished or None,
        "since": since,
        "words": json.dumps(words) if words else None,
    }
    sql = f"{_RUNS} {_where(_RUNS_BY, given)} ORDER BY r.id DESC LIMIT :limit"
    return [run_rows.from_row(row) for row in tx.rows(sql, limit=-1 if limit is None else limit, **given)]


def _both(given: list[str] | None, searched: str | None) -> list[str] | None:
    """The values that satisfy an option and a word of SEARCH alike; None: any."""
    if searched is None:
        return given
    return [searched] if given is None or searched in given else []


_KEYS: Final = """
SELECT w.name AS workflow, r.key, count(*) AS runs,
  h.public_id AS holder_id, h.status, h.held_since, h.owner_id,
  (SELECT b.public_id FROM durable_runs b
   WHERE b.workflow_id = r.workflow_id AND b.key = r.key AND b.runs_after_id IS NOT NULL) AS waiting_id,
  (SELECT count(*) FROM durable_activity a
   WHERE a.workflow = w.name AND a.key = r.key AND a.kind = 'key_duplicate' AND a.at > :day_ago) AS readds_24h,
  coalesce(h.finished_at IS NULL AND h.held_since < :now - w.max_hold_ms, 0) AS held_too_long
FROM durable_runs r
JOIN durable_workflows w ON w.id = r.workflow_id
LEFT JOIN durable_runs h ON h.workflow_id = r.workflow_id AND h.key = r.key AND h.holds_key = 1
"""
_KEYS_BY: Final = {
    "workflow": _OF_WORKFLOW,
    "key": "r.key = :key",
    "held": "h.id IS NOT NULL",
    "stuck_before": "h.finished_at IS NULL AND (h.held_since <= :stuck_before OR h.held_since < :now - w.max_hold_ms)",
}


def keys(
    tx: Tx,
    *,
    now: int,
    workflow: str | None = None,
    key: str | None = None,
    held: bool = False,
    stuck_ms: int | None = None,
) -> list[dict[str, Any]]:
    """A row for every key that has runs, the one used last first.

    The fields of `model.Key`, with `owner_id` (of an unfinished holder) in place of `owner_alive`. `stuck_ms`: only
    keys whose holder is unfinished and has held them for at least so long, or longer than its workflow's max_hold.
    """
    given: dict[str, object] = {
        "workflow": workflow,
        "key": key,
        "held": held or None,
        "stuck_before": None if stuck_ms is None else now - stuck_ms,
    }
    where = _where(_KEYS_BY, given, "r.key IS NOT NULL")
    sql = f"{_KEYS} {where} GROUP BY r.workflow_id, r.key ORDER BY max(r.id) DESC"
    return tx.rows(sql, day_ago=now - DAY_MS, now=now, **given)


_ACTIVITY: Final = """
SELECT id, at, kind, workflow, key, run_id, outcome, input_changed, details FROM durable_activity
"""
_ACTIVITY_BY: Final = {
    "workflow": "workflow = :workflow",
    "key": "key = :key",
    "kinds": "kind IN (SELECT value FROM json_each(:kinds))",
    "since": "at >= :since",
}
_NEWEST_ACTIVITY: Final = "SELECT coalesce(max(id), 0) FROM durable_activity"


def activity(
    tx: Tx,
    *,
    after: int = 0,
    kinds: Sequence[str] = (),
    workflow: str | None = None,
    key: str | None = None,
    since: int | None = None,
    limit: int | None = None,
) -> list[Activity]:
    """What happened to keys, newest first; only rows after that one. No join: the run that one names may be pruned."""
    given: dict[str, object] = {
        "workflow": workflow,
        "key": key,
        "kinds": json.dumps(list(kinds)) if kinds else None,
        "since": since,
    }
    sql = f"{_ACTIVITY} {_where(_ACTIVITY_BY, given, 'id > :after')} ORDER BY id DESC LIMIT :limit"
    rows = tx.rows(sql, after=after, limit=-1 if limit is None else limit, **given)
    return [_activity_from_row(row) for row in rows]


def newest_activity(tx: Tx) -> int:
    """The number of the newest row of activity, 0 if there is none. Where all were pruned, it begins anew."""
    newest: int = tx.value(_NEWEST_ACTIVITY)
    return newest


def _details(text: str) -> dict[str, Any]:
    """The details of a row of activity; none where they are damaged: lists must always work."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _activity_from_row(row: dict[str, Any]) -> Activity:
    details: dict[str, object] = {}
    if row["outcome"] is not None:
        details["outcome"] = row["outcome"]
    if row["input_changed"] is not None:
        details["input_changed"] = bool(row["input_changed"])
    stored = _details(row["details"])
    if not details.get("input_changed"):
        stored.pop("input", None)  # null there means "the same input", and a dropped input may itself be null
    details.update((name, entry) for name, entry in stored.items() if entry is not None or name in ("input", "from"))
    return Activity(
        at=row["at"],
        kind=row["kind"],
        workflow=row["workflow"],
        key=row["key"],
        run_id=row["run_id"],
        details=details,
        id=row["id"],
    )


_BY_STATUS: Final = """
SELECT r.status, count(*) AS n FROM durable_runs r JOIN durable_workflows w ON w.id = r.workflow_id
WHERE (:workflow IS NULL OR w.name = :workflow) AND (:since IS NULL OR r.created_at >= :since)
GROUP BY r.status ORDER BY r.status
"""
_HELD: Final = """
SELECT count(*) FROM durable_runs r JOIN durable_workflows w ON w.id = r.workflow_id
WHERE r.holds_key = 1 AND (:workflow IS NULL OR w.name = :workflow)
"""
_NARROWED: Final = "(:workflow IS NULL OR workflow = :workflow) AND (:since IS NULL OR at >= :since)"
_BY_OUTCOME: Final = f"""
SELECT outcome, count(*) AS n FROM durable_activity
WHERE kind = 'key_duplicate' AND {_NARROWED} GROUP BY outcome ORDER BY outcome
"""
_DROPPED: Final = f"""
SELECT count(*) FROM durable_activity
WHERE kind = 'key_duplicate' AND outcome IN ('use_existing', 'error') AND input_changed = 1 AND {_NARROWED}
"""
_HANDOFFS: Final = f"SELECT count(*) FROM durable_activity WHERE kind = 'key_handed_off' AND {_NARROWED}"
_MOST: Final = f"""
SELECT workflow, key, count(*) AS count FROM durable_activity
WHERE kind = 'key_duplicate' AND {_NARROWED}
GROUP BY workflow, key ORDER BY count(*) DESC, max(id) DESC LIMIT 10
"""
_OVER_TIME: Final = f"""
SELECT at / :step * :step AS at, count(*) AS count FROM durable_activity
WHERE kind = 'key_duplicate' AND {_NARROWED} GROUP BY at / :step ORDER BY at / :step
"""


def stats(tx: Tx, *, now: int, workflow: str | None = None, since: int | None = None) -> dict[str, Any]:
    """Counts, with the fields of `client.Stats`.

    `since` narrows runs by their creation and activity by its moment; keys held are those held now. `over_time` has
    a count an hour for spans up to two days and a count a day for longer ones (`at`: milliseconds, when the hour or
    day in UTC begins).
    """
    narrowed = {"workflow": workflow, "since": since}
    step = DAY_MS if since is None or now - since > 2 * DAY_MS else DAY_MS // 24
    return {
        "runs": {row["status"]: row["n"] for row in tx.rows(_BY_STATUS, **narrowed)},
        "held": tx.value(_HELD, workflow=workflow),
        "readds": {row["outcome"]: row["n"] for row in tx.rows(_BY_OUTCOME, **narrowed)},
        "dropped_inputs": tx.value(_DROPPED, **narrowed),
        "handoffs": tx.value(_HANDOFFS, **narrowed),
        "most_readded": tx.rows(_MOST, **narrowed),
        "over_time": tx.rows(_OVER_TIME, step=step, **narrowed),
    }
