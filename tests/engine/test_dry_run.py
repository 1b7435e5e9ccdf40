"""What `--dry-run` says is what then happens, whatever the holder is; and it leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from enginekit import change, dead_owner, define_job, live_owner, own, put, snapshot, work

from durable_cli import Debounce, Durable, KeyTaken, Retry, workflow
from durable_cli.errors import (
    ClockSuspect,
    DurableError,
    InvalidInput,
    KeyContended,
    NotFinished,
    NotRetryable,
    WorkflowMoved,
)
from durable_cli.model import Outcome
from durable_cli.testing import Clock, Engine

POLICIES = ("use_existing", "error", "cancel_existing", "run_again", "send_event:poke")
DAY = 86_400_000


def define(**options: Any) -> Any:
    """A workflow that does something to undo, and waits for an event where its input says so."""

    @workflow(name="flow", **options)
    def flow(ctx: Any, what: Any = None) -> Any:
        ctx.run("reserve", lambda: 1, compensate=lambda _: None, retry=Retry(1))
        if what == "waits":
            ctx.wait_for_event("poke")
        return ctx.run("work", work, what)

    return flow


# -- a holder of every kind ------------------------------------------------------------------------------------------


def _nobody(durable: Durable, clock: Clock, flow: Any) -> None:
    pass


def _of_status(status: str, owned: str = "none") -> Callable[[Durable, Clock, Any], None]:
    def make(durable: Durable, clock: Clock, flow: Any) -> None:
        owner = live_owner(durable) if owned == "alive" else dead_owner(durable) if owned == "dead" else None
        put(durable, flow, status, key="k", input="old", owner=owner)

    return make


def _delayed(durable: Durable, clock: Clock, flow: Any) -> None:
    durable.start(flow, "old", key="k", delay="1h")


def _waits(durable: Durable, clock: Clock, flow: Any) -> None:
    durable.start(flow, "waits", key="k")
    durable.tick()


def _overdue(durable: Durable, clock: Clock, flow: Any) -> None:
    durable.start(flow, "old", key="k", timeout="1m")
    clock.advance(2 * 3_600_000)


def _overdue_with_a_waiting_run(durable: Durable, clock: Clock, flow: Any) -> None:
    run_id = durable.start(flow, "old", key="k", timeout="1m").run_id
    own(durable, run_id, dead_owner(durable))
    change(durable, "UPDATE durable_runs SET status = 'running', due_at = NULL WHERE finished_at IS NULL")
    durable.start(flow, "next", key="k", on_duplicate="run_again")
    clock.advance(2 * 3_600_000)


def _overdue_orphan(durable: Durable, clock: Clock, flow: Any) -> None:
    """It waits when its owner dies, with something to undo."""
    durable.start(flow, "waits", key="k", timeout="1m")
    durable.tick()
    own(durable, durable.find(key="k").id, dead_owner(durable))
    change(durable, "UPDATE durable_runs SET status = 'running', due_at = NULL WHERE finished_at IS NULL")
    clock.advance(2 * 3_600_000)


def _crashing(durable: Durable, clock: Clock, flow: Any) -> None:
    put(durable, flow, "running", key="k", input="old")
    change(durable, "UPDATE durable_runs SET crashes = 4")


def _with_a_waiting_run(durable: Durable, clock: Clock, flow: Any) -> None:
    put(durable, flow, "running", key="k", input="old")
    durable.start(flow, "next", key="k", on_duplicate="run_again")


HOLDERS: dict[str, Callable[[Durable, Clock, Any], None]] = {
    "nobody": _nobody,
    "recorded": _of_status("pending"),
    "delayed": _delayed,
    "executed": _of_status("running", "alive"),
    "orphan": _of_status("running", "dead"),
    "rests": _of_status("waiting"),
    "waits for an event": _waits,
    "undoes": _of_status("compensating"),
    "overdue": _overdue,
    "overdue, a run waits": _overdue_with_a_waiting_run,
    "overdue orphan": _overdue_orphan,
    "died too often": _crashing,
    "a run waits": _with_a_waiting_run,
    "completed": _of_status("completed"),
    "cancelled": _of_status("cancelled"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "never": {"reuse": "never"},
    "strict": {"on_mismatch": "error"},
    "debounced": {"debounce": Debounce("10m")},
    "merging": {"merge": lambda old, new: [old, new]},
}


def everything(durable: Durable) -> Any:
    """All that a dry run must not change, owners and locks too."""
    owners = durable._engine.database.read(lambda tx: tx.rows("SELECT * FROM durable_owners"))
    flows = durable._engine.database.read(lambda tx: tx.rows("SELECT * FROM durable_workflows"))
    return snapshot(durable), durable.activity(), owners, flows, sorted(os.listdir(durable.path.parent))


def answer_of(act: Callable[[], Any]) -> tuple[Outcome | None, str | None]:
    """The outcome of a start and the holder that it names; None: the key was taken."""
    try:
        given = act()
    except KeyTaken as taken:
        return None, taken.holder_id
    result = getattr(given, "start", given)
    return result.outcome, result.holder_id


@pytest.mark.parametrize("entrance", ["start", "execute"])
@pytest.mark.parametrize(
    ("holder", "options"),
    [(one, other) for one in HOLDERS for other in OPTIONS if other != "never" or not one.endswith("a run waits")],
)
def test_a_start_does_what_its_dry_run_says(holder: str, options: str, entrance: str) -> None:
    """Every kind of holder, every policy: the outcome, the holder, who is executed, and when."""
    for policy in POLICIES:
        if options == "never" and policy == "run_again":
            continue
        with Engine(one_at_a_time=False) as engine:  # a file that is gone afterwards, with its descriptors
            durable, clock = engine.durable, engine.clock
            flow = define(**OPTIONS[options])
            HOLDERS[holder](durable, clock, flow)
            durable.cancel(durable.start(flow, key="other").run_id)
            heard: list[Any] = []
            durable.on("*", lambda event, fields, heard=heard: heard.append(event))
            before = everything(durable)
            asked: dict[str, Any] = {"key": "k", "on_duplicate": policy}
            told = durable.explain_start(flow, "new", execute=entrance == "execute", **asked)
            assert (everything(durable), heard) == (before, [])
            outcome, holder_id = answer_of(lambda: getattr(durable, entrance)(flow, "new", **asked))
            case = (holder, options, policy, told)
            assert told.outcome == outcome, case
            assert told.holder_id == holder_id or (holder_id is None and told.action == "create"), case
            assert (told.action == "refuse") == (outcome is None), case
            if outcome is Outcome.RESUMED:
                assert "taken up here" in told.reason or "died too often" in told.reason, case
            if policy == "use_existing" and holder.startswith("overdue"):
                assert any("Timeout" in fact for fact in told.facts), case
            if outcome is Outcome.EXISTING:
                assert "taken up here" not in told.reason, case
            if entrance == "start" and told.due_at is not None and outcome is not Outcome.EXISTING:
                assert told.due_at > clock(), case
                assert told.due_at in {run.due_at for run in durable.runs(key="k")}, case
            assert durable.check() == []


def test_a_dry_run_makes_nobody_an_owner(durable: Durable, db: Path) -> None:
    """It registers, in a transaction that is rolled back; its process holds no byte, and owners go on from there."""
    flow = define()
    durable.start(flow, "old", key="k")
    lock = Path(f"{db}-lock")
    assert not lock.exists()
    assert "taken up here" in durable.explain_start(flow, key="k", execute=True).reason
    assert not lock.exists()
    assert durable._engine._owner is None
    assert durable._engine.database.read(lambda tx: tx.rows("SELECT * FROM durable_owners")) == []
    assert durable.execute(flow, key="k").start.outcome == "resumed"  # type: ignore[union-attr]
    assert "nobody holds" in durable.explain_start(flow, key="other", execute=True).reason


def test_a_dry_run_merges_and_says_what_that_says(durable: Durable) -> None:
    """The workflow's own merge= decides here too."""

    def merge(old: Any, new: Any) -> Any:
        if new == "bad":
            raise ValueError("no such thing")
        return [old, new]

    flow = define(merge=merge, on_duplicate="run_again")
    durable.start(flow, "old", key="k", delay="1h")
    before = everything(durable)
    assert durable.explain_start(flow, "new", key="k", execute=False).action == "merge_holder"
    with pytest.raises(InvalidInput, match="no such thing"):
        durable.explain_start(flow, "bad", key="k", execute=False)
    good, bad = durable.explain_many(flow, [{"input": "new", "key": "k"}, {"input": "bad", "key": "k"}])
    assert not isinstance(good, DurableError)
    assert isinstance(bad, InvalidInput)
    assert everything(durable) == before


def test_a_dry_run_that_is_contended_says_so(durable: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = define(merge=lambda old, new: new, on_duplicate="run_again")
    durable.start(flow, "old", key="k", delay="1h")
    monkeypatch.setattr("durable_cli.request.MERGES", 0)
    with pytest.raises(KeyContended):
        durable.explain_start(flow, "new", key="k", execute=False)


@pytest.mark.parametrize(
    ("options", "more", "due"),
    [
        ({}, {}, None),
        ({}, {"delay": "1h"}, 3_600_000),
        ({"debounce": Debounce("10m")}, {}, 600_000),
        ({"debounce": Debounce("10m")}, {"delay": "1h"}, 3_600_000),
    ],
)
@pytest.mark.parametrize("there", [False, True], ids=["no file", "a file"])
def test_a_dry_run_says_when_the_run_would_begin(
    durable: Durable, clock: Clock, there: bool, options: dict[str, Any], more: dict[str, Any], due: int | None
) -> None:
    """A new one, and one that takes the newer input and is put off."""
    flow = define(**options)
    if there:
        durable.cancel(durable.start(flow, key="other").run_id)
    expected = None if due is None else clock() + due
    assert durable.explain_start(flow, key="k", execute=False, **more).due_at == expected
    assert durable.path.exists() == there
    durable.start(flow, key="k")
    again = durable.explain_start(flow, key="k", on_duplicate="run_again", execute=False, **more)
    assert (again.outcome, again.due_at) == ("merged", expected)
    durable.start(flow, key="k", on_duplicate="run_again", **more)
    assert durable.find(key="k").due_at == (expected or clock())


# -- the other operations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", [name for name in HOLDERS if name != "nobody"])
@pytest.mark.parametrize("operation", ["retry", "rerun"])
def test_a_retry_and_a_rerun_do_what_their_dry_runs_say(
    durable: Durable, clock: Clock, holder: str, operation: str
) -> None:
    """Of an older run of the key, and of its holder."""
    flow = define()
    old = durable.start(flow, "older", key="k").run_id
    durable.cancel(old)
    HOLDERS[holder](durable, clock, flow)
    for run_id in (durable.find(key="k").id, old):
        before = everything(durable)
        told = getattr(durable, f"explain_{operation}")(run_id)
        assert everything(durable) == before
        try:
            getattr(durable, operation)(run_id)
            refused = None
        except (KeyTaken, NotFinished, NotRetryable) as error:
            refused = type(error).__name__
        expected = {"refuse_status": "NotRetryable", "refuse_unfinished": "NotFinished", "refuse_key": "KeyTaken"}
        assert expected.get(told.action) == refused, (told, holder)


def test_a_tick_does_what_its_dry_run_says(durable: Durable, clock: Clock) -> None:
    """An orphan that is overdue is ended and not adopted, and the run behind it is due then."""
    flow = define()
    _overdue_with_a_waiting_run(durable, clock, flow)
    holder = durable.find(key="k").id
    waiting = next(run.id for run in durable.runs() if run.id != holder)
    orphan = put(durable, flow, "running", key="other", input="old")
    before = everything(durable)
    due = durable.due()
    assert (due.overdue, due.orphans, due.due) == ((holder,), (orphan,), (waiting,))
    assert everything(durable) == before
    durable.tick()
    assert [durable.run(run).status for run in (holder, orphan, waiting)] == ["failed", "completed", "completed"]


def test_a_prune_deletes_what_its_dry_run_says(durable: Durable, clock: Clock) -> None:
    """The activity of keys that lose their last run too; and a clock that jumped is suspect to both."""
    job = define_job()
    for key in ("a", "b"):
        put(durable, job, "completed", key=key)
        durable.execute(job, key=key)
    clock.advance(20 * DAY)
    durable.start(job, key="b")
    would = durable.prune(older_than="1d", dry_run=True, trust_clock=True)
    assert would == durable.prune(older_than="1d", trust_clock=True)
    assert would.activity > 0
    clock.advance(50 * 365 * DAY)
    for dry_run in (True, False):
        with pytest.raises(ClockSuspect):
            durable.prune(older_than="1d", dry_run=dry_run)


def test_a_schedule_is_added_as_its_dry_run_says(durable: Durable) -> None:
    """Refused where the code of the workflow lies elsewhere; with nothing written in both."""
    flow = define()
    plan = durable.put_schedule("s", "@daily", flow, key="k", timezone="UTC", write=False)
    assert not durable.path.exists()
    assert plan.change == durable.put_schedule("s", "@daily", flow, key="k", timezone="UTC").change == "added"
    change(durable, "UPDATE durable_workflows SET qualname = 'elsewhere'")
    before = durable.schedules()
    for write in (False, True):
        with pytest.raises(WorkflowMoved):
            durable.put_schedule("s", "@hourly", flow, key="k", timezone="UTC", write=write)
    assert durable.schedules() == before
