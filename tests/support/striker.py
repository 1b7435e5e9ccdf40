"""A process of `durable`, hit by a signal at an exact moment: its n-th write transaction.

The phase is `before` (the transaction has not begun), `uncommitted` (all of it is written, COMMIT is not) or
`committed` (it is on disk, and nobody has been told). The seam is `Database.write`, through which every write of the
engine goes; the product has no hook for this.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from durable_cli.store.database import Database


def strike_at(number: int, phase: str, n: int) -> None:
    """From now on, send this process the signal in that phase of its n-th write."""
    count = 0
    original = Database.write

    def write(self: Database, fn: Callable[[Any], Any], **more: Any) -> Any:
        nonlocal count
        count += 1
        mine = count == n
        if mine and phase == "before":
            os.kill(os.getpid(), number)

        def transaction(tx: Any) -> Any:
            result = fn(tx)
            if mine and phase == "uncommitted":
                os.kill(os.getpid(), number)
            return result

        result = original(self, transaction, **more)
        if mine and phase == "committed":
            os.kill(os.getpid(), number)
        return result

    Database.write = write  # type: ignore[method-assign]
