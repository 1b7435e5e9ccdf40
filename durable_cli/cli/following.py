"""Going on: what `-f` of a command does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from durable_cli.cli.output import Output

_LOOK_EVERY_S: Final = 0.3


def follow(out: Output, look: Callable[[], tuple[list[str], bool]]) -> int:
    """Write the lines that `look` gives, until it says that they were the last or nobody reads any more."""
    while True:
        lines, last = look()
        if lines:
            out.answer("\n".join(lines))
        if last or out.reader_is_gone():
            return 0
        time.sleep(_LOOK_EVERY_S)
