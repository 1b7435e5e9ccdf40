"""What a run that rests waits for, as a person reads it: for what, until when, and the command that ends the wait."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from durable_cli import render
from durable_cli.cli import ends
from durable_cli.cli.session import Session
from durable_cli.model import Run, Step

if TYPE_CHECKING:
    from durable_cli.client import Durable

_ASKING = ("input", "event")
"""Kinds of waits that somebody has to end: they never become due by themselves, or only by giving up."""


@dataclass(frozen=True, slots=True)
class Rest:
    """All parts are ready to be shown. `what`: "waits for event 'paid'"; `until`: when that is over, ms UTC; `answer`:
    the command that gives the run what it waits for, where that has to come from somebody."""

    what: str
    until: int | None
    answer: str | None

    def sentence(self, session: Session, *, ages: bool = True) -> str:
        """`waits for an answer to 'go' (Deploy 1?) until 16:07:11 (in 13s)`."""
        until = ends.moment(self.until, session, ages=ages)
        return self.what if until is None else f"{self.what} until {until}"


def of(session: Session, client: Durable, run: Run) -> Rest | None:
    """What an unfinished run waits for. None: for nothing, it is due or executing."""
    steps = client.waits([run]).get(run.id, [])
    asking = [step for step in steps if step.kind in _ASKING]
    first = next(iter(asking or steps), None)
    if first is None:
        return Rest("waits", run.due_at, None) if run.due_at is not None and run.due_at > session.now() else None
    what = " ".join(filter(None, ("waits", render.awaited(first))))
    if len(asking) > 1:
        what += f" and {len(asking) - 1} more"
    if not asking:
        return Rest(session.shown(what), run.due_at, None)
    until = min((at for at in (first.due_at, run.deadline_at) if at is not None), default=None)
    return Rest(session.shown(what), until, _answer(session, run, first))


def _answer(session: Session, run: Run, step: Step) -> str:
    details = step.details or {}
    if step.kind == "input":
        command = f"durable input {run.id} {shlex.quote(step.name)} VALUE"
    else:
        seen = details.get("seen") or ()
        name = next((name for name in details.get("names", ()) if name not in seen), step.name)
        command = f"durable send-event {run.id} {shlex.quote(name)}"
    return session.out.command(session.shown(command))


def left(session: Session, client: Durable, run: Run) -> str:
    """The last line on a run that this process leaves unfinished: what it waits for, and how it goes on."""
    rest, resume = of(session, client, run), ends.how_to_go_on(run, session)
    if rest is None:
        return f"run {run.id} is {run.status} and can go on: {resume}"
    if rest.answer is not None:
        return f"run {run.id} {rest.sentence(session)}; to go on: {_answered(client, rest, resume)}"
    then = "" if rest.until is None else " then"
    return f"run {run.id} {rest.sentence(session)} and can go on{then}: {resume}"


def _answered(client: Durable, rest: Rest, resume: str) -> str:
    """The answer, and what then executes the run: a worker that lives, or a command."""
    return f"{rest.answer}" if client.has_worker() else f"{rest.answer}, then {resume}"


def goes_on(session: Session, client: Durable, run: Run, rest: Rest) -> str:
    """Of a run that another call met: what has to happen, and who goes on with it then."""
    owned = run.owner is not None and run.owner.alive
    if rest.answer is not None:
        done = rest.answer if owned else _answered(client, rest, ends.how_to_go_on(run, session))
        return f"to go on: {done}"
    if owned:
        return f"process {run.owner.pid} goes on with it then" if run.owner is not None else ""
    if client.has_worker():
        return "a worker goes on with it then"
    return "nobody executes it: it goes on with the next call after that, --wait, or a worker"


def to_execute(session: Session, client: Durable, run: Run) -> str:
    """`; to execute it here: durable resume RUN` behind what was done to a run that could go on now, if nobody is there
    to do so."""
    due = not run.finished and run.runs_after_id is None and run.due_at is not None and run.due_at <= session.now()
    if not due or (run.owner is not None and run.owner.alive) or client.has_worker():
        return ""
    return f"; to execute it here: {ends.how_to_go_on(run, session)}"
