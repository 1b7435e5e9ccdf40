"""A run as lines for a person: what it is, its steps, how it ended. Texts of users are shown literally."""

from __future__ import annotations

from durable_cli import render
from durable_cli.cli import ends, stepnames
from durable_cli.cli.session import Session
from durable_cli.model import Run, StepStatus


def header_lines(session: Session, run: Run) -> list[str]:
    """Id, workflow, status, key, moments, owner, note."""
    now = session.now()
    word = render.status_word(str(run.status), ascii_only=session.out.ascii_only)
    lines = [f"run        {run.id}", f"workflow   {run.workflow}", f"status     {word}"]
    if run.key is not None:
        held = "holds it" if run.holds_key else f"waits behind {run.runs_after_id}" if run.runs_after_id else "not held"
        lines.append(f"key        {session.shown_key(run.key)}  ({held})")
    moments = {"created": run.created_at, "started": run.started_at, "finished": run.finished_at, "due": run.due_at}
    lines += [f"{name:<10} {render.iso(at)}  ({render.age(at, now)})" for name, at in moments.items() if at is not None]
    if run.owner is not None:
        alive = {True: "alive", False: "dead: the next start adopts the run", None: "unknown"}[run.owner.alive]
        lines.append(f"owner      process {run.owner.pid}, {alive}")
    if run.note is not None:
        lines.append(f"note       {session.shown(run.note)}")
    return lines


def result_lines(session: Session, run: Run) -> list[str]:
    """The result, if there is one."""
    if run.result is None:
        return []
    return [f"result     {session.shown(render.compact(render.value(run.result)))}"]


def step_lines(session: Session, run: Run, *, now: int | None = None) -> list[str]:
    """A line for each recorded operation. `now`: say until when one waits as an age."""
    shown = session.shown
    lines = []
    for number, step in stepnames.in_order(run.steps or ()):
        icon = render.icon(str(step.status), ascii_only=session.out.ascii_only)
        took = "" if step.finished_at is None else f"  {render.span(step.finished_at - step.started_at)}"
        tries = f"  {step.attempts} attempts" if step.attempts > 1 else ""
        error = f"  {shown(f'{step.error.type}: {step.error.message}')}" if step.error else ""
        waits = f"  {shown(render.waits_for(step, now))}" if step.status is StepStatus.WAITING else ""
        name = shown(stepnames.label(step, run.steps or (), ascii_only=session.out.ascii_only))
        lines.append(f"  {number:>3} {icon} {name}  {step.status}{waits}{took}{tries}{error}")
    return lines


def error_lines(session: Session, run: Run) -> list[str]:
    """Why it ended badly, and what could not be undone, if so."""
    if run.error is None:
        return []
    shown = session.shown
    lines = [f"error      {shown(line)}" for line in ends.headline(run).split("\n")]
    undos = stepnames.failed_undos(run, ascii_only=session.out.ascii_only)
    return lines + [f"           {shown(line)}" for line in undos]
