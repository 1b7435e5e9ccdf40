"""SQL for owners: the processes that execute runs, dead ones included until somebody removes them."""

from __future__ import annotations

from typing import Any

from durable_cli.store.transaction import Tx


def register(tx: Tx, *, pid: int, kind: str, now: int) -> int:
    """A new owner's id, never used before. Its byte of the lock file has to be taken before the commit."""
    return tx.insert(
        "INSERT INTO durable_owners (pid, kind, created_at) VALUES (:pid, :kind, :now)", pid=pid, kind=kind, now=now
    )


def remove(tx: Tx, owner_id: int) -> bool:
    """Forget an owner that has no run; False where there is none of that id."""
    return tx.change("DELETE FROM durable_owners WHERE id = :id", id=owner_id) == 1


def every(tx: Tx) -> list[dict[str, Any]]:
    """All owners, oldest first: `id`, `pid`, `kind`, `created_at` and `runs`, how many they have."""
    return tx.rows(
        "SELECT o.id, o.pid, o.kind, o.created_at,"
        " (SELECT count(*) FROM durable_runs r WHERE r.owner_id = o.id) AS runs"
        " FROM durable_owners o ORDER BY o.id"
    )


def unused(tx: Tx) -> list[int]:
    """The ids of owners that have no run, oldest first. A dead one of them can be removed."""
    rows = tx.rows(
        "SELECT o.id FROM durable_owners o"
        " WHERE NOT EXISTS (SELECT 1 FROM durable_runs r WHERE r.owner_id = o.id) ORDER BY o.id"
    )
    return [int(row["id"]) for row in rows]


def workers(tx: Tx) -> list[int]:
    """The owners that are workers, dead ones too."""
    return [row["id"] for row in tx.rows("SELECT id FROM durable_owners WHERE kind = 'worker' ORDER BY id")]


def set_kind(tx: Tx, owner_id: int, kind: str) -> None:
    """The owner is a worker from now on, or no longer."""
    tx.change("UPDATE durable_owners SET kind = :kind WHERE id = :id", id=owner_id, kind=kind)
