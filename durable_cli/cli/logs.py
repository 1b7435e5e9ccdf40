"""`durable runs logs`: what a run printed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Final

import typer

from durable_cli import render
from durable_cli.cli.following import follow
from durable_cli.cli.runs import Fields, Header, RunArgument, RunKey, RunWorkflow
from durable_cli.cli.session import Session, check_run_options
from durable_cli.places import COMMANDS

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.logs import Line

_FIELDS: Final = ("at", "step", "branch", "seq", "attempt", "stream", "text")


def show_logs(
    ctx: typer.Context,
    run: RunArgument = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
    following: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False,
    fields: Fields = None,
    header: Header = False,
) -> int:
    """What a run printed and logged, its commands too. Of a long output, the beginning and the end."""
    session: Session = ctx.obj
    check_run_options(run, key, workflow)
    client = session.existing()
    found = session.run(client, run, key, workflow)
    if following:
        return _follow(session, client, found.id)
    from durable_cli.logs import lines_of

    lines = lines_of(client.logs(found.id))
    nothing = f"run {found.id} printed nothing"
    known = None if lines else client.workflow(found.workflow)
    if known is not None and known.location.file == COMMANDS:
        nothing = f"run {found.id}: nothing was kept (what a command prints on a terminal is not)"
    if session.out.format in (None, "table") and fields is None:
        texts, _ = _texts(session, lines, None)
        if texts:
            session.out.answer("\n".join(texts))
        else:
            session.out.note(nothing)
        return 0
    session.list(
        [_document(line) for line in lines],
        _FIELDS,
        table=lambda: ([], []),
        empty=nothing,
        chosen=fields,
        header=header,
        id_field="step",
    )
    return 0


def _follow(session: Session, client: Durable, run_id: str) -> int:
    from durable_cli.logs import Lines

    lines, after = Lines(), 0
    last: tuple[object, ...] | None = None

    def look() -> tuple[list[str], bool]:
        nonlocal after, last
        finished = client.run(run_id).finished  # before the look at the log: what came before the end is there
        entries = client.logs(run_id, after=after)
        whole = [*lines.feed(entries), *(lines.rest() if finished else ())]
        after = entries[-1].end if entries else after
        texts, last = _texts(session, whole, last)
        return texts, finished

    return follow(session.out, look)


def _texts(
    session: Session, lines: list[Line], last: tuple[object, ...] | None
) -> tuple[list[str], tuple[object, ...] | None]:
    """Lines for a person, or one JSON document a line. On a terminal a heading tells whose they are."""
    out = session.out
    texts: list[str] = []
    for line in lines:
        if out.json:
            texts.append(render.json_line(_document(line), ascii_only=True))
            continue
        place = (line.branch, line.seq, line.attempt)
        if out.terminal_out and place != last:
            texts.append(_heading(session, line))
        last = place
        texts.append(session.shown(line.text))
    return texts, last


def _heading(session: Session, line: Line) -> str:
    branch = f"{session.shown(line.branch)}: " if line.branch else ""
    attempt = f" (attempt {line.attempt})" if line.attempt is not None and line.attempt > 1 else ""
    text = f"-- {branch}{'around the steps' if line.step is None else session.shown(line.step)}{attempt} --"
    return f"\x1b[2m{text}\x1b[0m" if session.out.colour(session.out.terminal_out) else text


def _document(line: Line) -> render.Document:
    return {**dataclasses.asdict(line), "at": render.iso(line.at)}
