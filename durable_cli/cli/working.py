"""`durable worker` and `durable tick`: executing what is due, whoever started it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from durable_cli import render
from durable_cli.cli import schedules, stepnames
from durable_cli.cli.session import Session
from durable_cli.cli.signals import Signals
from durable_cli.cli.starting import DryRun
from durable_cli.core.timing import format_count, format_duration, parse_duration
from durable_cli.errors import DurableError, UsageError

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.execution import Progress
    from durable_cli.outlook import Due
    from durable_cli.worker import Counts, Worker

_BACKSTOP_MS: Final = 5_000
"""How long after the grace a drain that hangs is cut off."""
_REPORTS: Final = 3
"""How many failed runs a tick reports whole."""
_LINGER_S: Final = 2.0
"""How long the process may take to end once all is said; a step that hangs in a thread would keep it for ever."""

_BAD_ENDS: Final = ("run.failed", "run.compensated", "run.compensation_failed")

Concurrency = Annotated[
    int, typer.Option("--concurrency", metavar="N", min=1, max=1000, help="How many runs at once.", show_default=True)
]
Grace = Annotated[str, typer.Option("--grace", metavar="DURATION", help="How long a signal lets running steps go on.")]


def worker(
    ctx: typer.Context,
    modules: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODULE]...", help="Modules or files to import now.", show_default=False),
    ] = None,
    concurrency: Concurrency = 16,
    grace: Grace = "10s",
) -> int:
    """Execute what is due until a signal comes.

    The first INT, TERM or HUP drains: nothing new is claimed, running steps may end, the rest is given back; exit 0.
    The second one (or the end of the grace) stops at once. Code is loaded from where a start recorded it, or from a
    MODULE (none named: those of the configuration), whose @schedule lines are brought into the database too. At the end
    it says what it did: a turn (`claimed` in --json) is a run executed until it rested or ended.
    """
    session: Session = ctx.obj
    grace_ms = parse_duration(grace)
    client = session.writer()
    session.out.guard()
    wanted = modules or list(session.configured_modules())
    for name in wanted:
        _import(session, name)
    if wanted:
        schedules.sync_for_worker(session, client, wanted)
    it, signals = _worker(session, client, concurrency, grace_ms)
    client.on("*", _ends(session, client))
    session.out.note(
        f"worker {os.getpid()} on {session.shown(str(client.path))}: up to {concurrency} runs at once; "
        "a signal lets running steps end"
    )
    _guarded(signals, it.work)
    if it.cut_off:  # steps that did not end within the grace; their runs were given back
        assert signals.number is not None
        _tell(session, it.counts)
        return _leave_soon(128 + signals.number)
    _tell(session, it.counts)
    return _leave_soon(0)


def tick(ctx: typer.Context, concurrency: Concurrency = 16, grace: Grace = "10s", dry_run: DryRun = False) -> int:
    """Do all that is due now, then exit: for cron, where no worker is wanted.

    Exit 1 where something due could not be done (its code cannot be loaded, say). A run that ends failed is told on
    stderr, as `durable run` does, and leaves the exit code alone. A turn (`claimed` in --json) is a run executed until
    it rested or ended: one run may take many.
    """
    session: Session = ctx.obj
    grace_ms = parse_duration(grace)
    if dry_run:
        client = session.reader(named=False)
        _tell_due(session, None if client is None else client.due())
        return 0
    client = session.writer()
    session.out.guard()
    it, signals = _worker(session, client, concurrency, grace_ms)
    _guarded(signals, it.tick)
    _tell(session, it.counts)
    _tell_failed(session, client, it.counts.failed)
    if signals.number is not None:
        return _leave_soon(128 + signals.number)
    return _leave_soon(1 if it.counts.errors else 0)


def _import(session: Session, name: str) -> None:
    from durable_cli.loading import load_module

    if ":" in name:
        module = name.partition(":")[0]
        raise UsageError(f"{name!r} names a workflow; a worker imports modules", hint=f"durable worker {module}")
    load_module(name, app_dir=session.app_dir(name))


def _worker(session: Session, client: Durable, concurrency: int, grace_ms: int) -> tuple[Worker, Signals]:
    """A worker that says its complaints on stderr, and is stopped by signals."""
    _say_warnings(session)

    def say(number: int, again: bool) -> None:
        it.wake()
        name = signal.Signals(number).name
        if again:
            where = "in the middle of a step; its run is given back" if it.busy else "at once"
            session.out.say(f"{name}: stopped {where}")
        else:
            session.out.note(f"{name}: running steps may end ({format_duration(grace_ms)}); again stops at once")

    signals = Signals(grace_ms=grace_ms + _BACKSTOP_MS, abandon=client.abandon, say=say)
    config = session.config()
    it = client.worker(
        concurrency=concurrency,
        stop=signals.stop,
        grace=grace_ms / 1000,
        progress=_progress(session),
        retention=None if config is None or config.retention_ms is None else config.retention_ms / 1000,
    )
    return it, signals


def _guarded(signals: Signals, work: Callable[[], object]) -> None:
    signals.install()
    try:
        work()
    except DurableError as error:
        _leave_soon(error.exit_status)
        raise
    finally:
        signals.restore()


def _leave_soon(code: int) -> int:
    """The exit code; should a thread of user code keep the process from ending, it ends all the same."""
    timer = threading.Timer(_LINGER_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
    return code


def _say_warnings(session: Session) -> None:
    """What the worker complains of, as lines for a person."""
    import logging  # late: only workers have use for it

    class Sayer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            out = session.out
            out.say(f"{out.styled('warning:', '1;33')} {session.shown(record.getMessage())}")

    logger = logging.getLogger("durable.worker")
    logger.handlers[:] = [Sayer(logging.WARNING)]
    logger.propagate = False


def _progress(session: Session) -> Callable[[Progress], None]:
    """A line for each step that ends, for who asked for them by `-v`."""
    seen: set[str] = set()

    def tell(progress: Progress) -> None:
        seen.add(progress.run_id)
        if progress.kind == "step_failed" and not progress.undo and len(seen) == 1:
            session.out.failed_here(progress.run_id, progress.step)  # beside others nobody knows who wrote what
        if session.out.verbose and progress.kind != "step_started":
            step = stepnames.of_progress(progress, ascii_only=session.out.ascii_only)
            what = f"{progress.run_id} {progress.kind.replace('_', ' ')} {step}".rstrip()
            session.out.say(session.shown(f"{what}: {progress.message}" if progress.message else what))

    return tell


def _ends(session: Session, client: Durable) -> Callable[[str, dict[str, Any]], None]:
    """A line for each run that ends badly (cancelled ones: by max_hold only); by `-v` for completed ones too."""
    from durable_cli.cli import ends

    out = session.out

    def tell(event: str, fields: dict[str, Any]) -> None:
        held_too_long = str(fields.get("error", "")).endswith("(max_hold)")
        told = event in _BAD_ENDS or (event == "run.cancelled" and held_too_long)
        if told or (event == "run.completed" and out.verbose):
            line = session.shown(ends.one_line(client.run(str(fields["run_id"])), ascii_only=out.ascii_only))
            out.say(f"{out.styled('error:', '1;31')} {line}" if told else line)

    return tell


def _tell(session: Session, counts: Counts) -> None:
    document: dict[str, Any] = {
        "claimed": counts.claimed,
        "adopted": counts.adopted,
        "timed_out": counts.timed_out,
        "rested": counts.rested,
        "errors": counts.errors,
        "fired": counts.fired,
        "skipped": counts.skipped,
        "missed": counts.missed,
        "runs": dict(counts.runs),
    }

    def human() -> None:
        ended = ", ".join(f"{count} {status}" for status, count in sorted(counts.runs.items())) or "none ended"
        session.out.note(
            f"turns: {counts.claimed} (runs: {ended}); adopted: {counts.adopted}; schedules fired: {counts.fired}; "
            f"errors: {counts.errors}"
        )

    session.one(document, human, id_field="claimed")


def _tell_failed(session: Session, client: Durable, run_ids: list[str]) -> None:
    """What cron mails of a tick: why runs failed."""
    from durable_cli.cli import ends

    for run_id in run_ids[:_REPORTS]:
        ends.failure_report(client.run(run_id), session)
    if len(run_ids) > _REPORTS:
        more = session.out.command("durable runs list --status failed")
        session.out.say(f"{len(run_ids) - _REPORTS} more runs failed: {more}")


def _tell_due(session: Session, due: Due | None) -> None:
    orphans, overdue, runs = ((), (), ()) if due is None else (due.orphans, due.overdue, due.due)
    document: render.Document = {
        "orphans": len(orphans),
        "overdue": len(overdue),
        "due": len(runs),
        "run_ids": [*orphans, *overdue, *runs],
        "schedules": [] if due is None else list(due.schedules),
    }

    def human() -> None:
        lines = [
            f"{format_count(len(orphans), 'orphaned run')} would be adopted",
            f"{format_count(len(overdue), 'overdue run')} would be ended",
            f"{format_count(len(runs), 'due run')} would be executed",
            *document["run_ids"],
        ]
        fires = [f"{format_count(len(document['schedules']), 'schedule')} would be looked at", *document["schedules"]]
        session.out.answer("\n".join([*lines, *(fires if document["schedules"] else [])]))

    session.one(document, human, id_field="due")
