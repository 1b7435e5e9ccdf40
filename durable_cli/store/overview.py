"""SQL for `durable top`: few reads, each by an index, since they are made again every second."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from durable_cli.model import Run
from durable_cli.store import runs as run_rows
from durable_cli.store.database import Tx

_UNFINISHED: Final = """
SELECT status, count(*) AS n FROM durable_runs INDEXED BY durable_runs_unfinished
WHERE finished_at IS NULL GROUP BY status
"""
_FINISHED: Final = """
SELECT status, count(*) AS n FROM durable_runs INDEXED BY durable_runs_finished
WHERE finished_at > :since GROUP BY status ORDER BY status
"""
_HELD: Final = "SELECT count(*) FROM durable_runs INDEXED BY durable_one_holder WHERE holds_key = 1"


def unfinished(tx: Tx) -> dict[str, int]:
    """How many runs of each unfinished status there are."""
    return {row["status"]: row["n"] for row in tx.rows(_UNFINISHED)}


def finished(tx: Tx, since: int) -> dict[str, int]:
    """How many runs ended after that moment, by status."""
    return {row["status"]: row["n"] for row in tx.rows(_FINISHED, since=since)}


def keys_held(tx: Tx) -> int:
    """How many keys a run holds, a finished one too."""
    held: int = tx.value(_HELD)
    return held


_NEWEST: Final = f"""
SELECT {run_rows.COLUMNS} FROM {run_rows.TABLES}
WHERE r.id IN (
  SELECT id FROM durable_runs INDEXED BY durable_runs_unfinished WHERE finished_at IS NULL
  ORDER BY status <> 'running', status <> 'compensating', status <> 'waiting', id DESC LIMIT :limit)
ORDER BY r.status <> 'running', r.status <> 'compensating', r.status <> 'waiting', r.id DESC
"""


def runs(tx: Tx, limit: int | None) -> list[Run]:
    """Unfinished runs: those that are executed first, then those that wait; the newest of each first."""
    return [run_rows.from_row(row) for row in tx.rows(_NEWEST, limit=-1 if limit is None else limit)]


_LAST_STEP: Final = """
SELECT value AS run,
  (SELECT name FROM durable_steps WHERE run_id = value AND branch = '' ORDER BY seq DESC LIMIT 1) AS name
FROM json_each(:rows)
"""


def last_steps(tx: Tx, rows: Sequence[int]) -> dict[int, str]:
    """The operation recorded last, branches aside, of some runs (by row id); none of a run that has none."""
    found = tx.rows(_LAST_STEP, rows=json.dumps(list(rows)))
    return {row["run"]: row["name"] for row in found if row["name"] is not None}
