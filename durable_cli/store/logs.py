"""SQL for what runs have printed: the beginning and the end of each run's output, in pieces.

A piece lies at `position`: so many bytes of the run's output came before it. Where pieces do not meet, the output
between them was left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durable_cli.model import LogEntry
from durable_cli.store.database import Tx

_INSERT = """
INSERT INTO durable_logs (run_id, position, size, at, branch, seq, attempt, step, stream, text)
VALUES (:run, :position, :size, :at, :branch, :seq, :attempt, :step, :stream, :text)
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one stream of one attempt. `skipped`: bytes that were left out before it."""

    at: int
    branch: str
    seq: int | None
    attempt: int | None
    step: str | None
    stream: str
    text: str
    size: int
    skipped: int = 0


def end_of(tx: Tx, run: int) -> int:
    """How many bytes a run has printed."""
    end = tx.value(
        "SELECT position + size FROM durable_logs WHERE run_id = :run ORDER BY position DESC LIMIT 1", run=run
    )
    return int(end or 0)


def append(tx: Tx, run: int, pieces: list[Piece], *, keep_first: int, keep_last: int) -> int:
    """Add pieces behind what is there, and leave out the middle: of a long output only about the first and the last
    so many bytes stay. Returns the end of the run's output."""
    position = end_of(tx, run)
    for piece in pieces:
        position += piece.skipped
        tx.insert(
            _INSERT,
            run=run,
            position=position,
            size=piece.size,
            at=piece.at,
            branch=piece.branch,
            seq=piece.seq,
            attempt=piece.attempt,
            step=piece.step,
            stream=piece.stream,
            text=piece.text,
        )
        position += piece.size
    tx.change(
        "DELETE FROM durable_logs WHERE run_id = :run AND position >= :first AND position + size <= :last",
        run=run,
        first=keep_first,
        last=position - keep_last,
    )
    return position


def of_run(tx: Tx, run: int, *, after: int = 0, limit: int | None = None) -> list[LogEntry]:
    """The pieces from `after` on (a position: 0, or `LogEntry.end` of the last one seen), in order."""
    rows = tx.rows(
        "SELECT position, size, at, branch, seq, attempt, step, stream, text FROM durable_logs"
        " WHERE run_id = :run AND position >= :after ORDER BY position LIMIT :limit",
        run=run,
        after=after,
        limit=-1 if limit is None else limit,
    )
    found: list[LogEntry] = []
    end = after
    for row in rows:
        found.append(_entry(row, end))
        end = found[-1].end
    return found


def _entry(row: dict[str, Any], end: int) -> LogEntry:
    fields = dict(row)
    size = fields.pop("size")
    return LogEntry(**fields, end=row["position"] + size, skipped=row["position"] - end)
