"""Errors for a person and for a program, and the exit codes.

A person reads `error: what happened`, up to three indented facts and `hint: one command`; a program reads
`{"error": {"code", "message", "hint", ...}}` on stdout. A user's traceback begins in the user's file and never shows
local variables; our own frames are shown only for our own bugs, and then as one line to report (`-v`: all of it).
"""

from __future__ import annotations

import errno
import sys
import traceback
from typing import Final

from durable_cli.cli.output import Output
from durable_cli.errors import DiskFull, DurableError, InternalError, KeyTaken
from durable_cli.render import Document, safe

MAX_FACTS: Final = 3


def report(error: BaseException, out: Output) -> int:
    """Tell what went wrong, in the form asked for. Returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    known = error if isinstance(error, DurableError) else _unexpected(error)
    if out.json and not out.answered:
        out.document({"error": error_document(known, out)})
    elif not out.json or out.verbose or isinstance(known, (InternalError, DiskFull)):  # the answer is not out
        _tell(known, out)
    if out.verbose and known is not error:
        for line in "".join(traceback.format_exception(error)).splitlines():
            out.say(safe(line))
    return known.exit_status


def error_document(error: DurableError, out: Output) -> Document:
    """The object under `error`; the fields of the class beside code, message and hint."""
    hint = None if error.hint is None else out.command(error.hint)
    return {"code": error.code(), "message": error.message, "hint": hint, **error.fields()}


def _tell(error: DurableError, out: Output) -> None:
    def shown(text: str) -> str:
        return safe(text, ascii_only=out.ascii_only)

    first, *rest = error.message.split("\n") or [""]
    out.say(f"{out.styled('error:', '1;31')} {shown(first)}")
    for line in rest:
        out.say(f"  {shown(line)}")
    if out.quiet and type(error) is KeyTaken:
        return  # what cron mails of it each time is one line: it names the holder, and nothing is broken
    for fact in error.facts[:MAX_FACTS]:
        for line in out.command(fact).split("\n"):
            out.say(f"  {shown(line)}")
    if error.hint:
        out.hint(error.hint)


def _unexpected(error: BaseException) -> DurableError:
    """Our own bug as an error with one line to report; a full disk under stdout is none."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"cannot write the answer: {error.strerror}")
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return InternalError(
        f"a bug in durable: {type(error).__name__}: {error}",
        facts=(f"to report: {type(error).__name__}{where}, Python {sys.version.split()[0]}",),
        hint="the same command with -v shows the whole traceback",
    )
