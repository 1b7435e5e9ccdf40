"""`durable schedules import CRONTAB`: a user's crontab lines as schedules of `durable exec`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from durable_cli import render
from durable_cli.cli import installing, moments
from durable_cli.cli.commands import definition_for
from durable_cli.cli.config import home
from durable_cli.cli.session import Cell, Session
from durable_cli.cli.starting import DryRun
from durable_cli.core.crontab import mails, read
from durable_cli.errors import DurableError, NotFound, UsageError

_MAX_BYTES = 1 << 20
FIELDS = ("line", "schedule", "change", "cron", "timezone", "command", "reason")


def import_crontab(
    ctx: typer.Context,
    crontab: Annotated[
        str, typer.Argument(metavar="CRONTAB", help="A file, or - for `crontab -l |`.", show_default=False)
    ],
    dry_run: DryRun = False,
) -> int:
    """Make schedules of a crontab's lines: each a command as in `durable exec`, one at a time.

    A schedule is named after its program, which is its key too: a line does not overlap itself. Importing the crontab
    again changes what changed in it. Exit 1 where a line could not be taken over; the others are.
    """
    session: Session = ctx.obj
    text = _text(crontab)
    zone = moments.default_zone(session)
    client = session.writer()
    documents: list[render.Document] = []
    taken: set[str] = set()
    for entry in read(text):
        document: render.Document = {
            "line": entry.line,
            "schedule": None,
            "change": "left" if entry.is_ours else "refused",
            "cron": entry.cron or None,
            "timezone": None,
            "command": entry.command,
            "reason": entry.refused,
        }
        documents.append(document)
        if entry.refused is not None:
            continue
        name = _free_name(entry.program, taken)
        cwd = entry.home or str(home(session.env) or os.getcwd())
        try:
            plan = client.put_schedule(
                name,
                entry.cron,
                definition_for(client, [name], None, None),
                {"argv": entry.argv, "cwd": cwd},
                key=name,
                timezone=entry.timezone,
                default_zone=zone,
                write=not dry_run,
            )
        except DurableError as error:
            document["reason"] = error.message
        else:
            document |= {"schedule": name, "change": plan.change, "timezone": plan.settings["timezone"]}
    _tell(session, documents, dry_run=dry_run, mail=mails(text))
    return 1 if any(document["change"] == "refused" for document in documents) else 0


def _text(crontab: str) -> str:
    try:
        if crontab == "-":
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(os.path.expanduser(crontab)).open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else UsageError
        hint = "crontab -l | durable schedules import -"
        raise kind(f"{crontab}: {error.strerror or error}", hint=hint) from None
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{crontab} has more than 1 MiB; that is no crontab")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{crontab} is not valid UTF-8") from None


def _free_name(program: str, taken: set[str]) -> str:
    """The name of the line's program; of the second line with it, NAME-2."""
    base = program if program[0].isascii() and (program[0].isalnum() or program[0] == "_") else f"job-{program}"
    name, number = base[:120], 1
    while name in taken:
        number += 1
        name = f"{base[:120]}-{number}"
    taken.add(name)
    return name


def _tell(session: Session, documents: list[render.Document], *, dry_run: bool, mail: bool) -> None:
    out = session.out

    def table() -> tuple[list[str], list[list[Cell]]]:
        rows: list[list[Cell]] = [
            [
                str(one["line"]),
                one["schedule"] or "-",
                one["change"] if one["schedule"] is not None else (one["change"], "red"),
                one["cron"] or "-",
                one["timezone"] or "-",
                session.shown(one["reason"] or one["command"]),
            ]
            for one in documents
        ]
        return ["line", "schedule", "change", "cron", "zone", ""], rows

    if not (out.quiet and out.format is None):
        session.list(
            documents, FIELDS, table=table, empty="no lines there", chosen=None, header=False, id_field="schedule"
        )
    if out.quiet or out.json:
        return
    made = [one for one in documents if one["schedule"] is not None]
    if dry_run and made:
        out.say("nothing was written (--dry-run)")
    elif made:
        out.say("take these lines out of the crontab, or each fires twice")
        out.say(f"schedules are fired by {out.command('durable worker')}, or by this line in the crontab:")
        out.say(f"  {session.shown(installing.tick_line(session))}")
    if mail:
        out.say("no mail is sent for them: durable runs list --status failed; durable runs logs RUN")
