"""Users' code that is called for an answer: a key, a merged input, what a validator says, a listener.

It is called outside of any run, in whatever process happens to look: a producer, a worker, a tick. What it raises is its
answer about that one start, never the end of the process, and of every start that comes after it. So what is no
Exception (`sys.exit()`, gevent's Timeout) is made one here, and who calls has to know `except Exception` only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def answering() -> Iterator[None]:
    """Around the call: only Exceptions come out of it, and what leaves the whole process (Ctrl-C)."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or leaves_process(error):
            raise
        raise as_exception(error) from error.__cause__


def leaves_process(error: BaseException) -> bool:
    """Does it leave the process, or one of pytest's tests, whatever code it comes through?"""
    if "_pytest.outcomes" in sys.modules and isinstance(error, sys.modules["_pytest.outcomes"].OutcomeException):
        return True
    return isinstance(error, KeyboardInterrupt)


def as_exception(error: BaseException) -> Exception:
    """An Exception of the same name, with the same text and traceback."""
    kind: type[Exception] = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    return kind(text_of(error)).with_traceback(error.__traceback__)


def text_of(error: BaseException) -> str:
    """What an exception says, at most 8 KiB."""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r}) was called"
    try:
        return str(error)[:8192]
    except Exception as problem:
        return f"(its text cannot be made: {type(problem).__name__})"


def type_and_text(error: BaseException) -> str:
    """`Type: what it says`."""
    return f"{type(error).__name__}: {text_of(error)}"
