"""A key's log in order, with what did not run; and starting such an input again."""

from __future__ import annotations

import pytest
from enginekit import change, duplicates, own, told
from hypothesis import given
from hypothesis import strategies as st

from durable_cli import workflow
from durable_cli.core.policies import Debounce
from durable_cli.errors import AlreadyReplayed, AmbiguousRun, InputNotFound, InvalidInput, KeyNotFound, KeyTaken
from durable_cli.keylog import merged
from durable_cli.model import Activity, Outcome, Status

DAY = 86_400_000


def define(name="job", takes=object, **options):
    def job(ctx, what=None):
        return ctx.run("s", lambda: what)

    job.__annotations__["what"] = takes
    return workflow(name=name, **options)(job)


def log(durable, key="k", **options):
    return [(event.kind.removeprefix("key_"), event.run_id) for event in durable.key_log(key, **options)]


def lost(durable, key="k"):
    """(outcome, input, superseded, against, changed places) of every input that did not run."""
    return [
        (
            one.activity.details["outcome"],
            one.input,
            one.superseded,
            one.against_id,
            None if one.diff is None else [change.path for change in one.diff.changes],
        )
        for one in durable.lost_inputs(key)
    ]


def test_everything_is_there_in_order(durable):
    """Created, duplicate, replaced, released, retaken, pruned, at one and the same moment."""
    job = define()
    first = durable.start(job, {"n": 1}, key="k").run_id
    durable.start(job, {"n": 2}, key="k")
    second = durable.start(job, {"n": 3}, key="k", on_duplicate="cancel_existing").run_id
    durable.cancel(second)
    durable.release_key(second)
    durable.retry(first)
    durable.cancel(first)
    third = durable.start(job, key="k").run_id
    assert log(durable) == [
        ("run_created", first),
        ("duplicate", first),
        ("duplicate", first),
        ("run_created", second),
        ("handed_off", second),
        ("released", second),
        ("retaken", first),
        ("run_created", third),
        ("handed_off", third),
    ]


def test_what_did_not_run_is_compared_with_what_runs(durable):
    """Dropped: with the holder's input. Superseded: with that of the replacement, or of the run that took the newer
    one."""
    job = define()
    first = durable.start(job, {"n": 1, "same": 0}, key="k").run_id
    durable.start(job, {"n": 2, "same": 0}, key="k")
    with pytest.raises(KeyTaken):
        durable.start(job, {"m": 1, "same": 0}, key="k", on_duplicate="error")
    second = durable.start(job, {"n": 3, "same": 0}, key="k", on_duplicate="cancel_existing").run_id
    durable.start(job, {"n": 4, "same": 0}, key="k", on_duplicate="run_again")  # never started: it takes the input
    own(durable, second, None)
    change(durable, "UPDATE durable_runs SET status = 'waiting' WHERE public_id = :id", id=second)
    behind = durable.start(job, {"n": 5, "same": 0}, key="k", on_duplicate="run_again").run_id
    durable.start(job, {"n": 6, "same": 0}, key="k", on_duplicate="run_again")
    durable.start(job, {"n": 4, "same": 0}, key="k")  # as what runs: nothing is lost
    assert lost(durable) == [
        ("use_existing", {"n": 2, "same": 0}, False, first, ["n"]),
        ("error", {"m": 1, "same": 0}, False, first, ["n", "m"]),
        ("cancel_existing", {"n": 1, "same": 0}, True, second, ["n"]),
        ("run_again", {"n": 3, "same": 0}, True, second, ["n"]),
        ("run_again", {"n": 5, "same": 0}, True, behind, ["n"]),
    ]


def test_debounced_inputs_are_superseded_and_null_is_an_input(durable):
    """Each older one against the newest; a dropped null is one too, and no input at all is none."""
    job = define(debounce=Debounce("1m"))
    run_id = durable.start(job, {"n": 1}, key="k").run_id
    durable.start(job, {"n": 2}, key="k")
    durable.start(job, None, key="k")
    durable.start(job, {"n": 3}, key="k")
    assert lost(durable) == [
        ("debounced", {"n": 1}, True, run_id, ["n"]),
        ("debounced", {"n": 2}, True, run_id, ["n"]),
        ("debounced", None, True, run_id, [""]),
    ]


def test_the_log_outlives_the_runs(durable, clock):
    """Pruned: what is left of activity is shown, and there is nothing to compare with; then the key is unknown."""
    job = define()
    run = durable.execute(job, {"n": 1}, key="k").run
    clock.advance(DAY)
    other = durable.start(define("other"), key="k").run_id
    durable.cancel(other)
    durable.start(define(reuse="never"), {"n": 2}, key="k")
    clock.advance(2 * DAY)
    durable.prune(older_than="2d", workflow="job")
    assert log(durable, workflow="job") == [("duplicate", run.id), ("pruned", run.id)]
    assert log(durable) == [("run_created", other)]  # the only one that has runs is meant
    assert [(one.against_id, one.diff) for one in durable.lost_inputs("k", workflow="job")] == [(run.id, None)]
    durable.prune(older_than="1d")
    assert log(durable, workflow="job") == [("duplicate", run.id), ("pruned", run.id)]
    with pytest.raises(AmbiguousRun):
        durable.key_log("k")
    clock.advance(8 * DAY)
    durable.prune(older_than="1d")
    with pytest.raises(KeyNotFound):
        durable.key_log("k")


@given(st.lists(st.sampled_from("rsa"), max_size=12), st.lists(st.integers(0, 5), min_size=12, max_size=12))
def test_no_order_of_clocks_loses_or_swaps_anything(kinds, moments):
    """Whatever the clock said: runs stay in their order, activity in its own, and nothing happens to a run that is not
    there yet."""
    from types import SimpleNamespace as Fake

    runs, rows = [], []
    for kind, at in zip(kinds, moments, strict=False):
        if kind == "r":
            made = Fake(
                id=f"r{len(runs)}", row_id=len(runs), created_at=at, workflow="w", key="k", status="x", input="1"
            )
            runs.append(made)
        elif runs:
            details = {"to": runs[-1].id} if kind == "a" else {}
            rows.append(Activity(at, "key_x", "w", "k", runs[len(rows) % len(runs)].id, details, len(rows)))
    events = merged(runs, rows, {})
    assert [event.run_id for event in events if event.kind == "run_created"] == [run.id for run in runs]
    assert [event.id for event in events if event.kind == "key_x"] == [row.id for row in rows]
    there = set()
    for event in events:
        if event.kind == "run_created":
            there.add(event.run_id)
        else:
            assert {event.run_id, event.details.get("to", event.run_id)} <= there


# -- replay --------------------------------------------------------------------------------------------------------


def test_the_newest_lost_input_is_started_again(durable):
    """By the ordinary rules: a free key, a new run; recorded, and no row is overwritten."""
    job = define()
    first = durable.start(job, {"n": 1}, key="k").run_id
    durable.start(job, {"n": 2}, key="k")
    durable.cancel(first)
    before = told(durable, "k")
    [dropped] = durable.lost_inputs("k")
    result = durable.replay_input("k")
    assert (result.outcome, result.key) == (Outcome.CREATED, "k")
    assert durable.run(result.run_id).input == '{"n":2}'
    after = told(durable, "k")
    assert after[: len(before)] == before
    assert [(row.kind, row.run_id) for row in after[len(before) :]] == [
        ("key_handed_off", result.run_id),
        ("key_replayed", result.run_id),
    ]
    assert after[-1].details == {"replayed": dropped.activity.id, "start": "created"}
    assert durable.check() == []


def test_the_newest_one_is_started_again_once(durable):
    """A command that is repeated must not start an input twice; one that is named is started each time."""
    job = define()
    first = durable.start(job, 1, key="k").run_id
    durable.start(job, 2, key="k")
    durable.cancel(first)
    again = durable.replay_input("k").run_id
    durable.cancel(again)
    with pytest.raises(AlreadyReplayed) as refused:
        durable.replay_input("k")
    assert refused.value.run_id == again
    row = durable.lost_inputs("k")[0].activity.id
    assert str(row) in (refused.value.hint or "")
    assert durable.replayable("k").replayed_as == again
    assert durable.replay_input("k", row).run_id not in (first, again)


def test_a_taken_key_is_answered_as_always(durable):
    """Dropped once more (and marked as brought again), refused, merged, or replacing the holder."""
    job = define()
    holder = durable.start(job, 1, key="k").run_id
    durable.start(job, 2, key="k")
    row = durable.lost_inputs("k")[0].activity.id
    assert durable.replay_input("k").outcome is Outcome.EXISTING
    assert duplicates(durable, "k")[-1] == {
        "outcome": "use_existing",
        "input_changed": True,
        "input": 2,
        "replayed": row,
    }
    assert told(durable, "k", "key_replayed") == []
    with pytest.raises(KeyTaken):
        durable.replay_input("k", row, on_duplicate="error")
    assert duplicates(durable, "k")[-1]["replayed"] == row
    merged = durable.replay_input("k", row, on_duplicate="run_again")
    assert (merged.outcome, merged.run_id) == (Outcome.MERGED, holder)
    assert durable.run(holder).input == "2"
    replaced = durable.replay_input("k", on_duplicate="cancel_existing")  # the newest now: what the merge superseded
    assert durable.run(replaced.run_id).input == "1"
    assert durable.run(holder).status is Status.CANCELLED
    assert durable.check() == []


def test_the_key_is_that_of_the_log_and_not_of_the_expression(durable):
    """A key that was given by hand is the one that is meant."""
    job = define(key="article:{id}")
    first = durable.start(job, {"id": 1}, key="by hand").run_id
    durable.start(job, {"id": 2}, key="by hand")
    durable.cancel(first)
    assert durable.run(durable.replay_input("by hand").run_id).key == "by hand"


def test_what_cannot_be_replayed(durable):
    """Nothing lost, no such row, another key's row, an unknown key: each says so, and writes nothing."""
    job = define()
    durable.start(job, 1, key="k")
    durable.start(job, 1, key="k")
    durable.start(job, 1, key="other")
    durable.start(job, 2, key="other")
    row = durable.lost_inputs("other")[0].activity.id
    before = durable.activity()
    for wanted in (None, row, 10_000):
        with pytest.raises(InputNotFound):
            durable.replay_input("k", wanted)
    with pytest.raises(KeyNotFound):
        durable.replay_input("nobody")
    assert durable.activity() == before


def test_an_input_that_the_code_no_longer_takes_is_refused(durable):
    """Validated like every input; nothing is written."""
    durable.start(define(), {"n": 1}, key="k")
    durable.start(define(), {"n": 2}, key="k")
    define(takes=int)
    before = durable.activity()
    with pytest.raises(InvalidInput):
        durable.replay_input("k")
    assert durable.activity() == before
