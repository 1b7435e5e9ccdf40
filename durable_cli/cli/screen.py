"""A terminal that is drawn on again and again: a block of lines in place (`runs watch`), or the whole of it (`top`).

Lines are ready to be shown: what users chose was made safe by the caller, so that every ESC in them is ours. They are cut
to the width, since a line that the terminal wraps would be two, and the next drawing would begin in the wrong place.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

import typer

from durable_cli import render
from durable_cli.cli.output import Output

_STYLE: Final = re.compile("(\x1b\\[[0-9;]*m)")
_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36", "bold": "1", "dim": "2"}
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def can_draw(out: Output) -> bool:
    """Is stdout a terminal on which the cursor can be moved?"""
    return out.terminal_out and out.env.get("TERM", "") not in ("", "dumb")


def styled(out: Output, text: str, colour: str) -> str:
    """`text` for stdout in one of the colours of statuses, where colour may be used."""
    code = _COLOURS.get(colour)
    return f"\x1b[{code}m{text}\x1b[0m" if code and out.colour(out.terminal_out) else text


def cut(line: str, width: int, *, ascii_only: bool = False) -> str:
    """At most `width` cells of a line; its styles take none, and are closed where it is cut."""
    from rich.cells import cell_len, set_cell_size

    parts = _STYLE.split(line)
    if sum(cell_len(part) for part in parts[::2]) <= width:
        return line
    mark = "..." if ascii_only else "…"
    room, kept = max(0, width - len(mark)), ""
    for number, part in enumerate(parts):
        if number % 2:
            kept += part
            continue
        fits = set_cell_size(part, min(room, cell_len(part)))
        kept, room = kept + fits, room - cell_len(fits)
        if fits != part:
            break
    return kept + mark[:width] + ("\x1b[0m" if len(parts) > 1 else "")


def cells(line: str) -> int:
    """How many cells of the terminal a line takes."""
    from rich.cells import cell_len

    return cell_len(_STYLE.sub("", line))


def size(out: Output) -> tuple[int, int]:
    """Columns and lines of the terminal that stdout is."""
    found = out.terminal_size()
    return (found.columns or 80, found.lines or 24) if found else (80, 24)


class Block:
    """Some lines at the end of what was printed, drawn over themselves. A context manager.

    The terminal's modes stay as they are: whoever kills the program finds nothing changed.
    """

    def __init__(self, out: Output) -> None:
        self._out = out
        self._lines: list[str] = []
        self._columns = 0

    def __enter__(self) -> Block:
        self._before = signal.signal(signal.SIGCONT, self._resumed)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGCONT, self._before)

    def _resumed(self, number: int, frame: FrameType | None) -> None:
        self._lines = []  # after Ctrl-Z the shell wrote below; begin anew there

    def room(self) -> int:
        """How many lines a drawing has."""
        return max(1, size(self._out)[1] - 1)

    def draw(self, lines: Sequence[str]) -> None:
        """Put these lines in the place of those of before; nothing is written where nothing changed."""
        columns = size(self._out)[0]
        shown = [cut(line, columns, ascii_only=self._out.ascii_only) for line in lines[: self.room()]]
        if shown == self._lines and columns == self._columns:
            return
        data = self._back(columns) + "".join(f"\x1b[2K{line}\n" for line in shown) + "\x1b[J"
        self._lines, self._columns = shown, columns
        self._out.draw(data)

    def finish(self, lines: Sequence[str]) -> None:
        """The last drawing: whole lines, and all of them, to stay."""
        data = self._back(size(self._out)[0]) + "\x1b[J"
        self._lines = []
        self._out.draw(data)
        self._out.answer("\n".join(lines))

    def _back(self, columns: int) -> str:
        """To the first line of the last drawing. A terminal that became narrower has wrapped what did not fit."""
        rows = sum(max(1, -(-cells(line) // columns)) for line in self._lines)
        return f"\x1b[{rows}A\r" if rows else "\r"


class Screen:
    """The whole terminal, given back as it was however it ends. A context manager.

    Keys are read where stdin is a terminal and `keys`. TERM and HUP leave with their exit codes; Ctrl-C is a
    KeyboardInterrupt as ever; Ctrl-Z gives the terminal back until `fg`.
    """

    def __init__(self, out: Output, *, keys: bool) -> None:
        self._out = out
        self._keys = keys and os.isatty(0)
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._reader, self._writer = -1, -1

    def __enter__(self) -> Screen:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGTERM: _leave,
            signal.SIGHUP: _leave,
            signal.SIGTSTP: self._stop,
            signal.SIGWINCH: lambda number, frame: None,
        }
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, handler)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)  # a changed size is drawn at once
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def draw(self, lines: Sequence[str]) -> None:
        """Fill the terminal with these lines; what does not fit is cut."""
        columns, rows = size(self._out)
        shown = [cut(line, columns, ascii_only=self._out.ascii_only) for line in lines[:rows]]
        self._out.draw("\x1b[H" + "\r\n".join(f"\x1b[2K{line}" for line in shown) + "\x1b[J")

    def rows(self) -> int:
        """How many lines a drawing has."""
        return size(self._out)[1]

    def wait(self, seconds: float) -> str:
        """Wait, at most so long. The key that was pressed; empty where none was (a signal ends the wait too)."""
        watched = select.poll()  # `select` ends at 1,024 open files
        for descriptor in (self._reader, *([0] if self._keys else [])):
            watched.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in watched.poll(seconds * 1000)]
        if self._reader in ready:
            with contextlib.suppress(OSError):
                os.read(self._reader, 4096)
        if 0 not in ready:
            return ""
        try:
            data = os.read(0, 64)
        except OSError:
            data = b""
        self._keys = self._keys and bool(data)  # the terminal is gone
        return render.safe(data.decode("ascii", "replace"))

    def _open(self) -> None:
        if self._keys:
            with contextlib.suppress(termios.error):
                self._modes = termios.tcgetattr(0)
                tty.setcbreak(0)
        self._out.draw(_OPEN)

    def _close(self) -> None:
        self._out.draw(_CLOSE)
        if self._modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._close()
        with _handled(signal.SIGTSTP, signal.SIG_DFL):
            os.kill(os.getpid(), signal.SIGTSTP)
        self._open()


def _leave(number: int, frame: FrameType | None) -> None:
    raise typer.Exit(128 + number)


@contextlib.contextmanager
def _handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
