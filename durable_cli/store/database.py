"""`Database`: the one place that opens connections and begins and ends transactions.

One connection a process and database, behind one lock (`process.LOCK`). Every write is BEGIN IMMEDIATE, looks whether
the file under the path is still the one that is open, and knows that a COMMIT which raised has an unknown outcome.
"""

from __future__ import annotations

import os
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

from durable_cli.errors import (
    DatabaseCorrupt,
    DatabaseLocked,
    DatabaseNotFound,
    DatabaseUnusable,
    DiskError,
    DiskFull,
    DurableError,
    InternalError,
)
from durable_cli.store import copying, failures, files, filesystem, guard, joined, library, process, schema
from durable_cli.store.contention import Contention
from durable_cli.store.copying import Backup as Backup
from durable_cli.store.transaction import Notice as Notice
from durable_cli.store.transaction import Tx as Tx

T = TypeVar("T")

_MAX_VALUE = 64 << 20  # bytes
_JOURNAL_LIMIT = 16 << 20  # bytes the -wal file is cut to when it starts anew


class Database:
    """The database at `path`: opened at first use, usable by all threads, opened anew after a fork.

    `create`: make the file where there is none; without it such a path is `DatabaseNotFound`. `vfs`, `sleep`, `dice`
    and `wanted` (the schema) can be put in by tests.
    """

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        vfs: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        dice: Callable[[], float] = random.random,
        wanted: schema.Schema | None = None,
    ) -> None:
        try:
            self.path = Path(os.path.realpath(path))
        except ValueError as error:
            raise DatabaseUnusable(f"{str(path)!r} is not a path: {error}") from None
        self.create = create
        self._vfs = vfs
        self._contention = Contention(sleep=sleep, dice=dice)
        self._wanted = wanted
        self.on_commit: Callable[[list[Notice]], None] | None = None
        self._connection: apsw.Connection | None = None
        self._unguard: weakref.finalize[..., Database] | None = None  # also where nobody calls `close`
        self._at_once = False  # whether SQLite comes back at once from a lock that somebody else holds
        self._cookie: int | None = None  # SQLite's number of the schema that was last found to be ours
        self._identities: dict[str, files.Identity | None] = {}
        self._file: files.Identity | None = None  # the database until `close`: claims mean nothing in another one
        with process.LOCK:
            _databases.add(self)

    # -- transactions ----------------------------------------------------------------------------------------------

    def read(self, fn: Callable[[Tx], T], *, create: bool = True) -> T:
        """What `fn` reads, in one snapshot. `fn` must not write, and must not read or write through this object.

        `create=False`: DatabaseNotFound where the file or its tables would have to be made first.
        """
        with self._alone():
            connection = self._ready(create)
            with self._transaction(connection, "BEGIN") as tx:
                self._check_schema(tx)
                result = fn(tx)
                tx.stand()
                if connection.txn_state("main") == apsw.SQLITE_TXN_WRITE:
                    raise InternalError("a read transaction wrote; it was rolled back")
            self._roll_back(connection)
            return result

    def write(self, fn: Callable[[Tx], T], *, landed: Callable[[Tx], T | None] | None = None) -> T:
        """What `fn` returns, once all that it wrote is on disk; when it raises, nothing was written.

        `landed` is asked when COMMIT failed in a way that leaves the outcome open: the result if what `fn` wrote is
        there (it looks up an id that the caller made), None if not. Without it such a failure is `OutcomeUnknown`.

        Raises the errors of the file (`DatabaseLocked`, `DiskFull`, `DatabaseReplaced`, ...) and whatever `fn` raises.
        """
        result, notices = self._write(fn, landed)
        if notices and self.on_commit is not None:
            self.on_commit(notices)
        return result

    def _write(self, fn: Callable[[Tx], T], landed: Callable[[Tx], T | None] | None) -> tuple[T, list[Notice]]:
        joined.refuse_to_wait(self.path)
        wait, attempt = self._contention.patience(), 0
        while True:
            with self._alone():
                answer = self._write_now(fn, landed)
            if not isinstance(answer, DatabaseLocked):
                return answer
            # Not with this process's lock in hand: its other threads can read while another process writes.
            if not wait(attempt):
                raise failures.locked(self.path, here=bool(joined.writers(self.path))) from answer
            attempt += 1

    def _write_now(
        self, fn: Callable[[Tx], T], landed: Callable[[Tx], T | None] | None
    ) -> tuple[T, list[Notice]] | DatabaseLocked:
        """`_write`, unless somebody else is writing."""
        connection = self._ready()
        self._at_once = True
        try:
            with self._transaction(connection, "BEGIN IMMEDIATE") as tx:
                self._at_once = False
                self._check_schema(tx)
                result = fn(tx)
                tx.stand()
                self._check_identity()
        except DatabaseLocked as locked:
            if self._at_once:
                return locked
            raise
        finally:
            self._at_once = False
        failure = self._commit(connection)
        if failure is None:
            return result, tx.notices
        found = self._ask(failure, landed)
        if found is None:
            raise failure
        return found, tx.notices

    def back_up(self, target: Path) -> Backup:
        """Copy the file, as it is at this moment, to a new file `target`.

        Other processes go on meanwhile; other threads of this one wait (some 4 s for 168 MB). Raises UsageError and
        NotFound for a place that will not do, DiskFull, DatabaseCorrupt.
        """
        place = copying.refuse(target, self.path)
        with self._alone():
            return Backup(place, copying.copy(self._ready(), self.path, place, vfs=self._vfs))

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._alone():
            self._drop()
            self._file = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        within = process.LOCK._is_owned()  # type: ignore[attr-defined]  # as threading.Condition asks
        with process.LOCK:
            if not within:
                _tidy_up()
            if self.path in _busy_paths:
                raise InternalError("a transaction on this database is open in this thread already")
            try:
                _busy_paths.add(self.path)
                yield
            finally:
                # Also where a signal's handler raised between two lines: what it left open would lock everybody out.
                if self._connection is not None:
                    self._roll_back(self._connection)
                _busy_paths.discard(self.path)

    @contextmanager
    def _transaction(self, connection: apsw.Connection, begin: str) -> Iterator[Tx]:
        """An open transaction; what raises in the block rolls it back. The block's end leaves it open."""
        tx = Tx(connection, self.path)
        generation = process.generation()
        try:
            tx.change(begin)
            self._check_identity()
            yield tx
        except BaseException as error:
            if generation == process.generation():
                self._roll_back(connection)
                if isinstance(error, (DiskError, DatabaseCorrupt)):
                    self._check_identity()  # another file under the name is the likelier cause
            raise

    def _roll_back(self, connection: apsw.Connection) -> None:
        if not connection.in_transaction:  # a full disk and some I/O errors have rolled back by themselves
            return
        try:
            connection.execute("ROLLBACK")
        except apsw.Error:
            self._drop()

    # -- COMMIT and its unknown outcome ----------------------------------------------------------------------------

    def _commit(self, connection: apsw.Connection) -> DurableError | None:
        """COMMIT. None: done. An error: the outcome is open. Raises where it is certain that nothing was written."""
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            failure = failures.translate(error, self.path, connection.system_errno)
            failure.__cause__ = error
            if connection.in_transaction:  # refused before a byte was written: busy, or a deferred constraint
                self._roll_back(connection)
                raise failure from error
            return failure
        except BaseException:
            self._roll_back(connection)
            raise
        return None

    def _ask(self, failure: DurableError, landed: Callable[[Tx], T | None] | None) -> T | None:
        """Settle an open outcome: the result if the commit is there, None if it surely is not.

        The failed commit's frames may lie whole in the WAL, to come back at the next recovery. A new connection, and
        a commit of its own in that place, make sure that what cannot be seen then never will be.
        """
        self._drop()
        try:
            connection = self._ready()
            with self._transaction(connection, "BEGIN IMMEDIATE") as tx:
                tx.change(
                    "INSERT INTO durable_meta (name, value) VALUES ('marker', '1')"
                    " ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1"
                )
            second = self._commit(connection)
            if second is not None:
                raise second
            if landed is not None:
                with self._transaction(connection, "BEGIN") as tx:
                    found = landed(tx)
                self._roll_back(connection)
                return found
        except DurableError as second:
            self._drop()
            if isinstance(failure, DiskFull):  # the write itself fell short, so the last frame is not whole
                raise failure from second
            raise failures.unknown(self.path, failure) from second
        if isinstance(failure, DiskFull):
            return None
        raise failures.unknown(self.path, failure) from failure

    # -- the connection --------------------------------------------------------------------------------------------

    def _ready(self, create: bool = True) -> apsw.Connection:
        if self._connection is None:
            library.check(apsw.sqlite_lib_version())
            if self._file not in (None, files.identity(str(self.path))):
                raise failures.replaced(self.path)
            filesystem.check(self.path)
            files.make_ready(self.path, create=create and self.create)
            guard.protect(self.path)
            self._unguard = weakref.finalize(self, guard.release, self.path)
            self._unguard.atexit = False
            try:
                before = files.identity(str(self.path))
                self._connection = self._connect()
                self._open(self._connection, create and self.create)
                self._identities = {name: files.identity(name) for name in (str(self.path), f"{self.path}-wal")}
                guard.refresh(self.path)
                if self._identities[str(self.path)] != before:
                    raise failures.replaced(self.path)
                self._file = before
            except BaseException as error:
                number = self._connection.system_errno if self._connection is not None else 0
                self._drop()
                if isinstance(error, apsw.Error):
                    raise failures.translate(error, self.path, number) from error
                raise
        return self._connection

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs)
        wait = self._contention.patience()
        connection.set_busy_handler(
            lambda attempt: not self._at_once and wait(attempt)
        )  # first: switching to WAL meets other processes
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
        connection.wal_autocheckpoint(1000)
        pragmas = ["synchronous = FULL", "foreign_keys = 1", "cell_size_check = 1"]
        if sys.platform == "darwin":
            pragmas += ["fullfsync = 1", "checkpoint_fullfsync = 1"]
        for pragma in (*pragmas, f"journal_size_limit = {_JOURNAL_LIMIT}"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        return connection

    def _open(self, connection: apsw.Connection, create: bool) -> None:
        """Look at the schema before anything is written, then switch to WAL, then make or migrate the schema."""
        self._identities = {}
        wanted = self._schema()
        with self._transaction(connection, "BEGIN") as tx:
            stored = schema.version(tx, wanted, self.path)
        self._roll_back(connection)
        if stored == 0 and not create:
            raise DatabaseNotFound(f"there is no durable database in {self.path}: it has none of durable's tables")
        if connection.pragma("journal_mode") != "wal":
            joined.refuse_to_wait(self.path)
            self._use_wal(connection)
        if stored != wanted.version:
            self._build(connection, wanted)
        connection.pragma("schema_version")  # a read, which makes the -wal file if there was none

    def _schema(self) -> schema.Schema:
        if self._wanted is None:
            self._wanted = schema.current()
        return self._wanted

    def _check_schema(self, tx: Tx) -> None:
        """Look again when anybody changed the file's schema: a newer durable may have migrated it under us."""
        cookie = tx.value("PRAGMA schema_version")
        if cookie != self._cookie:
            stored = schema.version(tx, self._schema(), self.path)
            if stored != self._schema().version:
                raise DatabaseUnusable(f"the tables of durable vanished from {self.path} while it was in use")
            self._cookie = cookie

    def _use_wal(self, connection: apsw.Connection) -> None:
        wait, attempt = self._contention.patience(), 0
        while True:
            try:
                mode = connection.pragma("journal_mode", "wal")
                break
            except apsw.BusyError:  # two that switch at once: SQLite refuses one without asking the busy handler
                if not wait(attempt):
                    raise
                attempt += 1
        if mode != "wal":
            raise DatabaseUnusable(f"{self.path} cannot be used in WAL mode (it stays in mode {mode!r})")

    def _build(self, connection: apsw.Connection, wanted: schema.Schema) -> None:
        """Make the schema or bring an older one up to date: all of it in one transaction, by one process only."""
        connection.pragma("foreign_keys", 0)  # a migration may have to rebuild tables; checked before its COMMIT
        with self._transaction(connection, "BEGIN IMMEDIATE") as tx:
            stored = schema.version(tx, wanted, self.path)  # another process may have been first
            if stored == 0:
                schema.create(tx, wanted)
            elif stored != wanted.version:
                self._back_up(stored)
                schema.migrate(tx, wanted, self.path)
        failure = self._commit(connection)
        if failure is not None:
            raise failure
        connection.pragma("foreign_keys", 1)
        files.sync_directory(self.path.parent)

    def _back_up(self, stored: int) -> None:
        """Copy the file as it is before a migration. The write lock is held: nobody else is here, nothing changes."""
        target = self.path.with_name(f"{self.path.name}.schema-{stored}-backup")
        reader = self._connect()
        try:
            copying.copy(reader, self.path, target, replace=True, vfs=self._vfs)
        finally:
            reader.close()

    def _check_identity(self) -> None:
        """Two `stat` calls. SQLite's own HAS_MOVED looks at the database only, and as little as this does."""
        for name, known in self._identities.items():
            if files.identity(name) != known:
                raise failures.replaced(Path(name))

    def _drop(self) -> None:
        """Close the connection, whatever state it is in."""
        connection, self._connection = self._connection, None
        self._identities = {}
        self._cookie = None
        if self._unguard is not None:
            self._unguard()
        if connection is not None:
            try:
                connection.close()
            except apsw.Error:
                connection.close(True)


# -- the process ---------------------------------------------------------------------------------------------------

_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_busy_paths: set[Path] = set()  # databases of which this process has a transaction open


def _tidy_up() -> None:
    """Undo what a signal's handler left that raised in the very clean-up of a transaction."""
    for database in _databases:
        database._at_once = False
        if database.path in _busy_paths and database._connection is not None:
            database._roll_back(database._connection)
    _busy_paths.clear()


def _connections() -> list[Any]:
    return [database._connection for database in _databases if database._connection is not None]


def _forget_connections() -> None:
    _busy_paths.clear()
    for database in _databases:
        database._connection = None
        database._identities = {}
        if database._unguard is not None:
            database._unguard.detach()  # the parent's


process.on_fork(live=_connections, forget=_forget_connections)
