"""Plain JSON: which Python values are JSON as they stand, as text and back.

Strict, because a value that changes on its way through the file would be another one after a crash. The subclasses of
str, int, float, list and dict are stored as the plain value they hold; a tuple becomes a list, as in `json`. What plain
JSON would take its meaning from is refused: NaN and infinities, keys that are not text, members of an Enum (they come
back as bare values) and named tuples (they come back without their names). Text may hold anything, NUL and lone
surrogates too (file names do): all that is not ASCII is escaped, so the stored text is pure ASCII.
"""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import Final, NoReturn

from durable_cli.core.keys import brief
from durable_cli.errors import Unstorable

MAX_VALUE_BYTES: Final = 1024 * 1024
"""The size of one value as JSON text, unless a caller gives another limit."""
MAX_DEPTH: Final = 100
_INT_LIMIT: Final = 10**4300  # Python itself refuses to read longer ones back
_ENCODER: Final = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))


def dump(value: object, *, place: str, limit: int = MAX_VALUE_BYTES) -> str:
    """The value as JSON text: compact, ASCII, keys in their order.

    `place` names the value in messages ("result"). Raises `Unstorable` with the place inside the value.
    """
    try:
        _Walk(place, limit).visit(value, 0)
    except _NotPlain as problem:
        where = inside(place, problem.path)
        raise Unstorable(f"{where} {problem.reason}", value_type=problem.value_type, hint=problem.hint) from None
    try:
        text = _ENCODER.encode(value)
    except ValueError as problem:  # PYTHONINTMAXSTRDIGITS may be below Python's default
        raise Unstorable(f"{place} cannot be written as JSON: {problem}", value_type=_name(value)) from None
    check_size(text, place=place, limit=limit)
    return text


def check_size(text: str, *, place: str, limit: int) -> None:
    """Raise `Unstorable` when the JSON text is longer than `limit` bytes (it is ASCII)."""
    if len(text) > limit:
        raise _too_large(place, f"{len(text):,}", limit)


def parse(text: str) -> object:
    """The value of a JSON text. Raises ValueError with one line; NaN, infinities and absurd depth are no JSON."""
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    return value


def same_value(a: str, b: str) -> bool:
    """Are two JSON texts the same value? Blanks and the order of keys do not count, and numbers are compared as
    numbers, so `1` is `1.0` (JSON does not tell them apart), but `true` is not `1`. A text that is no JSON (a damaged
    file) is the same as itself only."""
    try:
        return a == b or _equal(parse(a), parse(b))
    except ValueError:
        return False


def step_into(key: object) -> str:
    """One step of a place inside a value: `["name"]` or `[3]`."""
    if not isinstance(key, str):
        return f"[{key}]"
    return f"[{json.dumps(key if len(key) <= 40 else key[:37] + '...', ensure_ascii=False)}]"


def inside(place: str, path: list[str]) -> str:
    """The place of something inside a value; `path` is from the inside out. The middle of a long one is left out."""
    if len(path) > 8:
        path = [*path[:3], "...", *path[-4:]]
    return place + "".join(reversed(path))


class _NotPlain(Exception):
    """A value that is no plain JSON; `path` grows from the inside out while the exception rises."""

    def __init__(self, value: object, reason: str, hint: str | None = None) -> None:
        self.reason = reason
        self.hint = hint
        self.value_type = _name(value)
        self.path: list[str] = []


class _Walk:
    """One pass over a value before it is written.

    It counts what it meets, because each value is at least one byte of JSON: lists that hold each other many times over
    would otherwise grow without end before their text could be measured.
    """

    def __init__(self, place: str, limit: int) -> None:
        self._place = place
        self._limit = limit
        self._seen = 0

    def visit(self, value: object, depth: int) -> None:
        self._seen += 1
        if self._seen > self._limit:
            raise _too_large(self._place, f"more than {self._limit:,}", self._limit)
        if value is None or value is True or value is False:
            return
        if isinstance(value, Enum):
            raise _NotPlain(value, f"is a member of the enum {_name(value)}", _ANNOTATE)
        if isinstance(value, str):
            return
        if isinstance(value, int):
            if not -_INT_LIMIT < value < _INT_LIMIT:
                raise _NotPlain(value, "is an integer of more than 4300 digits")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise _NotPlain(value, f"is {float(value)!r}, which JSON does not have", "use None, or text")
        elif isinstance(value, dict | list) or type(value) is tuple:
            self._inside(value, depth + 1)
        else:
            raise _foreign(value)

    def _inside(self, value: dict[object, object] | list[object] | tuple[object, ...], depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _NotPlain(value, f"nests deeper than {MAX_DEPTH} levels (does it contain itself?)")
        if isinstance(value, dict):
            for key in value:
                _check_key(value, key)
        for place, item in value.items() if isinstance(value, dict) else enumerate(value):
            try:
                self.visit(item, depth)
            except _NotPlain as problem:
                problem.path.append(step_into(place))
                raise


def _check_key(holder: object, key: object) -> None:
    if not isinstance(key, str) or isinstance(key, Enum):
        raise _NotPlain(holder, f"has the key {brief(key)} of type {_name(key)}; in JSON keys are text", _ANNOTATE)


_ANNOTATE: Final = "annotate its type where the function is defined, and it is rebuilt as that type"


def _foreign(value: object) -> _NotPlain:
    if isinstance(value, tuple):
        return _NotPlain(value, f"is the named tuple {_name(value)}, whose names plain JSON would lose", _ANNOTATE)
    return _NotPlain(value, f"is of type {_name(value)}, which is not plain JSON", _ANNOTATE)


def _too_large(place: str, size: str, limit: int) -> Unstorable:
    return Unstorable(
        f"{place} has {size} bytes as JSON; at most {limit:,} are stored",
        hint="keep large data in a file, and its path in the value",
    )


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _equal(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b
