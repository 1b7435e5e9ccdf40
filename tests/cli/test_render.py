"""Rendering: nothing that a producer chose reaches a terminal as a command, and nothing is lost on the way."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from durable_cli import render
from durable_cli.model import Activity, Key, Owner, Run, RunError, Status, Step, StepStatus

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
HOSTILE = [
    "[red]x[/red]",
    "[/x]",
    "a[b]c",
    "[link=file:///etc/passwd]x",
    ":bug:",
    "\x1b]52;c;aGk=\x07",
    "\x1b[2J",
    "\x9b31m",
    "a\u202eb",
    "a\u2028b",
    "a\u200bb",
    "\ud800",
    "a\nb\tc\rd",
    "\x7f",
    "\u2066x",
    "\ufeffx",
    "a\xa0",
]
MOMENT = 1_795_953_600_123  # 2026-11-29T12:00:00.123Z


@given(ANY_TEXT)
@example("\x1b[31m")
@example("\u202e")
def test_safe_leaves_nothing_that_a_terminal_obeys(text):
    """No control, format (but the joiners), separator, surrogate or unassigned character remains; it can be encoded."""
    shown = render.safe(text)
    for char in shown:
        assert unicodedata.category(char) not in {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}
        assert unicodedata.category(char) != "Cf" or char in "\u200c\u200d"
        assert unicodedata.category(char) != "Zs" or char == " "
    shown.encode()
    assert render.safe(text, ascii_only=True).isascii()


@given(st.text(st.sampled_from("abc xyz09-_:/[]é→漢😀"), max_size=30))
def test_safe_leaves_ordinary_text_alone(text):
    """Letters, marks, brackets and emoji are shown as they are."""
    assert render.safe(text) == text


@given(ANY_TEXT)
@example("a\\x20")
@example("  ")
@example(" a ")
def test_a_tsv_cell_is_one_line_and_gives_the_text_back(text):
    """TSV is exact: undoing the escapes yields the text; blanks at the ends are visible."""
    cell = render.cell(text)
    assert cell == cell.strip()
    assert "\t" not in cell
    assert len(cell.splitlines()) <= 1
    assert _unescape(cell) == text


def _unescape(cell: str) -> str:
    def undo(match: re.Match[str]) -> str:
        body = match.group(1)
        short = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
        return short[body] if body in short else chr(int(body[1:], 16))

    return re.sub(r"\\(\\|n|r|t|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})", undo, cell)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (-1, "-1"),
        ({"a": "\x1b"}, '{"a":"\\u001b"}'),
        ([1, None], "[1,null]"),
    ],
)
def test_cells_of_other_types(value, cell):
    """Null is empty, objects are JSON."""
    assert render.cell(value) == cell


@given(ANY_TEXT, ANY_TEXT)
def test_csv_is_one_record_a_line_and_no_formula(first, second):
    """A spreadsheet reads both cells back as text; none begins with = + - @."""
    [line] = render.csv_lines([{"a": first, "b": second}], ["a", "b"], header=False)
    assert len(line.splitlines()) <= 1
    [row] = csv.reader(io.StringIO(line)) if line else [["", ""]]
    for text, cell in zip((first, second), row, strict=True):
        if text[:1] in ("=", "+", "-", "@", "\t", "\r"):
            assert cell == "'" + render.cell(text)
        else:
            assert cell == render.cell(text)


@given(st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3), st.booleans())
def test_json_is_one_line_that_can_be_encoded_and_read_back(document, ascii_only):
    """Also with lone surrogates."""
    line = render.json_line(document, ascii_only=ascii_only)
    line.encode()
    assert "\n" not in line
    assert json.loads(line) == document
    assert not ascii_only or line.isascii()


@given(ANY_TEXT)
def test_a_shown_key_shows_its_blanks(text):
    """A key with blanks at its ends is quoted; no key, and the key `-`, are told apart."""
    shown = render.shown_key(text)
    assert shown == shown.strip()
    assert shown != "-"
    if text != text.strip():
        assert shown.startswith('"')
        assert shown.endswith('"')


@given(st.integers(-(2**62), 2**62))
def test_any_moment_can_be_written(at):
    """A clock gone wild breaks no list."""
    assert render.iso(at)


def test_moments_are_utc_milliseconds():
    """The format of CLI.md, to the letter."""
    assert render.iso(MOMENT) == "2026-11-29T12:00:00.123Z"
    assert render.iso(None) is None
    assert render.iso(0) == "1970-01-01T00:00:00.000Z"


@given(st.integers(0, 2**52), st.integers(0, 2**52))
def test_an_age_is_never_negative(at, now):
    """Finished before it started, clock set back: an age still reads as one (K04)."""
    assert "-" not in render.age(at, now)


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "now"),
        (-999, "now"),
        (999, "now"),
        (-1000, "1s ago"),
        (-119_000, "119s ago"),
        (-240_000, "4m ago"),
        (-7_200_000, "2h ago"),
        (-172_800_000, "2d ago"),
        (7_200_000, "in 2h"),
        (5_000, "in 5s"),
    ],
)
def test_ages(at, text):
    """Short, coarse, past and future."""
    assert render.age(MOMENT + at, MOMENT) == text


def test_a_value_that_cannot_be_read_is_given_as_text():
    """A list must not fail by one bad row; NaN is no JSON."""
    assert render.value("{broken") == "{broken"
    assert render.value("[" * 200_000) == "[" * 200_000
    assert json.loads(render.json_line(render.value("NaN"), ascii_only=False)) == "NaN"


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("colour", [True, False])
def test_a_table_shows_hostile_text_literally(text, colour):
    """No markup, no emoji, no control byte but our own colours, and no crash."""
    shown = render.safe(text)
    table = render.table(["key"], [[(shown, "red")]], width=200, colour=colour, ascii_only=False)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", table) if colour else table
    assert shown.rstrip() in bare
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", bare)


@given(st.lists(st.lists(ANY_TEXT, min_size=2, max_size=2), max_size=3))
def test_a_table_of_anything_has_only_our_control_bytes(rows):
    """Property form of the above; in ASCII it is ASCII."""
    cells = [[render.safe(text, ascii_only=True) for text in row] for row in rows]
    table = render.table(["a", "b"], cells, width=60, colour=False, ascii_only=True)
    assert table.isascii()
    assert all(char == "\n" or char.isprintable() for char in table)


def _run(**changes: object) -> Run:
    fields = {name: None for name in Run.__dataclass_fields__}
    fields |= {
        "row_id": 1, "id": "abcdefghjk", "workflow": "sync", "workflow_id": 1, "holds_key": False,
        "status": Status.COMPLETED, "input": '{"a":1}', "created_at": MOMENT, "epoch": 1, "crashes": 0,
    } | changes  # fmt: skip
    return Run(**fields)  # type: ignore[arg-type]


def test_the_document_of_a_run_has_the_names_of_the_specification():
    """`id workflow key holds_key ... owner steps`, in that order; absent is null."""
    step = Step(
        branch="", seq=1, kind="run", name="s", status=StepStatus.COMPLETED, attempts=1, failures=0,
        started_at=MOMENT, finished_at=MOMENT, due_at=None, result="2", error=None,
    )  # fmt: skip
    error = RunError("ValueError", "no", step="s", attempt=2, traceback="secret")
    document = render.run_document(_run(owner=Owner(1, 42, True), steps=(step,), error=error, result="null"))
    assert tuple(document) == (*render.RUN_FIELDS, "steps")
    assert document["owner"] == {"alive": True, "pid": 42}
    assert document["error"] == {"type": "ValueError", "message": "no", "step": "s", "attempt": 2}
    assert document["steps"] == [
        {"seq": 1, "name": "s", "kind": "run", "status": "completed", "attempts": 1, "result": 2, "error": None}
    ]
    assert document["created_at"] == "2026-11-29T12:00:00.123Z"
    assert document["key"] is None
    assert "steps" not in render.run_document(_run())


def test_the_documents_of_keys_and_activity_have_the_names_of_the_specification():
    """Rows of `keys list` and `activity`."""
    key = Key("w", "k", None, None, None, 2, 0, None, None)
    assert tuple(render.key_document(key)) == render.KEY_FIELDS
    row = Activity(MOMENT, "key_released", "w", "k", "abcdefghjk", {"by": "me"})
    assert tuple(render.activity_document(row)) == render.ACTIVITY_FIELDS


@pytest.mark.parametrize("status", [*Status, "retrying"])
def test_every_status_has_icon_and_word(status):
    """In ASCII too; an unknown word does not crash."""
    assert render.status_word(status, ascii_only=False).endswith(f" {status}")
    assert render.status_word(status, ascii_only=True).isascii()
    assert render.status_word("new_word", ascii_only=True) == "? new_word"
