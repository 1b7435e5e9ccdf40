"""SQL for what is known of workflows: policies in force and where their code is."""

from __future__ import annotations

from typing import Any

from durable_cli.model import Location, OnDuplicate, Policy, Reuse, Workflow
from durable_cli.store.database import Tx

_COLUMNS = "id, name, file, qualname, module, app_dir, reuse, on_duplicate, timeout_ms"


def _from_row(row: dict[str, Any]) -> Workflow:
    policy, _, event = row["on_duplicate"].partition(":")
    return Workflow(
        id=row["id"],
        name=row["name"],
        location=Location(
            file=row["file"], qualname=row["qualname"], module=row["module"], app_dir=row["app_dir"]
        ),
        reuse=Reuse(row["reuse"]),
        on_duplicate=OnDuplicate(Policy(policy), event or None),
        timeout_ms=row["timeout_ms"],
    )


def get(tx: Tx, name: str) -> Workflow | None:
    """The workflow of that name."""
    row = tx.row(f"SELECT {_COLUMNS} FROM durable_workflows WHERE name = :name", name=name)
    return _from_row(row) if row else None


def names(tx: Tx) -> list[str]:
    """All names, sorted."""
    return [row["name"] for row in tx.rows("SELECT name FROM durable_workflows ORDER BY name")]


_INSERT = """
INSERT INTO durable_workflows (name, file, qualname, module, app_dir, reuse, on_duplicate, timeout_ms, updated_at)
VALUES (:name, :file, :qualname, :module, :app_dir, :reuse, :on_duplicate, :timeout_ms, :now)
"""

_UPDATE = """
UPDATE durable_workflows
SET file = :file, qualname = :qualname, module = :module, app_dir = :app_dir,
    reuse = :reuse, on_duplicate = :on_duplicate, timeout_ms = :timeout_ms, updated_at = :now
WHERE name = :name
"""


def put(
    tx: Tx,
    *,
    name: str,
    location: Location,
    reuse: Reuse,
    on_duplicate: OnDuplicate,
    timeout_ms: int | None,
    known: Workflow | None,
    now: int,
) -> int:
    """Write the workflow's row if it differs from `known` (what `get` gave). Returns its id."""
    if known is not None and known == Workflow(known.id, name, location, reuse, on_duplicate, timeout_ms):
        return known.id
    values = {
        "name": name,
        "file": location.file,
        "qualname": location.qualname,
        "module": location.module,
        "app_dir": location.app_dir,
        "reuse": str(reuse),
        "on_duplicate": str(on_duplicate),
        "timeout_ms": timeout_ms,
        "now": now,
    }
    if known is None:
        return tx.insert(_INSERT, **values)
    tx.change(_UPDATE, **values)
    return known.id
