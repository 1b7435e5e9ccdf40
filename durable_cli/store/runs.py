"""SQL for runs: reading them, and every transition of a row by name. No decisions: those are core's."""

from __future__ import annotations

from typing import Any, Final

from durable_cli.model import FINISHED, Owner, Run, RunError, Status
from durable_cli.store.database import Tx
from durable_cli.store.history import error_from_text, error_text

COLUMNS: Final = """
  r.id AS row_id, r.public_id, w.name AS workflow, r.workflow_id, r.key, r.holds_key, r.runs_after_id,
  ahead.public_id AS ahead, r.status, r.input, r.result, r.error, r.created_at, r.started_at, r.finished_at,
  r.due_at, r.held_since, r.epoch, r.crashes, r.owner_id, o.pid AS owner_pid
"""
TABLES: Final = """
  durable_runs r JOIN durable_workflows w ON w.id = r.workflow_id
  LEFT JOIN durable_runs ahead ON ahead.id = r.runs_after_id
  LEFT JOIN durable_owners o ON o.id = r.owner_id
"""
_SELECT: Final = f"SELECT {COLUMNS} FROM {TABLES}"
_FINISHED_SQL: Final = ", ".join(f"'{status}'" for status in sorted(FINISHED))


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
        owner=owner,
    )


def _one(tx: Tx, where: str, **bindings: object) -> Run | None:
    row = tx.row(f"{_SELECT} WHERE {where}", **bindings)
    return from_row(row) if row else None


def get(tx: Tx, row_id: int) -> Run:
    """The run of a row id that is known to exist."""
    run = _one(tx, "r.id = :id", id=row_id)
    if run is None:
        raise LookupError(f"no run in row {row_id}")
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


def owned_by(tx: Tx, owner_id: int) -> list[Run]:
    """The runs that an owner has."""
    return [from_row(row) for row in tx.rows(f"{_SELECT} WHERE r.owner_id = :owner ORDER BY r.id", owner=owner_id)]


_INSERT = """
INSERT INTO durable_runs
  (public_id, workflow_id, key, holds_key, runs_after_id, input, created_at, due_at, held_since)
VALUES
  (:public_id, :workflow, :key, :holds, :after, :input, :now, :due_at, CASE WHEN :holds THEN :now END)
"""


def insert(
    tx: Tx,
    *,
    public_id: str,
    workflow_id: int,
    key: str | None,
    input: str,
    now: int,
    due_at: int | None,
    runs_after: int | None = None,
) -> int:
    """A new pending run: without key, holding its key, or waiting behind `runs_after` (then without due time)."""
    return tx.insert(
        _INSERT,
        public_id=public_id,
        workflow=workflow_id,
        key=key,
        holds=int(key is not None and runs_after is None),
        after=runs_after,
        input=input,
        now=now,
        due_at=due_at,
    )


def drop_key(tx: Tx, row_id: int) -> None:
    """The run no longer holds its key; it keeps the key's text."""
    tx.change("UPDATE durable_runs SET holds_key = 0, held_since = NULL WHERE id = :id", id=row_id)


def take_key(tx: Tx, row_id: int, now: int) -> None:
    """The run holds its key from now on; whoever held it has dropped it before."""
    tx.change("UPDATE durable_runs SET holds_key = 1, held_since = :now WHERE id = :id", id=row_id, now=now)


def promote(tx: Tx, row_id: int, now: int) -> None:
    """A waiting run takes the key and is due."""
    tx.change(
        "UPDATE durable_runs SET runs_after_id = NULL, holds_key = 1, held_since = :now, due_at = :now WHERE id = :id",
        id=row_id,
        now=now,
    )


def wait_behind(tx: Tx, row_id: int, ahead: int) -> None:
    """A waiting run waits behind another run from now on."""
    tx.change("UPDATE durable_runs SET runs_after_id = :ahead WHERE id = :id", id=row_id, ahead=ahead)


def set_input(tx: Tx, row_id: int, input: str) -> None:
    """A run that has not begun takes a newer input."""
    tx.change("UPDATE durable_runs SET input = :input WHERE id = :id AND epoch = 0", id=row_id, input=input)


_CLAIM = """
UPDATE durable_runs
SET owner_id = :owner, epoch = epoch + 1, due_at = NULL, started_at = coalesce(started_at, :now),
    status = CASE status WHEN 'compensating' THEN status ELSE 'running' END
WHERE id = :id AND finished_at IS NULL AND runs_after_id IS NULL AND owner_id IS NULL
RETURNING epoch
"""


def claim(tx: Tx, row_id: int, owner_id: int, now: int) -> int | None:
    """Make `owner_id` the owner. Returns the new epoch, or None if the run has one or cannot have one."""
    epoch: int | None = tx.value(_CLAIM, id=row_id, owner=owner_id, now=now)
    return epoch


_IS_OURS = """
SELECT crashes FROM durable_runs
WHERE id = :id AND owner_id = :owner AND epoch = :epoch AND finished_at IS NULL
"""


def ours(tx: Tx, row_id: int, owner_id: int, epoch: int) -> bool:
    """The fence: is the run unfinished and still owned by this owner at this epoch?"""
    return tx.value(_IS_OURS, id=row_id, owner=owner_id, epoch=epoch) is not None


def progress(tx: Tx, row_id: int, owner_id: int, epoch: int) -> bool:
    """The fence for a record: also sets the count of crashes in a row back to 0."""
    crashes = tx.value(_IS_OURS, id=row_id, owner=owner_id, epoch=epoch)
    if crashes:
        tx.change("UPDATE durable_runs SET crashes = 0 WHERE id = :id", id=row_id)
    return crashes is not None


def rest(tx: Tx, row_id: int, due_at: int | None) -> None:
    """The run waits, its owner staying by it."""
    tx.change("UPDATE durable_runs SET status = 'waiting', due_at = :due WHERE id = :id", id=row_id, due=due_at)


def go_on(tx: Tx, row_id: int) -> None:
    """A resting run is executed again by the owner that stayed by it."""
    tx.change("UPDATE durable_runs SET status = 'running', due_at = NULL WHERE id = :id", id=row_id)


_GIVE_BACK = """
UPDATE durable_runs
SET owner_id = NULL, crashes = crashes + :crash,
    due_at = CASE WHEN status IN ('running', 'compensating') THEN :now ELSE due_at END,
    status = CASE status WHEN 'running' THEN 'pending' ELSE status END
WHERE id = :id AND finished_at IS NULL
"""


def give_back(tx: Tx, row_id: int, now: int, *, crash: bool) -> None:
    """The run has no owner any more and may be claimed. `crash`: its owner died while it executed."""
    tx.change(_GIVE_BACK, id=row_id, now=now, crash=int(crash))


_END = f"""
UPDATE durable_runs
SET status = :status, result = :result, error = :error, finished_at = :now,
    owner_id = NULL, due_at = NULL, runs_after_id = NULL
WHERE id = :id AND status NOT IN ({_FINISHED_SQL})
"""


def end(
    tx: Tx, row_id: int, *, status: Status, result: str | None, error: RunError | None, now: int
) -> None:
    """The run is finished. For `settling` alone: ending a run also decides who has the key next."""
    tx.change(_END, id=row_id, status=str(status), result=result, error=error_text(error), now=now)


_REVIVE = """
UPDATE durable_runs
SET status = 'pending', error = NULL, finished_at = NULL, due_at = :now, crashes = 0,
    holds_key = (key IS NOT NULL),
    held_since = CASE WHEN key IS NULL THEN NULL WHEN holds_key = 1 THEN held_since ELSE :now END
WHERE id = :id
"""


def revive(tx: Tx, row_id: int, now: int) -> None:
    """A failed or cancelled run is pending again, in place, and holds its key if it has one."""
    tx.change(_REVIVE, id=row_id, now=now)


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
