"""`Tx`: one open transaction, and the only way SQL is run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from durable_cli.errors import DatabaseCorrupt, DurableError, InternalError, UsageError
from durable_cli.store import failures, process


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened, for `Durable.on` and logging: `event` such as "key.duplicate"; JSON-like `fields`."""

    event: str
    fields: dict[str, Any]


class Tx:
    """One open transaction. Bindings are keyword arguments, named `:x` in the SQL; results are fetched whole.

    A full disk and some I/O errors roll the whole transaction back by themselves. Statements that came after would
    each be a transaction of its own, so a `Tx` that has fallen refuses everything with the error that felled it,
    also when that error was caught in between.
    """

    __slots__ = ("_connection", "_fallen", "_generation", "_path", "notices")

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._fallen: DurableError | None = None
        self._generation = process.generation()
        self.notices: list[Notice] = []
        """What listeners are told once this has committed."""

    def rows(self, sql: str, /, **bindings: Any) -> list[dict[str, Any]]:
        """All rows, each a dict by column name."""
        names, rows = self._run(sql, bindings)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def rows_before_damage(self, sql: str, /, **bindings: Any) -> tuple[list[dict[str, Any]], DatabaseCorrupt | None]:
        """The rows that could be read, and what ended it where a damaged page did."""
        names: list[str] = []
        rows: list[tuple[Any, ...]] = []
        damage = None
        try:
            self._fetch(sql, bindings, names, rows)
        except DatabaseCorrupt as error:
            damage = error
        return [dict(zip(names, row, strict=True)) for row in rows], damage

    def row(self, sql: str, /, **bindings: Any) -> dict[str, Any] | None:
        """The first row, or None."""
        names, rows = self._run(sql, bindings)
        return dict(zip(names, rows[0], strict=True)) if rows else None

    def value(self, sql: str, /, **bindings: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        _, rows = self._run(sql, bindings)
        return rows[0][0] if rows else None

    def change(self, sql: str, /, **bindings: Any) -> int:
        """How many rows this INSERT, UPDATE or DELETE changed."""
        self._run(sql, bindings)
        return self._connection.changes()

    def insert(self, sql: str, /, **bindings: Any) -> int:
        """The rowid of the row that this INSERT made."""
        self._run(sql, bindings)
        return self._connection.last_insert_rowid()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """All of the block or, when it raises, nothing of it; the transaction goes on either way."""
        self._run("SAVEPOINT durable_savepoint", {})
        told = len(self.notices)
        try:
            yield
        except BaseException:
            if self._fallen is None and self._generation == process.generation():
                self._run("ROLLBACK TO durable_savepoint", {})
                self._run("RELEASE durable_savepoint", {})
                del self.notices[told:]
            raise
        self._run("RELEASE durable_savepoint", {})

    def stand(self) -> None:
        """Raise what felled this transaction, if it no longer stands."""
        if self._generation != process.generation():
            raise InternalError("a transaction was open when this process was forked; it belongs to the parent")
        if self._fallen is not None:
            raise self._fallen

    def _cursor(self) -> apsw.Cursor:
        """A bare one: in an application's transaction, its connection may make other rows, or trace statements."""
        cursor = apsw.Cursor(self._connection)
        cursor.row_trace = None
        cursor.exec_trace = None
        return cursor

    def _run(self, sql: str, bindings: dict[str, Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        names: list[str] = []
        rows: list[tuple[Any, ...]] = []
        self._fetch(sql, bindings, names, rows)
        return names, rows

    def _fetch(self, sql: str, bindings: dict[str, Any], names: list[str], rows: list[tuple[Any, ...]]) -> None:
        """Add what the statement gives to `names` and `rows`, row by row: what came before an error is there."""
        self.stand()
        try:
            cursor = self._cursor().execute(sql, bindings)
            for row in cursor:
                if not names:  # a cursor that has ended no longer knows its columns
                    names += [column[0] for column in cursor.get_description()]
                rows.append(row)
        except UnicodeEncodeError as error:
            raise UsageError(f"{error.object!a} is not valid UTF-8, so it cannot be stored") from None
        except apsw.Error as error:
            failure = failures.translate(error, self._path, self._connection.system_errno)
            if not self._connection.in_transaction:
                self._fallen = failure
            raise failure from error
