"""Rows to JSON objects, lines and tables. Pure: no I/O, and the moment is an argument.

Everything a producer chose (keys, inputs, errors, names of steps) passes through `safe` before a person or a terminal
sees it. Documents (what `--json` prints) hold the raw text instead: JSON escapes it.
"""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from durable_cli.model import Activity, Key, Run, RunError, Status, Step

if TYPE_CHECKING:
    from durable_cli.store.events import Event

Document = dict[str, Any]

RUN_FIELDS: Final = (
    "id", "workflow", "key", "holds_key", "runs_after_id", "status", "input", "result", "error",
    "created_at", "started_at", "finished_at", "due_at", "owner",
)  # fmt: skip
KEY_FIELDS: Final = (
    "workflow", "key", "holder_id", "status", "held_since", "runs", "readds_24h", "waiting_id", "owner_alive",
)  # fmt: skip
ACTIVITY_FIELDS: Final = ("at", "kind", "workflow", "key", "run_id", "details", "id")

# -- text ----------------------------------------------------------------------------------------------------------

_JOINERS: Final = "\u200c\u200d"  # needed inside words of some scripts and inside emoji
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HIDDEN: Final = frozenset({"Cc", "Cs", "Cf", "Co", "Cn", "Zl", "Zp"})


def _escape(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def safe(text: str, *, ascii_only: bool = False) -> str:
    """The text with every character escaped that a terminal would obey, hide or reorder by.

    Controls (C0, C1, DEL), format characters (bidi marks and overrides, zero-width ones, except the two joiners),
    line and paragraph separators, lone surrogates, private and unassigned code points, and blanks that are not a
    plain space. With `ascii_only` also everything that is not ASCII.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(char) if _is_hidden(char, ascii_only) else char for char in text)


def _is_hidden(char: str, ascii_only: bool) -> bool:
    if " " <= char <= "~":
        return False
    if ascii_only and char > "~":
        return True
    category = unicodedata.category(char)
    return (category in _HIDDEN and char not in _JOINERS) or category == "Zs"


def shown_key(key: str | None, *, ascii_only: bool = False) -> str:
    """A key for a person: in quotes where a blank at its ends (or a quote) would be misread; `-` for no key."""
    if key is None:
        return "-"
    text = safe(key, ascii_only=ascii_only)
    if key != key.strip() or key[:1] == '"' or key == "-":
        return '"' + text.replace('"', '\\"') + '"'
    return text


def ascii_text(text: str) -> str:
    """A text that is ready to be shown, for an encoding that has only ASCII."""
    return text if text.isascii() else "".join(char if char.isascii() else _escape(char) for char in text)


def compact(value: object) -> str:
    """A JSON value on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def clip(text: str, width: int, *, ascii_only: bool = False) -> str:
    """At most `width` characters, with an ellipsis where something was cut."""
    if len(text) <= width:
        return text
    mark = "..." if ascii_only else "…"
    return text[: max(0, width - len(mark))] + mark


def json_line(document: object, *, ascii_only: bool) -> str:
    """One JSON document. ASCII where asked for, and where a lone surrogate leaves no other way."""
    text = json.dumps(document, ensure_ascii=ascii_only, allow_nan=False)
    if not ascii_only and any("\ud800" <= char <= "\udfff" for char in text):
        return json.dumps(document, ensure_ascii=True, allow_nan=False)
    return text


# -- moments -------------------------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def iso(at: int | None) -> str | None:
    """A moment as `2026-11-29T12:00:00.123Z`; beyond what a calendar can say, its milliseconds."""
    if at is None:
        return None
    try:
        moment = _EPOCH + timedelta(milliseconds=at)
    except OverflowError:
        return str(at)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def span(milliseconds: int) -> str:
    """A length for a person, never negative: `0.4s`, `12s`, `4m`, `3h`, `12d`."""
    return f"{max(0, milliseconds) / 1000:.1f}s" if milliseconds < 10_000 else _coarse(milliseconds // 1000)


def _coarse(seconds: int) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def size(count: int) -> str:
    """A number of bytes for a person: `512 B`, `4.2 MiB`."""
    if count < 1024:
        return f"{count} B"
    unit = next((unit for unit in range(1, 5) if count < 1024 ** (unit + 1)), 4)
    return f"{count / 1024**unit:.1f} {'KMGT'[unit - 1]}iB"


def age(at: int | None, now: int) -> str:
    """How long ago, or (a second or more ahead) in how long: `4m ago`, `in 2h`. Never negative."""
    if at is None:
        return "-"
    seconds = (now - at) // 1000 if now >= at else -((at - now) // 1000)
    if seconds == 0:
        return "now"
    return f"{_coarse(seconds)} ago" if seconds > 0 else f"in {_coarse(-seconds)}"


# -- documents -----------------------------------------------------------------------------------------------------


def value(text: str | None) -> Any:
    """A stored JSON text as a value. One that cannot be read is given as its text: a list must not fail by it."""
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=str)  # NaN and Infinity are no JSON: given as their names
    except (ValueError, RecursionError):
        return text


def error_document(error: RunError | None) -> Document | None:
    """`error` of a run or a step."""
    if error is None:
        return None
    return {"type": error.type, "message": error.message, "step": error.step, "attempt": error.attempt}


def awaited(step: Step) -> str:
    """What an operation that waits is waiting for, as raw text: `for event 'paid'`; empty for a moment."""
    details = step.details or {}
    names = [repr(name) for name in details.get("names", ())]
    joined = (" and " if details.get("mode") == "all" else " or ").join(names)
    prompt = details.get("prompt")
    return {
        "sleep": "",
        "event": f"for event {joined}",
        "input": f"for an answer to {step.name!r}" + (f" ({prompt})" if prompt and prompt != step.name else ""),
        "call": "for the end of a run it started",
    }.get(step.kind, "for its branches")


def waits_for(step: Step, now: int | None = None) -> str:
    """As `awaited`, and until when: as a moment, or (with `now`) as an age."""
    when = "" if step.due_at is None else f"until {iso(step.due_at)}" if now is None else age(step.due_at, now)
    return " ".join(filter(None, (awaited(step), when)))


def step_document(step: Step) -> Document:
    """One entry of `steps`."""
    return {
        "seq": step.seq,
        "name": step.name,
        "kind": step.kind,
        "status": str(step.status),
        "attempts": step.attempts,
        "result": value(step.result),
        "error": error_document(step.error),
    }


def event_document(event: Event) -> Document:
    """One entry of `events`: `kind` is event or input (an answer)."""
    return {
        "kind": event.kind,
        "name": event.name,
        "payload": value(event.payload),
        "received": event.received,
        "created_at": iso(event.created_at),
    }


def run_document(run: Run) -> Document:
    """A run, with `steps` where they were read."""
    document: Document = {
        "id": run.id,
        "workflow": run.workflow,
        "key": run.key,
        "holds_key": run.holds_key,
        "runs_after_id": run.runs_after_id,
        "status": str(run.status),
        "input": value(run.input),
        "result": value(run.result),
        "error": error_document(run.error),
        "created_at": iso(run.created_at),
        "started_at": iso(run.started_at),
        "finished_at": iso(run.finished_at),
        "due_at": iso(run.due_at),
        "owner": None if run.owner is None else {"alive": run.owner.alive, "pid": run.owner.pid},
    }
    if run.note is not None:
        document["note"] = run.note
    if run.steps is not None:
        document["steps"] = [step_document(step) for step in run.steps]
    return document


def key_document(key: Key) -> Document:
    """A row of `keys list`."""
    document: Document = {
        "workflow": key.workflow,
        "key": key.key,
        "holder_id": key.holder_id,
        "status": None if key.status is None else str(key.status),
        "held_since": iso(key.held_since),
        "runs": key.runs,
        "readds_24h": key.readds_24h,
        "waiting_id": key.waiting_id,
        "owner_alive": key.owner_alive,
    }
    if key.held_too_long:
        document["held_too_long"] = True
    return document


def activity_document(row: Activity) -> Document:
    """A row of `activity`."""
    return {
        "at": iso(row.at),
        "kind": row.kind,
        "workflow": row.workflow,
        "key": row.key,
        "run_id": row.run_id,
        "details": row.details,
        "id": row.id,
    }


# -- statuses ------------------------------------------------------------------------------------------------------

_ICONS: Final[Mapping[str, tuple[str, str, str]]] = {  # icon, icon in ASCII, colour
    Status.PENDING: ("○", ".", "yellow"),
    Status.RUNNING: ("▶", ">", "cyan"),
    Status.WAITING: ("⏸", "~", "cyan"),
    Status.COMPENSATING: ("↺", "<", "magenta"),
    Status.COMPLETED: ("✓", "+", "green"),
    Status.FAILED: ("✗", "x", "red"),
    Status.CANCELLED: ("⊘", "-", "yellow"),
    Status.COMPENSATED: ("↩", "<", "magenta"),
    Status.COMPENSATION_FAILED: ("‼", "!", "red"),
    "retrying": ("↻", "~", "yellow"),
}


def status_word(status: str | None, *, ascii_only: bool) -> str:
    """Icon and word, so that neither colour nor font is needed to read it."""
    if status is None:
        return "-"
    icon, plain, _ = _ICONS.get(status, ("?", "?", ""))
    return f"{plain if ascii_only else icon} {status}"


def icon(status: str, *, ascii_only: bool) -> str:
    """The icon alone, for lines that say the rest in other words."""
    return _ICONS[status][1 if ascii_only else 0]


def status_colour(status: str | None) -> str:
    """The colour of a status's cell, '' for none."""
    return "" if status is None else _ICONS.get(status, ("", "", ""))[2]


# -- lines ---------------------------------------------------------------------------------------------------------


def cell(value: object) -> str:
    """One value in TSV: exact, on one line, without a control character.

    Backslashes and what `safe` hides are escaped, blanks at the ends too, so that `printf %b` gives the text back.
    Null is empty, objects and lists are JSON.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return safe(compact(value)) if isinstance(value, (dict, list)) else str(value)
    text = safe(value.replace("\\", "\\\\"))
    bare = text.strip(" ")
    if bare == text:
        return text
    lead = len(text) - len(text.lstrip(" ")) if bare else 0
    return "\\x20" * lead + bare + "\\x20" * (len(text) - len(bare) - lead)


def tsv(rows: Iterable[Document], fields: Sequence[str], *, header: bool) -> list[str]:
    """Lines of tab-separated cells."""
    lines = ["\t".join(cell(row.get(name)) for name in fields) for row in rows]
    return ["\t".join(fields), *lines] if header else lines


def csv_lines(rows: Iterable[Document], fields: Sequence[str], *, header: bool) -> list[str]:
    """Lines of CSV. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    lines = [_csv_line([_csv_cell(row.get(name)) for name in fields]) for row in rows]
    return [_csv_line(list(fields)), *lines] if header else lines


def _csv_cell(value: object) -> str:
    text = cell(value)
    risky = isinstance(value, str) and (value[:1] in "=+-@\t\r" and value != "")
    return "'" + text if risky else text


def _csv_line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(cells)
    return buffer.getvalue()


# -- tables --------------------------------------------------------------------------------------------------------


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | tuple[str, str]]],
    *,
    width: int,
    colour: bool,
    ascii_only: bool,
    widths: Sequence[int] | None = None,
) -> str:
    """A table for a terminal. `widths`: of its columns, between which there is little; what is there has to fit.

    Cells are texts that are ready to be shown, or (text, colour).
    """
    from rich.box import ASCII2, SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        box=ASCII2 if ascii_only else SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=bool(widths)
    )
    for number, column in enumerate(columns):
        grid.add_column(Text(column), overflow="fold", width=widths[number] if widths else None)
    for row in rows:
        cells = [(entry, "") if isinstance(entry, str) else entry for entry in row]
        grid.add_row(*(Text(ascii_text(text) if ascii_only else text, style=style) for text, style in cells))
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(width, sum(widths) + 3 * len(widths)) if widths else width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    console.print(grid)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())
