"""SQL for what is known of workflows: policies in force and where their code is."""

from __future__ import annotations

from typing import Any

from durable_cli.model import Location, OnDuplicate, Policies, Policy, Reuse, Workflow
from durable_cli.store.database import Tx

_POLICIES = (
    "reuse",
    "on_duplicate",
    "timeout_ms",
    "debounce_ms",
    "debounce_timeout_ms",
    "max_hold_ms",
    "on_max_hold",
    "on_mismatch",
    "key_rule",
)
_FIELDS = ("name", "file", "qualname", "module", "app_dir", *_POLICIES)
_COLUMNS = ", ".join(("id", *_FIELDS))


def _from_row(row: dict[str, Any]) -> Workflow:
    policy, _, event = row["on_duplicate"].partition(":")
    policies = {name: row[name] for name in _POLICIES}
    policies["reuse"] = Reuse(row["reuse"])
    policies["on_duplicate"] = OnDuplicate(Policy(policy), event or None)
    return Workflow(
        id=row["id"],
        name=row["name"],
        location=Location(file=row["file"], qualname=row["qualname"], module=row["module"], app_dir=row["app_dir"]),
        policies=Policies(**policies),
    )


def get(tx: Tx, name: str) -> Workflow | None:
    """The workflow of that name."""
    row = tx.row(f"SELECT {_COLUMNS} FROM durable_workflows WHERE name = :name", name=name)
    return _from_row(row) if row else None


def names(tx: Tx) -> list[str]:
    """All names, sorted."""
    return [row["name"] for row in tx.rows("SELECT name FROM durable_workflows ORDER BY name")]


_COUNTS = """
SELECT w.name, r.status, count(*) AS n, sum(r.holds_key) AS held
FROM durable_runs r JOIN durable_workflows w ON w.id = r.workflow_id
WHERE :workflow IS NULL OR w.name = :workflow
GROUP BY w.id, r.status ORDER BY w.name, r.status
"""


def counts(tx: Tx, workflow: str | None = None) -> dict[str, tuple[dict[str, int], int]]:
    """By the name of each workflow that has runs: its runs by status, and how many of them hold a key."""
    found: dict[str, tuple[dict[str, int], int]] = {}
    for row in tx.rows(_COUNTS, workflow=workflow):
        runs, held = found.get(row["name"], ({}, 0))
        found[row["name"]] = ({**runs, row["status"]: row["n"]}, held + row["held"])
    return found


_INSERT = f"""
INSERT INTO durable_workflows ({", ".join(_FIELDS)}, updated_at)
VALUES ({", ".join(f":{field}" for field in _FIELDS)}, :now)
"""
_UPDATE = f"""
UPDATE durable_workflows SET {", ".join(f"{field} = :{field}" for field in _FIELDS)}, updated_at = :now
WHERE name = :name
"""


def put(tx: Tx, *, name: str, location: Location, policies: Policies, known: Workflow | None, now: int) -> int:
    """Write the workflow's row if it differs from `known` (what `get` gave). Returns its id."""
    if known is not None and known == Workflow(known.id, name, location, policies):
        return known.id
    values = {field: getattr(policies, field) for field in _POLICIES}
    values |= {
        "name": name,
        "file": location.file,
        "qualname": location.qualname,
        "module": location.module,
        "app_dir": location.app_dir,
        "reuse": str(policies.reuse),
        "on_duplicate": str(policies.on_duplicate),
        "now": now,
    }
    if known is None:
        return tx.insert(_INSERT, **values)
    tx.change(_UPDATE, **values)
    return known.id
