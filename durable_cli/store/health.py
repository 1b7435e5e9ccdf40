"""SQL for `durable doctor`: what is known of runs that do not go on, and of the code that is needed to go on."""

from __future__ import annotations

from typing import Any, Final

from durable_cli.store.database import Tx

_NOTED: Final = """
SELECT w.name AS workflow, r.note, count(*) AS runs, min(r.public_id) AS run_id
FROM durable_runs r JOIN durable_workflows w ON w.id = r.workflow_id
WHERE r.finished_at IS NULL AND r.note IS NOT NULL
GROUP BY w.name, r.note ORDER BY w.name
"""


def noted(tx: Tx) -> list[dict[str, Any]]:
    """Why unfinished runs do not go on, by workflow: `workflow`, `note`, `runs` (how many), `run_id` (one of them)."""
    return tx.rows(_NOTED)


_NEEDED: Final = """
SELECT w.name,
  (SELECT count(*) FROM durable_runs r WHERE r.workflow_id = w.id AND r.finished_at IS NULL) AS runs,
  (SELECT count(*) FROM durable_schedules s
   WHERE s.workflow_id = w.id AND s.paused_at IS NULL AND s.vanished_at IS NULL) AS schedules
FROM durable_workflows w
WHERE runs > 0 OR schedules > 0 ORDER BY w.name
"""


def needed(tx: Tx) -> list[dict[str, Any]]:
    """The workflows whose code somebody will want: `name`, how many unfinished `runs` and active `schedules`."""
    return tx.rows(_NEEDED)


def ahead(tx: Tx, now: int) -> int:
    """How many unfinished runs without an owner will be due by the time alone."""
    sql = (
        "SELECT count(*) FROM durable_runs WHERE finished_at IS NULL AND owner_id IS NULL"
        " AND due_at > :now AND runs_after_id IS NULL AND note IS NULL"
    )
    return int(tx.value(sql, now=now) or 0)
