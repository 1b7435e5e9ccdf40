"""Keeping what workflow code prints and logs, while it goes where it always went.

`sys.stdout` and `sys.stderr` are wrapped, and `logging` is listened to, only while something executes here. Who prints
is told by context variables: the step that the thread or task is inside of, else the branch whose code it executes.
Not seen are writes to the descriptors themselves (C code, `os.write`, children that are not `ctx.shell`'s) and threads
that a step starts by itself: a thread begins with an empty context.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from durable_cli.entering import current_attempts, current_branch
from durable_cli.logs import Source

if TYPE_CHECKING:
    import logging

_STREAMS: Final = ("stdout", "stderr")
_lock = threading.Lock()
_users = 0
_uninstall: list[Callable[[], None]] = []
_muted: ContextVar[bool] = ContextVar("durable_muted", default=False)
_foreground: ContextVar[bool] = ContextVar("durable_foreground", default=False)


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


@contextmanager
def in_foreground() -> Iterator[None]:
    """Meanwhile, what commands print is passed on: somebody is there to see it."""
    token = _foreground.set(True)
    try:
        yield
    finally:
        _foreground.reset(token)


def is_foreground() -> bool:
    """Is the run executed in the foreground, by `durable run` or `execute`?"""
    return _foreground.get()


@contextmanager
def captured() -> Iterator[None]:
    """Meanwhile, what workflow code prints and logs is kept."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _uninstall.extend(_wrap(name) for name in _STREAMS)
        if len(_uninstall) == len(_STREAMS) and "logging" in sys.modules:
            _uninstall.append(_listen())
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                for undo in _uninstall:
                    undo()
                _uninstall.clear()


def keep(stream: str, text: str) -> None:
    """Add a text to the log of the run whose code executes here. Never raises: a print must not fail for its copy."""
    try:
        if not _muted.get():
            _keep(stream, text)
    except Exception:
        return


def _keep(stream: str, text: str) -> None:
    attempts = current_attempts.get()
    if attempts:
        inside = attempts[-1]
        if not inside.abandoned:
            branch, seq = inside.place
            inside.execution.log.add(Source(branch, seq, inside.number, inside.name), stream, text)
        return
    operations = current_branch.get()
    if operations is None:
        return
    if (operations.branch, operations.asked + 1) in operations.execution.history:
        return  # a replay: what comes next is on record, so this was printed and kept before
    operations.execution.log.add(Source(operations.branch), stream, text)


# -- streams -------------------------------------------------------------------------------------------------------


class _Tee:
    """A text stream whose writes are kept too. Works on when its time is over, since code may hold it."""

    def __init__(self, wrapped: TextIO, name: str) -> None:
        self._wrapped = wrapped
        self._name = name

    def write(self, text: str) -> int:
        if isinstance(text, str):
            keep(self._name, text)
        return self._wrapped.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> _ByteTee:
        return _ByteTee(self._wrapped.buffer, self._name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class _ByteTee:
    """The same of the bytes below a text stream."""

    def __init__(self, wrapped: Any, name: str) -> None:
        self._wrapped = wrapped
        self._name = name

    def write(self, data: Any) -> int:
        keep(self._name, bytes(data).decode("utf-8", "replace"))
        return cast(int, self._wrapped.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def pass_on(name: str, data: bytes) -> None:
    """Write bytes to `sys.stdout` or `sys.stderr`, not to be kept once more. A reader that has gone is no error."""
    stream = getattr(sys, name)
    stream = stream._wrapped if isinstance(stream, _Tee) else stream
    if stream is None:
        return
    try:
        binary = getattr(stream, "buffer", None)
        if binary is None:
            stream.write(data.decode("utf-8", "replace"))
        else:
            stream.flush()
            binary.write(data)
        stream.flush()
    except (OSError, ValueError):
        return


def _wrap(name: str) -> Callable[[], None]:
    stream = getattr(sys, name)
    if stream is None:
        return lambda: None
    tee = _Tee(stream, name)
    setattr(sys, name, tee)

    def undo() -> None:
        if getattr(sys, name) is tee:  # else somebody put another one there meanwhile
            setattr(sys, name, stream)

    return undo


# -- logging -------------------------------------------------------------------------------------------------------


def _listen() -> Callable[[], None]:
    """See every record that a logger passes on. No handler on the root logger: it would switch off both
    `logging.basicConfig` and the last resort that prints warnings.
    """
    import logging

    format = logging.Formatter("%(levelname)s %(name)s: %(message)s").format
    original = logging.Logger.callHandlers

    def call_handlers(self: logging.Logger, record: logging.LogRecord) -> None:
        ours = record.name.partition(".")[0] == "durable"
        if not ours:
            try:
                keep("log", format(copy.copy(record)) + "\n")  # a copy: formatting leaves marks
            except Exception:  # arguments that do not fit: the user's own handlers say so
                pass
        token = _muted.set(True)  # a handler that prints it on stderr: it is kept already
        try:
            original(self, record)
        finally:
            _muted.reset(token)

    logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]

    def undo() -> None:
        if logging.Logger.callHandlers is call_handlers:
            logging.Logger.callHandlers = original  # type: ignore[method-assign]

    return undo
