"""Tracebacks of users' code: they begin in the user's file and never show local variables."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LONGEST = 8192


def user_traceback(error: BaseException) -> str:
    """The traceback of `error` from the first frame that is not durable's, at most 8 KiB (the end is kept)."""
    where = _first_user_frame(error.__traceback__)
    lines = traceback.TracebackException(type(error), error, where, capture_locals=False).format()
    text = "".join(lines)
    return text if len(text) <= _LONGEST else "...\n" + text[-_LONGEST:]


def _first_user_frame(frame: TracebackType | None) -> TracebackType | None:
    while frame is not None and _is_plumbing(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return frame


def _is_plumbing(filename: str) -> bool:
    if filename.endswith(os.sep + "contextlib.py"):  # before the user's first frame: one of our `with`s
        return True
    return filename.startswith((_OURS, "<frozen ")) or os.sep.join(("", "asyncio", "")) in filename
