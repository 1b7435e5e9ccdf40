"""`durable exec`: any command as a workflow of one step."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from durable_cli.cli import ends, errors, installing
from durable_cli.cli.executing import REPORTS, execute, finish
from durable_cli.cli.options import check_choice
from durable_cli.cli.session import Session
from durable_cli.cli.starting import (
    ConflictExitCode,
    DryRun,
    Grace,
    Key,
    OnDuplicate,
    tell_explanation,
    tell_recent,
)
from durable_cli.core.policies import parse_timeout
from durable_cli.core.timing import parse_duration
from durable_cli.errors import InvalidName, KeyTaken, UsageError

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.definition import Definition


def execute_command(
    ctx: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND [ARG]...", help="The command, as for env.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="The workflow's name (else that of the program).")
    ] = None,
    key: Key = None,
    reuse: Annotated[
        str | None,
        typer.Option(
            "--reuse",
            metavar="R",
            help="May a new start take the key of a finished run? after_close, after_failure or never; stored for N.",
        ),
    ] = None,
    on_duplicate: OnDuplicate = None,
    conflict_exit_code: ConflictExitCode = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="If another run holds the key: wait for it, and exit as it ends.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Kill it, and fail, when it takes longer.")
    ] = None,
    if_older: Annotated[
        str | None,
        typer.Option("--if-older", metavar="DURATION", help="Do nothing if the last completed run is younger."),
    ] = None,
    report: Annotated[
        str, typer.Option("--report", metavar="WHEN", help="Tell of a failure always, on changes, or never.")
    ] = "always",
    notify: Annotated[bool, typer.Option("--notify", help="A desktop notification at the end.")] = False,
    grace: Grace = "10s",
    print_crontab: installing.PrintCrontab = None,
    print_systemd: installing.PrintSystemd = False,
    print_launchd: installing.PrintLaunchd = False,
    dry_run: DryRun = False,
) -> int:
    """Run a command with the policies of a workflow: one at a time for a key, seen by all, kept with its output.

    Its exit code becomes ours (128 and the number where a signal ended it). Recorded are the arguments and the current
    directory, never the environment. On a terminal it has the terminal, and what it prints there is not kept.
    """
    session: Session = ctx.obj
    check_choice("--report", report, REPORTS)
    parse_timeout(timeout)
    grace_ms = parse_duration(grace)
    older_ms = None if if_older is None else parse_duration(if_older)
    form = installing.asked(print_crontab, print_systemd, print_launchd, dry_run=dry_run)
    client = session.writer()
    definition = definition_for(client, command, name, reuse)
    asked: dict[str, Any] = {
        "input": {"argv": command, "cwd": os.getcwd()},
        "key": key,
        "on_duplicate": on_duplicate,
    }
    if form is not None:
        client.explain_start(definition, execute=True, **asked)  # a call that would be refused is not printed
        words = ["exec", "-q", "--db", str(session.place().path)]
        words += installing.flags({"--name": name, "--key": key, "--reuse": reuse, "--on-duplicate": on_duplicate})
        more = {"-E": conflict_exit_code, "--wait": wait, "--timeout": timeout, "--if-older": if_older}
        more |= {"--report": None if report == "always" else report, "--grace": None if grace == "10s" else grace}
        words += [*installing.flags({**more, "--notify": notify}), "--", _found(command[0]), *command[1:]]
        job = installing.job_name(session, definition.name, key, command)
        return installing.tell(session, form, job, words, key=key)
    if older_ms is not None and (recent := client.last_completed(definition.name, key, within=older_ms / 1000)):
        return tell_recent(session, recent, dry_run=dry_run)
    if dry_run:
        return tell_explanation(session, client.explain_start(definition, execute=True, **asked))
    _tell_of_reuse(session, client, definition)
    if session.out.quiet or session.out.json:
        session.out.guard()  # else its output goes where it would go without us
    try:
        execution, number = execute(
            session,
            client,
            lambda stop, progress: client.execute(
                definition, stop=stop, wait=wait, timeout=timeout, progress=progress, **asked
            ),
            grace_ms=grace_ms,
            command=True,
        )
    except KeyTaken as error:
        code = errors.report(error, session.out)
        return code if conflict_exit_code is None else conflict_exit_code
    code = finish(session, client, execution, number, report=report, conflict_exit_code=conflict_exit_code, wait=wait)
    if notify and not ends.notify(execution.run):
        session.out.note("--notify: neither notify-send nor osascript could show a notification")
    if code == 1 and (execution.executed or wait):
        from durable_cli.commands import exit_code_of

        return exit_code_of(execution.run) or 1
    return code


def _found(program: str) -> str:
    """A program with its path: cron's PATH is another one."""
    found = None if os.sep in program else shutil.which(program)
    return program if found is None else os.path.abspath(found)


def definition_for(client: Durable, command: list[str], name: str | None, reuse: str | None) -> Definition:
    """The workflow of a command line, with the policies that it has in the file. Raises InvalidName, UsageError."""
    from durable_cli.commands import definition_of
    from durable_cli.core.keys import check_workflow_name
    from durable_cli.core.policies import parse_reuse
    from durable_cli.model import Policies
    from durable_cli.places import COMMANDS

    program = os.path.basename(command[0])
    try:
        chosen = check_workflow_name(program if name is None else name)
    except InvalidName as error:
        if name is None:
            error.hint = "give the workflow a name: --name N"
        raise
    known = client.workflow(chosen)
    if known is not None and known.location.file != COMMANDS:
        raise UsageError(
            f"{chosen!r} is the name of a workflow in Python",
            facts=(f"it is {known.location.file}:{known.location.qualname}",),
            hint="give the command another name: --name N",
        )
    policies = Policies() if known is None else known.policies
    return definition_of(chosen, policies if reuse is None else dataclasses.replace(policies, reuse=parse_reuse(reuse)))


def _tell_of_reuse(session: Session, client: Durable, definition: Definition) -> None:
    known = client.workflow(definition.name)
    if known is not None and known.policies.reuse is not definition.reuse and not session.out.quiet:
        session.out.say(
            f"reuse of workflow {definition.name} is {definition.reuse} from now on; it was {known.policies.reuse}"
        )
