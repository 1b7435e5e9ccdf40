"""`durable db path|check|backup`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from durable_cli.cli.session import Session
from durable_cli.errors import DatabaseCorrupt
from durable_cli.places import is_there


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
