"""How inputs that did not run are shown: field by field, against what ran in their place."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from durable_cli import render
from durable_cli.cli.session import Session

if TYPE_CHECKING:
    from durable_cli.core.diff import Change, Diff
    from durable_cli.keylog import Lost
    from durable_cli.lookup import KeyDetails

_SHOWN_CHANGES: Final = 10
_SHOWN_INPUTS: Final = 10
_SHOWN_RUNS: Final = 10
_VALUE: Final = 60  # characters of a value on a line
_PATH: Final = 80


def diff_document(diff: Diff | None) -> render.Document | None:
    """`{"changes": [{"path", "change", "from", "to"}], "more"}`; null where there is nothing to compare with."""
    if diff is None:
        return None
    changes = [
        {"path": change.path, "change": change.kind, "from": change.before, "to": change.after}
        for change in diff.changes
    ]
    return {"changes": changes, "more": diff.more}


def lost_document(lost: Lost) -> render.Document:
    """An input that did not run. `diff` leads from the input of `against_id` to this one; `id` names the row of
    activity, for `keys replay`."""
    return {
        "id": lost.activity.id,
        "at": render.iso(lost.activity.at),
        "outcome": lost.activity.details.get("outcome"),
        "superseded": lost.superseded,
        "run_id": lost.activity.run_id,
        "input": lost.input,
        "against_id": lost.against_id,
        "diff": diff_document(lost.diff),
    }


def lost_of(details: KeyDetails) -> list[Lost]:
    """The inputs of a key that did not run, newest first."""
    from durable_cli.keylog import lost_inputs

    return lost_inputs(details.activity[::-1], details.all_runs)[::-1]


def document(details: KeyDetails) -> render.Document:
    """The key view of a run: all runs of its key (the holder first), and the inputs that did not run."""
    return {
        "runs": [
            {
                "id": run.id,
                "status": str(run.status),
                "holds_key": run.holds_key,
                "runs_after_id": run.runs_after_id,
                "created_at": render.iso(run.created_at),
            }
            for run in details.all_runs
        ],
        "readds": _readds(details),
        "lost_inputs": [lost_document(lost) for lost in lost_of(details)],
    }


def _readds(details: KeyDetails) -> dict[str, int]:
    """How often a start met the key taken, by what it did."""
    found: dict[str, int] = {}
    for row in details.activity:
        if row.kind == "key_duplicate":
            outcome = str(row.details.get("outcome"))
            found[outcome] = found.get(outcome, 0) + 1
    return found


def run_lines(session: Session, details: KeyDetails) -> list[str]:
    """The key view of a run for a person."""
    lines = []
    if len(details.all_runs) > 1:
        lines.append(f"key's runs {len(details.all_runs)} ({_command(session, 'show', details.workflow, details.key)})")
        for run in details.all_runs[:_SHOWN_RUNS]:
            word = render.status_word(str(run.status), ascii_only=session.out.ascii_only)
            holds = "  holds the key" if run.holds_key else ""
            lines.append(f"  {run.id}  {word}  {render.age(run.created_at, session.now())}{holds}")
    readds = _readds(details)
    if readds:
        told = ", ".join(f"{outcome} {count}" for outcome, count in readds.items())
        lines.append(f"re-adds    {sum(readds.values())} ({session.shown(told)})")
    return lines + lost_lines(session, lost_of(details))


def _command(session: Session, verb: str, workflow: str | None, key: str | None) -> str:
    command = f"durable keys {verb} {shlex.quote(key or '')} --workflow {workflow}"
    return session.out.command(session.shown(command))


def lost_lines(session: Session, lost: Sequence[Lost]) -> list[str]:
    """The newest inputs that did not run, as lines for a person."""
    lines: list[str] = []
    for one in lost[:_SHOWN_INPUTS]:
        lines.append(headline(session, one))
        lines += [f"    {line}" for line in diff_lines(session, one)]
    if len(lost) > _SHOWN_INPUTS:
        about = lost[0].activity
        lines.append(f"  {len(lost) - _SHOWN_INPUTS} more: {_command(session, 'log', about.workflow, about.key)}")
    return lines


def headline(session: Session, lost: Lost) -> str:
    """`dropped 4m ago by use_existing (12), against run abc...:`."""
    what = "superseded" if lost.superseded else "dropped"
    outcome = session.shown(str(lost.activity.details.get("outcome")))
    when = render.age(lost.activity.at, session.now())
    against = "" if lost.diff is None else f", against run {lost.against_id}"
    return f"  input {what} {when} by {outcome} (activity {lost.activity.id}){against}:"


def diff_lines(session: Session, lost: Lost) -> list[str]:
    """A line for each field that differs; the whole input where there is nothing to compare it with."""
    if lost.diff is None:
        return [_short(session, lost.input)]
    lines = [_line(session, change) for change in lost.diff.changes[:_SHOWN_CHANGES]]
    left = len(lost.diff.changes) - len(lines)
    if left or lost.diff.more:
        lines.append(f"{left}{'+' if lost.diff.more else ''} more")
    return lines or ["as what ran in the end"]


def _line(session: Session, change: Change) -> str:
    path = render.clip(session.shown(change.path), _PATH, ascii_only=session.out.ascii_only) or "input"
    if change.kind == "added":
        return f"+ {path}: {_short(session, change.after)}"
    if change.kind == "removed":
        return f"- {path}: {_short(session, change.before)}"
    return f"~ {path}: {_short(session, change.before)} -> {_short(session, change.after)}"


def _short(session: Session, value: object) -> str:
    return render.clip(session.shown(render.compact(value)), _VALUE, ascii_only=session.out.ascii_only)
