"""The terminal, lent to a command that runs in the foreground: what a shell's job control does, for one job."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Iterator
from typing import Any, Final

STOPS: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""The signals by which a terminal stops a process."""


class Terminal:
    """Our controlling terminal. While it is lent to a process group, Ctrl-C and Ctrl-Z reach that group alone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._modes: list[Any] | None = None
        with contextlib.suppress(termios.error):
            self._modes = termios.tcgetattr(descriptor)

    @classmethod
    def open(cls) -> Terminal | None:
        """The terminal of this process; None where it has none (cron, a service)."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:
            return None

    def lend(self, group: int) -> bool:
        """Make `group` the foreground, if we are. False: we are a job in the background."""
        return self._move(os.getpgrp(), group)

    def take_back(self, group: int, *, modes: bool = False) -> None:
        """Be the foreground again. `modes`: as they were; what a killed program left behind is of no use."""
        self._move(group, os.getpgrp())
        if modes and self._modes is not None:
            with _without_stop(), contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._modes)

    def is_lent(self, group: int) -> bool:
        """Is that group the foreground now?"""
        try:
            return os.tcgetpgrp(self._descriptor) == group
        except OSError:
            return False

    def _move(self, before: int, after: int) -> bool:
        if not self.is_lent(before):
            return False
        with _without_stop(), contextlib.suppress(OSError):
            os.tcsetpgrp(self._descriptor, after)
            return True
        return False

    def close(self) -> None:
        """Close the descriptor; the terminal stays ours."""
        os.close(self._descriptor)


@contextlib.contextmanager
def _without_stop() -> Iterator[None]:
    """A process of the background that changes the terminal is stopped by SIGTTOU, unless it blocks that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
