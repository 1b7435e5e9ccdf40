"""`check`: is the file sound, and are the promises about keys kept? Also finds what the CHECK constraints forbid.

Run after every stress test, and by `durable db check`.
"""

from __future__ import annotations

from durable_cli.errors import DatabaseCorrupt
from durable_cli.store.transaction import Tx

_FINISHED = "('completed', 'failed', 'cancelled', 'compensated', 'compensation_failed')"

# (what is wrong with it, rows that are so: `id` is a run's public id or another name, `more` completes the sentence)
_BROKEN: tuple[tuple[str, str], ...] = (
    (
        "key {id} of workflow {more} has more than one holder",
        "SELECT r.key AS id, coalesce(w.name, r.workflow_id) AS more FROM durable_runs r"
        " LEFT JOIN durable_workflows w ON w.id = r.workflow_id"
        " WHERE r.holds_key = 1 GROUP BY r.workflow_id, r.key HAVING count(*) > 1",
    ),
    (
        "key {id} of workflow {more} has more than one waiting run",
        "SELECT r.key AS id, coalesce(w.name, r.workflow_id) AS more FROM durable_runs r"
        " LEFT JOIN durable_workflows w ON w.id = r.workflow_id"
        " WHERE r.runs_after_id IS NOT NULL GROUP BY r.workflow_id, r.key HAVING count(*) > 1",
    ),
    (
        "run {id} holds a key and has none",
        "SELECT public_id AS id, '' AS more FROM durable_runs WHERE holds_key <> 0 AND key IS NULL",
    ),
    (
        "run {id} is {more} and neither holds its key nor waits for it",
        "SELECT public_id AS id, status AS more FROM durable_runs"
        f" WHERE key IS NOT NULL AND holds_key = 0 AND runs_after_id IS NULL AND status NOT IN {_FINISHED}",
    ),
    (
        "run {id} waits behind a run that does not exist",
        "SELECT r.public_id AS id, '' AS more FROM durable_runs r LEFT JOIN durable_runs h ON h.id = r.runs_after_id"
        " WHERE r.runs_after_id IS NOT NULL AND h.id IS NULL",
    ),
    (
        "run {id} waits behind run {more}, which has another key",
        "SELECT r.public_id AS id, h.public_id AS more FROM durable_runs r"
        " JOIN durable_runs h ON h.id = r.runs_after_id"
        " WHERE h.workflow_id <> r.workflow_id OR h.key IS NOT r.key",
    ),
    (
        "run {id} waits behind run {more}, which does not hold the key",
        "SELECT r.public_id AS id, h.public_id AS more FROM durable_runs r"
        " JOIN durable_runs h ON h.id = r.runs_after_id"
        " WHERE h.holds_key = 0",
    ),
    (
        "run {id} waits behind run {more}, which is finished: it should have taken the key",
        "SELECT r.public_id AS id, h.public_id AS more FROM durable_runs r"
        " JOIN durable_runs h ON h.id = r.runs_after_id"
        f" WHERE h.status IN {_FINISHED}",
    ),
    (
        "run {id} waits behind another although it is {more}",
        "SELECT public_id AS id, CASE WHEN holds_key <> 0 THEN 'the holder' WHEN owner_id IS NOT NULL THEN 'owned'"
        " ELSE status END AS more FROM durable_runs"
        " WHERE runs_after_id IS NOT NULL AND (holds_key <> 0 OR owner_id IS NOT NULL OR status <> 'pending')",
    ),
    (
        "run {id} is running without an owner",
        "SELECT public_id AS id, '' AS more FROM durable_runs WHERE status = 'running' AND owner_id IS NULL",
    ),
    (
        "run {id} has owner {more}, who is not in the list of owners",
        "SELECT r.public_id AS id, r.owner_id AS more FROM durable_runs r"
        " LEFT JOIN durable_owners o ON o.id = r.owner_id WHERE r.owner_id IS NOT NULL AND o.id IS NULL",
    ),
    (
        "run {id} is {more} and still has an owner or a due time",
        "SELECT public_id AS id, status AS more FROM durable_runs"
        f" WHERE status IN {_FINISHED} AND (owner_id IS NOT NULL OR due_at IS NOT NULL)",
    ),
    (
        "run {id} is {more} and has no moment at which it finished",
        f"SELECT public_id AS id, status AS more FROM durable_runs WHERE status IN {_FINISHED} AND finished_at IS NULL",
    ),
    (
        "run {id} is {more} and has a moment at which it finished",
        "SELECT public_id AS id, status AS more FROM durable_runs"
        f" WHERE status NOT IN {_FINISHED} AND finished_at IS NOT NULL",
    ),
    (
        "run {id} is pending and will never be due",
        "SELECT public_id AS id, '' AS more FROM durable_runs"
        " WHERE status = 'pending' AND due_at IS NULL AND runs_after_id IS NULL",
    ),
    (
        "run {id} belongs to a workflow that does not exist",
        "SELECT r.public_id AS id, '' AS more FROM durable_runs r LEFT JOIN durable_workflows w ON w.id = r.workflow_id"
        " WHERE w.id IS NULL",
    ),
    (
        "step {more} belongs to run number {id}, which does not exist",
        "SELECT s.run_id AS id, s.name AS more FROM durable_steps s LEFT JOIN durable_runs r ON r.id = s.run_id"
        " WHERE r.id IS NULL",
    ),
)


def check(tx: Tx, *, quick: bool = False) -> list[str]:
    """What is wrong with the file, a sentence each; empty: nothing.

    `quick`: without comparing the indexes with their tables, in a fifth of the time.
    """
    pragma = "quick_check" if quick else "integrity_check"
    rows, damage = tx.rows_before_damage(f"PRAGMA {pragma}")
    found = [f"the file is damaged: {row[pragma]}" for row in rows if row[pragma] != "ok"]
    if damage is not None:
        return [*found, damage.message]
    try:
        found += [
            f"a row of {row['table']} refers to a row of {row['parent']} that does not exist"
            for row in tx.rows("PRAGMA foreign_key_check")
            if str(row["table"]).startswith("durable_")
        ]
        for sentence, sql in _BROKEN:
            found += [sentence.format(**row) for row in tx.rows(sql)]
    except DatabaseCorrupt as error:
        found.append(error.message)
    return found
