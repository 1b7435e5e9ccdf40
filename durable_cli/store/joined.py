"""Taking part in a transaction that an application began on its own connection to the same file.

The application's COMMIT decides: rolled back, nothing of ours ever was. What listeners and workers are told therefore
waits for it. SQLite tells us of the statement (apsw's `trace_v2`), not of its success, and nothing may be asked on the
connection from there: so a thread of its own looks, on durable's own connection, whether what was written is there.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import apsw

from durable_cli.errors import UsageError
from durable_cli.store import guard, schema
from durable_cli.store.transaction import Notice, Tx

T = TypeVar("T")
_TRACE_ID = "durable"


@dataclass(slots=True)
class _Joined:
    """An application's connection that took part. `waiting`: what to do once its transaction has ended."""

    thread: int
    path: Path
    waiting: list[Callable[[], bool]] = field(default_factory=list)


_joined: weakref.WeakKeyDictionary[apsw.Connection, _Joined] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def within(connection: object, path: Path, fn: Callable[[Tx], T]) -> tuple[T, list[Notice]]:
    """What `fn` returns, having written inside the caller's transaction, and what is to be told if that commits.

    What raises undoes what `fn` wrote, and only that (a savepoint). Raises UsageError for a connection of another
    kind or to another file, and for one without a write transaction.
    """
    ours = _checked(connection, path)
    tx = Tx(ours, path)
    with tx.savepoint():
        wanted = schema.current()
        if schema.version(tx, wanted, path) == 0:
            schema.create(tx, wanted)
        result = fn(tx)
    with _lock:
        known = ours in _joined
        if not known:
            _joined[ours] = _Joined(threading.get_ident(), path)
        _joined[ours].thread = threading.get_ident()
    if not known:
        guard.protect(path)
        weakref.finalize(ours, guard.release, path)
    return result, tx.notices


def after_commit(connection: object, act: Callable[[], bool]) -> None:
    """Call `act` in a thread each time the connection's transaction ends, until it says True: done, or in vain."""
    assert isinstance(connection, apsw.Connection)
    with _lock:
        _joined[connection].waiting.append(act)
    reference = weakref.ref(connection)
    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, lambda event: _traced(reference, event), id=_TRACE_ID)


def holds_write(path: Path) -> bool:
    """Does this thread hold a write transaction on the file, on a connection that took part before? Waiting for it
    would be waiting for ourselves."""
    with _lock:
        mine = [
            one for one, joined in _joined.items() if joined.thread == threading.get_ident() and joined.path == path
        ]
    return any(_writes(one) for one in mine)


def _writes(connection: apsw.Connection) -> bool:
    try:
        return connection.txn_state("main") == apsw.SQLITE_TXN_WRITE
    except apsw.ConnectionClosedError:
        return False


def _traced(reference: weakref.ref[apsw.Connection], event: dict[str, Any]) -> None:
    # After each statement, whatever it is: a transaction ends by COMMIT, by releasing a savepoint, by an error.
    connection = reference()
    if connection is None or connection.in_transaction:
        return
    with _lock:
        joined = _joined.get(connection)
        acts, kept = (list(joined.waiting), joined.waiting) if joined else ([], [])
        kept.clear()
    if acts:
        threading.Thread(target=_look, args=(reference, acts), name="durable-after-commit").start()


def _look(reference: weakref.ref[apsw.Connection], acts: list[Callable[[], bool]]) -> None:
    left = [act for act in acts if not act()]
    connection = reference()
    if left and connection is not None:
        with _lock:
            if connection in _joined:
                _joined[connection].waiting.extend(left)


def _checked(connection: object, path: Path) -> apsw.Connection:
    if not isinstance(connection, apsw.Connection):
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        why = "it is of another SQLite library, and two of them in one process on one file lose data"
        reason = why if kind.startswith("sqlite3.") else f"it is a {kind}"
        raise UsageError(f"connection= takes an apsw.Connection to {path}: {reason}", hint="use apsw.Connection(path)")
    if not _same_file(connection, path):
        raise UsageError(f"connection= is open on {connection.filename or 'no file'}, not on {path}")
    state = connection.txn_state("main")
    if state == apsw.SQLITE_TXN_WRITE:
        return connection
    what = "only a read transaction, which cannot safely become a write" if state else "no transaction"
    raise UsageError(
        f"connection= has {what}; durable takes part in one that was begun for writing",
        hint='connection.execute("BEGIN IMMEDIATE") before the start',
    )


def _same_file(connection: apsw.Connection, path: Path) -> bool:
    try:
        theirs, ours = os.stat(connection.filename), os.stat(path)
    except OSError:
        return False
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)
