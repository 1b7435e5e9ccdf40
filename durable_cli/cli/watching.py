"""`durable runs watch`: one run, followed to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import typer

from durable_cli import render
from durable_cli.cli import ends, runview, screen, stepnames
from durable_cli.cli.following import follow
from durable_cli.cli.output import rows_text
from durable_cli.cli.runs import Fields, Header, RunArgument, RunKey, RunWorkflow
from durable_cli.cli.session import Session, check_run_options, choose_fields
from durable_cli.model import Run

if TYPE_CHECKING:
    from durable_cli.client import Durable

FIELDS: Final = ("at", "status", "step", "step_status", "attempts")
"""A change: of the run (without a step), or of one of its steps. `at`: when it was seen here."""
Look = Callable[[], tuple[list[str], bool]]


def watch(
    ctx: typer.Context,
    run: RunArgument = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
    fields: Fields = None,
    header: Header = False,
) -> int:
    """Watch a run until it ends, and exit as it ended; Ctrl-C stops watching, not the run.

    On a terminal the run and its steps are drawn again as they change; else there is a line for each change (when,
    status of the run, step, its status, attempts), and with --json the run's document, again for each change.
    """
    session: Session = ctx.obj
    check_run_options(run, key, workflow)
    names = choose_fields(fields, (*render.RUN_FIELDS, "note", "steps") if session.out.json else FIELDS)
    client = session.existing()
    watched = _Watched(session, client, session.run(client, run, key, workflow).id)
    try:
        if session.out.quiet:
            follow(session.out, watched.silent)
        elif session.out.json:
            follow(session.out, watched.documents(None if fields is None else names))
        elif session.out.list_format() == "table" and screen.can_draw(session.out):
            _draw(session, watched)
        else:
            follow(session.out, watched.changes(names, header=header))
    except KeyboardInterrupt:
        session.out.note(f"run {watched.run.id} goes on without being watched")
        raise
    if not watched.run.finished:  # whoever read this has gone away
        return 0
    code = ends.exit_code(watched.run)
    if code and not session.out.json:
        ends.failure_report(watched.run, session, output=False)
    return code


class _Watched:
    """The run as it was seen last, and the ways to tell what has changed since."""

    def __init__(self, session: Session, client: Durable, run_id: str) -> None:
        self._session, self._client = session, client
        self.run = client.run(run_id)
        self._told: dict[tuple[str, int], tuple[str, int]] = {}
        self._told_status: str | None = None

    def look(self) -> Run:
        """The run as it is now."""
        self.run = self._client.run(self.run.id)
        return self.run

    def silent(self) -> tuple[list[str], bool]:
        """No lines at all."""
        return [], self.look().finished

    def documents(self, names: Sequence[str] | None) -> Look:
        """The run's document (of it only what `names` names) whenever it is another one."""
        last: render.Document = {}

        def look() -> tuple[list[str], bool]:
            nonlocal last
            document = render.run_document(self.look())
            if names is not None:
                document = {name: document.get(name) for name in names}
            if document == last:
                return [], self.run.finished
            last = document
            return [render.json_line(document, ascii_only=True)], self.run.finished

        return look

    def changes(self, names: Sequence[str], *, header: bool) -> Look:
        """A line for each change, in the form asked for."""
        form, first = self._session.out.list_format(), header

        def look() -> tuple[list[str], bool]:
            nonlocal first
            found = self._changes(self.look())
            if form == "table":
                return [self._line(change) for change in found], self.run.finished
            rows = [{name: change[name] for name in names} if form != "ids" else change for change in found]
            text = rows_text(form, rows, names, header=first, id_field="status")
            first = False
            return text.split("\n") if text else [], self.run.finished

        return look

    def _changes(self, run: Run) -> list[render.Document]:
        """What is not told yet. The end of a run comes after its steps."""
        at, status = render.iso(self._session.now()), str(run.status)
        found: list[render.Document] = []
        for step in run.steps or ():
            state = (str(step.status), step.attempts)
            if self._told.get((step.branch, step.seq)) != state:
                self._told[step.branch, step.seq] = state
                name = stepnames.label(step, run.steps or (), ascii_only=True)
                found.append(dict(zip(FIELDS, (at, status, name, *state), strict=True)))
        if status != self._told_status:
            self._told_status = status
            own = dict(zip(FIELDS, (at, status, None, None, None), strict=True))
            found.insert(len(found) if run.finished else 0, own)
        return found

    def _line(self, change: render.Document) -> str:
        ascii_only = self._session.out.ascii_only
        if change["step"] is None:
            return f"{change['at']}  {render.status_word(change['status'], ascii_only=ascii_only)}"
        word = render.status_word(change["step_status"], ascii_only=ascii_only)
        tries = f"  {change['attempts']} attempts" if change["attempts"] > 1 else ""
        return f"{change['at']}    {self._session.shown(change['step'])}  {word}{tries}"


def _draw(session: Session, watched: _Watched) -> None:
    with screen.Block(session.out) as block:

        def look() -> tuple[list[str], bool]:
            run = watched.look()
            return _lines(session, run, None if run.finished else block.room()), run.finished

        def write(lines: list[str]) -> None:
            (block.finish if watched.run.finished else block.draw)(lines)

        follow(session.out, look, write)


def _lines(session: Session, run: Run, room: int | None) -> list[str]:
    """The run for a person, in at most `room` lines: of many steps the last ones. How it failed is told at its end,
    on stderr."""
    head = runview.header_lines(session, run)
    head[2] = screen.styled(session.out, head[2], render.status_colour(str(run.status)))
    foot = runview.result_lines(session, run) if run.finished else runview.error_lines(session, run)
    steps = runview.step_lines(session, run, now=session.now())
    left = len(steps) if room is None else max(1, room - len(head) - len(foot))
    if len(steps) > left:
        shown = max(0, left - 1)
        more = len(steps) - shown
        steps = [f"      {more} earlier steps", *steps[more:]]
    return [*head, *steps, *foot]
