"""SQL for runs: finding and reading them. What changes them is in `transitions`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from durable_cli.errors import RunNotFound
from durable_cli.model import Claim, Owner, Run, Status
from durable_cli.store.database import Tx
from durable_cli.store.history import error_from_text

COLUMNS: Final = """
  r.id AS row_id, r.public_id, w.name AS workflow, r.workflow_id, r.key, r.holds_key, r.runs_after_id,
  ahead.public_id AS ahead, r.status, r.input, r.result, r.error, r.created_at, r.started_at, r.finished_at,
  r.due_at, r.held_since, r.epoch, r.crashes, r.timeout_ms, r.deadline_at, r.parent_id, r.note, r.debounced,
  r.owner_id, o.pid AS owner_pid
"""
TABLES: Final = """
  durable_runs r JOIN durable_workflows w ON w.id = r.workflow_id
  LEFT JOIN durable_runs ahead ON ahead.id = r.runs_after_id
  LEFT JOIN durable_owners o ON o.id = r.owner_id
"""
_SELECT: Final = f"SELECT {COLUMNS} FROM {TABLES}"


def from_row(row: dict[str, Any]) -> Run:
    """A row of COLUMNS. Whether the owner is alive is for the caller to find out."""
    owner = None if row["owner_id"] is None else Owner(row["owner_id"], row["owner_pid"], None)
    return Run(
        row_id=row["row_id"],
        id=row["public_id"],
        workflow=row["workflow"],
        workflow_id=row["workflow_id"],
        key=row["key"],
        holds_key=bool(row["holds_key"]),
        runs_after_row=row["runs_after_id"],
        runs_after_id=row["ahead"],
        status=Status(row["status"]),
        input=row["input"],
        result=row["result"],
        error=error_from_text(row["error"]),
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        due_at=row["due_at"],
        held_since=row["held_since"],
        epoch=row["epoch"],
        crashes=row["crashes"],
        timeout_ms=row["timeout_ms"],
        deadline_at=row["deadline_at"],
        parent_row=row["parent_id"],
        note=row["note"],
        debounced=bool(row["debounced"]),
        owner=owner,
    )


def _one(tx: Tx, where: str, **bindings: object) -> Run | None:
    row = tx.row(f"{_SELECT} WHERE {where}", **bindings)
    return from_row(row) if row else None


def get(tx: Tx, row_id: int) -> Run:
    """The run of a row id that is known. Raises RunNotFound: it was pruned since."""
    run = _one(tx, "r.id = :id", id=row_id)
    if run is None:
        raise RunNotFound(f"the run that was in row {row_id} is gone: it was pruned")
    return run


def again(tx: Tx, known: Run) -> Run:
    """A run as it is now. Raises RunNotFound: it was pruned since."""
    run = _one(tx, "r.id = :id", id=known.row_id)
    if run is None:
        raise RunNotFound(f"run {known.id} is gone: it was pruned")
    return run


def by_id(tx: Tx, public_id: str) -> Run | None:
    """The run that people call `public_id`."""
    return _one(tx, "r.public_id = :id", id=public_id)


def holder(tx: Tx, workflow_id: int, key: str) -> Run | None:
    """The run that holds the key."""
    return _one(tx, "r.workflow_id = :workflow AND r.key = :key AND r.holds_key = 1", workflow=workflow_id, key=key)


def waiting_behind(tx: Tx, row_id: int) -> Run | None:
    """The run that waits behind this one."""
    return _one(tx, "r.runs_after_id = :id", id=row_id)


def waiting_behind_any(tx: Tx, row_ids: Sequence[int]) -> list[Run]:
    """The runs that wait behind one of these."""
    where = "r.runs_after_id IN (SELECT value FROM json_each(:rows))"
    return [from_row(row) for row in tx.rows(f"{_SELECT} WHERE {where} ORDER BY r.id", rows=json.dumps(row_ids))]


def owned_by(tx: Tx, owner_id: int) -> list[Run]:
    """The runs that an owner has."""
    return [from_row(row) for row in tx.rows(f"{_SELECT} WHERE r.owner_id = :owner ORDER BY r.id", owner=owner_id)]


_IS_OURS = """
SELECT 1 FROM durable_runs
WHERE id = :id AND owner_id = :owner AND epoch = :epoch AND finished_at IS NULL
"""


def ours(tx: Tx, row_id: int, owner_id: int, epoch: int) -> bool:
    """The fence: is the run unfinished and still owned by this owner at this epoch?"""
    return tx.value(_IS_OURS, id=row_id, owner=owner_id, epoch=epoch) is not None


def by_prefix(tx: Tx, prefix: str, limit: int) -> list[str]:
    """Up to `limit` ids that begin with a prefix, newest first."""
    rows = tx.rows(
        "SELECT public_id FROM durable_runs WHERE substr(public_id, 1, length(:prefix)) = :prefix "
        "ORDER BY id DESC LIMIT :limit",
        prefix=prefix,
        limit=limit,
    )
    return [row["public_id"] for row in rows]


def newest(tx: Tx) -> str | None:
    """The id of the run started last."""
    found: str | None = tx.value("SELECT public_id FROM durable_runs ORDER BY id DESC LIMIT 1")
    return found


_OF_KEY = f"""
{_SELECT} WHERE r.key = :key AND (:workflow IS NULL OR w.name = :workflow)
ORDER BY r.workflow_id, r.holds_key DESC, r.id DESC
"""


def of_key(tx: Tx, key: str, workflow: str | None) -> list[Run]:
    """Every run with the key's text: workflow by workflow, the holder first, then newest first."""
    return [from_row(row) for row in tx.rows(_OF_KEY, key=key, workflow=workflow)]


def last_completed_at(tx: Tx, workflow: str, key: str | None) -> int | None:
    """When the last completed run of the workflow (with this key, or without one) ended."""
    found: int | None = tx.value(
        "SELECT max(r.finished_at) FROM durable_runs r JOIN durable_workflows w ON w.id = r.workflow_id "
        "WHERE w.name = :workflow AND r.key IS :key AND r.status = 'completed'",
        workflow=workflow,
        key=key,
    )
    return found


_OVERDUE = f"""
{_SELECT}
WHERE r.deadline_at <= :now AND r.finished_at IS NULL AND r.owner_id IS NULL AND r.status <> 'compensating'
ORDER BY r.deadline_at LIMIT :limit
"""


def overdue(tx: Tx, now: int, limit: int) -> list[Run]:
    """Unfinished runs that nobody owns and whose time is over, the longest overdue first."""
    return [from_row(row) for row in tx.rows(_OVERDUE, now=now, limit=limit)]


_CLAIMABLE = """
r.finished_at IS NULL AND r.owner_id IS NULL AND r.runs_after_id IS NULL
  AND r.status IN ('pending', 'waiting', 'compensating')
  AND w.name NOT IN (SELECT value FROM json_each(:besides))
"""
_RESTING: Final = ("pending", "waiting", "compensating")


def _of_each_status(sql: str) -> str:
    """The same for each status of a run at rest: each walks the index (status, due_at) no further than it must."""
    return " UNION ALL ".join(f"SELECT * FROM ({sql.format(status=status)})" for status in _RESTING)


_DUE_OF_ONE = """
SELECT id FROM durable_runs
WHERE finished_at IS NULL AND status = '{status}' AND due_at <= :now AND owner_id IS NULL AND runs_after_id IS NULL
  AND public_id NOT IN (SELECT value FROM json_each(:runs))
  AND workflow_id NOT IN (
    SELECT id FROM durable_workflows WHERE name IN (SELECT value FROM json_each(:workflows)))
ORDER BY due_at, id LIMIT :limit
"""
_DUE = f"{_SELECT} WHERE r.id IN ({_of_each_status(_DUE_OF_ONE)}) ORDER BY r.due_at, r.id LIMIT :limit"


def due(tx: Tx, now: int, limit: int, *, runs: Sequence[str] = (), workflows: Sequence[str] = ()) -> list[Run]:
    """Runs that may be claimed now, the longest due first, besides these runs and those of these workflows."""
    rows = tx.rows(_DUE, now=now, limit=limit, runs=json.dumps(runs), workflows=json.dumps(workflows))
    return [from_row(row) for row in rows]


_NEXT_OF_ONE = """
SELECT due_at FROM durable_runs
WHERE finished_at IS NULL AND status = '{status}' AND due_at > :after AND owner_id IS NULL AND runs_after_id IS NULL
ORDER BY due_at LIMIT 1
"""
_NEXT_DUE = f"SELECT min(due_at) FROM ({_of_each_status(_NEXT_OF_ONE)})"


def next_due_at(tx: Tx, after: int = -1) -> int | None:
    """When the next run without an owner is due, of those that are due after a moment."""
    found: int | None = tx.value(_NEXT_DUE, after=after)
    return found


_TREE = """
WITH RECURSIVE tree (id) AS (
  SELECT id FROM durable_runs WHERE parent_id = :root
  UNION SELECT c.id FROM durable_runs c JOIN tree ON c.parent_id = tree.id)
"""
_DESCENDANT = f"""
{_TREE} {_SELECT} WHERE r.id IN (SELECT id FROM tree) AND {_CLAIMABLE} AND r.due_at <= :now ORDER BY r.id LIMIT 1
"""
_OWNED_DESCENDANTS = f"{_TREE} {_SELECT} WHERE r.id IN (SELECT id FROM tree) AND r.owner_id IS NOT NULL ORDER BY r.id"


def due_descendant(tx: Tx, root: int, now: int, *, besides: Sequence[str] = ()) -> Run | None:
    """A run that this one, or a run started by it, has started, and that may be claimed now."""
    row = tx.row(_DESCENDANT, root=root, now=now, besides=json.dumps(besides))
    return from_row(row) if row else None


def owned_descendants(tx: Tx, root: int) -> list[Run]:
    """The runs that this one, or a run started by it, has started, and that have an owner, dead or alive."""
    return [from_row(row) for row in tx.rows(_OWNED_DESCENDANTS, root=root)]


def owned(tx: Tx) -> list[Run]:
    """Every unfinished run that has an owner, dead or alive."""
    return [from_row(row) for row in tx.rows(f"{_SELECT} WHERE r.owner_id IS NOT NULL ORDER BY r.id")]


def claims(tx: Tx) -> list[Claim]:
    """The claim of every owner, dead or alive, on an unfinished run: `owned` at a fraction of the price."""
    # In the order of the index of owned runs: by id the whole table would be walked.
    sql = "SELECT id, public_id, owner_id, epoch FROM durable_runs WHERE owner_id IS NOT NULL ORDER BY owner_id, id"
    rows = tx.rows(sql)
    return [Claim(row["id"], row["public_id"], row["owner_id"], row["epoch"]) for row in rows]


def children(tx: Tx, row_id: int) -> list[Run]:
    """The unfinished runs that this one started."""
    where = "r.parent_id = :id AND r.finished_at IS NULL"
    return [from_row(row) for row in tx.rows(f"{_SELECT} WHERE {where} ORDER BY r.id", id=row_id)]


_WAITED_FOR_BY = f"""
{_SELECT}
WHERE r.id IN (SELECT s.run_id FROM durable_steps s WHERE s.child_id = :id AND s.status = 'waiting')
  AND r.finished_at IS NULL
"""


def waiting_for_child(tx: Tx, child: int) -> list[Run]:
    """The unfinished runs that wait for the end of this one."""
    return [from_row(row) for row in tx.rows(_WAITED_FOR_BY, id=child)]


_NEEDS = """
WITH RECURSIVE needed (id) AS (
  SELECT :run
  UNION SELECT s.child_id FROM durable_steps s JOIN needed n ON s.run_id = n.id
        WHERE s.status = 'waiting' AND s.child_id IS NOT NULL
  UNION SELECT r.runs_after_id FROM durable_runs r JOIN needed n ON r.id = n.id WHERE r.runs_after_id IS NOT NULL)
SELECT 1 FROM needed WHERE id = :other
"""


def needs(tx: Tx, run: int, other: int) -> bool:
    """Can this run end only after the other one: does it wait for it, or behind it, or for one that does?"""
    return tx.value(_NEEDS, run=run, other=other) is not None


_HELD_LONG = f"""
{_SELECT} WHERE r.holds_key = 1 AND r.finished_at IS NULL AND w.max_hold_ms IS NOT NULL
  AND r.held_since < :now - w.max_hold_ms ORDER BY r.held_since LIMIT :limit
"""


def held_too_long(tx: Tx, now: int, limit: int) -> list[Run]:
    """Unfinished holders that have their keys longer than their workflow's max_hold, the longest first."""
    return [from_row(row) for row in tx.rows(_HELD_LONG, now=now, limit=limit)]
