"""Standard output and error of one command.

The answer goes to a saved descriptor of stdout; everything else, what user code prints included, goes to stderr. So
that this holds for `print`, for `os.write(1, ...)`, for C code and for children alike, descriptor 1 itself is pointed
at stderr before user code is loaded, and stays there until the process ends. Under `-q` both 1 and 2 are pointed at
an unlinked temporary file (a pipe would block, and a daemon that a step left behind would keep it open); the file is
looked into only when the run failed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import select
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from durable_cli import render

GONE: Final = (errno.EPIPE, errno.EBADF, errno.EIO)  # nobody reads: pipe closed, `>&-`, terminal hung up
_TAIL_BYTES: Final = 64 * 1024


def open_standard_descriptors() -> None:
    """Open 0, 1 and 2 on the null device where the caller closed them.

    Otherwise the next file that is opened (the database!) would be descriptor 1, and be printed into.
    """
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def tolerate_readers_that_leave() -> None:
    """Make `print` (and typer's help) survive a closed pipe, and any character survive any encoding."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        encoding = getattr(getattr(sys, name), "encoding", None) or "utf-8"
        setattr(sys, name, _stream(descriptor, encoding, None))


class _Tolerant(io.FileIO):
    """A descriptor whose reader may go away: from then on writes succeed and vanish.

    A step of a run must not fail because somebody closed the pipe or the window that its messages went to.
    """

    before: Callable[[], None] | None = None

    def write(self, data: object, /) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        if self.before is not None:
            self.before()
        try:
            return super().write(view) or 0
        except OSError as error:
            if error.errno not in GONE:
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return view.nbytes


def _stream(descriptor: int, encoding: str, before: Callable[[], None] | None) -> TextIO:
    raw = _Tolerant(descriptor, "w", closefd=False)
    raw.before = before
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True, write_through=True
    )


class Output:
    """Where the answer goes, where words for a person go, and in which form.

    `env` is the environment; `color` is auto, always or never; `format` is None until the command line was read.
    `commands`: what can follow the word durable; `database`: the file that `--db` named, None where nothing had to.
    """

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.format: str | None = None
        self.quiet = False
        self.verbose = False
        self.color = "auto"
        self.answered = False
        self.commands: tuple[str, ...] = ()
        self.database: str | None = None
        self._live = ""
        self._gone = False
        self._out, self._err = 1, 2
        self._capture: int | None = None
        self._ends: dict[tuple[str, str | None], int] = {}
        self.terminal_out = os.isatty(1)
        self.terminal_err = os.isatty(2)
        self.encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
        self.ascii_only = not _is_utf8(env, self.encoding)

    # -- form --

    @property
    def json(self) -> bool:
        """Is the answer a JSON document?"""
        return self.format in ("json", "jsonl")

    def list_format(self) -> str:
        """The form of a list where none was asked for: a table on a terminal, else TSV."""
        return self.format or ("table" if self.terminal_out else "tsv")

    def colour(self, terminal: bool) -> bool:
        """May colour be used there? `--color` wins, then NO_COLOR, then FORCE_COLOR; TERM=dumb has none."""
        if self.color != "auto":
            return self.color == "always"
        if self.env.get("NO_COLOR") or self.env.get("TERM") == "dumb":
            return False
        return bool(self.env.get("FORCE_COLOR")) or terminal

    def width(self) -> int:
        """Columns of the terminal that stdout is; 100 where that cannot be told."""
        if self.env.get("COLUMNS", "").isdigit() and int(self.env["COLUMNS"]) > 0:
            return int(self.env["COLUMNS"])
        found = self.terminal_size()
        return (found.columns if found else 0) or 100

    def terminal_size(self) -> os.terminal_size | None:
        """Of the terminal that stdout is; None: it is none."""
        try:
            return os.get_terminal_size(self._out)
        except OSError:
            return None

    def styled(self, text: str, code: str) -> str:
        """`text` for stderr in the SGR `code`, where colour may be used."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour(self.terminal_err) else text

    # -- what a person pastes --

    def command(self, text: str) -> str:
        """The text with `--db` behind each of our commands in it, where this call needed one to find the database.

        `durable retry RUN`, pasted from the mail of a crontab line that names the file, would look into another one.
        """
        if self.database is None or "--db" in text:
            return text
        names = "|".join(map(re.escape, self.commands))
        ours = re.compile(rf"\bdurable (?:-q )?(?:{names})\b(?!.*--help)(?:'[^']*'|[^'#;|,()`\n])*")
        file = shlex.quote(self.database)

        def named(match: re.Match[str]) -> str:
            words = match[0].rstrip()
            return f"{words} --db {file}{match[0][len(words) :]}"

        return ours.sub(named, text)

    def hint(self, text: str) -> None:
        """The command that mends it, on stderr."""
        shown = render.safe(self.command(text), ascii_only=self.ascii_only)
        self.say(f"{self.styled('hint:', '1')} {shown}")

    # -- descriptors --

    def guard(self) -> None:
        """Point descriptor 1 (and under `-q` 2) elsewhere, for good: user code is about to be loaded."""
        if self._out != 1:
            return
        _flush()
        self._out, self._err = os.dup(1), os.dup(2)  # not inherited by children
        if self.quiet:
            with tempfile.TemporaryFile(buffering=0, prefix="durable-") as file:
                self._capture = os.dup(file.fileno())
            os.dup2(self._capture, 2)
        os.dup2(2, 1)
        before = self._clear_live if self.terminal_err and not self.quiet else None
        sys.stdout = _stream(1, self.encoding, before)
        sys.stderr = _stream(2, (getattr(sys.stderr, "encoding", None) or "utf-8"), before)

    def failed_here(self, run_id: str, step: str) -> None:
        """A step has just failed: what was written up to now is its output, what comes is that of others."""
        _flush()
        if self._capture is not None:
            self._ends[run_id, step] = os.lseek(self._capture, 0, os.SEEK_END)

    def has_failed_here(self, run_id: str, step: str | None) -> bool:
        """Did this step fail in this call, and is its output kept?"""
        return (run_id, step) in self._ends

    def captured(self, lines: int, run_id: str, step: str | None) -> list[str]:
        """The last lines that user code wrote under `-q`, to the failure of this step (else to the end), escaped; at
        most `lines`."""
        _flush()
        if self._capture is None or lines <= 0:
            return []
        size = self._ends.get((run_id, step), os.lseek(self._capture, 0, os.SEEK_END))
        begin = max(0, size - _TAIL_BYTES)
        data = os.pread(self._capture, size - begin, begin)
        texts = data.decode("utf-8", "replace").splitlines()[-lines:]
        return [render.safe(text, ascii_only=self.ascii_only) for text in texts]

    # -- writing --

    def answer(self, text: str) -> None:
        """Write the answer (whole lines) to stdout. A reader that has gone away is no error."""
        self.answered = True
        self.end_live()
        data = (text + "\n").encode(self.encoding, "backslashreplace") if text else b""
        _flush()
        self._write(self._out, data)

    def draw(self, data: str) -> None:
        """Write to the terminal that stdout is as it is: text that is ready to be shown, and movements of the cursor."""
        _flush()
        self._write(self._out, data.encode(self.encoding, "backslashreplace"))

    def reader_is_gone(self) -> bool:
        """Has the reader of stdout (a pipe, a terminal) gone away?"""
        poll = select.poll()
        poll.register(self._out, 0)
        return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0)) or self._gone

    def document(self, document: object) -> None:
        """Write the one JSON document."""
        encodes_all = self.encoding.replace("-", "") in ("utf8", "utf16", "utf32")
        self.answer(render.json_line(document, ascii_only=self.terminal_out or not encodes_all))

    def say(self, line: str, *, raw: bool = False) -> None:
        """A line for a person, on stderr. Texts of users in it were made safe by the caller."""
        _flush()
        self._clear_live()
        text = render.ascii_text(line) if self.ascii_only and not raw else line
        self._write(self._err, (text + "\n").encode("utf-8", "backslashreplace"))

    def ask(self, question: str) -> None:
        """A question on stderr, behind which the answer is typed."""
        _flush()
        self._clear_live()
        text = render.ascii_text(question) if self.ascii_only else question
        self._write(self._err, text.encode("utf-8", "backslashreplace"))

    def note(self, line: str) -> None:
        """A line that only a person at a terminal wants (or who asked for `-v`)."""
        if not self.quiet and not self.json and (self.terminal_err or self.verbose):
            self.say(line)

    def live(self, line: str) -> None:
        """A line that the next line replaces; nothing where the terminal cannot do that."""
        if self.quiet or not self.terminal_err or self.env.get("TERM") == "dumb":
            return
        self._clear_live()
        text = render.ascii_text(line) if self.ascii_only else line
        with contextlib.suppress(OSError):  # a line that wraps could not be taken away whole
            text = render.clip(text, os.get_terminal_size(self._err).columns - 1, ascii_only=self.ascii_only)
        self._live = text
        self._write(self._err, text.encode("utf-8", "backslashreplace"))

    def end_live(self) -> None:
        """Take the live line away, for good."""
        if self._live:
            _flush()
            self._clear_live()

    def _clear_live(self) -> None:
        if self._live:
            self._live = ""
            self._write(self._err, b"\r\x1b[K")

    def _write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            if error.errno not in GONE:
                raise
            self._gone = self._gone or descriptor == self._out
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor, inheritable=descriptor < 3)
            os.close(null)


def rows_text(
    format: str, documents: Sequence[render.Document], fields: Sequence[str], *, header: bool, id_field: str
) -> str:
    """A list in one of the forms that programs read (all but `json` and `table`)."""
    if format == "jsonl":
        lines = [render.json_line(document, ascii_only=True) for document in documents]
    elif format == "ids":
        lines = list(dict.fromkeys(render.cell(row[id_field]) for row in documents if row.get(id_field) is not None))
    elif format == "csv":
        lines = render.csv_lines(documents, fields, header=header)
    else:
        lines = render.tsv(documents, fields, header=header)
    return "\n".join(lines)


def _is_utf8(env: dict[str, str], encoding: str) -> bool:
    """Can the person's side show UTF-8? Python says "utf-8" in the C locale too; a terminal or mail there does not."""
    if env.get("PYTHONIOENCODING") or env.get("PYTHONUTF8") == "1":
        return encoding.replace("-", "") == "utf8"
    locale = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "C"
    if locale in ("C.UTF-8", "C.utf8") and not env.get("LC_ALL") and env.get("LANG", "") in ("", "C", "POSIX"):
        return False  # cron: the locale is C, and it was Python that put LC_CTYPE into the environment
    return "utf8" in locale.lower().replace("-", "") and encoding.replace("-", "") == "utf8"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
