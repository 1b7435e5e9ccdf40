"""SQL for the recorded operations of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from durable_cli.model import RunError, Step, StepStatus
from durable_cli.store.database import Tx

_COLUMNS = """
  branch, seq, kind, name, status, attempts, failures, started_at, finished_at, due_at, result, error, details,
  child_id AS child_row, undo_order, after_retry
"""


def error_text(error: RunError | None) -> str | None:
    """A RunError as the JSON text that the file keeps (absent fields left out)."""
    if error is None:
        return None
    fields = {name: getattr(error, name) for name in RunError.__slots__}
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def error_from_text(text: str | None) -> RunError | None:
    """Read `error_text` back. Damaged text becomes an error that says so: lists must always work."""
    if text is None:
        return None
    try:
        fields = json.loads(text)
        return RunError(**{name: fields.get(name) for name in RunError.__slots__})
    except (ValueError, AttributeError, TypeError):
        return RunError("Unreadable", "the stored error can no longer be read")


def from_row(row: dict[str, Any]) -> Step:
    """A row of durable_steps."""
    fields = dict(row)
    fields["status"] = StepStatus(row["status"])
    fields["error"] = error_from_text(row["error"])
    fields["after_retry"] = bool(row["after_retry"])
    fields["details"] = None if row["details"] is None else json.loads(row["details"])
    return Step(**fields)


def of_run(tx: Tx, run: int) -> list[Step]:
    """All recorded operations of a run, in the order of their places."""
    rows = tx.rows(f"SELECT {_COLUMNS} FROM durable_steps WHERE run_id = :run ORDER BY branch, seq", run=run)
    return [from_row(row) for row in rows]


_RECORD = """
INSERT INTO durable_steps (run_id, branch, seq, kind, name, status, attempts, failures,
                           started_at, finished_at, due_at, result, error, details, child_id, undo_order)
VALUES (:run, :branch, :seq, :kind, :name, :status, :attempts, :failures,
        :started_at, :finished_at, :due_at, :result, :error, :details, :child, :undo_order)
ON CONFLICT (run_id, branch, seq) DO UPDATE SET
  status = excluded.status, attempts = excluded.attempts, failures = excluded.failures,
  finished_at = excluded.finished_at, due_at = excluded.due_at, result = excluded.result, error = excluded.error,
  details = excluded.details, child_id = excluded.child_id, undo_order = excluded.undo_order
WHERE status IN ('retrying', 'waiting')
"""


def record(tx: Tx, run: int, step: Step) -> bool:
    """Record an operation, or the next state of one that goes on. False: it had ended before, nothing changed."""
    return 1 == tx.change(
        _RECORD,
        run=run,
        branch=step.branch,
        seq=step.seq,
        kind=step.kind,
        name=step.name,
        status=str(step.status),
        attempts=step.attempts,
        failures=step.failures,
        started_at=step.started_at,
        finished_at=step.finished_at,
        due_at=step.due_at,
        result=step.result,
        error=error_text(step.error),
        details=None if step.details is None else json.dumps(step.details),
        child=step.child_row,
        undo_order=step.undo_order,
    )


def next_undo_order(tx: Tx, run: int) -> int:
    """How many steps with a compensation have completed, and one."""
    count: int = tx.value("SELECT count(*) FROM durable_steps WHERE run_id = :run AND undo_order IS NOT NULL", run=run)
    return count + 1


def to_undo(tx: Tx, run: int) -> bool:
    """Is there a completed step with a compensation?"""
    found = tx.value("SELECT 1 FROM durable_steps WHERE run_id = :run AND undo_order IS NOT NULL LIMIT 1", run=run)
    return found is not None


def at(tx: Tx, run: int, branch: str, seq: int) -> Step | None:
    """The operation recorded at a place."""
    row = tx.row(
        f"SELECT {_COLUMNS} FROM durable_steps WHERE run_id = :run AND branch = :branch AND seq = :seq",
        run=run,
        branch=branch,
        seq=seq,
    )
    return from_row(row) if row else None


def last_of(tx: Tx, run: int, branch: str) -> Step | None:
    """The operation of a branch that was recorded last."""
    row = tx.row(
        f"SELECT {_COLUMNS} FROM durable_steps WHERE run_id = :run AND branch = :branch ORDER BY seq DESC LIMIT 1",
        run=run,
        branch=branch,
    )
    return from_row(row) if row else None


_TRY_AGAIN = """
UPDATE durable_steps SET status = 'retrying', failures = 0, finished_at = NULL, due_at = :now
WHERE run_id = :run AND branch = :branch AND seq = :seq AND status = 'failed'
"""


def try_again(tx: Tx, run: int, branch: str, seq: int, now: int) -> None:
    """Give the failed operation at this place a fresh budget."""
    tx.change(_TRY_AGAIN, run=run, branch=branch, seq=seq, now=now)


def wait_again(tx: Tx, run: int, branch: str, seq: int, *, details: dict[str, Any] | None = None) -> None:
    """The failed operation waits for its child or its branches again. `details`: what replaces its own."""
    tx.change(
        "UPDATE durable_steps SET status = 'waiting', error = NULL, finished_at = NULL, due_at = NULL,"
        " details = coalesce(:details, details)"
        " WHERE run_id = :run AND branch = :branch AND seq = :seq AND status = 'failed'",
        run=run,
        branch=branch,
        seq=seq,
        details=None if details is None else json.dumps(details),
    )


def forget(tx: Tx, run: int, branch: str, seq: int) -> None:
    """The operation, which failed or waits, begins anew, as if it had never been."""
    tx.change(
        "DELETE FROM durable_steps WHERE run_id = :run AND branch = :branch AND seq = :seq"
        " AND status IN ('failed', 'waiting')",
        run=run,
        branch=branch,
        seq=seq,
    )


STILL_WANTED: Final = """
(s.branch = '' OR NOT EXISTS (
  SELECT 1 FROM durable_steps around
  WHERE around.run_id = s.run_id AND around.kind IN ('parallel', 'map', 'race')
    AND around.status IN ('completed', 'failed')
    AND instr(s.branch, around.branch || '/' || around.seq || ':') = 1))
"""
"""Of a waiting step `s`: no operation around it was decided without it (a race that another branch won)."""

_WAITED_FOR = """
SELECT child_id FROM durable_steps
WHERE run_id = :run AND status = 'waiting' AND child_id IS NOT NULL AND (:inside = '' OR instr(branch, :inside) = 1)
"""
_CALLS = f"""
SELECT {_COLUMNS} FROM durable_steps s
WHERE s.run_id = :run AND s.status = 'waiting' AND s.kind = 'call' AND {STILL_WANTED}
ORDER BY s.child_id, s.branch
"""


def waiting_of(tx: Tx, rows: Sequence[int]) -> dict[int, list[Step]]:
    """The operations that wait and are still needed, of some runs (by row id): not those around them, nor branches of
    what was decided without them."""
    found: dict[int, list[Step]] = {}
    sql = (
        f"SELECT run_id, {_COLUMNS} FROM durable_steps s WHERE status = 'waiting'"
        " AND kind NOT IN ('parallel', 'map', 'race')"
        f" AND run_id IN (SELECT value FROM json_each(:rows)) AND {STILL_WANTED} ORDER BY run_id, branch, seq"
    )
    for row in tx.rows(sql, rows=json.dumps(list(rows))):
        found.setdefault(row.pop("run_id"), []).append(from_row(row))
    return found


def children_waited_for(tx: Tx, run: int, *, inside: str = "") -> set[int]:
    """The row ids of the runs whose end this one waits for, on all branches whose path begins with `inside`, those too
    that nobody needs any more."""
    return {row["child_id"] for row in tx.rows(_WAITED_FOR, run=run, inside=inside)}


def calls(tx: Tx, run: int) -> list[Step]:
    """The calls whose end the run still needs, those of the oldest child first."""
    return [from_row(row) for row in tx.rows(_CALLS, run=run)]


_QUESTIONS = f"""
SELECT r.public_id AS run_id, w.name AS workflow, r.key, s.name, s.started_at AS asked_at, s.due_at AS until, s.details
FROM durable_steps s JOIN durable_runs r ON r.id = s.run_id JOIN durable_workflows w ON w.id = r.workflow_id
WHERE s.status = 'waiting' AND s.kind = 'input' AND r.finished_at IS NULL
  AND (:run IS NULL OR r.public_id = :run)
  AND NOT EXISTS (SELECT 1 FROM durable_events e WHERE e.run_id = r.id AND e.kind = 'input' AND e.name = s.name)
  AND {STILL_WANTED}
ORDER BY s.started_at, r.id
"""


def questions(tx: Tx, run: str | None) -> list[dict[str, Any]]:
    """The waits for a person's answer that have none yet."""
    return tx.rows(_QUESTIONS, run=run)


def doubt_behind(tx: Tx, run: int, branch: str, seq: int) -> None:
    """What was recorded behind this operation on its branch followed its failure, which a retry takes back."""
    tx.change(
        "UPDATE durable_steps SET after_retry = 1 WHERE run_id = :run AND branch = :branch AND seq > :seq",
        run=run,
        branch=branch,
        seq=seq,
    )


def set_aside(tx: Tx, run: int, branch: str, seq: int) -> None:
    """The record of an operation that the function, after a retry, no longer comes to goes."""
    tx.change(
        "DELETE FROM durable_steps WHERE run_id = :run AND branch = :branch AND seq = :seq",
        run=run,
        branch=branch,
        seq=seq,
    )
