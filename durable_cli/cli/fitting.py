"""Fitting a table into the width of a terminal: ids and statuses stay whole, long texts are cut, never wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from durable_cli import render

Cell = str | tuple[str, str]

_WHOLE: Final = frozenset({
    "run", "holder", "waiting", "status", "created", "held", "when", "runs", "id", "owner", "unfinished", "schedules",
    "re-adds 24h", "keys held", "fires", "skips", "missed", "due", "fired", "outcome", "asked", "until", "cron",
    "last skip", "reuse", "duplicates", "run_id", "holder_id", "waiting_id", "runs_after_id",
})  # fmt: skip
"""Columns that are never cut."""
_FROM_THE_LEFT: Final = frozenset({"code"})
"""Columns whose ends say more than their beginnings."""
_LEAST: Final = 6
_GAP, _TIGHT_GAP = 3, 2


def drop_empty(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """Without the columns that say nothing in any row."""
    told = [
        number for number in range(len(columns)) if any(_text(row[number]) not in ("-", "") for row in rows)
    ] or list(range(len(columns)))
    return [columns[number] for number in told], [[row[number] for number in told] for row in rows]


def drop_last(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, width: int
) -> tuple[list[str], list[list[Cell]], list[str]]:
    """Without the last columns (but the status) that a narrow terminal has no room for, however much is cut, and their
    names. Two stay."""
    least = []
    for at, name in enumerate(columns):
        head = max((len(word) for word in name.split()), default=0)
        widest = max([head, *(_cells(_text(row[at])) for row in rows)])
        least.append(widest if name in _WHOLE else min(widest, max(_LEAST, head)))
    kept = list(range(len(columns)))
    while len(kept) > 2 and sum(least[at] for at in kept) + _TIGHT_GAP * (len(kept) - 1) > width:
        kept.remove(next(at for at in reversed(kept) if columns[at] != "status"))
    left = [name for at, name in enumerate(columns) if at not in kept]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows], left


def fit(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, width: int, ascii_only: bool
) -> tuple[list[list[Cell]], list[int] | None]:
    """The rows, cut so that a line has at most `width` cells if that can be, and the widths of the columns then.

    None for the widths: nothing had to be cut.
    """
    from rich.cells import cell_len

    if ascii_only:
        rows = [[_with(cell, render.ascii_text(_text(cell))) for cell in row] for row in rows]
    heads = [max((cell_len(word) for word in name.split()), default=0) for name in columns]
    widths = [max([len(name), *(_cells(_text(row[at])) for row in rows)]) for at, name in enumerate(columns)]
    full = sum(widths) + _GAP * (len(columns) - 1)
    if full <= width:
        return [list(row) for row in rows], None
    room = width - _TIGHT_GAP * (len(columns) - 1)
    for at, head in enumerate(heads):  # headings may wrap between words
        widths[at] = max([head, *(_cells(_text(row[at])) for row in rows)])
    cuttable = [at for at, name in enumerate(columns) if name not in _WHOLE]
    while cuttable and sum(widths) > room:
        widest = max(cuttable, key=lambda one: widths[one] - max(_LEAST, heads[one]))
        if widths[widest] <= max(_LEAST, heads[widest]):
            break
        widths[widest] -= 1
    cut: list[list[Cell]] = [
        [
            _with(cell, _clip(_text(cell), widths[at], ascii_only, left=columns[at] in _FROM_THE_LEFT))
            for at, cell in enumerate(row)
        ]
        for row in rows
    ]
    return cut, widths


def _cells(text: str) -> int:
    """The cells of its longest line."""
    from rich.cells import cell_len

    return max(cell_len(line) for line in text.split("\n"))


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _with(cell: Cell, text: str) -> Cell:
    return text if isinstance(cell, str) else (text, cell[1])


def _clip(text: str, width: int, ascii_only: bool, *, left: bool) -> str:
    """At most `width` cells of a terminal (a character of CJK has two)."""
    from rich.cells import cell_len

    if _cells(text) <= width:
        return text
    if "\n" in text:
        return "\n".join(_clip(line, width, ascii_only, left=left) for line in text.split("\n"))
    mark = "..." if ascii_only else "…"
    kept = text
    while kept and cell_len(kept) + len(mark) > width:
        kept = kept[1:] if left else kept[:-1]
    return mark + kept if left else kept + mark
