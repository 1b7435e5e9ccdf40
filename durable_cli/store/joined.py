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

from durable_cli.errors import DatabaseNotFound, UsageError
from durable_cli.store import files, filesystem, guard, process, schema
from durable_cli.store.transaction import Notice, Tx

T = TypeVar("T")
_TRACE_ID = "durable"


@dataclass(slots=True)
class _Joined:
    """An application's connection that took part. `thread`: in whose transaction, until that has ended; `waiting`:
    what to do then."""

    thread: int | None
    path: Path
    end: weakref.finalize[..., apsw.Connection]
    waiting: list[Callable[[], bool]] = field(default_factory=list)


_joined: weakref.WeakKeyDictionary[apsw.Connection, _Joined] = weakref.WeakKeyDictionary()
_inherited: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()  # the parent's: not even to be looked at
_born_within: set[Path] = set()  # files on which the parent had a transaction open when it forked this process
_lock = threading.Lock()


def within(connection: object, path: Path, fn: Callable[[Tx], T], *, create: bool = True) -> tuple[T, list[Notice]]:
    """What `fn` returns, having written inside the caller's transaction, and what is to be told if that commits.

    What raises undoes what `fn` wrote, and only that (a savepoint). `create`: make durable's tables where there are
    none. Raises UsageError for a connection of another kind or to another file, and for one without a write
    transaction; DatabaseUnusable for a file that durable would not use itself; DatabaseNotFound.
    """
    ours = _checked(connection, path)
    if ours not in _joined:
        filesystem.check(path)
        files.make_ready(path, create=False)
    tx = Tx(ours, path)
    with tx.savepoint():
        wanted = schema.current()
        if schema.version(tx, wanted, path) == 0:
            if not create:
                raise DatabaseNotFound(f"there is no durable database in {path}: it has none of durable's tables")
            schema.create(tx, wanted)
        result = fn(tx)
    with _lock:
        if ours not in _joined:
            guard.protect(path)
            _joined[ours] = _Joined(None, path, weakref.finalize(ours, guard.release, path))
        _joined[ours].thread = threading.get_ident()
    return result, tx.notices


def after_commit(connection: object, act: Callable[[], bool]) -> None:
    """Call `act` in a thread each time the connection's transaction ends, until it says True: done, or in vain."""
    assert isinstance(connection, apsw.Connection)
    with _lock:
        _joined[connection].waiting.append(act)
    reference = weakref.ref(connection)
    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, lambda event: _traced(reference, event), id=_TRACE_ID)


def refuse_to_wait(path: Path) -> None:
    """UsageError where this thread holds a write transaction on the file, on a connection of the application's:
    waiting for it would be waiting for ourselves.

    Known of a transaction that took part, and wherever there is one thread only: SQLite does not say whose it is.
    """
    if path in _born_within:
        raise UsageError(
            f"this process was forked in the middle of a transaction on {path}, and SQLite takes that for its own: it"
            " can never write there",
            hint="fork before the transaction or after it, or start a new program (subprocess, spawn)",
        )
    with _lock:
        mine = [one for one, joined in _joined.items() if joined.thread == threading.get_ident()]
    alone = threading.active_count() == 1
    if writers(path) if alone else any(_writes(one) and _same_file(one, path) for one in mine):
        raise UsageError(
            f"this thread holds a write transaction of its own on {path}: the call would wait for it for ever",
            hint="pass connection= where a call takes it, or commit first",
        )


def writers(path: Path) -> list[apsw.Connection]:
    """The application's connections in this process that hold a write transaction on the file."""
    others = [one for one in apsw.connections() if one not in _inherited and one not in process.ours()]
    return [one for one in others if _writes(one) and _same_file(one, path)]


def _writes(connection: apsw.Connection) -> bool:
    try:
        return connection.txn_state("main") == apsw.SQLITE_TXN_WRITE
    except (apsw.ConnectionClosedError, apsw.ThreadingViolationError):
        return False  # closed, or in use by another thread at this moment


def _traced(reference: weakref.ref[apsw.Connection], event: dict[str, Any]) -> None:
    # After each statement, whatever it is: a transaction ends by COMMIT, by releasing a savepoint, by an error.
    connection = reference()
    if connection is None or connection.in_transaction:
        return
    with _lock:
        joined = _joined.get(connection)
        if joined is None:
            return
        joined.thread = None
        acts, joined.waiting = joined.waiting, []
    if acts:
        try:
            threading.Thread(target=_look, args=(reference, acts), name="durable-after-commit").start()
        except RuntimeError:  # no more threads; raised here, it would come out of a COMMIT that was done
            with _lock:
                joined.waiting.extend(acts)


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
    try:
        if not _same_file(connection, path):
            raise UsageError(f"connection= is open on {connection.filename or 'no file'}, not on {path}")
        state = connection.txn_state("main")
    except apsw.Error as error:
        raise UsageError(f"connection= cannot be used: {error}") from error
    if state == apsw.SQLITE_TXN_WRITE:
        return connection
    what = "only a read transaction, which cannot safely become a write" if state else "no transaction"
    raise UsageError(
        f"connection= has {what}; durable takes part in one that was begun for writing",
        hint='connection.execute("BEGIN IMMEDIATE") before the start',
    )


def _same_file(connection: apsw.Connection, path: Path) -> bool:
    # By its name too: through another hard link SQLite would use another -wal.
    try:
        name = os.path.realpath(connection.filename)
        return name == str(path) and files.identity(name) is not None
    except apsw.Error:
        return False


def _forget() -> None:
    # A forked child has no transaction of the parent's, and whoever held the lock is not there.
    global _lock
    _lock = threading.Lock()
    _inherited.update(apsw.connections())
    for joined in _joined.values():
        joined.end.detach()
        if joined.thread is not None:
            _born_within.add(joined.path)
    _joined.clear()


process.on_fork(forget=_forget)
