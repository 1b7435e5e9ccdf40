"""What a run prints while it executes: gathered in memory, written in batches, read back as lines.

A batch is written when a step ends, when a turn ends, and once a second while something executes: never a commit a
line, and never in the transaction that records a step. It is fenced like every write of an owner: what a run prints
after it was taken from us is not kept. A log that cannot be written fails no step.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from durable_cli.errors import DurableError
from durable_cli.model import Claim, LogEntry
from durable_cli.store import logs, runs
from durable_cli.store.database import Tx
from durable_cli.store.logs import Piece

if TYPE_CHECKING:
    from durable_cli.engine import Engine

KEEP_FIRST: Final = 256 * 1024
KEEP_LAST: Final = 256 * 1024
"""Bytes: of a longer output of a run, the middle is left out."""
_PIECE: Final = 8 * 1024
_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Source:
    """Who prints: an attempt of a step, or (without `seq`) the code around the steps of a branch."""

    branch: str
    seq: int | None = None
    attempt: int | None = None
    step: str | None = None


class RunLog:
    """The output of one owned run. Thread-safe; a forked child of a step adds nothing to it."""

    def __init__(self, engine: Engine, claim: Claim) -> None:
        self._engine = engine
        self._claim = claim
        self._pid = os.getpid()
        self._lock = threading.Lock()  # of the fields below
        self._flushing = threading.Lock()  # one batch at a time, in order
        self._first: list[Piece] = []
        self._last: deque[Piece] = deque()
        self._skipped = 0
        self._sizes = [0, 0]
        self._end = 0

    @property
    def pending(self) -> bool:
        """Is there something to write?"""
        return bool(self._first or self._last)

    def add(self, source: Source, stream: str, text: str) -> None:
        """Keep a text that `source` wrote to `stream` ("stdout", "stderr" or "log"). Never writes to the file."""
        if not text or os.getpid() != self._pid:
            return
        with self._lock:
            new = not self.pending
            for part in _parts(text):
                self._put(source, stream, part)
        if new:
            _flusher.wake(self)

    def _put(self, source: Source, stream: str, text: str) -> None:
        size = len(text.encode("utf-8", "replace"))
        at_first = not self._last and self._end + self._sizes[0] < KEEP_FIRST
        pieces: list[Piece] | deque[Piece] = self._first if at_first else self._last
        self._sizes[0 if at_first else 1] += size
        before = pieces[-1] if pieces else None
        if before is not None and before.size + size <= _PIECE and _same(before, source, stream):
            pieces[-1] = replace(before, text=before.text + text, size=before.size + size)
        else:
            now = self._engine.now()
            pieces.append(Piece(now, source.branch, source.seq, source.attempt, source.step, stream, text, size))
        while self._sizes[1] > KEEP_LAST + _PIECE:
            dropped = self._last.popleft()
            self._sizes[1] -= dropped.size
            self._skipped += dropped.size

    def flush(self) -> None:
        """Write what was gathered, if the run is still ours; else forget it."""
        if os.getpid() != self._pid:
            return
        with self._flushing:
            pieces = self._take()
            if not pieces:
                return
            try:
                self._end = self._engine.database.write(lambda tx: self._append(tx, pieces))
            except DurableError:
                pass  # what matters of a file that cannot be written is said by the next record

    def _take(self) -> list[Piece]:
        with self._lock:
            last = [_storable(piece) for piece in self._last]
            if last:
                last[0] = replace(last[0], skipped=self._skipped)
            pieces = [*map(_storable, self._first), *last]
            self._first, self._last, self._skipped, self._sizes = [], deque(), 0, [0, 0]
            return pieces

    def _append(self, tx: Tx, pieces: list[Piece]) -> int:
        claim = self._claim
        if not runs.ours(tx, claim.row_id, claim.owner_id, claim.epoch):
            return self._end
        return logs.append(tx, claim.row_id, pieces, keep_first=KEEP_FIRST, keep_last=KEEP_LAST)


def _parts(text: str) -> Iterator[str]:
    for at in range(0, len(text), _PIECE):
        yield text[at : at + _PIECE]


def _same(piece: Piece, source: Source, stream: str) -> bool:
    return (piece.stream, piece.branch, piece.seq, piece.attempt) == (stream, source.branch, source.seq, source.attempt)


def _storable(piece: Piece) -> Piece:
    """The piece as SQLite can keep it: lone surrogates are no text."""
    return replace(piece, text=piece.text.encode("utf-8", "replace").decode("utf-8"))


class _Flusher:
    """A thread that writes the logs in which something waits, once a second; it sleeps while nothing does."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._waiting: weakref.WeakSet[RunLog] = weakref.WeakSet()
        self._work = threading.Event()
        self._never = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self, log: RunLog) -> None:
        """There is something in `log`."""
        with self._lock:
            self._waiting.add(log)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="durable-logs", daemon=True)
                self._thread.start()
        self._work.set()

    def _loop(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            self._never.wait(_EVERY_S)
            with self._lock:
                logs_, self._waiting = list(self._waiting), weakref.WeakSet()
            for log in logs_:
                try:
                    log.flush()
                except Exception:  # a bug here must not end the thread for all the other runs
                    continue


_flusher = _Flusher()


# -- reading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a run's output, without its end. `stream` is "dropped" for the mark of what was left out."""

    at: int
    step: str | None
    branch: str
    seq: int | None
    attempt: int | None
    stream: str
    text: str


@dataclass(slots=True)
class Lines:
    """Makes lines of pieces: `feed` as they come, `rest` at the end. A line may have come in several pieces."""

    _open: dict[tuple[object, ...], tuple[LogEntry, str]] = field(default_factory=dict)

    def feed(self, entries: Iterable[LogEntry]) -> Iterator[Line]:
        """The lines that are complete now."""
        for entry in entries:
            if entry.skipped:
                yield from self.rest()
                yield _line(entry, f"... {entry.skipped} bytes of output were left out ...", "dropped")
            key = (entry.branch, entry.seq, entry.attempt, entry.stream)
            first, begun = self._open.pop(key, (entry, ""))
            *whole, begun = (begun + entry.text).split("\n")
            for text in whole:
                yield _line(first, text)
                first = entry
            if begun:
                self._open[key] = (first, begun)

    def rest(self) -> Iterator[Line]:
        """The lines that were begun and have no end."""
        begun, self._open = list(self._open.values()), {}
        for entry, text in begun:
            yield _line(entry, text)


def _line(entry: LogEntry, text: str, stream: str | None = None) -> Line:
    # Of a line that was written over (a progress bar) the last state counts.
    shown = text.rstrip("\r").rpartition("\r")[2]
    return Line(entry.at, entry.step, entry.branch, entry.seq, entry.attempt, stream or entry.stream, shown)


def lines_of(entries: Iterable[LogEntry]) -> list[Line]:
    """All lines of these pieces."""
    lines = Lines()
    return [*lines.feed(entries), *lines.rest()]
