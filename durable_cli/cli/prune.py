"""`durable prune`: deleting finished runs that are old."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from durable_cli import render
from durable_cli.cli.asking import agrees
from durable_cli.cli.keylog import Yes
from durable_cli.cli.options import check_choice
from durable_cli.cli.session import Session
from durable_cli.cli.starting import DryRun
from durable_cli.core.timing import format_count, format_duration, parse_duration
from durable_cli.errors import UsageError
from durable_cli.model import FINISHED, Status

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.pruning import Pruned


def prune(
    ctx: typer.Context,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DURATION", help="Only runs that ended at least so long ago (30d)."),
    ] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="W", help="Only runs of this workflow.")] = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help="Only runs that ended so. Repeatable.")
    ] = None,
    trust_clock: Annotated[
        bool, typer.Option("--trust-clock", help="The clock is right, although it seems to have jumped.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Delete old finished runs with their steps, events and logs. A key that such a run holds becomes free.

    Unfinished runs stay, however old. What happened to keys stays 7 days, and as long as any run has the key. With
    --trust-clock alone nothing is deleted: the clock is believed from now on, here and by workers.
    """
    session: Session = ctx.obj
    if older_than is None and (not trust_clock or workflow is not None or status):
        raise UsageError("say what is old: --older-than DURATION", hint="durable prune --older-than 30d --dry-run")
    for given in status or ():
        check_choice("--status", given, sorted(str(known) for known in FINISHED))
    age_ms = None if older_than is None else _age(older_than)
    wanted = [Status(one) for one in status or ()]
    client = session.reader(named=False)
    if age_ms is None:
        return _trust(session, client, dry_run=dry_run)
    if client is None:
        return _tell(session, None, older_than=age_ms, dry_run=dry_run)

    def go(*, only_look: bool) -> Pruned:
        return client.prune(
            older_than=age_ms / 1000, workflow=workflow, status=wanted, dry_run=only_look, trust_clock=trust_clock
        )

    if dry_run:
        return _tell(session, go(only_look=True), older_than=age_ms, dry_run=True)
    if not yes:
        would = go(only_look=True)
        if would.runs and not agrees(session, f"delete {_words(would, age_ms)}?"):
            return 1
    return _tell(session, go(only_look=False), older_than=age_ms, dry_run=False)


def _trust(session: Session, client: Durable | None, *, dry_run: bool) -> int:
    if client is not None:
        client.prune(trust_clock=True, dry_run=dry_run)
    would = "would be" if dry_run else "is"
    session.one(_document(None, dry_run), lambda: session.out.note(f"the clock {would} believed"), id_field="runs")
    return 0


def _age(text: str) -> int:
    """`--older-than` in ms. A number without a unit is as likely days as seconds, and what is deleted is gone."""
    age_ms = parse_duration(text)
    if age_ms and re.fullmatch(r"[\d.]+", text.strip(), re.ASCII):
        hint = f"durable prune --older-than {text.strip()}d --dry-run"
        raise UsageError(f"--older-than {text}: give a unit (s, m, h, d or w)", hint=hint)
    return age_ms


def _words(pruned: Pruned, age_ms: int) -> str:
    never = f", {pruned.never_keys_freed} of them of reuse=never" if pruned.never_keys_freed else ""
    become = "key becomes" if pruned.keys_freed == 1 else "keys become"
    freed = f"; {pruned.keys_freed} {become} free{never}" if pruned.keys_freed else ""
    return f"{format_count(pruned.runs, 'run')} that ended {format_duration(age_ms)} ago or earlier{freed}"


def _tell(session: Session, pruned: Pruned | None, *, older_than: int, dry_run: bool) -> int:
    def human() -> None:
        if pruned is None:
            return
        if dry_run:
            words = _words(pruned, older_than)
            session.out.answer(f"would delete {words}; and {format_count(pruned.activity, 'row')} of activity")
        elif not session.out.quiet:
            never = f" ({pruned.never_keys_freed} of workflows that never reuse a key)"
            session.out.answer(
                f"pruned {format_count(pruned.runs, 'run')}, {format_count(pruned.keys_freed, 'key')} freed"
                f"{never if pruned.never_keys_freed else ''}, {format_count(pruned.activity, 'row')} of activity"
            )

    session.one(_document(pruned, dry_run), human, id_field="runs")
    return 0


def _document(pruned: Pruned | None, dry_run: bool) -> render.Document:
    return {
        "runs": pruned.runs if pruned else 0,
        "keys_freed": pruned.keys_freed if pruned else 0,
        "never_keys_freed": pruned.never_keys_freed if pruned else 0,
        "activity": pruned.activity if pruned else 0,
        "dry_run": dry_run,
    }
