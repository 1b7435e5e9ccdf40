"""What is different between two JSON values, field by field. Pure, and bounded: values are strangers' texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

MOST_CHANGES: Final = 50
_MOST_PLACES: Final = 100_000
"""How many places are compared at most: a start's input may be large, and a list of many starts has many of them."""

_Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One place that is different: `path` is dotted (`a.b[3]`, empty: the whole value); `before` is None for what was
    added, `after` for what was removed."""

    path: str
    kind: _Kind
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class Diff:
    """What has to be done to one value to get the other. `more`: there may be further changes."""

    changes: tuple[Change, ...]
    more: bool = False


def diff(before: object, after: object, *, limit: int = MOST_CHANGES) -> Diff:
    """The changes from one JSON value to another, in the order of the fields; at most `limit` of them.

    Objects are compared by field, lists by position. Numbers are compared as numbers (1 is 1.0), and true is not 1.
    A stack instead of recursion: a value may be nested deeper than Python likes.
    """
    changes: list[Change] = []
    places = 0
    stack: list[Change] = [Change("", "changed", before, after)]
    while stack:
        at = stack.pop()
        places += 1
        if len(changes) >= limit or places > _MOST_PLACES:
            return Diff(tuple(changes), more=True)
        inner = None if at.kind != "changed" else _inside(at)
        if inner is not None:
            stack.extend(reversed(inner))
        elif at.kind != "changed" or not _same(at.before, at.after):
            changes.append(at)
    return Diff(tuple(changes))


def _inside(at: Change) -> list[Change] | None:
    """The places inside two objects or two lists that may differ; None: they are compared as wholes."""
    before, after = at.before, at.after
    if isinstance(before, dict) and isinstance(after, dict):
        found = [
            Change(_field(at.path, name), "changed", value, after[name])
            if name in after
            else Change(_field(at.path, name), "removed", value, None)
            for name, value in before.items()
            if name not in after or after[name] is not value
        ]
        return found + [
            Change(_field(at.path, name), "added", None, value) for name, value in after.items() if name not in before
        ]
    if isinstance(before, list) and isinstance(after, list):
        both = [Change(f"{at.path}[{n}]", "changed", *pair) for n, pair in enumerate(zip(before, after, strict=False))]
        shorter = len(both)
        gone = [Change(f"{at.path}[{shorter + n}]", "removed", one, None) for n, one in enumerate(before[shorter:])]
        new = [Change(f"{at.path}[{shorter + n}]", "added", None, one) for n, one in enumerate(after[shorter:])]
        return both + gone + new
    return None


def _field(path: str, name: str) -> str:
    """One step inside: `a.b`; a name that would be misread stands in quotes: `a."b.c"`."""
    plain = name != "" and all(char.isalnum() or char in "_-" for char in name)
    step = name if plain else json.dumps(name, ensure_ascii=False)
    return f"{path}.{step}" if path else step


def _same(before: object, after: object) -> bool:
    """Are two values the same that are not both objects, nor both lists?"""
    if isinstance(before, (dict, list)) or isinstance(after, (dict, list)):
        return False
    return isinstance(before, bool) == isinstance(after, bool) and before == after
