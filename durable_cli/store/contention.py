"""How long, and in which steps, a lock that another process holds is waited for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

DEADLINE = 30.0  # seconds
_PAUSE = (0.0002, 0.003)  # seconds between two looks; drawn at random, or some processes starve (RELIABILITY 1.4)


class Contention:
    """`sleep` (seconds) and `dice` (0 to 1) can be put in by tests."""

    def __init__(
        self, *, sleep: Callable[[float], None] = time.sleep, dice: Callable[[], float] = random.random
    ) -> None:
        self._sleep, self._dice = sleep, dice

    def patience(self) -> Callable[[int], bool]:
        """Given how often in a row the lock was met (from 0): wait a little, and try again? No, once 30 s are over."""
        since, slept = 0.0, 0.0

        def wait(attempt: int) -> bool:
            nonlocal since, slept
            if attempt == 0:
                since, slept = time.monotonic(), 0.0
            if max(slept, time.monotonic() - since) >= DEADLINE:
                return False
            shortest, longest = _PAUSE
            pause = shortest + self._dice() * (longest - shortest)
            self._sleep(pause)
            slept += pause
            return True

        return wait
