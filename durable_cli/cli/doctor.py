"""`durable doctor`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

import durable_cli
from durable_cli import render
from durable_cli.cli import config as settings
from durable_cli.cli import installing
from durable_cli.cli.session import Session

if TYPE_CHECKING:
    from durable_cli.doctor import Diagnosis, Finding

FIELDS = ("check", "severity", "message", "facts", "hint")
_COLOURS = {"error": "1;31", "warning": "33", "note": "2"}


def doctor(ctx: typer.Context) -> int:
    """Find what is wrong, or soon will be: the file and its disk, the clock, workers, runs and keys that do not go on,
    schedules, code that cannot be loaded, another database under cron. Each finding comes with what mends it.

    Executes no code of yours and changes nothing. Exit 0: nothing, or notes only; 1: findings; 78: the database cannot
    be used, or is damaged.
    """
    session: Session = ctx.obj
    from durable_cli import doctor as examining

    place = session.place()
    client = session.reader(named=False)
    nothing_there = examining.Diagnosis({}, list(examining.left_behind(place.path)))
    seen = nothing_there if client is None else client.doctor()
    seen.findings.extend(_surroundings(session, place))
    findings = examining.worst(seen.findings)
    findings = [_pasteable(session, finding) for finding in findings]
    documents: list[render.Document] = [
        {**{name: getattr(finding, name) for name in FIELDS}, "facts": list(finding.facts)} for finding in findings
    ]
    code = 0 if seen.healthy else 1
    if seen.failure is not None:
        code = seen.failure.exit_status
    form = session.out.format
    if form == "json":
        told = {"path": str(place.path), "usable": seen.failure is None, "healthy": seen.healthy}
        session.out.document({**told, "facts": seen.facts, "findings": documents})
    elif form in (None, "table"):
        if code or not session.out.quiet:
            _tell(session, findings)
        _sum_up(session, seen)
    else:
        session.list(
            documents, FIELDS, table=lambda: (FIELDS, []), empty="", chosen=None, header=False, id_field="check"
        )
    return code


def _pasteable(session: Session, finding: Finding) -> Finding:
    from durable_cli.doctor import WORKER

    if finding.hint is None:
        return finding
    hint = session.out.command(finding.hint)
    if finding.hint == WORKER:
        hint += f"   # or in the crontab: {installing.tick_line(session)}"
    return replace(finding, hint=hint)


def _tell(session: Session, findings: list[Finding]) -> None:
    lines = []
    colour = session.out.colour(session.out.terminal_out)
    for finding in findings:
        label = f"{finding.severity}[{finding.check}]"
        if colour:
            label = f"\x1b[{_COLOURS[finding.severity]}m{label}\x1b[0m"
        lines.append(f"{label} {session.shown(finding.message)}")
        lines += [f"    {session.shown(fact)}" for fact in finding.facts]
        if finding.hint:
            lines.append(f"    mend: {session.shown(finding.hint)}")
    if lines:
        session.out.answer("\n".join(lines))


def _sum_up(session: Session, seen: Diagnosis) -> None:
    shown = {name.replace("_", " "): value for name, value in seen.facts.items() if value is not None}
    shown.pop("sqlite source", None)
    session.out.note(session.shown(", ".join(f"{name}: {value}" for name, value in shown.items())))
    if not seen.findings:
        session.out.note("nothing found")


def _surroundings(session: Session, place: settings.Place) -> Iterator[Finding]:
    """What the database cannot know: what cron would use, and whether Python compiles everything anew each time."""
    from durable_cli.doctor import Finding

    under_cron = _under_cron(session, place)
    if under_cron is not None:
        there = os.path.exists(under_cron)
        yield Finding(
            "environment",
            "warning" if there else "note",
            f"cron, which does not have your environment, would use {under_cron}"
            + (", and that file is there" if there else ""),
            f"DURABLE_DB={place.path}   # a line of its own in the crontab; what --print-crontab prints has --db",
        )
    cached = getattr(durable_cli, "__cached__", None)
    if cached and not os.path.exists(cached):
        folder = os.path.dirname(durable_cli.__file__)
        message = f"Python keeps no compiled code of durable in {folder}: each call compiles it anew"
        yield Finding(
            "environment", "note", message, f"{shlex.quote(sys.executable)} -m compileall -q {shlex.quote(folder)}"
        )


def _under_cron(session: Session, place: settings.Place) -> str | None:
    """The database that the same call uses where only HOME is set, if it is another one.

    One that `--db` named says so in a crontab too; one of a configuration is found from the place of the code.
    """
    at_home = settings.home(session.env)
    if place.source in ("option", "config") or at_home is None:
        return None
    bare = {"HOME": str(at_home)}
    other = settings.database(None, bare, settings.find(at_home, bare)).path
    return None if os.path.realpath(other) == os.path.realpath(place.path) else str(other)
