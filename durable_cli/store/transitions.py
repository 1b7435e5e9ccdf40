"""SQL for every transition of a run's row, each by its name. No decisions: those are core's."""

from __future__ import annotations

from typing import Final

from durable_cli.model import FINISHED, RunError, Status
from durable_cli.store.database import Notice, Tx
from durable_cli.store.history import error_text
from durable_cli.store.runs import ours

_FINISHED_SQL: Final = ", ".join(f"'{status}'" for status in sorted(FINISHED))


def _notice(tx: Tx, row_id: int, status: str, error: RunError | None) -> Notice:
    row = tx.row(
        "SELECT r.public_id AS run_id, w.name AS workflow, r.key FROM durable_runs r"
        " JOIN durable_workflows w ON w.id = r.workflow_id WHERE r.id = :id",
        id=row_id,
    )
    told = {} if error is None else {"error": f"{error.type}: {error.message}"}
    return Notice(f"run.{status}", {**(row or {}), **told})


_INSERT = """
INSERT INTO durable_runs
  (public_id, workflow_id, key, holds_key, runs_after_id, input, created_at, due_at, held_since,
   timeout_ms, deadline_at, parent_id, debounced)
VALUES
  (:public_id, :workflow, :key, :holds, :after, :input, :now, :due_at, CASE WHEN :holds THEN :now END,
   :timeout, CASE WHEN :after IS NULL THEN :due_at + :timeout END, :parent, :debounced)
"""


def insert(
    tx: Tx,
    *,
    public_id: str,
    workflow_id: int,
    key: str | None,
    input: str,
    now: int,
    due_at: int | None,
    runs_after: int | None = None,
    timeout_ms: int | None = None,
    parent: int | None = None,
    debounced: bool = False,
) -> int:
    """A new pending run: without key, holding its key, or waiting behind `runs_after` (then its timeout does not count
    yet, and it has a due time only if its start asked for one)."""
    tx.notices.append(Notice("run.started", {"run_id": public_id, "key": key}))
    return tx.insert(
        _INSERT,
        public_id=public_id,
        workflow=workflow_id,
        key=key,
        holds=int(key is not None and runs_after is None),
        after=runs_after,
        input=input,
        now=now,
        due_at=due_at,
        timeout=timeout_ms,
        parent=parent,
        debounced=int(debounced),
    )


def drop_key(tx: Tx, row_id: int) -> None:
    """The run no longer holds its key; it keeps the key's text."""
    tx.change("UPDATE durable_runs SET holds_key = 0, held_since = NULL WHERE id = :id", id=row_id)


_PROMOTE = """
UPDATE durable_runs
SET runs_after_id = NULL, holds_key = 1, held_since = :now,
    due_at = max(:now, coalesce(due_at, :now)), deadline_at = max(:now, coalesce(due_at, :now)) + timeout_ms
WHERE id = :id
"""


def promote(tx: Tx, row_id: int, now: int) -> None:
    """A waiting run takes the key and is due, unless its start asked for a later moment."""
    tx.change(_PROMOTE, id=row_id, now=now)


def wait_behind(tx: Tx, row_id: int, ahead: int) -> None:
    """A waiting run waits behind another run from now on."""
    tx.change("UPDATE durable_runs SET runs_after_id = :ahead WHERE id = :id", id=row_id, ahead=ahead)


def set_input(tx: Tx, row_id: int, input: str) -> None:
    """A run that has not begun takes a newer input."""
    tx.change("UPDATE durable_runs SET input = :input WHERE id = :id AND epoch = 0", id=row_id, input=input)


_POSTPONE = """
UPDATE durable_runs
SET input = :input, due_at = :due, deadline_at = CASE WHEN runs_after_id IS NULL THEN :due + timeout_ms END
WHERE id = :id AND epoch = 0
"""


def postpone(tx: Tx, row_id: int, input: str, due_at: int) -> None:
    """A run that has not begun takes a newer input and does not begin before `due_at`."""
    tx.change(_POSTPONE, id=row_id, input=input, due=due_at)


def stay_by(tx: Tx, row_id: int, owner_id: int) -> bool:
    """Make `owner_id` the owner of a run that has not begun and is not due yet. False: it has an owner."""
    return 1 == tx.change(
        "UPDATE durable_runs SET owner_id = :owner WHERE id = :id AND status = 'pending' AND epoch = 0"
        " AND owner_id IS NULL AND runs_after_id IS NULL",
        id=row_id,
        owner=owner_id,
    )


_BEGIN = """
UPDATE durable_runs SET status = 'running', epoch = 1, due_at = NULL, note = NULL, started_at = :now
WHERE id = :id AND owner_id = :owner AND epoch = 0 AND status = 'pending' AND due_at <= :now
"""


def begin(tx: Tx, row_id: int, owner_id: int, now: int) -> bool:
    """The owner that stayed by a run until it was due begins it. False: it is not its any more, or not due."""
    return 1 == tx.change(_BEGIN, id=row_id, owner=owner_id, now=now)


_CLAIM = """
UPDATE durable_runs
SET owner_id = :owner, epoch = epoch + 1, due_at = NULL, note = NULL, started_at = coalesce(started_at, :now),
    status = CASE status WHEN 'compensating' THEN status ELSE 'running' END
WHERE id = :id AND finished_at IS NULL AND runs_after_id IS NULL AND owner_id IS NULL
RETURNING epoch
"""


def claim(tx: Tx, row_id: int, owner_id: int, now: int) -> int | None:
    """Make `owner_id` the owner. Returns the new epoch, or None if the run has one or cannot have one."""
    epoch: int | None = tx.value(_CLAIM, id=row_id, owner=owner_id, now=now)
    return epoch


def progress(tx: Tx, row_id: int, owner_id: int, epoch: int) -> bool:
    """The fence for a record: also sets the count of crashes in a row back to 0."""
    if not ours(tx, row_id, owner_id, epoch):
        return False
    tx.change("UPDATE durable_runs SET crashes = 0 WHERE id = :id AND crashes > 0", id=row_id)
    return True


_REST = """
UPDATE durable_runs
SET due_at = :due, owner_id = CASE WHEN :stay THEN owner_id END,
    status = CASE status WHEN 'compensating' THEN status ELSE 'waiting' END
WHERE id = :id
"""


def rest(tx: Tx, row_id: int, due_at: int | None, *, stay: bool) -> None:
    """The run waits. `stay`: its owner stays by it; else anybody may go on with it when it is due."""
    tx.change(_REST, id=row_id, due=due_at, stay=int(stay))


_GO_ON = """
UPDATE durable_runs
SET due_at = NULL, status = CASE status WHEN 'compensating' THEN status ELSE 'running' END
WHERE id = :id
"""


def go_on(tx: Tx, row_id: int) -> None:
    """A resting run is executed again by the owner that stayed by it."""
    tx.change(_GO_ON, id=row_id)


def wake(tx: Tx, row_id: int, now: int) -> None:
    """A resting run has something new to look at: it is due now, unless it is already."""
    tx.change(
        "UPDATE durable_runs SET due_at = :now WHERE id = :id AND status = 'waiting'"
        " AND (due_at IS NULL OR due_at > :now)",
        id=row_id,
        now=now,
    )


_COMPENSATE = """
UPDATE durable_runs
SET status = 'compensating', error = :error, deadline_at = NULL, crashes = 0,
    due_at = CASE WHEN owner_id IS NULL THEN :now END
WHERE id = :id
"""


def compensate(tx: Tx, row_id: int, error: RunError, now: int) -> None:
    """The run has failed and undoes what it did: its owner at once, else whoever claims it."""
    tx.notices.append(_notice(tx, row_id, "compensating", error))
    tx.change(_COMPENSATE, id=row_id, error=error_text(error), now=now)


def fence_off(tx: Tx, row_id: int) -> int:
    """Raise the epoch, so that nothing of the present one is accepted any more. Returns the new one."""
    epoch: int = tx.value("UPDATE durable_runs SET epoch = epoch + 1 WHERE id = :id RETURNING epoch", id=row_id)
    return epoch


def note(tx: Tx, row_id: int, text: str) -> None:
    """Why nobody goes on with the run."""
    tx.change("UPDATE durable_runs SET note = :text WHERE id = :id", id=row_id, text=text)


_NOTE_DUE = """
UPDATE durable_runs SET note = :text
WHERE workflow_id = (SELECT id FROM durable_workflows WHERE name = :workflow) AND finished_at IS NULL
  AND owner_id IS NULL AND due_at <= :now AND note IS NOT :text
"""


def note_due(tx: Tx, workflow: str, text: str, now: int) -> None:
    """Why nobody goes on with those runs of a workflow that are due."""
    tx.change(_NOTE_DUE, workflow=workflow, text=text, now=now)


_GIVE_BACK = """
UPDATE durable_runs
SET owner_id = NULL, crashes = crashes + :crash,
    due_at = CASE WHEN status <> 'waiting' THEN coalesce(due_at, :now)
                  WHEN EXISTS (SELECT 1 FROM durable_steps s JOIN durable_runs child ON child.id = s.child_id
                               WHERE s.run_id = durable_runs.id AND s.status = 'waiting' AND child.finished_at IS NULL)
                  THEN min(coalesce(due_at, :now), :now) ELSE due_at END,
    status = CASE status WHEN 'running' THEN 'pending' ELSE status END
WHERE id = :id AND finished_at IS NULL
"""


def give_back(tx: Tx, row_id: int, now: int, *, crash: bool) -> None:
    """The run has no owner any more and may be claimed. `crash`: its owner died while it executed.

    One that waits for a child is due: its owner may have been the one to execute the child, and whoever takes it up
    in the foreground goes on with that.
    """
    tx.change(_GIVE_BACK, id=row_id, now=now, crash=int(crash))


_END = f"""
UPDATE durable_runs
SET status = :status, result = :result, error = :error, finished_at = :now,
    owner_id = NULL, due_at = NULL, runs_after_id = NULL, deadline_at = NULL, note = NULL
WHERE id = :id AND status NOT IN ({_FINISHED_SQL})
"""


def end(tx: Tx, row_id: int, *, status: Status, result: str | None, error: RunError | None, now: int) -> None:
    """The run is finished. For `settling` alone: ending a run also decides who has the key next."""
    tx.notices.append(_notice(tx, row_id, str(status), error))
    tx.change(_END, id=row_id, status=str(status), result=result, error=error_text(error), now=now)


_REVIVE = """
UPDATE durable_runs
SET status = 'pending', error = NULL, finished_at = NULL, due_at = :now, crashes = 0, debounced = 0,
    deadline_at = :now + timeout_ms,
    holds_key = (key IS NOT NULL),
    held_since = CASE WHEN key IS NULL THEN NULL WHEN holds_key = 1 THEN held_since ELSE :now END
WHERE id = :id
"""


def revive(tx: Tx, row_id: int, now: int) -> None:
    """A failed or cancelled run is pending again, in place, and holds its key if it has one."""
    tx.change(_REVIVE, id=row_id, now=now)
