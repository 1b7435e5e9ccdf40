"""What belongs to this process and not to a file: the one lock around SQLite, and what a fork does to it.

Every call into SQLite happens under `LOCK`, and a fork waits for it: without that, children that were forked while
another thread was inside SQLite hang when they open a connection of their own (17 of 200, measured). A connection
cannot be used in a forked child at all, not even closed: the child leaks it and opens its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

LOCK = threading.RLock()

_generation = 0
_live: Callable[[], list[Any]] = list
_forget: list[Callable[[], None]] = []


def generation() -> int:
    """How many forks lie between this process and the one that loaded durable."""
    return _generation


def ours() -> list[Any]:
    """The connections that durable itself has open in this process."""
    return _live()


def on_fork(*, live: Callable[[], list[Any]] | None = None, forget: Callable[[], None]) -> None:
    """Register what a forked child does: `live` lists objects it must never free, `forget` drops what was inherited."""
    global _live
    if live is not None:
        _live = live
    _forget.append(forget)


def _before() -> None:
    LOCK.acquire()
    if _live():
        # The child needs it to leak; imported here because another thread may hold its import lock at the fork.
        import ctypes  # noqa: F401


def _in_parent() -> None:
    LOCK.release()


def _in_child() -> None:
    global _generation
    _generation += 1
    inherited = _live()
    if inherited:
        import ctypes

        for thing in inherited:
            # A reference that nobody drops: not even the end of the interpreter may close the parent's connection.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    for forget in _forget:
        forget()
    LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
