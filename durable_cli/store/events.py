"""SQL for events and answers sent to runs. `kind` is 'event' or 'input'; the two have separate names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durable_cli.store.database import Tx
from durable_cli.store.history import STILL_WANTED


@dataclass(frozen=True, slots=True)
class Event:
    """An event or an answer as it is kept: `payload` is JSON text. `received`: the run has got it."""

    id: int
    kind: str
    name: str
    payload: str
    received: bool
    created_at: int


_COLUMNS = "id, kind, name, payload, received, created_at"


def _from_row(row: dict[str, Any]) -> Event:
    return Event(**{**row, "received": bool(row["received"])})


def send(tx: Tx, run: int, kind: str, name: str, payload: str, now: int) -> int:
    """Keep an event for the run. Returns its id."""
    return tx.insert(
        "INSERT INTO durable_events (run_id, kind, name, payload, created_at)"
        " VALUES (:run, :kind, :name, :payload, :now)",
        run=run,
        kind=kind,
        name=name,
        payload=payload,
        now=now,
    )


def of_run(tx: Tx, run: int) -> list[Event]:
    """All events of a run, oldest first."""
    rows = tx.rows(f"SELECT {_COLUMNS} FROM durable_events WHERE run_id = :run ORDER BY id", run=run)
    return [_from_row(row) for row in rows]


_CHOOSE = f"""
SELECT {_COLUMNS} FROM durable_events
WHERE run_id = :run AND kind = :kind AND name = :name AND (:until IS NULL OR created_at <= :until)
ORDER BY received DESC, id DESC LIMIT 1
"""


def choose(tx: Tx, run: int, kind: str, name: str, *, until: int | None) -> Event | None:
    """The one event of this name that the run gets: the one it received, else the newest kept. `until`: for a wait
    whose time ended then, and which gets nothing that came later."""
    row = tx.row(_CHOOSE, run=run, kind=kind, name=name, until=until)
    return _from_row(row) if row else None


def received(tx: Tx, run: int, kind: str, name: str) -> Event | None:
    """The event of this name that the run has received."""
    row = tx.row(
        f"SELECT {_COLUMNS} FROM durable_events WHERE run_id = :run AND kind = :kind AND name = :name AND received = 1",
        run=run,
        kind=kind,
        name=name,
    )
    return _from_row(row) if row else None


def receive(tx: Tx, event: int) -> None:
    """The run has received this event: the one of its name, for ever."""
    tx.change("UPDATE durable_events SET received = 1 WHERE id = :id", id=event)


_WAITS_FOR = f"""
SELECT 1 FROM durable_steps s, json_each(s.details, '$.names') wanted
WHERE s.run_id = :run AND s.status = 'waiting' AND s.kind = :kind AND wanted.value = :name
  AND (s.due_at IS NULL OR s.due_at >= :now) AND {STILL_WANTED} LIMIT 1
"""


def waits_for(tx: Tx, run: int, kind: str, name: str, now: int) -> bool:
    """Does the run wait for an event of this name at this moment?"""
    return tx.value(_WAITS_FOR, run=run, kind=kind, name=name, now=now) is not None


_SOMETHING_NEW = f"""
SELECT 1 FROM durable_steps s
WHERE s.run_id = :run AND s.status = 'waiting' AND (
  EXISTS (SELECT 1 FROM json_each(s.details, '$.names') wanted
          JOIN durable_events e ON e.run_id = s.run_id AND e.kind = s.kind AND e.name = wanted.value
          WHERE NOT EXISTS (SELECT 1 FROM json_each(s.details, '$.seen') seen WHERE seen.value = wanted.value)
            AND (s.due_at IS NULL OR e.created_at <= s.due_at))
  OR EXISTS (SELECT 1 FROM durable_runs child WHERE child.id = s.child_id AND child.finished_at IS NOT NULL))
  AND {STILL_WANTED}
LIMIT 1
"""


def something_new(tx: Tx, run: int) -> bool:
    """Has anything come that a waiting operation of the run has not seen? Asked in the transaction in which the run
    goes to rest, so that nothing that came a moment before is slept over."""
    return tx.value(_SOMETHING_NEW, run=run) is not None
