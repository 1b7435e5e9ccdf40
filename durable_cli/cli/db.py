"""`durable db path|check`."""

from __future__ import annotations

import typer

from durable_cli.cli.session import Session
from durable_cli.errors import DatabaseCorrupt


def path(ctx: typer.Context) -> int:
    """Print the database file in force; whether it is there does not matter."""
    session: Session = ctx.obj
    place = session.place()
    document = {"path": str(place.path), "source": place.source, "exists": place.path.exists()}
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
