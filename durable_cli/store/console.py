"""Somebody's own SQL on the file: `durable db shell`.

A second SQLite in this process would drop durable's locks, so this is the same one: a connection of its own, read only,
beside that of the `Database`, which has looked at the file and stays open (and so the guard stands) as long as this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import apsw

from durable_cli.errors import UsageError
from durable_cli.store import failures
from durable_cli.store.contention import Contention
from durable_cli.store.database import Database

_LOOK_EVERY = 100_000  # instructions of SQLite's machine; some milliseconds
_REFUSED = {
    "open": "durable db shell --db FILE",
    "connection": None,
    "restore": "docs/operating.md says how",
    "backup": "durable db backup FILE",
    "import": None,
    "autoimport": None,
    "py": None,
    "load": None,
}
"""Commands of the shell that would leave this connection, or write; with what to do instead."""
_REFUSED_PRAGMAS = frozenset({"journal_mode", "locking_mode", "wal_checkpoint", "writable_schema"})
"""They would wait for the file to themselves, or keep others waiting."""


def _may(operation: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    """SQLite's authorizer: no other file (ATTACH, which VACUUM INTO is too), and no pragma about locks."""
    refused = operation == apsw.SQLITE_ATTACH or (
        operation == apsw.SQLITE_PRAGMA
        and (first or "").lower() in _REFUSED_PRAGMAS
        and (second is not None or first == "wal_checkpoint")
    )
    return apsw.SQLITE_DENY if refused else apsw.SQLITE_OK


def _go_on() -> bool:
    """Called now and then in a long statement: Python runs the handlers of signals in it, and a Ctrl-C ends it."""
    return False


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of one statement."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@contextmanager
def reader(database: Database) -> Iterator[apsw.Connection]:
    """A read-only connection, for the block."""
    with database._alone():
        database._ready(create=False)
        connection = apsw.Connection(str(database.path), flags=apsw.SQLITE_OPEN_READONLY, vfs=database._vfs)
    try:
        connection.set_busy_handler(Contention().patience())
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.set_progress_handler(_go_on, _LOOK_EVERY)
        connection.authorizer = _may
        yield connection
    finally:
        connection.close(True)


def ask(database: Database, sql: str) -> list[Answer]:
    """What each statement that gives rows has given. Raises UsageError for SQL that is wrong, or that writes."""
    answers: list[Answer] = []

    def begins(cursor: apsw.Cursor, statement: str, bindings: object) -> bool:
        columns = tuple(column[0] for column in cursor.get_description())
        if columns:
            answers.append(Answer(columns, []))
        return True

    with reader(database) as connection:
        cursor = connection.cursor()
        cursor.exec_trace = begins
        try:
            for row in cursor.execute(sql):
                answers[-1].rows.append(row)
        except (apsw.ReadOnlyError, apsw.AuthError) as error:
            raise UsageError(
                f"db shell reads this file, and nothing else: {error}",
                hint="another file: --db FILE; a copy, to do with as you like: durable db backup FILE",
            ) from None
        except (apsw.SQLError, apsw.TooBigError, apsw.MismatchError, apsw.BindingsError) as error:
            raise UsageError(f"SQLite: {error}", hint='durable db shell "SELECT sql FROM sqlite_schema"') from None
        except apsw.Error as error:
            raise failures.translate(error, database.path, connection.system_errno) from error
    return answers


def converse(database: Database, *, intro: str, shown: Callable[[str], str]) -> int:
    """Be an SQL shell on the terminal until its user ends it; the exit code that was asked for. `shown` makes a text
    safe for a terminal."""
    import apsw.shell

    class Shell(apsw.shell.Shell):
        """apsw's shell, without what leaves this connection, and without what a terminal would obey."""

        def write(self, dest: Any, text: str) -> None:
            """Write a text of the shell's, the data in it shown literally on a terminal."""
            if dest.isatty():
                text = "".join(part if part in "\n\t" else shown(part) for part in re.split("([\n\t])", text))
            dest.write(text)

        def refuse(self, name: str) -> NoReturn:
            """Answer one of `_REFUSED`."""
            instead = _REFUSED[name]
            raise self.Error(f".{name} is not here: this shell reads this file" + (f" ({instead})" if instead else ""))

    for name in _REFUSED:
        setattr(Shell, f"command_{name}", lambda self, cmd, name=name: self.refuse(name))
    with reader(database) as connection:
        try:
            shell: Any = Shell(db=connection)
            shell.command_colour(["off"])  # every ESC would be the data's
            shell.cmdloop(intro=intro)
        except SystemExit as leave:
            return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    return 0
