"""The workflow behind `durable exec`: one step that runs a command line.

There is one function for all of them, and a workflow for each name that people give their commands. It is part of
durable, so any worker has it, wherever durable is installed there: the place that is recorded is no file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from durable_cli.definition import Definition
from durable_cli.model import Location, Policies, Run
from durable_cli.places import COMMANDS

if TYPE_CHECKING:
    from durable_cli.context import Context

STEP: Final = "command"
_PLACE: Final = Location(file=COMMANDS, qualname="run_command", module=None, app_dir="/")


def run_command(ctx: Context, line: dict[str, Any]) -> None:
    """Run `line["argv"]` in the directory `line["cwd"]`, with the environment of whoever executes the run."""
    from durable_cli import shell  # late: whoever only lists workflows needs none of it
    from durable_cli.operations import drive

    call = shell.checked(
        STEP,
        line.get("argv"),
        input=None,
        env=None,
        cwd=line.get("cwd"),
        timeout=None,
        retry=None,
        check=True,
    )
    drive(shell.shell(ctx._operations, replace(call, attached=True)))


def definition_of(name: str, policies: Policies) -> Definition:
    """The workflow of that name whose runs are command lines."""
    return Definition(
        name=name,
        function=run_command,
        is_async=False,
        policies=policies,
        location=_PLACE,
        line=run_command.__code__.co_firstlineno,
        parameter="line",
    )


def exit_code_of(run: Run) -> int | None:
    """How the command of a failed run ended, as a shell tells it: its exit code, or 128 and the signal's number."""
    fields = (run.error.fields if run.error is not None else None) or {}
    signal, code = fields.get("signal"), fields.get("exit_code")
    if isinstance(signal, int):
        return 128 + signal
    return code if isinstance(code, int) else None
