"""`durable db`: the file in force, and what is done for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_cli import render
from durable_cli.cli.output import rows_text
from durable_cli.cli.runs import Header
from durable_cli.cli.session import Session
from durable_cli.errors import DatabaseCorrupt, UsageError
from durable_cli.places import is_there

if TYPE_CHECKING:
    from durable_cli.store.console import Answer

INFO: Final = (
    "path", "exists", "bytes", "log_bytes", "free_bytes", "file_system", "schema_version", "sqlite", "apsw",
    "page_size", "pages", "free_pages", "runs", "unfinished", "keys", "activity", "workflows", "schedules",
    "workers", "executing",
)  # fmt: skip
_TEXTS: Final = ("path", "file_system", "sqlite", "apsw", "schema_version")
_MOST_SQL: Final = 1 << 20


def path(ctx: typer.Context) -> int:
    """Print the database file in force; whether it is there does not matter."""
    session: Session = ctx.obj
    place = session.place()
    document = {"path": str(place.path), "source": place.source, "exists": is_there(place.path)}
    session.one(document, lambda: session.out.answer(str(place.path)), id_field="path")
    return 0


def check(ctx: typer.Context) -> int:
    """Check the file: integrity, references, and that every key has one holder. Exit 78 with what is wrong."""
    session: Session = ctx.obj
    problems = session.existing().check()
    session.one({"ok": not problems, "problems": problems}, lambda: None, id_field="ok")
    if not problems:
        session.out.note("the database is sound")
        return 0
    if not session.out.json:
        for problem in problems:
            session.out.say(f"{session.out.styled('error:', '1;31')} {session.shown(problem)}")
    return DatabaseCorrupt.exit_code


def backup(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The new file; nothing is replaced.", show_default=False)],
) -> int:
    """Copy the database to a new file, as it is at this moment, while workers go on. The copy is checked whole before
    it gets its name, and is 0600: inputs and results are in it.

    How to restore one is in docs/operating.md: stop everything, and move the -wal and -shm files away first.
    """
    session: Session = ctx.obj
    done = session.existing().backup(Path(os.path.expanduser(file)))
    document = {"path": str(done.path), "bytes": done.bytes}
    session.one(document, lambda: None, id_field="path")
    session.out.note(f"{session.shown(str(done.path))}: {done.bytes} bytes, integrity checked")
    return 0


def info(ctx: typer.Context) -> int:
    """What the file is and what is in it: sizes, versions, counts, live workers."""
    session: Session = ctx.obj
    client = session.reader(named=False)
    if client is None:
        document: render.Document = {name: None if name in _TEXTS else 0 for name in INFO}
        document |= {"path": str(session.place().path), "exists": False}
    else:
        found = client.info() | {"exists": True}
        document = {name: found[name] for name in INFO}

    def human() -> None:
        if client is not None:
            session.out.answer("\n".join(_info_lines(session, document)))

    session.one(document, human, id_field="path")
    return 0


def _info_lines(session: Session, told: render.Document) -> list[str]:
    shown = session.shown
    free = "?" if told["free_bytes"] is None else render.size(told["free_bytes"])
    spare = told["free_pages"] * told["page_size"]
    lines = {
        "file": shown(told["path"]),
        "size": f"{render.size(told['bytes'])}, of which {render.size(spare)} are free"
        + (" (durable db vacuum)" if spare > 1 << 20 and 2 * told["free_pages"] > told["pages"] else ""),
        "log": f"{render.size(told['log_bytes'])} in the -wal",
        "disk": f"{free} free, {shown(told['file_system'] or 'kind unknown')}",
        "schema": f"version {told['schema_version']}",
        "SQLite": f"{told['sqlite']} (apsw {told['apsw']})",
        "pages": f"{told['pages']} of {told['page_size']} bytes, {told['free_pages']} free",
        "runs": f"{told['runs']}, {told['unfinished']} unfinished",
        "keys": str(told["keys"]),
        "activity": str(told["activity"]),
        "workflows": f"{told['workflows']}, with {told['schedules']} schedules",
        "alive": f"{told['workers']} workers, {told['executing']} that execute runs in the foreground",
    }
    return [f"{name:<10} {text}" for name, text in lines.items()]


def vacuum(ctx: typer.Context) -> int:
    """Make the file smaller: rewrite it without the space that pruned runs left.

    Others may go on meanwhile; who writes, waits. Where processes execute runs and the file is large it is refused (exit
    75), as they would wait too long. It needs as much free space as there is content, twice if temporary files are on the
    same disk.
    """
    session: Session = ctx.obj
    client = session.existing()
    done = client.vacuum()
    document = {
        "path": str(client.path),
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "log_emptied": done.log_emptied,
    }
    session.one(document, lambda: None, id_field="path")
    freed = f"{render.size(done.bytes_before)} before, {render.size(done.bytes_after)} now"
    late = "" if done.log_emptied else "; the file shrinks when those who read it just now are done"
    session.out.note(f"{session.shown(str(client.path))}: {freed}{late}")
    return 0


def migrate(ctx: typer.Context) -> int:
    """Bring an older file's tables up to date, which every command does; a copy is put beside it first.

    Nothing to do: exit 0. A file of a newer durable: exit 78, and it stays as it is.
    """
    session: Session = ctx.obj
    client = session.existing()
    done = client.migrate()
    document = {
        "path": str(client.path),
        "from": done.before,
        "to": done.after,
        "migrated": done.before != done.after,
        "backup": None if done.backup is None else str(done.backup),
    }
    session.one(document, lambda: None, id_field="path")
    if done.backup is None:
        session.out.note(f"nothing to do: {session.shown(str(client.path))} has schema {done.after}")
    else:
        session.out.note(f"from schema {done.before} to {done.after}; as it was: {session.shown(str(done.backup))}")
    return 0


def shell(
    ctx: typer.Context,
    sql: Annotated[
        str | None, typer.Argument(metavar="[SQL]", help="One or more statements.", show_default=False)
    ] = None,
    header: Header = False,
) -> int:
    """Look into the file with SQL, read only: the statements given, those of a pipe, or a shell on a terminal.

    The views durable_v_runs, durable_v_keys and durable_v_activity stay as they are from version to version.
    """
    session: Session = ctx.obj
    client = session.existing()
    if sql is None and sys.stdin.isatty():
        if session.no_input or not session.out.terminal_out or session.out.format is not None:
            raise UsageError("db shell needs SQL: as its argument, or in a pipe", hint="durable db shell 'SELECT ...'")
        return client.converse(intro=_INTRO, shown=session.shown)
    found = client.ask(_piped() if sql is None else sql)
    if session.out.json and len(found) != 1:
        raise UsageError(
            f"--json prints one document, and these statements give {len(found) or 'no'} results",
            hint="give one SELECT",
        )
    for answer in found:
        _tell(session, answer, header=header)
    return 0


_INTRO: Final = """\
Read only. .tables .schema .help; .quit or Ctrl-D ends.
Views: durable_v_runs durable_v_keys durable_v_activity
"""


def _piped() -> str:
    data = sys.stdin.buffer.read(_MOST_SQL + 1)
    if len(data) > _MOST_SQL:
        raise UsageError("more than 1 MiB of SQL")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError("the SQL is not valid UTF-8") from None


def _tell(session: Session, answer: Answer, *, header: bool) -> None:
    names: list[str] = []
    for column in answer.columns:
        again = names.count(column) + sum(name.rpartition(":")[0] == column for name in names)
        names.append(f"{column}:{again}" if again else column)
    documents = [dict(zip(names, map(_value, row), strict=True)) for row in answer.rows]
    form = session.out.list_format()
    if form in ("tsv", "csv", "ids"):
        session.out.answer(rows_text(form, documents, names, header=header, id_field=names[0]))
        return

    def table() -> tuple[list[str], list[list[Any]]]:
        rows = [["NULL" if value is None else render.cell(value) for value in row.values()] for row in documents]
        return [session.shown(name) for name in names], rows

    session.list(documents, names, table=table, empty="no rows", chosen=None, header=header, id_field=names[0])


def _value(value: object) -> object:
    """A value of SQLite as one of JSON: bytes in hexadecimal, infinity as its name."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


COMMANDS: Final[dict[str, Callable[..., int]]] = {
    "path": path,
    "info": info,
    "check": check,
    "backup": backup,
    "vacuum": vacuum,
    "migrate": migrate,
    "shell": shell,
}
