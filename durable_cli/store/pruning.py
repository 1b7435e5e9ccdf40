"""SQL for deleting what is old, and for the mark that says when the clock was last believed."""

from __future__ import annotations

import json
from typing import Any, Final

from durable_cli.core.clocks import Mark
from durable_cli.store.database import Tx

Place = tuple[int, int]
"""Where to go on: a moment and a row, both of what was seen last."""
FIRST: Final[Place] = (-1, -1)

_OLD: Final = """
r.finished_at IS NOT NULL AND r.finished_at < :before AND (r.finished_at, r.id) > (:after_at, :after_id)
  AND (:workflow IS NULL OR r.workflow_id = (SELECT id FROM durable_workflows WHERE name = :workflow))
  AND (:statuses IS NULL OR r.status IN (SELECT value FROM json_each(:statuses)))
  AND NOT EXISTS (  -- its end is still to be seen by a run that waits for it
    SELECT 1 FROM durable_steps s JOIN durable_runs asker ON asker.id = s.run_id
    WHERE s.child_id = r.id AND s.status = 'waiting' AND asker.finished_at IS NULL)
"""


def old_runs(
    tx: Tx, after: Place, *, before: int, workflow: str | None, statuses: list[str], limit: int
) -> list[dict[str, Any]]:
    """Finished runs that ended before a moment, and whose end nobody waits to see: `id` (row), `public_id`,
    `workflow`, `key`, `holds_key`, `finished_at`, oldest first, from a place on."""
    return tx.rows(
        f"SELECT r.id, r.public_id, w.name AS workflow, r.key, r.holds_key, r.finished_at FROM durable_runs r"
        f" JOIN durable_workflows w ON w.id = r.workflow_id WHERE {_OLD} ORDER BY r.finished_at, r.id LIMIT :limit",
        after_at=after[0],
        after_id=after[1],
        before=before,
        workflow=workflow,
        statuses=json.dumps(statuses) if statuses else None,
        limit=limit,
    )


def delete_runs(tx: Tx, rows: list[int]) -> int:
    """Delete runs with their steps, events and logs. What they had started or waited for stays."""
    return tx.change("DELETE FROM durable_runs WHERE id IN (SELECT value FROM json_each(:rows))", rows=json.dumps(rows))


_CONCERNS_NO_RUN: Final = """
(key IS NULL OR NOT EXISTS (
  SELECT 1 FROM durable_runs r JOIN durable_workflows w ON w.id = r.workflow_id
  WHERE w.name = durable_activity.workflow AND r.key = durable_activity.key))
"""


def count_old_activity(tx: Tx, before: int) -> int:
    """How many rows of activity are older than a moment and concern no key that still has runs."""
    count: int = tx.value(
        f"SELECT count(*) FROM durable_activity WHERE at < :before AND {_CONCERNS_NO_RUN}", before=before
    )
    return count


_OLD_ACTIVITY: Final = f"""
SELECT id, at, {_CONCERNS_NO_RUN} AS goes FROM durable_activity
WHERE at < :before AND (at, id) > (:after_at, :after_id) ORDER BY at, id LIMIT :limit
"""


def old_activity(tx: Tx, after: Place, *, before: int, limit: int) -> list[dict[str, Any]]:
    """Rows of activity older than a moment, oldest first, from a place on: `id`, `at`, and `goes`: it concerns no key
    that still has runs."""
    return tx.rows(_OLD_ACTIVITY, after_at=after[0], after_id=after[1], before=before, limit=limit)


def delete_activity(tx: Tx, rows: list[int]) -> int:
    """Delete rows of activity."""
    return tx.change(
        "DELETE FROM durable_activity WHERE id IN (SELECT value FROM json_each(:rows))", rows=json.dumps(rows)
    )


def newest_moment(tx: Tx) -> int | None:
    """The moment of the newest record."""
    found: int | None = tx.value(
        "SELECT max(moment) FROM (SELECT max(at) AS moment FROM durable_activity"
        " UNION ALL SELECT max(finished_at) FROM durable_runs WHERE finished_at IS NOT NULL"
        " UNION ALL SELECT created_at FROM durable_runs WHERE id = (SELECT max(id) FROM durable_runs))"
    )
    return found


def clock_mark(tx: Tx) -> Mark | None:
    """The mark that was left last."""
    text = tx.value("SELECT value FROM durable_meta WHERE name = 'clock_mark'")
    return None if text is None else Mark(**json.loads(text))


_KEEP: Final = """
INSERT INTO durable_meta (name, value) VALUES (:name, :text) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


def leave_clock_mark(tx: Tx, mark: Mark) -> None:
    """Leave a mark."""
    text = json.dumps({"wall": mark.wall, "boot": mark.boot, "boottime": mark.boottime})
    tx.change(_KEEP, name="clock_mark", text=text)


def complained_at(tx: Tx) -> int | None:
    """When a worker or tick last said that it prunes nothing by this clock."""
    text = tx.value("SELECT value FROM durable_meta WHERE name = 'clock_complaint'")
    return None if text is None else int(text)


def note_complaint(tx: Tx, now: int) -> None:
    """It says so now."""
    tx.change(_KEEP, name="clock_complaint", text=str(now))
