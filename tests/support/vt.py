"""A terminal for tests: a real one (pexpect) with a picture of its screen, as far as durable moves the cursor."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pexpect

_PIECE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)", re.DOTALL)


class Picture:
    """What a terminal of this size shows. Raises ValueError for what it does not know: durable writes no such thing."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""] * rows
        self.row, self.column = 0, 0
        self.whole = False
        """Is the whole screen taken (the alternate one)?"""
        self.cursor = True
        self.wrapped = 0
        """How many lines did not fit and went on in the next one."""
        self.styles = 0

    def feed(self, text: str) -> None:
        """Show what a program wrote."""
        for match in _PIECE.finditer(text):
            number, name, move, plain = match.groups()
            if plain is not None:
                self._write(plain)
            elif move == "\r":
                self.column = 0
            elif move == "\n":
                self._next()
            else:
                self._control(number, name)
        if _PIECE.sub("", text):
            raise ValueError(f"unknown to this terminal: {_PIECE.sub('', text)!r}")

    def _control(self, number: str, name: str) -> None:
        if name == "m":
            self.styles += 1
        elif (number, name) in (("?1049", "h"), ("?1049", "l")):
            self.whole = name == "h"
            self.lines, self.row, self.column = [""] * self.rows, 0, 0
        elif number == "?25":
            self.cursor = name == "h"
        elif name == "A":
            self.row = max(0, self.row - int(number or 1))
        elif name == "H":
            self.row, self.column = 0, 0
        elif name == "K":
            self.lines[self.row] = "" if number == "2" else self.lines[self.row][: self.column]
        elif name == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            self.lines[self.row + 1 :] = [""] * (self.rows - self.row - 1)
        else:
            raise ValueError(f"unknown to this terminal: {number}{name}")

    def _write(self, text: str) -> None:
        for char in text:
            if not char.isprintable():
                raise ValueError(f"a control character: {char!r}")
            if self.column == self.columns:
                self.wrapped += 1
                self.column = 0
                self._next()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def _next(self) -> None:
        if self.row == self.rows - 1:
            self.lines = [*self.lines[1:], ""]
        else:
            self.row += 1


class Terminal:
    """A command on a terminal of its own."""

    def __init__(
        self, cli: Any, *argv: str, columns: int = 80, rows: int = 24, env: dict[str, str] | None = None
    ) -> None:
        command = cli.argv(*argv)
        settings = {name: value for name, value in cli.full_env().items() if name != "COLUMNS"}
        settings |= {"TERM": "xterm-256color"} | (env or {})
        self.process = pexpect.spawn(
            command[0],
            command[1:],
            cwd=str(cli.dir),
            env=settings,
            dimensions=(rows, columns),
            encoding="utf-8",
            timeout=20,
        )
        self.picture = Picture(columns, rows)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close(force=True)

    def read(self) -> None:
        """Take in what was written since."""
        try:
            self.picture.feed(self.process.read_nonblocking(1 << 20, timeout=0.05))
        except (pexpect.TIMEOUT, pexpect.EOF):
            pass

    def until(self, is_so: Callable[[list[str]], bool]) -> list[str]:
        """Read until the lines of the screen are so."""
        end = time.monotonic() + 20
        while not is_so(self.picture.lines):
            assert time.monotonic() < end, "\n".join(self.picture.lines)
            self.read()
        return self.picture.lines

    def until_it_shows(self, text: str) -> list[str]:
        """Read until this text is somewhere on the screen."""
        return self.until(lambda lines: any(text in line for line in lines))

    def end(self) -> int:
        """Read to the end of the program; its exit code (128 and the number where a signal ended it)."""
        end = time.monotonic() + 20
        while self.process.isalive():
            assert time.monotonic() < end, "\n".join(self.picture.lines)
            self.read()
        self.read()
        self.process.close()
        if self.process.exitstatus is not None:
            return int(self.process.exitstatus)
        return 128 + int(self.process.signalstatus or 0)
