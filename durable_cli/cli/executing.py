"""Executing in the foreground: signals, progress on the terminal, and the end as output and exit code."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from durable_cli import render
from durable_cli.cli import ends, rests, stepnames
from durable_cli.cli.session import Session
from durable_cli.cli.signals import Signals
from durable_cli.core.timing import format_duration
from durable_cli.model import Outcome, Run, StartResult, Status

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.execution import Progress
    from durable_cli.foreground import Execution

REPORTS: Final = ("always", "changes", "never")
_SAID_BADLY: Final = (Status.FAILED, Status.COMPENSATED, Status.COMPENSATION_FAILED)


class Steps:
    """What is said of each step: one line when it is over, and a live one while it runs. `command`: the run is one of
    `durable exec`, and what the command itself prints is all that is said of it."""

    def __init__(self, session: Session, client: Durable, *, always: bool, command: bool = False) -> None:
        self._session = session
        self._client = client
        self._out = session.out
        self._shown = session.shown
        self._told = (always or session.out.verbose or session.out.terminal_err) and not session.out.quiet
        self._command = command
        self._began: dict[object, float] = {}
        self.run_id: str | None = None
        self.resting = False
        self._asked = ""

    def __call__(self, progress: Progress) -> None:
        self.run_id = progress.run_id
        self.resting = progress.kind == "resting"
        if progress.kind == "step_failed" and not progress.undo:
            self._out.failed_here(progress.run_id, progress.step)
        if progress.kind == "taken_up" and self._told:
            self._taken_up(progress)
        if not self._told or self._command:
            return
        step = self._shown(stepnames.of_progress(progress, ascii_only=self._out.ascii_only))
        message = self._shown(progress.message or "")
        again = f" (attempt {progress.attempt})" if progress.attempt > 1 else ""
        if progress.kind == "step_started":
            self._began[progress.run_id, progress.place] = time.monotonic()
            self._out.live(f"  {self._icon('running', '36')} {step}{again}")
        elif progress.kind == "step_completed":
            took = render.span(int((time.monotonic() - self._began.pop((progress.run_id, progress.place))) * 1000))
            self._out.say(f"  {self._icon('completed', '32')} {step}{again}  {took}")
        elif progress.kind == "step_failed":
            self._out.say(f"  {self._icon('failed', '31')} {step}{again}: {message}")
        elif progress.kind == "step_retrying":
            self._out.say(f"  {self._icon('retrying', '33')} {step}{again}: {message}")
        elif progress.kind == "resting":
            self._rests(progress)

    def _taken_up(self, progress: Progress) -> None:
        """A run that was there before goes on; what this call gave may not be what it goes on with."""
        run = self._client.run(progress.run_id)
        now, steps = self._session.now(), len(run.steps or ())
        about = f"recorded {render.age(run.created_at, now)}, not begun yet"
        if run.epoch > 1 or steps:
            begun = render.age(run.created_at if run.started_at is None else run.started_at, now)
            about = f"begun {begun}, {steps} step{'' if steps == 1 else 's'} recorded"
        own = f"; its own {'command' if self._command else 'input'} is used, not the one given"
        self._out.say(f"goes on with run {run.id} ({about}){own if progress.other_input else ''}")

    def _rests(self, progress: Progress) -> None:
        """What the run waits for. Where somebody has to give it that, the command stays to be copied."""
        rest = rests.of(self._session, self._client, self._client.run(progress.run_id))
        if rest is None:
            return
        line = f"  {self._icon('waiting', '36')} {rest.sentence(self._session, ages=False)}"
        if rest.answer is None:
            self._out.live(line)
        elif line != self._asked:  # another branch may make it rest again and again
            self._asked = line
            self._out.say(f"{line}: {rest.answer}")

    def _icon(self, status: str, colour: str) -> str:
        return self._out.styled(render.icon(status, ascii_only=self._out.ascii_only), colour)


def execute(
    session: Session,
    client: Durable,
    call: Callable[[threading.Event, Steps], Execution],
    *,
    grace_ms: int,
    step_by_step: bool = False,
    command: bool = False,
) -> tuple[Execution, int | None]:
    """Call the client under signals and progress. Returns what it did and the signal that interrupted it."""
    steps = Steps(session, client, always=step_by_step, command=command)

    def say(number: int, again: bool) -> None:
        _say_signal(session, number, again, grace_ms, steps)

    signals = Signals(grace_ms=grace_ms, abandon=client.abandon, say=say)
    signals.install()
    try:
        execution = call(signals.stop, steps)
    finally:
        signals.restore()
        session.out.end_live()
    return execution, signals.number


def _say_signal(session: Session, number: int, again: bool, grace_ms: int, steps: Steps) -> None:
    out, name, run_id = session.out, signal.Signals(number).name, steps.run_id
    if not again and steps.resting:
        out.note(f"{name}: leaving the run, which rests")
        return
    if not again:
        out.note(f"{name}: the running step may end ({format_duration(grace_ms)}); again stops at once")
        return
    hint = out.command(f"durable resume {run_id}") if run_id is not None else None
    if out.json and not out.answered:
        message = f"{name}: stopped in the middle of a step; the run stays resumable"
        out.document({"error": {"code": "interrupted", "message": message, "hint": hint, "run_id": run_id}})
    if hint is not None:
        out.say(f"{name}: stopped in the middle of a step; to go on: {hint}")


def start_document(run: Run, start: StartResult | None) -> render.Document:
    """The document of `run`, `start`, `resume` and their kin."""
    return {
        "run_id": run.id,
        "workflow": run.workflow,
        "key": run.key,
        "outcome": str(Outcome.RESUMED if start is None else start.outcome),
        "status": str(run.status),
        "result": render.value(run.result),
        "error": render.error_document(run.error),
        "holder_id": None if start is None else start.holder_id,
        "holder_status": None if start is None or start.holder_status is None else str(start.holder_status),
        "replaced_id": None if start is None else start.replaced_id,
    }


def finish(
    session: Session,
    client: Durable,
    execution: Execution,
    number: int | None,
    *,
    report: str = "always",
    conflict_exit_code: int | None = None,
    wait: bool = False,
) -> int:
    """Tell how it ended; the exit code."""
    run, start = execution.run, execution.start
    session.one(start_document(run, start), lambda: ends.print_result(run, session), id_field="run_id")
    if execution.interrupted or (number is not None and not run.finished):
        return _interrupted(session, client, run, number)
    if execution.left:
        session.out.say(_where_it_was_left(session, client, run, executed=execution.executed))
        return 8
    held_before = start is not None and start.outcome is Outcome.EXISTING and not execution.executed
    if held_before and not (wait and start is not None and _unfinished(start.holder_status)):
        code = tell_existing(session, client, run, report=report)
        return code if conflict_exit_code is None else conflict_exit_code
    if not execution.executed and not run.finished:
        assert start is not None
        session.out.note(_NOTES[start.outcome].format(run=run.id))
        return 0
    code = _tell_end(session, client, run, report)
    others_bad = [ends.other_ended_badly(other, session) for other in execution.promoted]
    return code or int(any(others_bad))


def _where_it_was_left(session: Session, client: Durable, run: Run, *, executed: bool) -> str:
    if executed:
        return rests.left(session, client, run)
    wait = session.out.command(f"durable runs wait {run.id}")
    return f"run {run.id} is {run.status} and not executed here; to wait on for it: {wait}"


def _unfinished(status: Status | None) -> bool:
    return status is not None and not status.finished


_NOTES: Final = {
    Outcome.EXISTING: "nothing started: run {run} holds the key",
    Outcome.QUEUED: "run {run} waits behind the holder of the key",
    Outcome.MERGED: "the input went into run {run}, which has not begun",
    Outcome.EVENT_SENT: "the input was sent to run {run} as an event",
    Outcome.CREATED: "run {run} was recorded",
    Outcome.REPLACED: "run {run} was recorded; it replaced the holder",
    Outcome.RESUMED: "run {run} was taken up",
}


def note_of(outcome: Outcome, run_id: str) -> str:
    """One line on what a start did."""
    return _NOTES[outcome].format(run=run_id)


def tell_existing(session: Session, client: Durable, run: Run, *, report: str = "always") -> int:
    """The key was taken and nothing was executed: say by whom. 0, or 1 if its holder ended without completing."""
    out, key = session.out, session.shown_key(run.key)
    if not run.finished:
        rest = rests.of(session, client, run)
        if rest is not None:
            what, then = rest.sentence(session), rests.goes_on(session, client, run, rest)
            out.note(f"nothing started: run {run.id} holds the key {key} and {what}; {then}")
            return 0
        out.note(f"already {run.status}, nothing started: run {run.id} holds the key {key}")
        return 0
    bad = run.status is not Status.COMPLETED
    # Silence would look as if it had run (cases B03, B06). `-q` (cron) is quiet about a completed one only.
    if report != "never" and (bad or not out.quiet) and not out.json:
        when = render.age(run.finished_at, session.now())
        out.say(f"nothing started: the key {key} is kept by run {run.id}, {run.status} {when}")
        if bad:
            out.say(f"  {session.shown(ends.headline(run))}")
        if run.status in (Status.FAILED, Status.CANCELLED):
            out.say(out.command(f"  to go on with it in place: durable retry {run.id} --foreground"))
        again = f"durable release-key {run.id}, then durable rerun {run.id}"
        out.say(out.command(f"  to run it again with the same input: {again}"))
        out.hint(f"durable release-key {run.id}")
    return int(bad)


def _interrupted(session: Session, client: Durable, run: Run, number: int | None) -> int:
    name = signal.Signals(number).name if number is not None else "stopped"
    if not session.out.json or session.out.quiet:
        session.out.say(f"{name}: {rests.left(session, client, run)}")
    return 128 + (number or signal.SIGINT)


def _tell_end(session: Session, client: Durable, run: Run, report: str) -> int:
    code, out = ends.exit_code(run), session.out
    if report == "changes":
        was_bad = _before_ended_badly(client, run)
        if code == 0 and was_bad:
            out.say(f"works again: {session.shown(run.workflow)} (run {run.id})")
        if code and was_bad:
            return code
    if code and report != "never" and (not out.json or out.quiet):
        ends.failure_report(run, session)
    return code


def _before_ended_badly(client: Durable, run: Run) -> bool:
    """Did the finished run before this one (same workflow, same key) fail?"""
    for other in client.runs(workflow=run.workflow, key=run.key, limit=50):
        if other.row_id < run.row_id and other.key == run.key and other.finished:
            return other.status in _SAID_BADLY
    return False
