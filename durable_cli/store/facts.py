"""SQL for `durable db info`: what is in the file, counted."""

from __future__ import annotations

from typing import Any, Final

from durable_cli.store.database import Tx

_PRAGMAS: Final = {"page_size": "page_size", "pages": "page_count", "free_pages": "freelist_count"}
_COUNTS: Final = """
SELECT
  (SELECT count(*) FROM durable_runs) AS runs,
  (SELECT count(*) FROM durable_runs WHERE finished_at IS NULL) AS unfinished,
  (SELECT count(*) FROM (
    SELECT DISTINCT key, workflow_id FROM durable_runs INDEXED BY durable_runs_by_key WHERE key IS NOT NULL)) AS keys,
  (SELECT count(*) FROM durable_activity) AS activity,
  (SELECT count(*) FROM durable_workflows) AS workflows,
  (SELECT count(*) FROM durable_schedules) AS schedules
"""


def of_file(tx: Tx) -> dict[str, Any]:
    """`page_size`, `pages`, `free_pages`, `schema_version`; how many `runs` (`unfinished` ones), `keys` that have
    runs, rows of `activity`, `workflows` and `schedules` there are."""
    found: dict[str, Any] = {name: tx.value(f"PRAGMA {pragma}") for name, pragma in _PRAGMAS.items()}
    return {**found, "schema_version": schema_version(tx), **(tx.row(_COUNTS) or {})}


def schema_version(tx: Tx) -> int:
    """The version of the schema that the file has."""
    return int(tx.value("SELECT value FROM durable_meta WHERE name = 'schema_version'"))
