"""Tracebacks of users' code: without our frames, and never with local variables."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from durable_cli.errors import DurableError

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LONGEST = 8192


def user_traceback(error: BaseException) -> str:
    """The traceback of `error` from the first frame that is not durable's, at most 8 KiB (the end is kept)."""
    where = _first_user_frame(error.__traceback__)
    told = traceback.TracebackException(type(error), error, where, capture_locals=False)
    if isinstance(error, DurableError) or not (told.stack and told.stack[-1].filename.startswith(_OURS)):
        told.stack[:] = [one for one in told.stack if not one.filename.startswith(_OURS)]  # else it may be our bug
    text = "".join(told.format())
    return text if len(text) <= _LONGEST else "...\n" + text[-_LONGEST:]


def calls_us_wrongly(error: BaseException) -> bool:
    """Was this raised by what a line of the user's called, so that the line is to be shown?"""
    return _first_user_frame(error.__traceback__) is not None


def _first_user_frame(frame: TracebackType | None) -> TracebackType | None:
    while frame is not None and _is_plumbing(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return frame


def _is_plumbing(filename: str) -> bool:
    if filename.endswith(os.sep + "contextlib.py"):  # before the user's first frame: one of our `with`s
        return True
    return filename.startswith((_OURS, "<frozen ")) or os.sep.join(("", "asyncio", "")) in filename
