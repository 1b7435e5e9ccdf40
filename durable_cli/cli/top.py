"""`durable top`: what is going on, drawn again every second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from durable_cli import render
from durable_cli.cli import fitting, screen
from durable_cli.cli.activity import activity_table
from durable_cli.cli.session import Cell, Session
from durable_cli.core.timing import parse_duration
from durable_cli.errors import UsageError
from durable_cli.model import Run, Status

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.overview import Overview

_LEAST_MS: Final = 100
_ACTIVITY: Final = 10
_FEW: Final = 4  # lines of activity that always have room on a terminal of _TALL lines
_TALL: Final = 20
_UNFINISHED: Final = (Status.RUNNING, Status.WAITING, Status.PENDING, Status.COMPENSATING)
# The columns that go first where there is no room.
_RUNS_DROP: Final = ("owner", "workflow", "age", "step", "key")
_ACTIVITY_DROP: Final = ("details", "run", "workflow")


def top(
    ctx: typer.Context,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="How often to look.")] = "1s",
) -> int:
    """Live view of what goes on: runs, keys, workers, the last activity. q or Ctrl-C ends it.

    Unfinished runs, those that are executed first; a step that a run waits in, or the one recorded last. Not on a
    terminal, or with --json: once.
    """
    session: Session = ctx.obj
    every_ms = parse_duration(every)
    if every_ms < _LEAST_MS:
        raise UsageError(f"--every {every}: at least 0.1s")
    client = session.reader(named=False)
    if client is None:
        session.one(_document(str(session.place().path), None), lambda: None, id_field="path")
        return 0
    if session.out.format in (None, "table") and screen.can_draw(session.out):
        return _live(session, client, every_ms / 1000)
    view = client.overview(limit=None, activity=_ACTIVITY)
    path = str(client.path)
    session.one(
        _document(path, view),
        lambda: session.out.answer("\n".join(_lines(session, path, view, None, None))),
        id_field="path",
    )
    return 0


def _live(session: Session, client: Durable, every: float) -> int:
    path = str(client.path)
    with screen.Screen(session.out, keys=not session.no_input) as terminal:
        while not session.out.reader_is_gone():
            next_look = time.monotonic() + every
            view = client.overview(limit=terminal.rows(), activity=_ACTIVITY)
            while True:
                columns, rows = screen.size(session.out)
                terminal.draw(_lines(session, path, view, columns, rows))
                pressed = terminal.wait(max(0.0, next_look - time.monotonic()))
                if "q" in pressed.lower():
                    return 0
                if pressed or time.monotonic() >= next_look:
                    break  # any other key: look at once
    return 0


# -- for programs --------------------------------------------------------------------------------------------------


def _document(path: str, view: Overview | None) -> render.Document:
    if view is None:
        return {
            "path": path, "at": None, "unfinished": {}, "finished_1h": {}, "keys_held": 0, "runs": [],
            "processes": [], "activity": [],
        }  # fmt: skip
    return {
        "path": path,
        "at": render.iso(view.at),
        "unfinished": view.unfinished,
        "finished_1h": view.finished_1h,
        "keys_held": view.keys_held,
        "runs": [_run_document(view, run) for run in view.runs],
        "processes": [
            {"pid": one["pid"], "kind": one["kind"], "since": render.iso(one["created_at"]), "runs": one["runs"]}
            for one in view.processes
        ],
        "activity": [render.activity_document(row) for row in view.activity],
    }


def _run_document(view: Overview, run: Run) -> render.Document:
    document = render.run_document(run)
    waits = view.waits.get(run.id)
    names = ("id", "workflow", "key", "holds_key", "runs_after_id", "status")
    return {
        **{name: document[name] for name in names},
        "step": waits[0].name if waits else view.last_steps.get(run.id),
        **{name: document[name] for name in ("created_at", "started_at", "due_at", "owner")},
    }


# -- for a person --------------------------------------------------------------------------------------------------


def _lines(session: Session, path: str, view: Overview, columns: int | None, rows: int | None) -> list[str]:
    """The whole picture; `columns` and `rows` None: nothing is cut."""
    at = session.shown(render.iso(view.at) or "")
    lines = [screen.styled(session.out, f"{at}  {session.shown(path)}", "bold")]
    lines += _flow("runs", [_count(session, str(name), view.unfinished.get(name, 0)) for name in _UNFINISHED], columns)
    ended = [_count(session, name, number) for name, number in view.finished_1h.items()]
    lines += _flow("last hour", ended or ["none ended"], columns)
    lines += _flow("keys", [f"{view.keys_held} held"], columns)
    lines += _flow("alive", _processes(view), columns)
    cells = [_row(session, view, run) for run in view.runs]
    names = ["run", "workflow", "key", "status", "step", "age", "owner"]
    runs = _grid(session, names, cells, columns, _RUNS_DROP) if cells else ["no unfinished runs"]
    seen = activity_table(session, view.activity)
    activity = ["", *_grid(session, *seen, columns, _ACTIVITY_DROP)] if view.activity else []
    left = 0
    if rows is not None:
        left = rows - len(lines) - 1
        activity = activity[: max(_FEW if rows >= _TALL else 0, left - len(runs))]
        runs = runs[: max(2, left - len(activity))]
    hidden = sum(view.unfinished.values()) - (len(runs) - 1)
    if cells and hidden:
        if rows is not None and len(runs) + len(activity) >= left and len(runs) > 1:
            runs, hidden = runs[:-1], hidden + 1
        runs = [*runs, screen.styled(session.out, f"{hidden} more: durable ps", "dim")]
    return [*lines, "", *runs, *activity]


def _count(session: Session, status: str, number: int) -> str:
    text = f"{number} {status}"
    return screen.styled(session.out, text, render.status_colour(status)) if number else text


def _processes(view: Overview) -> list[str]:
    workers = [one for one in view.processes if one["kind"] == "worker"]
    told = [f"worker {one['pid']} ({one['runs']} runs)" for one in workers] or ["no worker"]
    others = len(view.processes) - len(workers)
    return [*told, *([f"{others} in the foreground"] if others else [])]


def _row(session: Session, view: Overview, run: Run) -> list[Cell]:
    waits, last = view.waits.get(run.id), view.last_steps.get(run.id)
    if waits:
        step = f"{waits[0].name}: {render.waits_for(waits[0], view.at)}"
    elif run.runs_after_id is not None:
        step = f"behind {run.runs_after_id}"
    elif run.note is not None:
        step = run.note
    elif run.status is Status.PENDING and run.due_at is not None and run.due_at > view.at:
        step = f"due {render.age(run.due_at, view.at)}"
    else:
        step = "-" if last is None else f"after {last}"
    owner: Cell = "-"
    if run.owner is not None:
        owner = (f"{run.owner.pid} dead", "red") if run.owner.alive is False else str(run.owner.pid)
    age = render.span(view.at - run.created_at)
    return [
        run.id, run.workflow, session.shown_key(run.key), session.status(run.status), session.shown(step), age, owner,
    ]  # fmt: skip


def _flow(label: str, items: Sequence[str], columns: int | None) -> list[str]:
    """`label  a  b  c`, in as many lines as it takes."""
    lines, width = [f"{label:<10}"], 0
    for item in items:
        cells = screen.cells(item)
        if columns is not None and width and 10 + width + 2 + cells > columns:
            lines.append(" " * 10)
            width = 0
        lines[-1] += ("  " if width else "") + item
        width += cells + (2 if width else 0)
    return lines


def _grid(
    session: Session, names: Sequence[str], rows: Sequence[Sequence[Cell]], columns: int | None, drop: Sequence[str]
) -> list[str]:
    """A table without lines. Where it does not fit, texts are cut, and then columns left out, in the order of `drop`."""
    names, kept = fitting.drop_empty(names, rows)
    ascii_only, going = session.out.ascii_only, list(drop)
    while True:
        cut, widths = fitting.fit(names, kept, width=columns or 1 << 20, ascii_only=ascii_only)
        if widths is None or columns is None or sum(widths) + 2 * (len(widths) - 1) <= columns or not going:
            break
        gone = going.pop(0)
        if gone in names:
            at = list(names).index(gone)
            names = [name for name in names if name != gone]
            kept = [[*row[:at], *row[at + 1 :]] for row in kept]
    lines: list[Sequence[Cell]] = [[(name, "dim") for name in names], *cut]
    sizes = [max(screen.cells(_text(line[at])) for line in lines) for at in range(len(names))]
    return [
        "  ".join(_padded(session, cell, size) for cell, size in zip(line, sizes, strict=True)).rstrip()
        for line in lines
    ]


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _padded(session: Session, cell: Cell, size: int) -> str:
    text = _text(cell)
    colour = "" if isinstance(cell, str) else cell[1]
    return screen.styled(session.out, text, colour) + " " * (size - screen.cells(text))
