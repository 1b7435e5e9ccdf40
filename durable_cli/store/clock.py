"""SQL for what is known of the wall clock: marks of it, the newest record, and when something was done by it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from durable_cli.core.clocks import Mark
from durable_cli.store.database import Tx

BELIEVED: Final = "clock_mark"
"""The mark that was left when the clock was believed last."""
DOUBTED: Final = "clock_doubt"
"""The mark that was left when a jump was seen; none while the clock is believed."""
PRUNED: Final = "pruned_at"
"""When somebody last began to prune."""
COMPLAINED: Final = "clock_complaint"
"""When a worker or tick last said that it prunes nothing by this clock."""

# What was written by a clock that jumped says nothing of where the clock was before.
_NEWEST: Final = """
SELECT max(moment) FROM (
  SELECT * FROM (SELECT at AS moment FROM durable_activity WHERE kind <> 'clock_jumped' ORDER BY at DESC LIMIT 1)
  UNION ALL SELECT max(finished_at) FROM durable_runs WHERE finished_at IS NOT NULL
  UNION ALL SELECT created_at FROM durable_runs WHERE id = (SELECT max(id) FROM durable_runs))
"""


def newest_moment(tx: Tx) -> int | None:
    """The moment of the newest record."""
    found: int | None = tx.value(_NEWEST)
    return found


def mark(tx: Tx, name: str) -> Mark | None:
    """A mark that was left."""
    text = _kept(tx, name)
    return None if text is None else Mark(**json.loads(text))


def leave_mark(tx: Tx, name: str, at: Mark) -> None:
    """Leave a mark, instead of the one before."""
    _keep(tx, name, json.dumps(asdict(at)))


def moment(tx: Tx, name: str) -> int | None:
    """When that was done last."""
    text = _kept(tx, name)
    return None if text is None else int(text)


def note_moment(tx: Tx, name: str, at: int) -> None:
    """It is done now."""
    _keep(tx, name, str(at))


def forget(tx: Tx, name: str) -> None:
    """Forget a mark or a moment; one that is not there is no error."""
    tx.change("DELETE FROM durable_meta WHERE name = :name", name=name)


def _kept(tx: Tx, name: str) -> str | None:
    text: str | None = tx.value("SELECT value FROM durable_meta WHERE name = :name", name=name)
    return text


def _keep(tx: Tx, name: str, text: str) -> None:
    tx.change(
        "INSERT INTO durable_meta (name, value) VALUES (:name, :text)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        name=name,
        text=text,
    )
