"""Commands about runs that exist: `runs list|show|wait`, retry, rerun, resume, cancel, release-key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from durable_cli import render
from durable_cli.cli import ends, keyview, runview
from durable_cli.cli.executing import execute, finish, start_document
from durable_cli.cli.options import check_choice, check_duration
from durable_cli.cli.session import Cell, Session, check_run_options
from durable_cli.cli.starting import DryRun, Grace, print_id, tell_explanation
from durable_cli.core.timing import parse_duration
from durable_cli.errors import CannotCancel
from durable_cli.model import CancelResult, Run, Status, Step

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.foreground import Execution
    from durable_cli.lookup import KeyDetails
    from durable_cli.store.events import Event

RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="An id, its first letters (3 or more), or `last`.", show_default=False),
]
RunKey = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="The run that holds this key, else its newest.")
]
RunWorkflow = Annotated[str | None, typer.Option("--workflow", metavar="W", help="The workflow of the key.")]
Foreground = Annotated[bool, typer.Option("--foreground", help="Execute it here, as `durable run` does.")]
Fields = Annotated[str | None, typer.Option("--fields", metavar="A,B", help="Only these fields, in this order.")]
Header = Annotated[bool, typer.Option("--header", help="Begin TSV and CSV with the names of the fields.")]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many (50 on a terminal, else all).")
]
_MOST_ROWS: Final = 2**63 - 1  # SQLite counts no further
Since = Annotated[str | None, typer.Option("--since", metavar="DURATION", help="Only of the last so long (24h, 7d).")]


def limit_of(session: Session, limit: int | None) -> int | None:
    """The rows a list has at most: all in a pipe, 50 for a person."""
    if limit is None:
        return 50 if session.out.list_format() == "table" else None
    return min(limit, _MOST_ROWS)


def list_runs(
    ctx: typer.Context,
    search: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SEARCH]", help="Words, key:..., workflow:..., status:...", show_default=False),
    ] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="W", help="Only runs of this workflow.")] = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help="Only runs of this status. Repeatable.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only runs with this key.")] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only runs that are not finished.")] = False,
    since: Since = None,
    limit: Limit = None,
    fields: Fields = None,
    header: Header = False,
) -> int:
    """Runs, newest first."""
    session: Session = ctx.obj
    for given in status or ():
        check_choice("--status", given, [str(known) for known in Status])
    since = check_duration(since)
    client = session.reader(named=key is not None)
    found: list[Run] = []
    if client is not None:
        found = client.runs(
            workflow=workflow,
            status=status or (),
            key=key,
            unfinished=unfinished,
            since=since,
            search=" ".join(search) if search else None,
            limit=limit_of(session, limit),
        )
    session.list(
        [render.run_document(run) for run in found],
        render.RUN_FIELDS,
        table=lambda: run_table(session, found, client.waits(found) if client is not None else {}),
        empty="no runs",
        chosen=fields,
        header=header,
        id_field="id",
    )
    return 0


def run_table(
    session: Session, runs: Sequence[Run], waits: Mapping[str, Sequence[Step]] = MappingProxyType({})
) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows for a person. `waits`: by the id of a run, its operations that wait."""
    now = session.now()
    rows: list[list[Cell]] = []
    for run in runs:
        note = ""
        if run.error is not None:
            note = session.shown(f"{run.error.type}: {run.error.message}")
        elif run.note is not None:
            note = session.shown(run.note)
        elif run.runs_after_id is not None:
            note = f"waits behind {run.runs_after_id}"
        elif run.owner is not None and run.owner.alive is False:
            note = "its process is dead; the next start adopts it"
        elif run.id in waits:
            steps = waits[run.id]
            more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
            name = (
                "" if steps[0].kind in ("event", "input") else f"{steps[0].name}: "
            )  # else what they wait for says it
            note = session.shown(f"{name}{render.waits_for(steps[0], now)}{more}")
        elif run.due_at is not None and run.due_at > now:
            note = f"due {render.age(run.due_at, now)}"
        key = session.shown_key(run.key) + ("" if run.holds_key or run.key is None else " (not held)")
        short = render.clip(note, 80, ascii_only=session.out.ascii_only)
        rows.append([run.id, run.workflow, key, session.status(run.status), render.age(run.created_at, now), short])
    return ["run", "workflow", "key", "status", "created", ""], rows


def show(ctx: typer.Context, run: RunArgument = None, key: RunKey = None, workflow: RunWorkflow = None) -> int:
    """One run: what it is, its steps, how it ended."""
    session: Session = ctx.obj
    check_run_options(run, key, workflow)
    client = session.existing()
    found = session.run(client, run, key, workflow)
    view = None if found.key is None else client.key(found.workflow, found.key)
    events = client.events(found.id)
    document = {
        **render.run_document(found),
        "events": [render.event_document(event) for event in events],
        "key_view": None if view is None else keyview.document(view),
    }
    session.one(document, lambda: _show(session, found, view, events), id_field="id")
    return 0


def _show(session: Session, run: Run, view: KeyDetails | None, events: Sequence[Event]) -> None:
    shown = session.shown
    lines = runview.header_lines(session, run)
    lines.append(f"input      {shown(render.compact(render.value(run.input)))}")
    lines += runview.result_lines(session, run)
    lines += runview.step_lines(session, run)
    lines += [_event_line(session, event) for event in events]
    lines += runview.error_lines(session, run)
    if run.error is not None:
        lines += [f"  {shown(line)}" for line in (run.error.traceback or "").rstrip("\n").split("\n") if line]
    if view is not None:
        lines += keyview.run_lines(session, view)
    session.out.answer("\n".join(lines))


def _event_line(session: Session, event: Event) -> str:
    what = "answer" if event.kind == "input" else "event"
    payload = render.clip(render.compact(render.value(event.payload)), 200, ascii_only=session.out.ascii_only)
    came = render.age(event.created_at, session.now())
    state = "received" if event.received else "kept, not received"
    return f"{what:<10} {session.shown(event.name)}  {session.shown(payload)}  {state}  ({came})"


def wait(
    ctx: typer.Context,
    run: RunArgument = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Leave (exit 8) when it takes longer.")
    ] = None,
) -> int:
    """Wait for a run; print its result and exit as it ended."""
    session: Session = ctx.obj
    check_run_options(run, key, workflow)
    timeout_ms = None if timeout is None else parse_duration(timeout)
    client = session.existing()
    named = session.run(client, run, key, workflow)
    found = client.wait(named.id, timeout=None if timeout_ms is None else timeout_ms / 1000)
    session.one(render.run_document(found), lambda: ends.print_result(found, session), id_field="id")
    code = ends.exit_code(found)
    if code and not session.out.json:
        ends.failure_report(found, session, output=False)
    return code


def retry(
    ctx: typer.Context,
    run: RunArgument = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
    foreground: Foreground = False,
    grace: Grace = "10s",
    dry_run: DryRun = False,
) -> int:
    """Go on with a failed or cancelled run, in place: what it recorded does not run again."""
    session: Session = ctx.obj
    check_run_options(run, key, workflow)
    grace_ms = parse_duration(grace)
    client = session.existing()
    found = session.run(client, run, key, workflow)
    if dry_run:
        return tell_explanation(session, client.explain_retry(found.id))
    if foreground:
        return _execute_here(session, client, client.retry_here, found, grace_ms)
    revived = client.retry(found.id)
    session.one(render.run_document(revived), lambda: print_id(session, revived.id), id_field="id")
    session.out.note(f"run {revived.id} is pending; to execute it here: {ends.how_to_go_on(revived, session)}")
    return 0


def rerun(
    ctx: typer.Context,
    run: RunArgument = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
    foreground: Foreground = False,
    grace: Grace = "10s",
    dry_run: DryRun = False,
) -> int:
    """Start a fresh copy of a finished run: same workflow, key and input."""
    session: Session = ctx.obj
    check_run_options(run, key, workflow)
    grace_ms = parse_duration(grace)
    client = session.existing()
    found = session.run(client, run, key, workflow)
    if dry_run:
        return tell_explanation(session, client.explain_rerun(found.id))
    if foreground:
        return _execute_here(session, client, client.rerun_here, found, grace_ms)
    result = client.rerun(found.id)
    fresh = client.run(result.run_id)
    session.one(start_document(fresh, result), lambda: print_id(session, fresh.id), id_field="run_id")
    session.out.note(f"run {fresh.id} was recorded; to execute it here: {ends.how_to_go_on(fresh, session)}")
    return 0


def resume(
    ctx: typer.Context,
    run: RunArgument = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
    grace: Grace = "10s",
) -> int:
    """Execute here an unfinished, due run that no living process executes."""
    session: Session = ctx.obj
    check_run_options(run, key, workflow)
    grace_ms = parse_duration(grace)
    client = session.existing()
    return _execute_here(session, client, client.resume, session.run(client, run, key, workflow), grace_ms)


def _execute_here(session: Session, client: Durable, go_on: Callable[..., Execution], found: Run, grace_ms: int) -> int:
    session.out.guard()
    execution, number = execute(
        session, client, lambda stop, progress: go_on(found.id, stop=stop, progress=progress), grace_ms=grace_ms
    )
    return finish(session, client, execution, number)


def cancel(
    ctx: typer.Context,
    run: RunArgument = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Kept in the run's error.")] = None,
    dry_run: DryRun = False,
) -> int:
    """Cancel a run. Nothing to cancel is no error."""
    session: Session = ctx.obj
    check_run_options(run, key, workflow)
    client = session.reader(named=run is not None)
    if client is None:
        _tell_cancelled(session, CancelResult(0, None, None))
        return 0
    if dry_run:
        return tell_explanation(session, client.explain_cancel(run, key=key, workflow=workflow))
    result = client.cancel(run, key=key, workflow=workflow, reason=reason)
    if result.status is Status.COMPENSATING:
        raise CannotCancel(
            f"run {result.run_id} is compensating and cannot be cancelled",
            run_id=result.run_id,
            status=str(result.status),
        )
    _tell_cancelled(session, result)
    return 0


def _tell_cancelled(session: Session, result: CancelResult) -> None:
    run_id, status = result.run_id, result.status
    document = {"cancelled": result.cancelled, "run_id": run_id, "status": None if status is None else str(status)}

    def human() -> None:
        if run_id is None:
            session.out.note("nothing to cancel: no run has that key")
        elif result.cancelled:
            running = result.was is Status.RUNNING
            step = "; a step that is running ends, and its result is discarded" if running else ""
            session.out.note(f"run {run_id} is cancelled{step}")
        else:
            session.out.note(f"nothing to cancel: run {run_id} is {status}")

    session.one(document, human, id_field="run_id")


def release_key(
    ctx: typer.Context,
    run: RunArgument = None,
    key: RunKey = None,
    workflow: RunWorkflow = None,
    by: Annotated[str | None, typer.Option("--by", metavar="WHO", help="Who releases it (else you).")] = None,
) -> int:
    """Let the key of a finished run go, so that the next start is a new run."""
    session: Session = ctx.obj
    check_run_options(run, key, workflow)
    client = session.existing()
    named = session.run(client, run, key, workflow)
    found = client.release_key(named.id, by=by)
    session.one(render.run_document(found), lambda: None, id_field="id")
    session.out.note(f"key {session.shown_key(found.key)} is free; run {found.id} no longer holds it")
    return 0
