"""`durable activity`: what happened to keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_cli import render
from durable_cli.cli.following import follow as go_on
from durable_cli.cli.options import check_choice, check_duration
from durable_cli.cli.output import rows_text
from durable_cli.cli.runs import Fields, Header, Limit, Since, limit_of
from durable_cli.cli.session import Cell, Session, choose_fields
from durable_cli.model import Activity, ActivityKind

if TYPE_CHECKING:
    from durable_cli.client import Durable

_BEFORE: Final = 10  # rows that are shown before those to come


def activity(
    ctx: typer.Context,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="Only this kind. Repeatable.")
    ] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="W", help="Only this workflow.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this key.")] = None,
    since: Since = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Oldest first, the last 10 (else --limit), and go on for ever.")
    ] = False,
    limit: Limit = None,
    fields: Fields = None,
    header: Header = False,
) -> int:
    """What happened to keys, newest first: duplicates, hand-offs, releases; and to schedules, and to the clock."""
    session: Session = ctx.obj
    for given in kind or ():
        check_choice("--kind", given, [str(known) for known in ActivityKind])
    asked: dict[str, Any] = {"kinds": kind or (), "workflow": workflow, "key": key, "since": check_duration(since)}
    if follow:
        asked["limit"] = _BEFORE if limit is None else limit
        return _follow(session, session.existing(), asked, choose_fields(fields, render.ACTIVITY_FIELDS), header)
    client = session.reader(named=key is not None)
    found = [] if client is None else client.activity(**asked, limit=limit_of(session, limit))
    session.list(
        [render.activity_document(row) for row in found],
        render.ACTIVITY_FIELDS,
        table=lambda: activity_table(session, found),
        empty="no activity",
        chosen=fields,
        header=header,
        id_field="run_id",
    )
    return 0


def activity_table(session: Session, rows: list[Activity]) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows for a person."""
    now = session.now()
    cells: list[list[Cell]] = [[render.age(row.at, now), *_words(session, row)] for row in rows]
    return ["when", "what", "workflow", "key", "run", "details"], cells


def _words(session: Session, row: Activity) -> list[str]:
    words = [
        f"{name}={value if isinstance(value, str) and name != 'input' else render.compact(value)}"
        for name, value in row.details.items()
        if value is not None and value is not False
    ]
    details = render.clip(session.shown(" ".join(words)), 100, ascii_only=session.out.ascii_only)
    return [row.kind.replace("_", " "), row.workflow or "-", session.shown_key(row.key), row.run_id or "-", details]


def _follow(session: Session, client: Durable, asked: dict[str, Any], fields: Sequence[str], header: bool) -> int:
    out, after = session.out, None
    form = "jsonl" if out.json else out.list_format()

    def look() -> tuple[list[str], bool]:
        nonlocal after, header
        rows, after = client.activity_page(after=after, **asked)
        if form == "table":
            return [f"{render.iso(row.at)}  {'  '.join(_words(session, row))}" for row in rows], False
        documents = [{name: document[name] for name in fields} for document in map(render.activity_document, rows)]
        text = rows_text(form, documents, fields, header=header, id_field="run_id")
        header = False
        return text.split("\n") if text else [], False

    return go_on(out, look)
