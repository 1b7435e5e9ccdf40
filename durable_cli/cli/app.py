"""The commands by noun, and the one place that turns an exception into an exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, cast

import typer
from typer._click.exceptions import ClickException
from typer._click.exceptions import UsageError as ParseError
from typer.main import get_command

from durable_cli import __version__, render
from durable_cli.cli import (
    activity,
    check,
    commands,
    crontabs,
    db,
    doctor,
    errors,
    events,
    init,
    keylog,
    keys,
    logs,
    prune,
    runs,
    schedules,
    starting,
    top,
    topics,
    watching,
    workflows,
    working,
)
from durable_cli.cli.options import HELP_NAMES, Command, Group, as_usage_error
from durable_cli.cli.session import Session
from durable_cli.core.timing import format_count
from durable_cli.errors import UsageError
from durable_cli.places import is_there

HELP = """Run a job once per key, and each of its steps once.

durable run flows.py:sync --key nightly   executes a workflow here, safe against a second copy, a crash, a reboot.
Everything is in one SQLite file: durable db path."""


def _typer(help: str, name: str | None = None) -> typer.Typer:
    return typer.Typer(
        name=name,
        cls=Group,
        help=help,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP_NAMES), "max_content_width": 110},
    )


@cache
def build() -> Group:
    """The whole command tree."""
    app = _typer(HELP)
    app.callback(invoke_without_command=True)(bare)
    app.command("run", cls=Command)(starting.run)
    app.command("start", cls=Command)(starting.start)
    app.command("exec", cls=Command, context_settings={"allow_interspersed_args": False})(commands.execute_command)
    group = _typer("Runs: list, show, logs, wait, watch.", "runs")
    group.command("list", cls=Command)(runs.list_runs)
    group.command("show", cls=Command)(runs.show)
    group.command("logs", cls=Command)(logs.show_logs)
    group.command("wait", cls=Command)(runs.wait)
    group.command("watch", cls=Command)(watching.watch)
    app.add_typer(group)
    app.command("retry", cls=Command)(runs.retry)
    app.command("rerun", cls=Command)(runs.rerun)
    app.command("resume", cls=Command)(runs.resume)
    app.command("cancel", cls=Command)(runs.cancel)
    app.command("release-key", cls=Command)(runs.release_key)
    app.command("send-event", cls=Command)(events.send_event)
    app.command("input", cls=Command)(events.provide_input)
    app.command("inputs", cls=Command)(events.inputs)
    app.command("worker", cls=Command)(working.worker)
    app.command("tick", cls=Command)(working.tick)
    group = _typer("Keys: list, show, log, eval, replay.", "keys")
    group.command("list", cls=Command)(keys.list_keys)
    group.command("show", cls=Command)(keys.show)
    group.command("log", cls=Command)(keylog.log)
    group.command("eval", cls=Command)(keylog.evaluate)
    group.command("replay", cls=Command)(keylog.replay)
    app.add_typer(group)
    group = _typer("Workflows: policies, code, runs by status.", "workflows")
    group.command("list", cls=Command)(workflows.list_workflows)
    group.command("show", cls=Command)(workflows.show)
    app.add_typer(group)
    app.command("stats", cls=Command)(keys.stats)
    app.command("activity", cls=Command)(activity.activity)
    app.command("top", cls=Command)(top.top)
    app.command("prune", cls=Command)(prune.prune)
    app.command("check", cls=Command)(check.check)
    app.command("doctor", cls=Command)(doctor.doctor)
    app.command("init", cls=Command)(init.init)
    app.command("help", cls=Command)(topics.show_help)
    group = _typer("Schedules: what is started by itself, and when.", "schedules")
    for name, command in {**schedules.COMMANDS, "import": crontabs.import_crontab}.items():
        group.command(name, cls=Command)(command)
    app.add_typer(group)
    group = _typer("The database file: path, info, check, backup, vacuum, migrate, shell.", "db")
    for name, command in db.COMMANDS.items():
        group.command(name, cls=Command)(command)
    app.add_typer(group)
    return cast(Group, get_command(app))


def bare(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Called for every command; does something only where none was named."""
    session: Session = ctx.obj
    if version:
        if session.out.json:
            session.out.document({"version": __version__})
        else:
            session.out.answer(f"durable {__version__}")
        raise typer.Exit(0)
    if ctx.invoked_subcommand is not None:
        return 0
    place = session.place()
    if not is_there(place.path):
        if session.out.json:
            session.out.document({"path": str(place.path), "exists": False})
        else:
            session.out.answer(ctx.get_help())
        return 0
    client = session.existing()
    recent, counts = client.runs(limit=10), client.stats()
    document = {
        "path": str(place.path),
        "exists": True,
        **keys.stats_document(counts),
        "recent": [render.run_document(run) for run in recent],
    }

    def human() -> None:
        by_status = ", ".join(f"{count} {status}" for status, count in counts.runs.items()) or "no runs"
        session.out.answer(f"{session.shown(str(place.path))}\n{by_status}; {format_count(counts.held, 'key')} held")
        session.table(*runs.run_table(session, recent), "no runs yet")

    session.one(document, human, id_field="path")
    return 0


def main(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
    """Execute one command line; the exit code."""
    session = Session(env)
    try:
        return _invoke(session, list(argv))
    except typer.Exit as leave:
        return leave.exit_code
    except ParseError as error:
        return errors.report(as_usage_error(error), session.out)
    except ClickException as error:
        return errors.report(UsageError(error.format_message()), session.out)
    except (Exception, KeyboardInterrupt) as error:
        return errors.report(error, session.out)
    finally:
        try:
            session.close()
        except Exception as error:  # the answer is out: a failing close must not change it into a traceback
            if session.out.verbose:
                session.out.say(f"warning: closing the database: {render.safe(str(error))}")


def _invoke(session: Session, argv: list[str]) -> int:
    command = build()
    session.out.commands = tuple(command.commands)
    with command.make_context("durable", argv, obj=session) as ctx:
        return int(cast(Any, command.invoke(ctx)) or 0)
