"""How a run ended, for a person, a program and a shell: its result, its failure report, its exit code."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from durable_cli import render
from durable_cli.cli import stepnames
from durable_cli.cli.session import Session
from durable_cli.model import Run, Status

REPORT_LINES: Final = 40
_OUTPUT_LINES: Final = 12

_UNDONE: Final = {
    Status.COMPENSATING: "is being compensated",
    Status.COMPENSATED: "was compensated",
    Status.COMPENSATION_FAILED: "its compensation failed too",
}
"""What became of a run whose error is that of what failed first."""
_EXIT: Final = {Status.COMPLETED: 0, Status.CANCELLED: 5}


def exit_code(run: Run) -> int:
    """By the status of a run that was executed or waited for: 0, 5 (cancelled), 1 (failed), 8 (not over)."""
    return _EXIT.get(run.status, 1) if run.finished else 8


def result_text(run: Run) -> str | None:
    """What a completed run gives on stdout: its result as JSON, None if that is null."""
    if run.status is not Status.COMPLETED or run.result in (None, "null"):
        return None
    return run.result


def print_result(run: Run, session: Session) -> None:
    """The result of a completed run on stdout (not under `-q`)."""
    if result_text(run) is not None and not session.out.quiet:
        session.out.document(render.value(run.result))


def headline(run: Run) -> str:
    """`sync failed in step fetch (attempt 3): HTTPError: 503`, raw text."""
    undone = _UNDONE.get(run.status)
    text = f"{run.workflow} {run.status if undone is None else 'failed'}"
    error = run.error
    if error is not None and error.step is not None:
        text += f" in step {error.step}"
        if error.attempt is not None:
            text += f" (attempt {error.attempt})"
    text += "" if undone is None else f", and {undone}"
    if error is None:
        return text
    return f"{text}: {error.type}: {error.message}" if error.message else f"{text}: {error.type}"


def one_line(run: Run, *, ascii_only: bool) -> str:
    """`run ID of WORKFLOW (key K) failed in step S: Type: message`, and what could not be undone; raw text."""
    key = "" if run.key is None else f" (key {run.key})"
    end = headline(run).removeprefix(run.workflow)
    undos = stepnames.failed_undos(run, ascii_only=ascii_only)
    return "; ".join([f"run {run.id} of {run.workflow}{key}{end}", *undos])


def failure_report(run: Run, session: Session, *, output: bool = True) -> None:
    """What went wrong, where, and how to go on; at most 40 lines on stderr. Texts of users are shown literally."""
    out, shown = session.out, session.shown
    first, *more = headline(run).split("\n")
    lines = [f"{out.styled('error:', '1;31')} {shown(first)}"]
    lines += [f"  {shown(line)}" for line in more[:5]]
    key = f", key {session.shown_key(run.key)}" if run.key is not None else ""
    lines.append(f"  run {run.id}{key}")
    lines += [f"  {shown(line)}" for line in stepnames.failed_undos(run, ascii_only=out.ascii_only)[:5]]
    trace = (run.error.traceback or "") if run.error is not None else ""
    lines += _traceback_lines(trace, session)
    room = min(_OUTPUT_LINES, REPORT_LINES - len(lines) - 2)
    printed = _last_lines(run, session, room) if output and out.quiet else []
    if printed:
        lines.append("  the last lines of its output:")
        lines += [f"    {line}" for line in printed]
    for line in lines[: REPORT_LINES - 1]:
        out.say(line)
    out.hint(_hint(run))


def _last_lines(run: Run, session: Session, room: int) -> list[str]:
    """The end of what the failed step wrote in its last attempt.

    Where it failed in this call, all that came out: the record has prints, but not what children and C code wrote, and
    it is they who say why a command failed. Else the record, and without one what was written here at all.
    """
    out, step = session.out, None if run.error is None else run.error.step
    recorded = [] if out.has_failed_here(run.id, step) else _recorded_lines(run, session, room)
    return recorded or out.captured(room, run.id, step)


def _recorded_lines(run: Run, session: Session, room: int) -> list[str]:
    from durable_cli.logs import lines_of

    error = run.error
    if error is None or error.seq is None or room <= 0:
        return []
    place = (error.branch or "", error.seq, error.attempt)
    lines = lines_of(session.existing().logs(run.id))
    texts = [line.text for line in lines if (line.branch, line.seq, line.attempt) == place]
    return [session.shown(text) for text in texts[-room:]]


def _traceback_lines(trace: str, session: Session) -> list[str]:
    """The traceback, its middle left out where it is long: the user's first line and the last ones count."""
    lines = [line for line in trace.rstrip("\n").split("\n") if line]
    if len(lines) > 20:
        lines = [*lines[:6], f"  ... {len(lines) - 19} lines left out", *lines[-13:]]
    return [f"  {render.clip(session.shown(line), 300, ascii_only=session.out.ascii_only)}" for line in lines]


def _hint(run: Run) -> str:
    """What goes on. A run that gave way to another one is not to be tried again blindly."""
    other = (run.error.fields or {}).get("run_id") if run.error is not None else None
    if other is not None and run.error is not None and run.error.type == "Replaced":
        return f"durable runs show {other}"
    if other is not None and run.error is not None and run.error.type == "KeyKept":
        return f"durable release-key {other}"
    if run.status in (Status.FAILED, Status.CANCELLED):
        return f"durable retry {run.id} --foreground"
    return f"durable runs show {run.id}"


def other_ended_badly(run: Run, session: Session) -> bool:
    """Tell of a run that was executed besides and did not complete."""
    if run.status is Status.COMPLETED:
        return False
    what = "is" if not run.finished else "ended"
    session.out.say(
        f"{session.out.styled('error:', '1;31')} the run that waited behind, {run.id}, {what} {run.status}: "
        f"{session.shown(headline(run))}"
    )
    return True


def how_to_go_on(run: Run, session: Session) -> str:
    """The last line of a run that was left unfinished."""
    return session.out.command(f"durable resume {run.id}")


def moment(due_at: int | None, session: Session, *, ages: bool = True) -> str | None:
    """`16:07:11 (in 13s)` for a moment to come; with its day where that is another one. None: there is none, or it is
    over. `ages` False: without the part in parentheses, for a line that is read later."""
    now = session.now()
    if due_at is None or due_at <= now:
        return None
    try:
        at, today = datetime.fromtimestamp(due_at / 1000), datetime.fromtimestamp(now / 1000)
    except (OverflowError, ValueError, OSError):
        return str(render.iso(due_at))
    day = "" if at.date() == today.date() else f"{at:%Y-%m-%d} "
    return f"{day}{at:%H:%M:%S}" + (f" ({render.age(due_at, now)})" if ages else "")


def notify(run: Run) -> bool:
    """A desktop notification. No user text is in its command line. False: there is no notifier here, or it failed."""
    import shutil
    import subprocess

    text = f"{run.workflow}: {run.status}"  # a workflow's name has letters, digits, `_.-` only
    if notifier := shutil.which("notify-send"):
        argv, stdin = [notifier, "--app-name=durable", "--", "durable", text], None
    elif script := shutil.which("osascript"):
        argv, stdin = [script, "-"], f'display notification "{text}" with title "durable"'.encode()
    else:
        return False
    try:
        return subprocess.run(argv, input=stdin, timeout=5, capture_output=True, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
