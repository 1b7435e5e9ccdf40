"""Starts against real files: who holds a key, what a duplicate gets, and what is written about it."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from enginekit import (
    FINISHED,
    UNFINISHED,
    Boom,
    dead_owner,
    define_job,
    duplicates,
    holder,
    live_owner,
    own,
    put,
    snapshot,
    statuses,
    told,
)

from durable_cli import Durable, KeyTaken, NoKey, NotFinished, RunNotFound, Status, workflow
from durable_cli.errors import InvalidKey, NotRetryable, UsageError, WorkflowMoved

REUSES = ("after_close", "after_failure", "never")
POLICIES = ("use_existing", "error", "cancel_existing", "run_again", "send_event:poke")
KEEPS = {
    # reuse: the finished statuses whose holder keeps the key (SPEC 3.2)
    "after_close": set(),
    "after_failure": {"completed"},
    "never": set(FINISHED),
}
NEW = {"v": "new"}


def hold_of(status: str | None, reuse: str) -> str:
    if status is None or (status in FINISHED and status not in KEEPS[reuse]):
        return "free"
    return "kept" if status in FINISHED else "unfinished"


# -- the table of SPEC 3.2 and 3.3, through both entrances ---------------------------------------------------------


@pytest.mark.parametrize("entrance", ["start", "execute"])
@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize("status", [None, *UNFINISHED, *FINISHED])
def test_the_table_of_starts(
    durable: Durable, db: Path, clock: Any, status: str | None, reuse: str, entrance: str
) -> None:
    """reuse x status x on_duplicate: the answer, the run it names, activity, number of runs, holder; a sound file.

    A running holder, and through `execute` every unfinished one, has a live owner elsewhere: nothing is adopted.
    """
    job = define_job(reuse)
    with Durable(db, clock=clock) as other:
        owner = live_owner(other) if entrance == "execute" or status == "running" else None
        for policy in POLICIES:
            if policy == "run_again" and reuse == "never":
                continue  # refused: test_run_again_on_a_never_workflow_is_refused
            key = f"k:{policy}"
            old = put(durable, job, status, key=key, input={"v": "old"}, owner=owner) if status else None
            before = len(told(durable, key))
            answer = _start(durable, entrance, job, key, policy)
            _judge(durable, other, policy, status, hold_of(status, reuse), old, answer, key, before)
        assert durable.check() == []


def _start(durable: Durable, entrance: str, job: Any, key: str, policy: str) -> Any:
    call: Callable[..., Any] = durable.start if entrance == "start" else durable.execute
    try:
        answer = call(job, NEW, key=key, on_duplicate=policy)
    except KeyTaken as taken:
        return taken
    return answer if entrance == "start" else answer.start


def _judge(
    durable: Durable,
    other: Durable,
    policy: str,
    status: str | None,
    hold: str,
    old: str | None,
    answer: Any,
    key: str,
    before: int,
) -> None:
    rows = [(row.kind, row.run_id, row.details) for row in told(durable, key)[before:]]
    runs = durable.runs(key=key)
    holds = [run.id for run in runs if run.holds_key]
    old_input = json.loads(durable.run(old).input) if old else None
    if hold == "free":
        assert answer.outcome == "created"
        assert holds == [answer.run_id]
        assert len(runs) == (2 if old else 1)
        handed = ("key_handed_off", answer.run_id, {"from": old, "to": answer.run_id, "reason": "start"})
        assert rows == ([handed] if old else [])
        if old:
            assert (durable.run(old).status, durable.run(old).key) == (status, key)
    elif isinstance(answer, KeyTaken):
        assert hold == "kept" or policy == "error" or (policy, status) == ("cancel_existing", "compensating")
        assert (answer.holder_id, answer.holder_status) == (old, status)
        assert answer.exit_status == (6 if hold == "kept" else 75)
        dropped = {"outcome": "error", "input_changed": True, "input": NEW}
        assert (holds, len(runs)) == ([old], 1)
        assert rows == [("key_duplicate", old, dropped)]
    elif policy == "use_existing":
        assert (answer.outcome, answer.run_id) == ("existing", old)
        assert (answer.holder_id, answer.holder_status) == (old, status)
        assert (holds, len(runs)) == ([old], 1)
        dropped = {"outcome": "use_existing", "input_changed": True, "input": NEW}
        assert rows == [("key_duplicate", old, dropped)]
    elif policy == "cancel_existing":
        assert (hold, answer.outcome, answer.replaced_id) == ("unfinished", "replaced", old)
        assert (holds, len(runs)) == ([answer.run_id], 2)
        replaced = durable.run(old or "")
        assert replaced.status == "cancelled"
        assert answer.run_id in (replaced.error.message if replaced.error else "")
        assert rows == [
            ("key_duplicate", old, {"outcome": "cancel_existing", "input_changed": True, "input": old_input}),
            ("key_handed_off", answer.run_id, {"from": old, "to": answer.run_id, "reason": "replaced"}),
        ]
    elif policy == "run_again" and durable.run(old or "").epoch == 0:
        assert (answer.outcome, answer.run_id, status) == ("merged", old, "pending")
        assert (holds, len(runs), old_input) == ([old], 1, NEW)
        superseded = {"outcome": "run_again", "input_changed": True, "input": {"v": "old"}}
        assert rows == [("key_duplicate", old, superseded)]
    elif policy == "run_again":
        assert (hold, answer.outcome) == ("unfinished", "queued")
        assert (holds, len(runs)) == ([old], 2)
        waiting = durable.run(answer.run_id)
        assert (waiting.status, waiting.key, waiting.runs_after_id) == ("pending", key, old)
        queued = {"outcome": "run_again", "input_changed": True, "runs_after": answer.run_id}
        assert rows == [("key_duplicate", old, queued)]
    else:
        assert (hold, answer.outcome, answer.run_id) == ("unfinished", "event_sent", old)
        assert (holds, len(runs)) == ([old], 1)
        assert [row[2]["outcome"] for row in rows] == ["send_event"]
    named = answer.holder_id if isinstance(answer, KeyTaken) else answer.run_id
    assert other.run(named).id == named, "another engine can read the run that the answer names"


def test_keyless_starts_are_always_new_runs(durable: Durable) -> None:
    """Without a key nothing is a duplicate, whatever the policy."""
    job = define_job()
    answers = [durable.start(job, on_duplicate=policy) for policy in POLICIES]
    assert {answer.outcome for answer in answers} == {"created"}
    assert len(durable.runs()) == len({answer.run_id for answer in answers}) == len(POLICIES)
    assert durable.activity() == []
    assert durable.check() == []


@pytest.mark.parametrize(
    ("first", "second", "changed"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, True),
        ([1, 2], [2, 1], True),
        (None, None, False),
        ("1", 1, True),
        (True, 1, True),
        ({"a": None}, {}, True),
        ({"a": [{"x": "é"}]}, {"a": [{"x": "é"}]}, False),
    ],
)
def test_inputs_are_compared_as_json_values(durable: Durable, first: Any, second: Any, changed: bool) -> None:
    """`input_changed` and the kept `input` follow the value, not its text (A08); a dropped null is kept too."""
    job = define_job()
    durable.start(job, first, key="k")
    durable.start(job, second, key="k")
    [row] = duplicates(durable, "k")
    assert row == {"outcome": "use_existing", "input_changed": changed} | ({"input": second} if changed else {})


def test_a_dropped_null_is_told_from_nothing_dropped(durable: Durable) -> None:
    """An input that is null and differs is kept as null."""
    job = define_job()
    durable.start(job, 1, key="k")
    durable.start(job, None, key="k")
    assert duplicates(durable, "k") == [{"outcome": "use_existing", "input_changed": True, "input": None}]


# -- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["", "a" * 256, "é" * 128, "a\0b", "\ud800", 5, True, b"bytes", ("a",), 1.5],
    ids=["empty", "256", "256 bytes", "nul", "surrogate", "int", "bool", "bytes", "tuple", "float"],
)
@pytest.mark.parametrize("entrance", ["start", "execute", "explain_start", "cancel"])
def test_refused_keys_write_nothing(durable: Durable, db: Path, key: Any, entrance: str) -> None:
    """A bad key never becomes a keyless run, on no path (A06): not even the file is made."""
    job = define_job()
    with pytest.raises(InvalidKey):
        if entrance == "cancel":
            durable.cancel(key=key)
        elif entrance == "explain_start":
            durable.explain_start(job, key=key, execute=False)
        else:
            getattr(durable, entrance)(job, key=key)
    assert not db.exists()


KEYS = ["a", "A", " a", "a ", "a\t", unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), "%", "_"]


def test_keys_are_taken_as_they_are(durable: Durable) -> None:
    """No trimming, folding, normalising, and no LIKE (A09): nine holders, found exactly."""
    job = define_job()
    ids = {key: durable.start(job, key, key=key).run_id for key in KEYS}
    assert len(set(ids.values())) == len(KEYS)
    for key in KEYS:
        assert durable.find(key=key).id == ids[key]
        assert [run.id for run in durable.runs(key=key)] == [ids[key]]
        assert durable.cancel(key=key).run_id == ids[key]
    assert durable.check() == []


@pytest.mark.parametrize("key", ["a", "a" * 255, "é" * 127 + "a", "--help", "0", "[red]x", "a\nb"])
def test_keys_of_1_to_255_bytes_are_kept_to_the_byte(durable: Durable, key: str) -> None:
    job = define_job()
    assert durable.run(durable.start(job, key=key).run_id).key == key
    assert durable.start(job, key=key).outcome == "existing"


def test_a_key_belongs_to_its_workflow(durable: Durable) -> None:
    """The same key on two workflows is two keys, and names cannot be glued together (A10)."""
    one, two = define_job(name="a"), define_job(name="a.b")
    ids = [
        durable.start(one, key="b:c").run_id,
        durable.start(two, key="c").run_id,
        durable.start(one, key="x").run_id,
        durable.start(two, key="x").run_id,
    ]
    assert len(set(ids)) == 4
    assert all(durable.run(run_id).holds_key for run_id in ids)
    assert [run.id for run in durable.runs(workflow="a", key="x")] == [ids[2]]
    durable.cancel(key="x", workflow="a")
    assert durable.run(ids[3]).status == "pending"


# -- run_again -----------------------------------------------------------------------------------------------------

AGAIN = {"on_duplicate": "run_again"}


def test_one_run_waits_with_the_newest_input(durable: Durable) -> None:
    """However many starts arrive while the holder runs, one waits, all get its id, the last input runs (D02, D09)."""
    job = define_job()
    first = put(durable, job, "running", key="k", owner=live_owner(durable))
    answers = [durable.start(job, {"v": n}, key="k", **AGAIN) for n in range(1, 7)]
    assert [answer.outcome for answer in answers] == ["queued"] + ["merged"] * 5
    assert len({answer.run_id for answer in answers}) == 1
    assert json.loads(durable.run(answers[0].run_id).input) == {"v": 6}
    assert statuses(durable, "k") == [("running", True), ("pending", False)]
    rows = duplicates(durable, "k")
    assert [row.get("input") for row in rows] == [None, {"v": 1}, {"v": 2}, {"v": 3}, {"v": 4}, {"v": 5}]
    assert {row["runs_after"] for row in rows} == {answers[0].run_id}
    assert durable.key(None, "k").holder == durable.run(first)
    assert durable.check() == []


def _end(durable: Durable, run_id: str, how: str) -> None:
    """End a running run of `durable`'s own as its owner would, or by cancelling it."""
    from durable_cli import settling
    from durable_cli.model import RunError
    from durable_cli.store import runs

    if how == "cancelled":
        durable.cancel(run_id)
        return
    run = durable.run(run_id)
    done = {"result": "null"} if how == "completed" else {"error": RunError("Boom", "x")}

    def write(tx: Any) -> None:
        settling.end(tx, runs.get(tx, run.row_id), Status(how), now=durable._engine.now(), **done)

    durable._engine.database.write(write)


@pytest.mark.parametrize("reuse", ["after_close", "after_failure"])
@pytest.mark.parametrize("how", FINISHED)
def test_the_waiting_run_takes_the_key_when_the_holder_ends(durable: Durable, how: str, reuse: str) -> None:
    """In the same transaction, however it ends (D06), unless `reuse` keeps the key: it is cancelled and says why."""
    job = define_job(reuse)
    first = put(durable, job, "running", key="k", owner=live_owner(durable))
    waiting = durable.start(job, NEW, key="k", **AGAIN).run_id
    _end(durable, first, how)
    then = durable.run(waiting)
    if how in KEEPS[reuse]:
        assert (then.status, then.holds_key, durable.run(first).holds_key) == ("cancelled", False, True)
        assert then.error is not None
        assert first in then.error.message
        assert "after_failure" in then.error.message
    else:
        assert (then.status, then.holds_key, then.runs_after_id) == ("pending", True, None)
        assert then.due_at == then.held_since == durable._engine.now()
        assert told(durable, "k")[-1].details == {"from": first, "to": waiting, "reason": "promoted"}
        assert json.loads(then.input) == NEW
        assert durable.execute(job, NEW, key="k").run.id == waiting
    assert durable.check() == []


def test_promotion_follows_the_policy_in_force_when_the_holder_ends(durable: Durable) -> None:
    """`reuse` edited to never while a run waits: the holder keeps the key, the waiting run is cancelled."""
    job = define_job()
    first = put(durable, job, "running", key="k", owner=live_owner(durable))
    waiting = durable.start(job, NEW, key="k", **AGAIN).run_id
    durable.start(define_job("never"), NEW, key="k", on_duplicate="use_existing")
    durable.cancel(first)
    assert durable.run(waiting).status == "cancelled"
    assert durable.key(None, "k").holder == durable.run(first)


def test_a_waiting_run_follows_the_run_that_replaces_the_holder(durable: Durable) -> None:
    """cancel_existing in front of a waiting run, three times (D10): it waits behind the newest, with its own input."""
    job = define_job()
    put(durable, job, "running", key="k", owner=live_owner(durable))
    waiting = durable.start(job, {"v": "mine"}, key="k", **AGAIN).run_id
    for n in range(3):
        newest = durable.start(job, n, key="k", on_duplicate="cancel_existing").run_id
        own(durable, newest, live_owner(durable))
        assert durable.run(waiting).runs_after_id == newest
        assert durable.start(job, {"v": "mine"}, key="k", **AGAIN).run_id == waiting
        assert durable.check() == []
    _end(durable, newest, "cancelled")
    then = durable.run(waiting)
    assert (then.holds_key, json.loads(then.input)) == (True, {"v": "mine"})


def test_cancelling_the_waiting_run_frees_its_place(durable: Durable) -> None:
    """C08: the holder is untouched, nothing else starts, a later run_again makes a new waiting run."""
    job = define_job()
    first = put(durable, job, "running", key="k", owner=live_owner(durable))
    waiting = durable.start(job, NEW, key="k", **AGAIN).run_id
    before = durable.run(first)
    assert durable.cancel(waiting).cancelled == 1
    assert durable.run(first) == before
    again = durable.start(job, NEW, key="k", **AGAIN)
    assert (again.outcome, again.run_id != waiting) == ("queued", True)
    assert durable.check() == []


def test_a_never_started_holder_takes_the_newer_input_itself(durable: Durable) -> None:
    """Six quick starts with nothing executing: one run, with the last input."""
    job = define_job()
    answers = [durable.start(job, n, key="k", **AGAIN) for n in range(6)]
    assert [answer.outcome for answer in answers] == ["created"] + ["merged"] * 5
    assert len({answer.run_id for answer in answers}) == 1
    assert durable.execute(job, 5, key="k").run.result == "5"
    assert [row["input"] for row in duplicates(durable, "k")[:5]] == [0, 1, 2, 3, 4]


def test_a_retried_run_was_started_once(durable: Durable) -> None:
    """The input of a run that began is never replaced, also while it is pending again."""
    job = define_job()
    failed = put(durable, job, "failed", key="k")
    durable.retry(failed)
    answer = durable.start(job, NEW, key="k", **AGAIN)
    assert answer.outcome == "queued"
    assert json.loads(durable.run(failed).input) != NEW


@pytest.mark.parametrize("entrance", ["start", "execute"])
@pytest.mark.parametrize("key", ["taken", "free", None])
def test_run_again_on_a_never_workflow_is_refused(durable: Durable, entrance: str, key: str | None) -> None:
    """Per call too, also when the key is free (B09), with nothing written."""
    job = define_job("never")
    durable.start(job, key="taken")
    before = snapshot(durable)
    with pytest.raises(UsageError, match="never"):
        getattr(durable, entrance)(job, key=key, **AGAIN)
    with pytest.raises(UsageError, match="never"):
        durable.explain_start(job, key=key, execute=entrance == "execute", **AGAIN)
    assert snapshot(durable) == before
    assert durable.activity() == []


# -- cancel_existing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reuse", REUSES)
def test_a_burst_of_cancel_existing_skips_no_start(durable: Durable, reuse: str) -> None:
    """30 starts: 30 runs, the last one unfinished, each replaced run names its replacer."""
    job = define_job(reuse)
    answers = [durable.start(job, n, key="k", on_duplicate="cancel_existing") for n in range(30)]
    assert [answer.outcome for answer in answers] == ["created"] + ["replaced"] * 29
    for old, new in itertools.pairwise(answers):
        run = durable.run(old.run_id)
        assert (run.status, run.holds_key) == ("cancelled", False)
        assert run.error is not None
        assert new.run_id in run.error.message
        assert new.replaced_id == old.run_id
    assert statuses(durable, "k")[-1] == ("pending", True)
    assert len(told(durable, "k", "key_handed_off")) == 29
    assert durable.check() == []


def test_cancel_existing_touches_its_own_key_only(durable: Durable) -> None:
    """C05: five keys, a keyless run, another workflow with the same key."""
    job, other = define_job(), define_job(name="other")
    ids = [durable.start(job, key=f"K{n}").run_id for n in range(5)]
    ids += [durable.start(job).run_id, durable.start(other, key="K1").run_id]
    durable.cancel(ids[0])
    durable.start(job, key="K2", on_duplicate="cancel_existing")
    after = {run_id: durable.run(run_id).status for run_id in ids}
    assert [run_id for run_id, status in after.items() if status == "cancelled"] == [ids[0], ids[2]]


def test_cancel_then_start_then_replace(durable: Durable) -> None:
    """C07: with nobody executing; the last run executes, nothing is left behind."""
    job = define_job()
    first = durable.start(job, 1, key="k").run_id
    assert durable.cancel(first).cancelled == 1
    durable.start(job, 2, key="k")
    last = durable.start(job, 3, key="k", on_duplicate="cancel_existing").run_id
    done = durable.execute(job, 4, key="k")
    assert (done.start and done.start.outcome, done.run.id, done.run.result) == ("resumed", last, "3")
    assert [status for status, _ in statuses(durable, "k")] == ["cancelled", "cancelled", "completed"]


# -- cancel --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [*UNFINISHED, *FINISHED])
def test_cancel(durable: Durable, status: str) -> None:
    """Pending, running, waiting become cancelled; anything else is left exactly as it is, and nothing raises."""
    job = define_job()
    run_id = put(durable, job, status, key="k", owner=live_owner(durable) if status == "running" else None)
    before = snapshot(durable)
    answer = durable.cancel(run_id, reason="because")
    if status in ("pending", "running", "waiting"):
        assert (answer.cancelled, answer.run_id, answer.status) == (1, run_id, "cancelled")
        run = durable.run(run_id)
        assert run.error is not None
        assert run.error.message == "because"
        assert (run.holds_key, run.owner, run.due_at) == (True, None, None)
        assert durable.start(job, key="k").outcome == "created"
    else:
        assert (answer.cancelled, answer.run_id, answer.status) == (0, run_id, status)
        assert snapshot(durable) == before
    assert durable.check() == []


def test_cancel_by_key(durable: Durable) -> None:
    """The holder; nothing to cancel is no error; an unknown id is one."""
    job = define_job()
    assert durable.cancel(key="nobody's") == durable.cancel(key="nobody's", workflow="no such workflow")
    assert (durable.cancel(key="k").cancelled, durable.cancel(key="k").run_id) == (0, None)
    run_id = durable.start(job, key="k").run_id
    assert durable.cancel(key="k").run_id == run_id
    again = durable.cancel(key="k")
    assert (again.cancelled, again.run_id, again.status) == (0, run_id, "cancelled")
    with pytest.raises(RunNotFound):
        durable.cancel("zzzzzzzzzz")


# -- retry, rerun, release (SPEC 3.6) ------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("status", [*UNFINISHED, *FINISHED])
def test_only_failed_and_cancelled_runs_are_retried(durable: Durable, status: str, keyed: bool) -> None:
    """In place, same id, holding its key from now on; every other status is refused without change (H02)."""
    job = define_job()
    run_id = put(durable, job, status, key="k" if keyed else None, owner=dead_owner(durable))
    before = snapshot(durable)
    if status in ("failed", "cancelled"):
        durable._engine.now.advance(5)  # type: ignore[attr-defined]
        run = durable.retry(run_id)
        assert (run.id, run.status, run.error, run.finished_at) == (run_id, "pending", None, None)
        assert (run.holds_key, run.held_since) == (keyed, durable._engine.now() if keyed else None)
        assert told(durable, "k") == []
        with pytest.raises(NotRetryable, match="pending"):
            durable.retry(run_id)
    else:
        with pytest.raises(NotRetryable, match=status) as refused:
            durable.retry(run_id)
        assert (refused.value.run_id, refused.value.status, refused.value.exit_status) == (run_id, status, 4)
        assert snapshot(durable) == before
    assert durable.check() == []


@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize("newer", [None, *UNFINISHED, *FINISHED])
def test_a_retry_takes_its_key_back_only_from_a_run_that_lets_go(
    durable: Durable, newer: str | None, reuse: str
) -> None:
    """Else KeyTaken(newer), and the failed run stays exactly as it was (H01). Nobody holding: `from` is null."""
    loose = define_job()
    failed = put(durable, loose, "failed", key="k")
    if newer is None:
        durable.release_key(failed)
        new_id = None
    else:
        new_id = put(durable, loose, newer, key="k", owner=live_owner(durable) if newer == "running" else None)
    job = define_job(reuse)
    durable.start(job, key="another")  # writes the policy that is in force now
    before = snapshot(durable)
    if hold_of(newer, reuse) == "free":
        run = durable.retry(failed)
        assert (run.status, run.holds_key, run.held_since) == ("pending", True, durable._engine.now())
        assert (told(durable, "k", "key_retaken")[-1].run_id, told(durable, "k")[-1].details) == (
            failed,
            {"from": new_id},
        )
        if new_id is not None:
            assert durable.run(new_id).key == "k"
            assert not durable.run(new_id).holds_key
    else:
        with pytest.raises(KeyTaken) as taken:
            durable.retry(failed)
        assert (taken.value.holder_id, taken.value.holder_status) == (new_id, newer)
        assert snapshot(durable) == before
        assert told(durable, "k", "key_retaken") == []
    assert durable.check() == []


@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize("status", [*UNFINISHED, *FINISHED])
def test_a_rerun_follows_the_rules_of_starts(durable: Durable, status: str, reuse: str) -> None:
    """Finished and let go: a fresh copy. Kept: KeyTaken naming the holder, never the holder as an answer (H07)."""
    job = define_job(reuse, "cancel_existing")
    key = "ключ " + "k" * 200
    owner = live_owner(durable) if status == "running" else None
    run_id = put(durable, job, status, key=key, input={"é": [1]}, owner=owner)
    before = durable.run(run_id)
    if status in UNFINISHED:
        with pytest.raises(NotFinished, match=status) as refused:
            durable.rerun(run_id)
        assert refused.value.run_id == run_id
    elif status in KEEPS[reuse]:
        with pytest.raises(KeyTaken) as taken:
            durable.rerun(run_id)
        assert (taken.value.holder_id, taken.value.exit_status) == (run_id, 6)
        assert [row["outcome"] for row in duplicates(durable, key)] == ["error"]
    else:
        answer = durable.rerun(run_id)
        copy = durable.run(answer.run_id)
        assert (answer.outcome, copy.status) == ("created", "pending")
        assert (copy.key, copy.input, copy.workflow, copy.holds_key) == (key, before.input, "job", True)
        after = durable.run(run_id)
        assert not after.holds_key
        assert (after.status, after.error, after.result, after.steps) == (
            before.status,
            before.error,
            before.result,
            before.steps,
        )
        return
    assert durable.run(run_id) == before
    assert durable.check() == []


def test_a_rerun_of_an_old_run_is_refused_by_the_newer_holder(durable: Durable) -> None:
    """And names it; the newer holder is not touched, whatever the workflow's policy."""
    job = define_job(on_duplicate="cancel_existing")
    old = put(durable, job, "completed", key="k")
    new = durable.start(job, key="k").run_id
    with pytest.raises(KeyTaken) as taken:
        durable.rerun(old)
    assert (taken.value.holder_id, taken.value.exit_status) == (new, 75)
    assert durable.run(new).status == "pending"


@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize("status", [*UNFINISHED, *FINISHED])
def test_only_a_finished_holder_lets_its_key_go(durable: Durable, status: str, reuse: str) -> None:
    """Under `never` too; the run keeps text and history, and can be run again then (B03)."""
    job = define_job(reuse)
    run_id = put(durable, job, status, key="k")
    before = snapshot(durable)
    if status in UNFINISHED:
        with pytest.raises(NotFinished, match=status) as refused:
            durable.release_key(run_id)
        verb = "runs wait" if status == "compensating" else "cancel"  # the second would be refused
        assert refused.value.hint == f"durable {verb} {run_id}"
        assert snapshot(durable) == before
        return
    run = durable.release_key(run_id, by="me")
    assert (run.key, run.holds_key, run.status) == ("k", False, status)
    assert told(durable, "k")[-1].details == {"by": "me"}
    with pytest.raises(NoKey) as refused:
        durable.release_key(run_id)
    assert (refused.value.run_id, refused.value.exit_status) == (run_id, 4)
    assert durable.rerun(run_id).outcome == "created"
    assert durable.check() == []


def test_releasing_a_keyless_or_unknown_run(durable: Durable) -> None:
    job = define_job()
    with pytest.raises(NoKey, match="has no key"):
        durable.release_key(put(durable, job, "completed", key=None))
    with pytest.raises(RunNotFound):
        durable.release_key("zzzzzzzzzz")


def test_late_work_of_an_old_run_never_touches_the_newer_holder(durable: Durable) -> None:
    """H03: release, cancel, retry of an old run, and the late end of a replaced one."""
    job = define_job()
    replaced: list[str] = []

    @workflow(name="slow")
    def slow(ctx: Any, n: int) -> int:
        def replace_me() -> int:
            if not replaced:
                replaced.append(durable.start(slow, 2, key="s", on_duplicate="cancel_existing").run_id)
            return n

        return ctx.run("work", replace_me)

    late = durable.execute(slow, 1, key="s")
    assert late.run.status == "cancelled"
    assert durable.run(late.run.id).steps == (), "the late result was discarded"
    new = durable.run(replaced[0])
    assert (new.status, new.holds_key, new.steps) == ("pending", True, ())

    old = put(durable, job, "failed", key="k")
    put(durable, job, "waiting", key="k")
    newer = holder(durable, "k")
    with pytest.raises(NoKey, match="any more"):
        durable.release_key(old)
    assert durable.cancel(old).cancelled == 0
    with pytest.raises(KeyTaken):
        durable.retry(old)
    assert holder(durable, "k") == newer
    assert newer is not None
    assert durable.start(job, key="k").run_id == newer.id


# -- policies and places of workflows ------------------------------------------------------------------------------


def test_policies_are_those_in_force_now(durable: Durable) -> None:
    """B10: editing `reuse` applies to runs that exist, both ways, without touching them."""
    done = put(durable, define_job("after_close"), "completed", key="k")
    before = durable.run(done)
    assert durable.start(define_job("never"), key="k").run_id == done
    assert durable.start(define_job("after_failure"), key="k").run_id == done
    assert durable.run(done) == before
    assert durable.start(define_job("after_close"), key="k").outcome == "created"


def test_the_default_of_on_duplicate_is_the_workflows_and_a_call_overrides_it(durable: Durable) -> None:
    job = define_job(on_duplicate="error")
    run_id = durable.start(job, key="k").run_id
    with pytest.raises(KeyTaken):
        durable.start(job, key="k")
    assert durable.start(job, key="k", on_duplicate="use_existing").run_id == run_id
    known = durable.workflow("job")
    assert known is not None
    assert str(known.policies.on_duplicate) == "error", "a call's policy is not the workflow's"


@pytest.mark.parametrize("bad", ["keep", "send_event", "use_existing:x", "", 5, None.__class__])
def test_a_bad_policy_is_refused_with_the_valid_ones(durable: Durable, db: Path, bad: Any) -> None:
    with pytest.raises(UsageError, match="use_existing, error, cancel_existing, run_again, send_event:NAME"):
        durable.start(define_job(), key="k", on_duplicate=bad)
    assert not db.exists()


@pytest.mark.parametrize("entrance", ["start", "execute"])
def test_reuse_is_no_option_of_a_start(durable: Durable, db: Path, entrance: str) -> None:
    """B08: it says where `reuse` belongs; another unknown option is named."""
    with pytest.raises(UsageError, match="reuse is set on the workflow"):
        getattr(durable, entrance)(define_job(), key="k", reuse="never")
    with pytest.raises(UsageError, match="priority"):
        getattr(durable, entrance)(define_job(), key="k", priority=5)
    assert not db.exists()


@pytest.mark.parametrize("answer_of", ["retry", "rerun"])
def test_retry_and_rerun_use_the_loaded_definition(durable: Durable, answer_of: str) -> None:
    """SPEC 3.2: the definition that this process has loaded counts before the row that the last start wrote."""
    old = put(durable, define_job("after_close"), "failed", key="k")
    put(durable, define_job("after_close"), "completed", key="k")
    define_job("never")  # edited and loaded, but nothing started since
    with pytest.raises(KeyTaken):
        getattr(durable, answer_of)(old)


def _from(folder: Path, text: str) -> Any:
    folder.mkdir()
    (folder / "flows.py").write_text(text)
    namespace: dict[str, Any] = {"__name__": f"flows_{folder.name}"}
    exec(compile(text, str(folder / "flows.py"), "exec"), namespace)
    from durable_cli import definition

    definition.forget("moving")
    return namespace["moving"]


SOURCE = """
from durable_cli import workflow

@workflow
def moving(ctx):
    return None
"""


def test_a_workflow_of_another_place_is_refused_while_the_old_file_exists(durable: Durable, tmp_path: Path) -> None:
    """Both places are named and nothing is written; `moved=True` moves the record, with an activity row."""
    here, there = _from(tmp_path / "a", SOURCE), _from(tmp_path / "b", SOURCE)
    durable.start(here, key="k")
    before = snapshot(durable)
    for refused in (
        lambda: durable.start(there, key="k2"),
        lambda: durable.execute(there, key="k2"),
        lambda: durable.explain_start(there, key="k2", execute=True),
    ):
        with pytest.raises(WorkflowMoved) as moved:
            refused()
        assert moved.value.exit_status == 2
        assert str(tmp_path / "a") in str(moved.value.facts)
        assert str(tmp_path / "b") in str(moved.value.facts)
    assert snapshot(durable) == before
    durable.start(there, key="k2", moved=True)
    [row] = durable.activity(kinds=["workflow_moved"])
    assert str(tmp_path / "a") in str(row.details["from"])
    with pytest.raises(WorkflowMoved):
        durable.start(here)


def test_a_record_follows_when_the_old_file_is_gone(durable: Durable, tmp_path: Path) -> None:
    here, there = _from(tmp_path / "a", SOURCE), _from(tmp_path / "b", SOURCE)
    durable.start(here, key="k")
    (tmp_path / "a" / "flows.py").unlink()
    assert durable.start(there, key="k").outcome == "existing"
    known = durable.workflow("moving")
    assert known is not None
    assert known.location.file == str(tmp_path / "b" / "flows.py")
    assert len(durable.activity(kinds=["workflow_moved"])) == 1


# -- adding up -----------------------------------------------------------------------------------------------------


def test_activity_adds_up(durable: Durable, clock: Any) -> None:
    """Every start is a new run or a duplicate that is told; every key has changed hands as often as is told (N04)."""
    import random

    dice = random.Random(7)
    job = define_job()
    starts = created = refused = 0
    for n in range(300):
        clock.advance(dice.randrange(3))
        key = f"k{dice.randrange(3)}"
        what = dice.random()
        if what < 0.6:
            starts += 1
            try:
                answer = durable.start(job, dice.randrange(4), key=key, on_duplicate=dice.choice(POLICIES[:4]))
            except KeyTaken:
                refused += 1
            else:
                created += answer.outcome == "created"
        elif what < 0.8:
            starts += 1
            try:
                done = durable.execute(
                    job, {"fail": n} if n % 3 else n, key=key, on_duplicate=dice.choice(POLICIES[:4])
                )
            except KeyTaken:
                refused += 1
            else:
                created += done.start is not None and done.start.outcome == "created"
        elif what < 0.9:
            durable.cancel(key=key)
        else:
            for run in durable.runs(key=key, status=["failed", "cancelled"], limit=1):
                try:
                    durable.retry(run.id)
                except KeyTaken:
                    pass
        assert durable.check() == []
    rows = [row for key in ("k0", "k1", "k2") for row in told(durable, key)]
    dup = [row.details for row in rows if row.kind == "key_duplicate"]
    assert len(dup) == starts - created
    assert sum(row["outcome"] == "error" for row in dup) == refused
    stats = durable.stats()
    assert sum(stats.readds.values()) == len(dup)
    dropped = [row for row in dup if row["outcome"] in ("use_existing", "error") and row["input_changed"]]
    assert stats.dropped_inputs == len(dropped)
    assert all(("input" in row) == bool(row["input_changed"]) for row in dropped)
    assert stats.handoffs == sum(row.kind == "key_handed_off" for row in rows)
    every = durable.runs()
    assert {status: n for status, n in stats.runs.items() if n} == {
        status: sum(run.status == status for run in every) for status in {str(run.status) for run in every}
    }
    assert stats.held == sum(run.holds_key for run in every)
    listed = {row.key: row for row in durable.keys(held=False)}
    for key in ("k0", "k1", "k2"):
        of_key = durable.runs(key=key)
        assert listed[key].runs == len(of_key)
        assert [run.id for run in of_key if run.holds_key] == [listed[key].holder_id]
        assert listed[key].readds_24h == len(duplicates(durable, key))


def test_explaining_a_start_writes_nothing(durable: Durable, db: Path) -> None:
    """And says what the start then does."""
    job = define_job()
    assert durable.explain_start(job, key="k", execute=False).action == "create"
    assert not db.exists()
    run_id = durable.start(job, {"v": 1}, key="k").run_id
    before = snapshot(durable)
    words = {
        policy: durable.explain_start(job, NEW, key="k", on_duplicate=policy, execute=False).action
        for policy in POLICIES
    }
    assert words == {
        "use_existing": "existing",
        "error": "refuse",
        "cancel_existing": "replace",
        "run_again": "merge_holder",
        "send_event:poke": "send_event",
    }
    told_of = durable.explain_start(job, NEW, key="k", on_duplicate="error", execute=True)
    assert (told_of.action, told_of.holder_id, told_of.holder_status) == ("existing", run_id, "pending")
    assert snapshot(durable) == before
    assert durable.activity() == []


def test_a_step_that_fails_ends_the_run_and_the_key_is_free(durable: Durable) -> None:
    """B06: failed under after_close: the next start is a new run at once."""
    job = define_job()
    failed = durable.execute(job, {"fail": "x"}, key="k")
    assert failed.run.status == "failed"
    assert failed.run.error is not None
    assert failed.run.error.type == Boom.__name__
    assert durable.start(job, key="k").outcome == "created"
