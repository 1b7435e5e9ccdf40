"""Signals while runs are executed here.

The first INT, TERM or HUP sets `stop`: the running step may end (within the grace), no other begins, the run stays
resumable. The second one, or the end of the grace, hands the runs back and leaves at once. That is done by a thread
which reads the numbers that `signal.set_wakeup_fd` writes: a Python handler would wait behind a step that is inside a
long C call. A signal that was ignored when we began (`nohup`, a job in the background of a script) stays ignored.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

_WATCHED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ABANDON_S: Final = 2.0
"""How long handing the runs back may take (a locked file): then we leave, and whoever looks next finds us dead."""


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has told the watcher; nothing is raised in the middle of user code."""


class Stop(threading.Event):
    """The request to stop, with what commands that we run have to know of it: `signal`, its number, which they get
    too, and `grace_s`, how long they may go on.
    """

    def __init__(self, grace_s: float) -> None:
        super().__init__()
        self.grace_s = grace_s
        self.signal: int | None = None


class Signals:
    """`stop` is set by the first signal; `number` says which it was (None: none came).

    `abandon` hands the runs of this process back; `say(number, again)` tells a person. `leave` ends the process.
    """

    def __init__(
        self,
        *,
        grace_ms: int,
        abandon: Callable[[], None],
        say: Callable[[int, bool], None],
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self.stop = Stop(grace_ms / 1000)
        self.number: int | None = None
        self._grace_s = grace_ms / 1000
        self._abandon = abandon
        self._say = say
        self._leave = leave
        self._before: dict[int, object] = {}
        self._pid = os.getpid()
        self._reader, self._writer = -1, -1

    def install(self) -> None:
        """Watch from now on, to the end of the process (or until `restore`)."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        for number in _WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _noted)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._in_child)
        threading.Thread(target=self._watch, name="durable-signals", daemon=True).start()

    def restore(self) -> None:
        """Back to the handlers of before."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _in_child(self) -> None:
        # A child that user code forks (multiprocessing) must die of a signal as usual, and must not write into our
        # pipe what it received: the parent would take it for its own.
        if os.getpid() != self._pid and self._before:
            self.restore()

    def _next(self, timeout_s: float | None) -> int | None:
        """The next watched signal; None when the time is over."""
        poll = select.poll()  # `select` ends at the 1024th open file of a process
        poll.register(self._reader, select.POLLIN)
        while poll.poll(None if timeout_s is None else timeout_s * 1000):
            number = os.read(self._reader, 1)[0]
            if number in self._before:
                return number
        return None

    def _watch(self) -> None:
        first = self._next(None)
        assert first is not None
        self.number = self.stop.signal = first
        self.stop.set()
        self._say(first, False)
        again = self._next(self._grace_s)
        if self._before:
            self._leave_now(again or first)

    def _leave_now(self, number: int) -> None:
        handed_back = threading.Thread(target=self._hand_back, daemon=True)
        handed_back.start()
        handed_back.join(_ABANDON_S)
        self._say(number, True)
        self._leave(128 + number)

    def _hand_back(self) -> None:
        with contextlib.suppress(Exception):  # the file cannot be written: our death says the same, a little later
            self._abandon()
