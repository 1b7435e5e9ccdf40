"""`durable start --input-lines -|@FILE`: many starts of one workflow, a JSON object a line, an answer a line.

A line is always an object that says what `start` takes: {"input": ..., "key": ..., "on_duplicate": ..., "timeout": ...,
"at": ..., "delay": ...}, each of them optional; an input that stood there bare could not be told from one. Empty lines
count, and start nothing. Lines are started in batches, each one transaction, and answered when it is committed: in
order, with the number of the line. A producer that pauses does not wait for its answers.
"""

from __future__ import annotations

import codecs
import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from durable_cli import render
from durable_cli.cli import errors, moments
from durable_cli.cli.inputs import parse_json
from durable_cli.cli.session import Session
from durable_cli.errors import DurableError, InvalidInput, UsageError
from durable_cli.model import StartResult
from durable_cli.producing import ITEM_OPTIONS

if TYPE_CHECKING:
    from durable_cli.client import Durable
    from durable_cli.definition import Definition
    from durable_cli.explaining import Explanation

BATCH: Final = 500
"""Lines in one transaction; others wait for it."""
BATCH_BYTES: Final = 16 << 20
MAX_LINE: Final = 8 << 20
"""A longer line is answered with an error and not kept in memory."""
PAUSE_S: Final = 0.1
"""So long after the last line a batch is started as it is."""
_CHUNK: Final = 64 * 1024
_FORMS: Final = (None, "jsonl", "json", "ids")


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that is to be answered; `text` None: it was too long."""

    number: int
    text: bytes | None


@dataclass(frozen=True, slots=True)
class Defaults:
    """What counts for lines that do not say it themselves."""

    on_duplicate: str | None
    moved: bool


def open_lines(source: str, *, may_ask: bool) -> int:
    """The descriptor of `-` or `@FILE`. Raises UsageError."""
    if source == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise UsageError("--input-lines - reads the standard input, which is closed")
        if sys.stdin.isatty() and not may_ask:
            raise UsageError("--input-lines - would read from the terminal, and --no-input forbids it")
        return os.dup(0)
    if not source.startswith("@"):
        raise UsageError("--input-lines takes - (the standard input) or @FILE", hint=f"--input-lines @{source}")
    try:
        return os.open(os.path.expanduser(source[1:]), os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"--input-lines {source}: {error.strerror or error}") from None


def batches(descriptor: int) -> Iterator[list[_Line]]:
    """The lines of a descriptor, in batches of bounded size, as they come. Raises UsageError: it cannot be read."""
    waiting: list[_Line] = []
    size = 0
    for line in _lines(descriptor):
        if line is not None:
            waiting.append(line)
            size += len(line.text or b"")
        if waiting and (line is None or len(waiting) >= BATCH or size >= BATCH_BYTES):
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _lines(descriptor: int) -> Iterator[_Line | None]:
    """The lines that are not empty; None: no more of them came for a while."""
    number, rest, too_long = 1, b"", False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while True:
        if not poll.poll(PAUSE_S * 1000):
            yield None
            poll.poll()
        try:
            chunk = os.read(descriptor, _CHUNK)
        except OSError as error:
            raise UsageError(f"--input-lines cannot be read: {error.strerror or error}") from None
        *whole, rest_of_chunk = chunk.split(b"\n")
        for part in whole:
            line = rest + part
            if too_long or len(line) > MAX_LINE:
                yield _Line(number, None)
            elif line.strip():
                yield _Line(number, line)
            number, rest, too_long = number + 1, b"", False
        rest += rest_of_chunk
        if len(rest) > MAX_LINE:
            rest, too_long = b"", True
        if not chunk:
            if too_long or rest.strip():
                yield _Line(number, None if too_long else rest)
            return


def start_lines(
    session: Session, client: Durable, definition: Definition, descriptor: int, defaults: Defaults, *, dry_run: bool
) -> int:
    """Start every line and answer it. Exit 1 where any was refused; an error of the file ends it."""
    if session.out.format not in _FORMS:
        os.close(descriptor)
        raise UsageError(f"--input-lines answers in JSON lines (or --json, or --format ids), not {session.out.format}")
    answers = _Answers(session)
    step = _explain if dry_run else _start
    try:
        for batch in batches(descriptor):
            answers.write(step(session, client, definition, batch, defaults))
    except DurableError as error:
        if not session.out.json:
            raise
        answers.write(
            [{"line": None, "error": errors.error_document(error, session.out)}]
        )  # of this line on, nothing was done
        return error.exit_status
    finally:
        os.close(descriptor)
        answers.end()
    if answers.refused:
        session.out.say(f"{session.out.styled('error:', '1;31')} {answers.refused} of {answers.all} lines were refused")
    return int(answers.refused > 0)


class _Answers:
    """The answers as they come: JSON lines, ids, or (`--json`) the entries of one list. `-q`: only refusals."""

    def __init__(self, session: Session) -> None:
        self._out = session.out
        self._begun = False
        self.all = 0
        self.refused = 0

    def write(self, documents: list[render.Document]) -> None:
        bad = [one for one in documents if "error" in one]
        self.all += len(documents)
        self.refused += len(bad)
        told = bad if self._out.quiet else documents
        if self._out.format == "ids":
            texts = [str(one["run_id"]) for one in told if one.get("run_id") is not None]
        else:
            texts = [render.json_line(one, ascii_only=True) for one in told]
        if self._out.format == "json":
            lead = ["," if self._begun else "[", *([","] * (len(texts) - 1))]
            texts = [comma + text for comma, text in zip(lead, texts, strict=False)]
        if texts:
            self._begun = True
            self._out.answer("\n".join(texts))

    def end(self) -> None:
        if self._out.format == "json":
            self._out.answer("]" if self._begun else "[]")


def _read(session: Session, line: _Line, defaults: Defaults) -> dict[str, Any]:
    """The item that a line is, for `Durable.start_many`. Raises UsageError, InvalidInput, InvalidDuration."""
    if line.text is None:
        raise InvalidInput(f"the line has more than {MAX_LINE >> 20} MiB; store a reference instead")
    text = line.text.removeprefix(codecs.BOM_UTF8) if line.number == 1 else line.text
    item = parse_json(text, "the line")
    if not isinstance(item, dict):
        raise UsageError(
            f"a line is an object with {', '.join(ITEM_OPTIONS)}, not {render.clip(render.compact(item), 40)}",
            hint='{"input": ...}',
        )
    if isinstance(item.get("at"), str):
        at, _ = moments.ahead(item["at"], session)
        item["at"] = moments.as_datetime(at)
    elif item.get("at") is not None:
        raise UsageError(f"at is a text such as 2026-12-24T18:00, not {render.clip(render.compact(item['at']), 40)}")
    if defaults.on_duplicate is not None and item.get("on_duplicate") is None:
        item["on_duplicate"] = defaults.on_duplicate
    return item


def _items(
    session: Session, batch: list[_Line], defaults: Defaults
) -> tuple[dict[int, dict[str, Any]], dict[int, render.Document]]:
    """The items of a batch by the numbers of their lines, and the answers to those that cannot be read."""
    items: dict[int, dict[str, Any]] = {}
    refused: dict[int, render.Document] = {}
    for line in batch:
        try:
            items[line.number] = _read(session, line, defaults)
        except DurableError as error:
            refused[line.number] = _refusal(session, line.number, error)
    return items, refused


def _refusal(session: Session, number: int, error: DurableError) -> render.Document:
    return {"line": number, "error": errors.error_document(error, session.out)}


def _start(
    session: Session, client: Durable, definition: Definition, batch: list[_Line], defaults: Defaults
) -> list[render.Document]:
    items, answers = _items(session, batch, defaults)
    started = client.start_many(definition, items.values(), moved=defaults.moved) if items else []
    for number, one in zip(items, started, strict=True):
        answers[number] = _refusal(session, number, one) if isinstance(one, DurableError) else _answer(number, one)
    return [answers[number] for number in sorted(answers)]


def _answer(number: int, answer: StartResult) -> render.Document:
    return {
        "line": number,
        "run_id": answer.run_id,
        "workflow": answer.workflow,
        "key": answer.key,
        "outcome": str(answer.outcome),
        "status": str(answer.status),
        "holder_id": answer.holder_id,
        "holder_status": None if answer.holder_status is None else str(answer.holder_status),
        "replaced_id": answer.replaced_id,
    }


def _explain(
    session: Session, client: Durable, definition: Definition, batch: list[_Line], defaults: Defaults
) -> list[render.Document]:
    """What each line would do if it came alone; writes nothing."""
    items, answers = _items(session, batch, defaults)
    explained = client.explain_many(definition, items.values(), moved=defaults.moved)
    for number, one in zip(items, explained, strict=True):
        answers[number] = _refusal(session, number, one) if isinstance(one, DurableError) else _explained(number, one)
    return [answers[number] for number in sorted(answers)]


def _explained(number: int, found: Explanation) -> render.Document:
    return {
        "line": number,
        "action": found.action,
        "reason": found.reason,
        "workflow": found.workflow,
        "key": found.key,
        "holder_id": found.holder_id,
        "holder_status": None if found.holder_status is None else str(found.holder_status),
    }
