"""Tracebacks of users' code: they show the user's frames only, and never local variables."""

from __future__ import annotations

import os
import traceback
from traceback import FrameSummary, TracebackException
from typing import Final

from durable_cli.errors import DurableError

_OURS: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_BETWEEN: Final = (
    "<frozen ",
    *(
        os.path.join(os.sep, *path)
        for path in (["contextlib.py"], ["threading.py"], ["asyncio", ""], ["concurrent", ""])
    ),
)
"""What durable calls users' code through. Where users call it themselves, it is theirs."""
_LONGEST: Final = 8192


def user_traceback(error: BaseException) -> str:
    """The traceback of `error` without durable's frames, those of what led to it too; at most 8 KiB (the end is kept).

    Not where durable itself failed: then its frames are what there is to know."""
    told = TracebackException(type(error), error, error.__traceback__, capture_locals=False)
    users = isinstance(error, DurableError | SyntaxError)  # of a SyntaxError, the file is in the error itself
    if users or not (told.stack and told.stack[-1].filename.startswith(_OURS)):
        _leave_ours_out(told)
    text = "".join(told.format())
    return text if len(text) <= _LONGEST else "...\n" + text[-_LONGEST:]


def calls_us_wrongly(error: BaseException) -> bool:
    """Was this raised by what a line of the user's called, so that the line is to be shown?"""
    return bool(_of_users(traceback.extract_tb(error.__traceback__)))


def _leave_ours_out(told: TracebackException) -> None:
    waiting, seen = [told], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.stack = traceback.StackSummary.from_list(_of_users(one.stack))
        waiting += [other for other in (one.__cause__, one.__context__, *(one.exceptions or ())) if other is not None]


def _of_users(stack: list[FrameSummary]) -> list[FrameSummary]:
    kept, ours = [], True
    for frame in stack:
        ours = frame.filename.startswith(_OURS) or (ours and any(part in frame.filename for part in _BETWEEN))
        if not ours:
            kept.append(frame)
    return kept
