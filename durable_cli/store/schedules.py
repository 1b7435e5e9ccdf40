"""SQL for schedules, and for what became of their due times."""

from __future__ import annotations

from typing import Any, Final

from durable_cli.model import Catchup, OnDuplicate, Policy, Schedule, ScheduleFire
from durable_cli.store.database import Tx

KEPT_FIRES: Final = 1500
"""How many fires of each schedule are kept: a day and an hour of one that fires each minute."""
SKIPPED: Final = ("existing", "key_taken")
"""Outcomes of fires that started nothing new."""

_SELECT: Final = """
SELECT s.id AS row_id, s.name, w.name AS workflow, s.cron, s.timezone, s.timezone_given, s.key, s.on_duplicate, s.input,
  s.catchup, s.jitter_ms, s.file, s.created_at, s.computed_at, s.next_fire_at, s.wake_at, s.paused_at, s.paused_reason,
  s.vanished_at, s.last_fire_at, s.last_outcome, s.last_run_id, s.last_skip_at, s.last_error, s.fires, s.skips,
  s.missed, s.failures
FROM durable_schedules s JOIN durable_workflows w ON w.id = s.workflow_id
"""


def _from_row(row: dict[str, Any]) -> Schedule:
    policy, _, event = (row["on_duplicate"] or "").partition(":")
    on_duplicate = OnDuplicate(Policy(policy), event or None) if policy else None
    changed = {
        "timezone_given": bool(row["timezone_given"]),
        "on_duplicate": on_duplicate,
        "catchup": Catchup(row["catchup"]),
    }
    return Schedule(**{**row, **changed})


def get(tx: Tx, name: str) -> Schedule | None:
    """The schedule of that name."""
    row = tx.row(f"{_SELECT} WHERE s.name = :name", name=name)
    return _from_row(row) if row else None


def every(tx: Tx) -> list[Schedule]:
    """All schedules, by name."""
    return [_from_row(row) for row in tx.rows(f"{_SELECT} ORDER BY s.name")]


_ACTIVE: Final = "s.paused_at IS NULL AND s.vanished_at IS NULL"


def due(tx: Tx, now: int) -> list[Schedule]:
    """Those that somebody has to look at: due, or computed by a clock that was set back since."""
    where = f"{_ACTIVE} AND (s.wake_at <= :now OR s.computed_at > :now)"
    return [_from_row(row) for row in tx.rows(f"{_SELECT} WHERE {where} ORDER BY s.wake_at, s.id", now=now)]


def next_wake_at(tx: Tx, now: int) -> int | None:
    """When the next of them, after those that are due, has to be looked at."""
    sql = f"SELECT min(s.wake_at) FROM durable_schedules s WHERE {_ACTIVE} AND s.wake_at > :now"
    found: int | None = tx.value(sql, now=now)
    return found


_INSERT: Final = """
INSERT INTO durable_schedules (name, workflow_id, cron, timezone, timezone_given, key, on_duplicate, input, catchup,
  jitter_ms, file, created_at, computed_at, next_fire_at, wake_at)
VALUES (:name, :workflow_id, :cron, :timezone, :timezone_given, :key, :on_duplicate, :input, :catchup,
  :jitter_ms, :file, :now, :now, :next_at, :wake_at)
ON CONFLICT (name) DO UPDATE SET
  workflow_id = excluded.workflow_id, cron = excluded.cron, timezone = excluded.timezone,
  timezone_given = excluded.timezone_given, key = excluded.key, on_duplicate = excluded.on_duplicate,
  input = excluded.input, catchup = excluded.catchup, jitter_ms = excluded.jitter_ms, file = excluded.file,
  computed_at = excluded.computed_at, next_fire_at = excluded.next_fire_at, wake_at = excluded.wake_at,
  vanished_at = NULL, failures = 0, last_error = NULL
"""


def put(
    tx: Tx,
    *,
    name: str,
    workflow_id: int,
    cron: str,
    timezone: str,
    timezone_given: bool,
    key: str | None,
    on_duplicate: OnDuplicate | None,
    input: str | None,
    catchup: Catchup,
    jitter_ms: int,
    file: str | None,
    next_at: int | None,
    wake_at: int | None,
    now: int,
) -> None:
    """Make a schedule, or change the one of that name: what it has done, and whether it is paused, stays."""
    tx.change(
        _INSERT,
        name=name,
        workflow_id=workflow_id,
        cron=cron,
        timezone=timezone,
        timezone_given=int(timezone_given),
        key=key,
        on_duplicate=None if on_duplicate is None else str(on_duplicate),
        input=input,
        catchup=str(catchup),
        jitter_ms=jitter_ms,
        file=file,
        next_at=next_at,
        wake_at=wake_at,
        now=now,
    )


def remove(tx: Tx, row_id: int) -> None:
    """Delete a schedule and the record of its fires."""
    tx.change("DELETE FROM durable_schedules WHERE id = :id", id=row_id)


_MOVE: Final = """
UPDATE durable_schedules SET next_fire_at = :next_at, wake_at = :wake_at, computed_at = :now WHERE id = :id
"""


def wait_for(tx: Tx, row_id: int, *, next_at: int | None, wake_at: int | None, now: int) -> None:
    """What it waits for now, by the clock that says `now`."""
    tx.change(_MOVE, id=row_id, next_at=next_at, wake_at=wake_at, now=now)


def pause(tx: Tx, row_id: int, *, reason: str, now: int) -> None:
    """It fires no more until it is resumed."""
    tx.change("UPDATE durable_schedules SET paused_at = :now, paused_reason = :reason WHERE id = :id",
              id=row_id, reason=reason, now=now)  # fmt: skip


def resume(tx: Tx, row_id: int) -> None:
    """It is paused no more, and has not failed."""
    tx.change(
        "UPDATE durable_schedules SET paused_at = NULL, paused_reason = NULL, failures = 0, last_error = NULL"
        " WHERE id = :id",
        id=row_id,
    )


def vanish(tx: Tx, row_id: int, now: int) -> None:
    """The code no longer declares it."""
    tx.change("UPDATE durable_schedules SET vanished_at = :now WHERE id = :id", id=row_id, now=now)


# -- what became of due times ----------------------------------------------------------------------------------------

_FIRE: Final = """
INSERT INTO durable_fires (schedule_id, due_at, at, outcome, run_id, missed, reason)
VALUES (:schedule_id, :due_at, :at, :outcome, :run_id, :missed, :reason)
"""
_FORGET: Final = """
DELETE FROM durable_fires WHERE schedule_id = :id AND id <= (
  SELECT id FROM durable_fires WHERE schedule_id = :id ORDER BY id DESC LIMIT 1 OFFSET :kept)
"""
_COUNT: Final = """
UPDATE durable_schedules SET
  missed = missed + :missed,
  fires = fires + :fired,
  skips = skips + :skipped,
  failures = CASE WHEN :failed THEN failures + 1 WHEN :fired THEN 0 ELSE failures END,
  last_error = CASE WHEN :failed THEN :reason WHEN :fired THEN NULL ELSE last_error END,
  last_fire_at = CASE WHEN :fired THEN :at ELSE last_fire_at END,
  last_outcome = CASE WHEN :fired OR :failed THEN :outcome ELSE last_outcome END,
  last_run_id = CASE WHEN :fired THEN :run_id ELSE last_run_id END,
  last_skip_at = CASE WHEN :skipped THEN :at ELSE last_skip_at END
WHERE id = :id
"""
_NOT_FIRED: Final = ("missed", "failed")


def record(tx: Tx, row_id: int, fire: ScheduleFire) -> None:
    """Claim a due time and count what became of it. A due time that was claimed before is refused by the file."""
    told = {"at": fire.at, "outcome": fire.outcome, "run_id": fire.run_id, "missed": fire.missed, "reason": fire.reason}
    tx.insert(_FIRE, schedule_id=row_id, due_at=fire.due_at, **told)
    tx.change(_FORGET, id=row_id, kept=KEPT_FIRES)
    tx.change(
        _COUNT,
        id=row_id,
        fired=int(fire.outcome not in _NOT_FIRED),
        skipped=int(fire.outcome in SKIPPED),
        failed=int(fire.outcome == "failed"),
        **told,
    )


def claimed(tx: Tx, row_id: int, since: int) -> set[int]:
    """The due times from this moment on that were fired, or recorded as missed or failed."""
    sql = "SELECT due_at FROM durable_fires WHERE schedule_id = :id AND due_at >= :since"
    return {row["due_at"] for row in tx.rows(sql, id=row_id, since=since)}


_FIRES: Final = """
SELECT f.due_at, f.at, f.outcome, f.run_id, f.missed, f.reason
FROM durable_fires f JOIN durable_schedules s ON s.id = f.schedule_id
WHERE s.name = :name ORDER BY f.id DESC LIMIT :limit
"""


def fires(tx: Tx, name: str, limit: int) -> list[ScheduleFire]:
    """What became of the last due times of a schedule, newest first."""
    return [ScheduleFire(**row) for row in tx.rows(_FIRES, name=name, limit=limit)]
