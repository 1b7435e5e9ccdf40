"""Who failed is left alone, longer after each failure, and what is wrong is said rarely. Thread-safe.

Times are `time.monotonic`: how long this process leaves something alone is no business of the wall clock's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Failure:
    until: float
    delay: float


class Patience:
    """Names (of runs, of workflows) that are left alone. `shortest` and `longest` in seconds."""

    def __init__(self, shortest: float, longest: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._shortest, self._longest = shortest, longest
        self._monotonic = monotonic
        self._failures: dict[str, _Failure] = {}
        self._lock = threading.Lock()

    def failed(self, name: str) -> float:
        """Leave it alone: twice as long as the last time, if it fails again soon. Returns the seconds."""
        with self._lock:
            now, before = self._monotonic(), self._failures.get(name)
            delay = self._shortest if before is None else min(self._longest, before.delay * 2)
            self._failures[name] = _Failure(now + delay, delay)
            return delay

    def went_well(self, name: str) -> None:
        """Forget its failures."""
        with self._lock:
            self._failures.pop(name, None)

    def left_alone(self) -> list[str]:
        """The names to pass over now. A failure is forgotten once it is as long over as it was left alone."""
        with self._lock:
            now = self._monotonic()
            for name in [name for name, one in self._failures.items() if now >= one.until + one.delay]:
                del self._failures[name]
            return [name for name, one in self._failures.items() if now < one.until]


class Rarely:
    """Says each thing at once and then at most every `every` seconds, with how often it was kept back."""

    def __init__(
        self, say: Callable[[str], None], every: float, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._every = say, every
        self._monotonic = monotonic
        self._said: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def __call__(self, about: str, text: str) -> None:
        """Say `text`; `about` is what counts as the same thing."""
        with self._lock:
            now = self._monotonic()
            if len(self._said) > 1000:  # of those that are silent now
                self._said = {key: one for key, one in self._said.items() if now < one[0] + self._every}
            before = self._said.get(about)
            if before is not None and now < before[0] + self._every:
                self._said[about] = (before[0], before[1] + 1)
                return
            self._said[about] = (now, 0)
        self._say(f"{text} (and {before[1]} times since the last message)" if before and before[1] else text)
