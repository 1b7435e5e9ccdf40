"""Going on: what `-f` of a command does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from durable_cli.cli.output import Output

_LOOK_EVERY_S: Final = 0.3


def follow(
    out: Output,
    look: Callable[[], tuple[list[str], bool]],
    write: Callable[[list[str]], None] | None = None,
) -> int:
    """Write the lines that `look` gives, until it says that they were the last or nobody reads any more.

    `write`: what does that; else they are printed.
    """
    while True:
        lines, last = look()
        if write is not None:
            write(lines)
        elif lines:
            out.answer("\n".join(lines))
        if last or out.reader_is_gone():
            return 0
        time.sleep(_LOOK_EVERY_S)
