"""`durable run` and `durable start`."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from durable_cli import render
from durable_cli.cli import errors, installing, moments
from durable_cli.cli.executing import (
    REPORTS,
    execute,
    finish,
    note_of,
    start_document,
    tell_existing,
)
from durable_cli.cli.inputs import NOT_BY_PARAMS, apply_params, read_input, refuse_unknown
from durable_cli.cli.options import check_choice, check_duration, meant_of_target
from durable_cli.cli.session import Session
from durable_cli.core.fields import known_fields
from durable_cli.core.policies import parse_timeout
from durable_cli.core.timing import parse_duration
from durable_cli.errors import InvalidInput, KeyTaken, NotFound, UsageError
from durable_cli.model import Outcome, Run

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.definition import Definition

TARGET_HELP = "module:workflow, path/to/file.py:workflow, or the name of a workflow that the database knows."

Target = Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP, show_default=False)]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="One run at a time holds this key.")]
Input = Annotated[
    str | None, typer.Option("--input", metavar="JSON|@FILE|-", help="The input: JSON, a file, or stdin.")
]
Params = Annotated[
    list[str] | None,
    typer.Option("-P", metavar="NAME=TEXT|NAME:=JSON", help="A field of the input; a.b=... goes inside. Repeatable."),
]
OnDuplicate = Annotated[
    str | None,
    typer.Option(
        "--on-duplicate",
        metavar="POLICY",
        help="use_existing, error, cancel_existing, run_again or send_event:NAME (else the workflow's).",
    ),
]
ConflictExitCode = Annotated[
    int | None,
    typer.Option(
        "-E",
        "--conflict-exit-code",
        metavar="N",
        min=0,
        max=255,
        help="The exit code when nothing new began because the key is taken (as flock -E).",
    ),
]
DryRun = Annotated[bool, typer.Option("-n", "--dry-run", help="Say what would happen now and why; write nothing.")]
Moved = Annotated[bool, typer.Option("--moved", help="The workflow's code moved here on purpose.")]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help="The run has failed when it takes longer than this.")
]
Grace = Annotated[
    str, typer.Option("--grace", metavar="DURATION", help="How long a signal lets the running step go on.")
]


@dataclass(frozen=True)
class Call:
    """The arguments that `run` and `start` share, as given."""

    target: str
    key: str | None
    input: str | None
    params: tuple[str, ...]
    on_duplicate: str | None
    moved: bool
    timeout: str | None = None

    def value(self, session: Session) -> dict[str, Any]:
        """`input=` for the client; empty where no input was given. Raises InvalidInput, UsageError."""
        given = self.input is not None
        base = read_input(self.input, may_ask=not session.no_input) if self.input is not None else None
        if self.params:
            return {"input": apply_params(base, self.params, given=given)}
        return {"input": base} if given else {}

    def load(self, session: Session, client: Durable) -> Definition:
        """The workflow of TARGET. From here on user code runs, and stdout is kept for the answer."""
        app_dir = session.app_dir(self.target)
        session.out.guard()
        from durable_cli.loading import load_target

        try:
            return load_target(self.target, app_dir=app_dir, known=client.workflow, names=client.workflow_names)
        except NotFound as error:
            error.hint = meant_of_target(self.target) or error.hint
            raise

    def argv(self, session: Session) -> list[str]:
        """The same call from anywhere: every path absolute."""
        file, colon, name = self.target.partition(":")
        is_file = file.endswith(".py")
        target = os.path.abspath(os.path.expanduser(file)) + colon + name if is_file else self.target
        app_dir = session.app_dir(self.target)
        argv = ["--db", str(session.place(self.target).path)]
        if app_dir is not None or not is_file:
            argv += ["--app-dir", str(app_dir or os.getcwd())]
        if self.key is not None:
            argv += ["--key", self.key]
        if self.input is not None:
            if self.input == "-":
                raise UsageError("--input - reads what is typed now; give JSON or @FILE for a job that runs later")
            file_input = self.input.startswith("@")
            path = os.path.abspath(os.path.expanduser(self.input[1:]))
            argv += ["--input", "@" + path if file_input else self.input]
        for param in self.params:
            argv += ["-P", param]
        if self.on_duplicate is not None:
            argv += ["--on-duplicate", self.on_duplicate]
        if self.timeout is not None:
            argv += ["--timeout", self.timeout]
        return [*argv, *(["--"] if target.startswith("-") else []), target]

    def check(self, definition: Definition, value: dict[str, Any]) -> None:
        """Say it where `-P` names a field that the input has not, or was the wrong way. Raises UsageError."""
        if not self.params:
            return
        refuse_unknown(self.params, known_fields(definition.input.annotation))
        try:
            definition.accept_input(*value.values())
        except InvalidInput as error:
            if error.hint is None and ": input: " in error.message:  # the input itself is no object, not a field of it
                error.hint = NOT_BY_PARAMS
                raise


def run(
    ctx: typer.Context,
    target: Target,
    key: Key = None,
    input: Input = None,
    params: Params = None,
    on_duplicate: OnDuplicate = None,
    conflict_exit_code: ConflictExitCode = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="If another run holds the key: wait for it, and exit as it ends.")
    ] = False,
    max_wait: Annotated[
        str | None,
        typer.Option(
            "--max-wait",
            metavar="DURATION",
            help="Leave (exit 8) when the run rests, or --wait waits, longer than this.",
        ),
    ] = None,
    if_older: Annotated[
        str | None,
        typer.Option("--if-older", metavar="DURATION", help="Do nothing if the last completed run is younger."),
    ] = None,
    report: Annotated[
        str, typer.Option("--report", metavar="WHEN", help="Tell of a failure always, on changes, or never.")
    ] = "always",
    notify: Annotated[bool, typer.Option("--notify", help="A desktop notification at the end.")] = False,
    step_by_step: Annotated[
        bool, typer.Option("--step-by-step", help="A line for each step, also without a terminal.")
    ] = False,
    print_crontab: installing.PrintCrontab = None,
    print_systemd: installing.PrintSystemd = False,
    print_launchd: installing.PrintLaunchd = False,
    timeout: Timeout = None,
    grace: Grace = "10s",
    moved: Moved = False,
    dry_run: DryRun = False,
) -> int:
    """Start a workflow and execute it here until its run ends."""
    session: Session = ctx.obj
    call = Call(target, key, input, tuple(params or ()), on_duplicate, moved, timeout)
    parse_timeout(timeout)
    check_choice("--report", report, REPORTS)
    grace_ms = parse_duration(grace)
    max_wait = check_duration(max_wait)
    older_ms = None if if_older is None else parse_duration(if_older)
    form = installing.asked(print_crontab, print_systemd, print_launchd, dry_run=dry_run)
    words = [] if form is None else call.argv(session)
    value = call.value(session)
    client = session.writer(target)
    definition = call.load(session, client)
    call.check(definition, value)
    asked: dict[str, Any] = {"key": key, "on_duplicate": on_duplicate, "moved": moved, **value}
    if form is not None:
        more = {"-E": conflict_exit_code, "--max-wait": max_wait, "--if-older": if_older, "--wait": wait}
        more |= {"--report": None if report == "always" else report, "--grace": None if grace == "10s" else grace}
        more |= {"--notify": notify, "--step-by-step": step_by_step, "--moved": moved}
        seen = client.explain_start(definition, execute=True, **asked)  # a call that would be refused is not printed
        name = installing.job_name(session, seen.workflow, seen.key, [*([input] if input else []), *call.params])
        return installing.tell(session, form, name, ["run", "-q", *installing.flags(more), *words], key=seen.key)
    if older_ms is not None and (recent := _recent(client, definition, key, value, older_ms)):
        return tell_recent(session, recent, dry_run=dry_run)
    if dry_run:
        return tell_explanation(session, client.explain_start(definition, execute=True, **asked))
    try:
        execution, number = execute(
            session,
            client,
            lambda stop, progress: client.execute(
                definition, stop=stop, max_wait=max_wait, wait=wait, timeout=timeout, progress=progress, **asked
            ),
            grace_ms=grace_ms,
            step_by_step=step_by_step,
        )
    except KeyTaken as error:
        code = errors.report(error, session.out)
        return code if conflict_exit_code is None else conflict_exit_code
    code = finish(session, client, execution, number, report=report, conflict_exit_code=conflict_exit_code, wait=wait)
    if notify:
        from durable_cli.cli import ends

        if not ends.notify(execution.run):
            session.out.note("--notify: neither notify-send nor osascript could show a notification")
    return code


def start(
    ctx: typer.Context,
    target: Target,
    key: Key = None,
    input: Input = None,
    params: Params = None,
    on_duplicate: OnDuplicate = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Begin then: 18:00 or 2026-12-24T18:00 (local), ...Z or ...+01:00."),
    ] = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="DURATION", help="Begin so long from now.")] = None,
    input_lines: Annotated[
        str | None,
        typer.Option("--input-lines", metavar="-|@FILE", help='Many starts: {"input": ..., "key": ...} a line.'),
    ] = None,
    conflict_exit_code: ConflictExitCode = None,
    timeout: Timeout = None,
    moved: Moved = False,
    dry_run: DryRun = False,
) -> int:
    """Record a start and print the id of its run; another process executes it.

    With --input-lines a start for each line of JSON, an object with input, key, on_duplicate, timeout, at, delay (all
    optional), and an answer for each as a line of JSON; exit 1 where any line was refused.
    """
    session: Session = ctx.obj
    call = Call(target, key, input, tuple(params or ()), on_duplicate, moved)
    if input_lines is not None:
        alone: dict[str, object] = {"--key": key, "--input": input, "-P": params, "--at": at, "--delay": delay}
        alone |= {"-E": conflict_exit_code, "--timeout": timeout}
        given = [name for name, it in alone.items() if it not in (None, [], ())]
        return _start_lines(session, call, input_lines, given, dry_run=dry_run)
    later, zone = _later(session, at, delay)
    parse_timeout(timeout)
    value = call.value(session)
    client = session.writer(target)
    definition = call.load(session, client)
    call.check(definition, value)
    asked: dict[str, Any] = {"key": key, "on_duplicate": on_duplicate, "moved": moved, **value}
    if dry_run:
        return tell_explanation(session, client.explain_start(definition, execute=False, **asked, **later))
    try:
        result = client.start(definition, timeout=timeout, **asked, **later)
    except KeyTaken as error:
        code = errors.report(error, session.out)
        return code if conflict_exit_code is None else conflict_exit_code
    found = client.run(result.run_id)
    document = start_document(found, result) | ({"due_at": render.iso(found.due_at), "zone": zone} if later else {})
    session.one(document, lambda: print_id(session, found.id), id_field="run_id")
    not_put_off = (Outcome.EXISTING, Outcome.EVENT_SENT)  # any other run begins no earlier than was asked for
    if later and result.outcome in not_put_off and not session.out.quiet:
        session.out.say(f"--at and --delay are for new runs; run {found.id} begins when it would have")
    if result.outcome is not Outcome.EXISTING:
        begins = f"; it begins {moments.told(found.due_at, session)}" if later and found.due_at is not None else ""
        session.out.note(note_of(result.outcome, found.id) + begins)
        return 0
    tell_existing(session, client, found)
    return 0 if conflict_exit_code is None else conflict_exit_code


def _later(session: Session, at: str | None, delay: str | None) -> tuple[dict[str, Any], str | None]:
    """`at=` or `delay=` for the client (empty: neither was given), and the zone that `--at` was read in."""
    if at is not None and delay is not None:
        raise UsageError("--at and --delay both say when; give one of them")
    if delay is not None:
        parse_duration(delay)  # before users' code is loaded
        return {"delay": delay}, None
    if at is None:
        return {}, None
    moment, zone = moments.ahead(at, session)
    return {"at": moments.as_datetime(moment)}, zone


def _start_lines(session: Session, call: Call, source: str, given: list[str], *, dry_run: bool) -> int:
    from durable_cli.cli import bulk  # late: few starts are in bulk

    if given:
        raise UsageError(f"{given[0]} does not go with --input-lines; each line says its own")
    descriptor = bulk.open_lines(source, may_ask=not session.no_input)
    client = session.writer(call.target)
    definition = call.load(session, client)
    defaults = bulk.Defaults(call.on_duplicate, call.moved)
    return bulk.start_lines(session, client, definition, descriptor, defaults, dry_run=dry_run)


def print_id(session: Session, run_id: str) -> None:
    """The id of a run on stdout (not under `-q`)."""
    if not session.out.quiet:
        session.out.answer(run_id)


def tell_explanation(session: Session, explanation: Any) -> int:
    """What a `--dry-run` found, on stdout."""
    facts, due_at = list(explanation.facts), explanation.due_at
    if due_at is not None:
        facts.append(f"it would begin {moments.told(due_at, session)}")
    document = dataclasses.asdict(explanation) | {"facts": facts, "due_at": render.iso(due_at)}
    for name in ("holder_status", "outcome"):
        document[name] = None if document[name] is None else str(document[name])

    def human() -> None:
        lines = [session.shown(explanation.reason), *(f"  {session.shown(fact)}" for fact in facts)]
        session.out.answer("\n".join(lines))

    session.one(document, human, id_field="holder_id")
    return 0


def _recent(
    client: Durable, definition: Definition, key: str | None, value: dict[str, Any], older_ms: int
) -> Run | None:
    """What completed not long ago for the key that this call would use: its own, else what the workflow derives."""
    used = key if key is not None else client.key_of(definition, **value)
    return client.last_completed(definition.name, used, within=older_ms / 1000)


def tell_recent(session: Session, run: Run, *, dry_run: bool) -> int:
    """The answer of a call that does nothing (`--if-older`), since that run completed not long ago. Always 0."""
    said = f"nothing to do: run {run.id} completed {render.age(run.finished_at, session.now())}"
    if dry_run:
        from durable_cli.explaining import Explanation

        return tell_explanation(session, Explanation("nothing", f"{said} (--if-older)", run.workflow, run.key))
    session.one({**start_document(run, None), "outcome": str(Outcome.EXISTING)}, lambda: None, id_field="run_id")
    session.out.note(said)
    return 0
