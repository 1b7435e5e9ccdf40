"""Lists and counts (`store/reports.py`) on real files, with a clock that only the test moves."""

from __future__ import annotations

import json

import pytest

from durable_cli import Durable, workflow
from durable_cli.errors import KeyTaken
from durable_cli.store import reports

NOW = 1_795_953_600_000
HOUR = 3_600_000


@pytest.fixture
def at(tmp_path):
    """(durable, clock): a client whose moment is clock[0]."""
    clock = [NOW]
    with Durable(tmp_path / "lists.db", clock=lambda: clock[0], sleep=lambda seconds: None) as durable:
        yield durable, clock


@workflow
def first(ctx, value: object = None):
    return ctx.run("s", lambda: value)


@workflow(reuse="never")
def second(ctx, value: object = None):
    if value == "bad":
        raise ValueError("100% wrong_here")
    return ctx.run("s", lambda: value)


def ids(runs):
    return [run.id for run in runs]


def test_runs_are_newest_first_whatever_the_clock_says(at):
    """Order is the sequence's, not the wall clock's (K04)."""
    durable, clock = at
    made = []
    for moment in (NOW, NOW - HOUR, NOW + HOUR):
        clock[0] = moment
        made.append(durable.start(first, key=str(moment)).run_id)
    assert ids(durable.runs()) == made[::-1]
    assert ids(durable.runs(limit=1)) == made[:1:-1]


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("key:a_c", ["a_c"]),
        ("key:a%", ["a%"]),
        ("a_c", ["a_c"]),
        ("%", ["bad one", "a%"]),
        ("_", ["bad one", "a_c"]),
        ("workflow:second", ["bad one", "a%"]),
        ("status:failed", ["bad one"]),
        ("status:failed workflow:first", []),
        ("wrong_here", ["bad one"]),
        ("workflow:sec", []),
        ("key:", []),
        ("needle", ["abc"]),
        ("needle abc", ["abc"]),
        ("needle missing", []),
        ("bad", ["bad one"]),
        ("ValueError:", ["bad one"]),
        ("Traceback", []),
        ("message", []),
        ("'; DROP TABLE durable_runs; --", []),
    ],
)
def test_searching(at, search, found):
    """`key: workflow: status:` are exact, other words occur anywhere; `%` and `_` are letters."""
    durable, _ = at
    durable.execute(first, {"text": "needle"}, key="abc")
    durable.execute(first, key="a_c")
    durable.execute(second, key="a%")
    durable.execute(second, "bad", key="bad one")
    assert [run.key for run in durable.runs(search=search)] == found


def test_what_is_given_twice_must_agree(at):
    """An option and a word of SEARCH narrow together."""
    durable, _ = at
    durable.execute(first, key="k")
    durable.execute(second, key="k")
    assert len(durable.runs(workflow="first", search="workflow:first")) == 1
    assert durable.runs(workflow="first", search="workflow:second") == []
    assert durable.runs(status=["failed"], search="status:completed") == []
    assert len(durable.runs(status=["failed", "completed"], search="status:completed")) == 2


def test_since_and_unfinished(at):
    """By creation; by being unfinished."""
    durable, clock = at
    old = durable.start(first, key="old").run_id
    clock[0] += 2 * HOUR
    new = durable.execute(first, key="new").run.id
    assert ids(durable.runs(since="1h")) == [new]
    assert ids(durable.runs(since="2h")) == [new, old]
    assert ids(durable.runs(unfinished=True)) == [old]


def test_keys(at):
    """A row for every key that has runs, its holder or none, re-adds of the last 24 h exactly."""
    durable, clock = at
    held = durable.execute(second, 1, key="k").run.id
    durable.start(second, 1, key="k")
    clock[0] += 23 * HOUR
    durable.start(second, 2, key="k")
    durable.start(first, key="k")
    durable.start(first)
    rows = {(row.workflow, row.key): row for row in durable.keys(held=False)}
    assert set(rows) == {("second", "k"), ("first", "k")}
    row = rows["second", "k"]
    assert (row.holder_id, str(row.status), row.runs, row.readds_24h) == (held, "completed", 1, 2)
    assert (row.held_since, row.waiting_id, row.owner_alive) == (NOW, None, None)
    clock[0] += 2 * HOUR
    assert [row.readds_24h for row in durable.keys(workflow="second")] == [1]
    durable.release_key(held)
    [row] = durable.keys(workflow="second")
    assert (row.holder_id, row.status, row.held_since) == (None, None, None)
    assert durable.keys(workflow="second", held=True) == []
    assert [row.workflow for row in durable.keys(stuck="1h")] == ["first"]
    assert durable.keys(stuck="3h") == []


def test_activity_rows(at):
    """Newest first; a dropped input is shown when it differs, null too; absent is absent."""
    durable, _ = at
    holder = durable.execute(second, 1, key="k").run.id
    durable.start(second, 1, key="k")
    durable.start(second, None, key="k")
    with pytest.raises(KeyTaken):
        durable.start(second, 3, key="k", on_duplicate="error")
    rows = durable.activity()
    assert [row.details for row in rows] == [
        {"outcome": "error", "input_changed": True, "input": 3},
        {"outcome": "use_existing", "input_changed": True, "input": None},
        {"outcome": "use_existing", "input_changed": False},
    ]
    assert {(row.workflow, row.key, row.run_id) for row in rows} == {("second", "k", holder)}
    assert durable.activity(kinds=["key_released"]) == []
    assert len(durable.activity(kinds=["key_released", "key_duplicate"], key="k", workflow="second")) == 3
    assert durable.activity(key="other") == []
    durable.release_key(holder, by="me")
    assert durable.activity(limit=1)[0].details == {"by": "me"}


def test_stats_equal_the_lists(at):
    """Counts by status are those of `runs`, held those of `keys`, re-adds those of `activity` (N03, N04)."""
    durable, clock = at
    for n in range(12):
        clock[0] += 10 * 60_000
        durable.execute(first, n, key=f"k{n % 3}")
        durable.execute(second, "bad" if n == 0 else n, key=f"k{n % 4}")
        durable.start(first, n)
    stats = durable.stats()
    runs = durable.runs()
    for status, count in stats.runs.items():
        assert count == len([run for run in runs if run.status == status])
    assert sum(stats.runs.values()) == len(runs)
    assert stats.held == len([run for run in runs if run.holds_key])
    rows = durable.activity()
    duplicates = [row for row in rows if row.kind == "key_duplicate"]
    assert sum(stats.readds.values()) == len(duplicates) == 8
    assert stats.dropped_inputs == len([row for row in duplicates if row.details["input_changed"]])
    assert stats.handoffs == len([row for row in rows if row.kind == "key_handed_off"])
    assert sum(row["count"] for row in stats.most_readded) == 8
    assert sum(row["count"] for row in stats.over_time) == 8
    assert len(durable.stats(since="3h").over_time) > 1
    assert json.dumps(stats.most_readded)
    one = durable.stats(workflow="first")
    assert one.runs == {"completed": 12, "pending": 12}
    assert one.readds == {}


def test_search_words():
    """The words of SEARCH, apart from SQL."""
    assert reports.split_search(None) == ({}, [])
    assert reports.split_search("key:article:42 status:failed x key:") == (
        {"key": "article:42", "status": "failed"},
        ["x", "key:"],
    )
