"""Diffs of JSON values: every change is told once, the same is never told, and there are never more than asked for."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_cli.core.diff import Change, diff
from durable_cli.core.plain import same_value

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2).map(lambda x: round(x)) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab."é ', max_size=2), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"n": 1}, {"n": 1.0}, []),
        ({"n": 1}, {"n": True}, [("n", "changed")]),
        ({"a": 1, "b": {"c": 2}}, {"b": {"c": 3}, "d": 4}, [("a", "removed"), ("b.c", "changed"), ("d", "added")]),
        ({"a": [1, 2, 3]}, {"a": [1, 9]}, [("a[1]", "changed"), ("a[2]", "removed")]),
        ({"a": [1]}, {"a": [1, {"x": None}]}, [("a[1]", "added")]),
        ({"a": None}, {}, [("a", "removed")]),
        ({"a.b": 1, "": 2}, {"a.b": 2, "": 3}, [('"a.b"', "changed"), ('""', "changed")]),
        (1, "1", [("", "changed")]),
        ({}, [], [("", "changed")]),
        ([], [], []),
    ],
)
def test_what_is_told(before, after, told):
    """Dotted paths, positions in lists; names that would be misread are quoted."""
    assert [(change.path, change.kind) for change in diff(before, after).changes] == told


@given(VALUES, VALUES)
def test_nothing_is_told_of_the_same_value_and_something_of_any_other(before, after):
    """As `same_value` says, which decides `input_changed`."""
    same = same_value(json.dumps(before), json.dumps(after))
    assert (diff(before, after).changes == ()) is same
    assert diff(before, copy.deepcopy(before)).changes == ()


@given(VALUES, VALUES)
def test_a_diff_backwards_is_the_same_diff_turned_round(before, after):
    """Added is removed, and from is to."""
    turned = {"added": "removed", "removed": "added", "changed": "changed"}
    there = {(c.path, c.kind, json.dumps(c.before), json.dumps(c.after)) for c in diff(before, after).changes}
    back = {(c.path, turned[c.kind], json.dumps(c.after), json.dumps(c.before)) for c in diff(after, before).changes}
    assert there == back


def test_it_is_bounded():
    """At most as many changes as asked for, also of a million places, and of a value nested too deep for recursion."""
    many = {str(n): n for n in range(1000)}
    found = diff(many, {}, limit=7)
    assert (len(found.changes), found.more) == (7, True)
    assert diff({}, {"a": 1}, limit=7) == type(found)((Change("a", "added", None, 1),))
    large = list(range(200_000))
    assert diff(large, [*large[:-1], None]).more
    deep: object = 1
    for _ in range(50_000):
        deep = [deep]
    assert diff(deep, copy.copy(deep)).changes == ()
