"""`durable init`: a first workflow, and the lines that run it every night."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from durable_cli.cli import installing
from durable_cli.cli.session import Session
from durable_cli.cli.starting import Call
from durable_cli.errors import UnsafeCode

_NAME: Final = "first"
_KEY: Final = "nightly"
_WHEN: Final = "0 3 * * *"


def init(
    ctx: typer.Context,
    folder: Annotated[
        str, typer.Argument(metavar="[DIR]", help="Where to write flows.py (else here).", show_default=False)
    ] = ".",
) -> int:
    """Write a first workflow, flows.py, and print what to paste into a crontab, or for systemd, to run it each night.

    The file runs as it stands. Nothing is ever replaced, and nothing else is written.
    """
    session: Session = ctx.obj
    from durable_cli import firststeps

    path = Path(os.path.abspath(os.path.expanduser(folder))) / firststeps.FILE
    file = str(path)
    firststeps.refuse(path)
    name = _free_name(session, file)
    argv = [*installing.program(), "run", "-q", *Call(file, _KEY, None, (), None, False).argv(session)]
    there = str(path.parent)
    crontab, systemd = installing.crontab(_WHEN, argv, cwd=there), installing.systemd(name, argv, cwd=there)
    named = [] if session.db is None else ["--db", str(session.place(file).path)]
    run = shlex.join(["durable", "run", *named, file, "--key", name])
    firststeps.write(path, name)
    document = {"path": file, "workflow": name, "run": run, "argv": argv, "crontab": crontab, "systemd": systemd}

    def human() -> None:
        if not session.out.quiet:
            session.out.answer(_TOLD.format(path=session.shown(file), run=run, crontab=crontab, systemd=systemd))

    session.one(document, human, id_field="path")
    _warn(session, path)
    return 0


_TOLD: Final = """\
wrote {path}

# run it here, and again after killing it in the middle:
{run}

# every night at three, as a line of `crontab -e`:
{crontab}

# or by systemd, as two files:
{systemd}"""


def _free_name(session: Session, file: str) -> str:
    """A name that no workflow of the database in force has which is written elsewhere: it has to run as it stands."""
    if not session.place(file).path.exists():
        return _NAME
    client, number, name = session.existing(), 1, _NAME
    while (known := client.workflow(name)) is not None and known.location.file != os.path.realpath(file):
        number += 1
        name = f"{_NAME}_{number}"
    return name


def _warn(session: Session, path: Path) -> None:
    """Say it where a worker will not load the file: others may write there."""
    from durable_cli.places import check_safe

    try:
        check_safe(str(path.resolve()), str(path.resolve().parent))
    except UnsafeCode as error:
        if not session.out.quiet:
            session.out.say(f"{session.out.styled('warning:', '33')} {session.shown(error.message)}")
