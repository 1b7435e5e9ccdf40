"""Trouble of other systems (tests/cases.md), G: crashes, recovery, liveness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from enginekit import Boom, change, dead_owner, own, snapshot

from durable_cli import Durable, Retry, Status, definition, workflow
from durable_cli.model import Claim
from durable_cli.runner import Gone, take_turn
from durable_cli.store import transitions

SOURCE = """
from durable_cli import workflow

@workflow
def process(ctx):
    return ctx.run("work", lambda: "{name}")
"""


def claim(durable: Durable, run_id: str) -> Claim:
    """Make `durable` the owner of a pending run."""
    run, engine = durable.run(run_id), durable._engine

    def write(tx: Any, owner_id: int) -> Claim:
        epoch = transitions.claim(tx, run.row_id, owner_id, engine.now())
        assert epoch is not None
        return Claim(run.row_id, run.id, owner_id, epoch)

    return engine.write_as_owner(write)


@pytest.mark.parametrize("late", ["success", "failure", "failure with attempts left"])
@pytest.mark.parametrize("ended", ["completed", "failed", "waiting"])
def test_late_news_of_a_run_that_another_process_has_ended(
    durable: Durable, db: Path, clock: Any, ended: str, late: str
) -> None:
    """G09: A is taken for dead, B takes its run up and ends it (or it rests for another attempt); what A reports then
    changes nothing."""
    seen: list[Any] = []
    mine: list[bool] = [True]

    @workflow(name="flow")
    def flow(ctx: Any) -> str:
        def step() -> str:
            if mine[0]:
                mine[0] = False
                take_over(ctx.run_id)
                if late != "success":
                    raise Boom("late")
                return "late"
            if ended != "completed":
                raise Boom("of B")
            return "of B"

        attempts = 2 if ended == "waiting" or late == "failure with attempts left" else 1
        return ctx.run("work", step, retry=Retry(attempts, base="1h", jitter=0))  # type: ignore[no-any-return]

    def take_over(run_id: str) -> None:
        own(durable, run_id, dead_owner(durable))
        with Durable(db, clock=clock) as b:
            b.tick()
            if ended == "failed" and late == "failure with attempts left":
                clock.advance(3_600_000)
                b.tick()
        assert durable.run(run_id).status == ended
        seen.append(snapshot(durable))

    run_id = durable.start(flow, key="k").run_id
    assert isinstance(take_turn(durable._engine, claim(durable, run_id), flow.definition), Gone)
    assert seen == [snapshot(durable)]
    assert durable.check() == []


def test_a_run_goes_on_in_the_code_that_it_was_started_from(durable: Durable, tmp_path: Path) -> None:
    """G12: a process that knows another file's workflow of that name does not execute it for the run."""
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        (folder / "flows.py").write_text(SOURCE.format(name=name))
    here, there = (_load(tmp_path / name / "flows.py") for name in "ab")
    definition.forget("process")
    run_id = durable.start(here, key="k").run_id
    definition.forget("process")
    _load(tmp_path / "b" / "flows.py")
    assert there is not None
    durable.tick()
    run = durable.run(run_id)
    assert run.result in (None, '"a"')
    if run.result is None:
        assert (run.status, run.epoch) == (Status.PENDING, 0)
        assert "process" in (run.note or "")


def _load(file: Path) -> Any:
    """The workflow of that file, as a module that this process has imported."""
    definition.forget("process")
    namespace: dict[str, Any] = {"__name__": f"flows_{file.parent.name}"}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    return namespace["process"]


def test_a_recovery_that_fails_stops_neither_schedules_nor_starts(
    durable: Durable, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H05: a keyed orphan goes on in its own row; where that fails, schedules fire and its key is answered for."""
    from durable_cli import settling
    from durable_cli.errors import DatabaseLocked

    @workflow(name="flow")
    def flow(ctx: Any, n: int = 0) -> int:
        return ctx.run("work", lambda: n)  # type: ignore[no-any-return]

    run_id = durable.start(flow, 1, key="k").run_id
    own(durable, run_id, dead_owner(durable))
    change(durable, "UPDATE durable_runs SET status = 'running', due_at = NULL WHERE public_id = :id", id=run_id)
    durable.schedule("s", "* * * * *", flow, 2, timezone="UTC", key="other")
    clock.advance(60_000)
    original, broken = settling.reap, [run_id]

    def reap(tx: Any, run: Any, **options: Any) -> Any:
        if run.id in broken:
            raise DatabaseLocked("injected")
        return original(tx, run, **options)

    monkeypatch.setattr(settling, "reap", reap)
    counts = durable.tick()
    assert (counts.errors, counts.fired, counts.runs["completed"]) == (1, 1, 1)
    broken.clear()
    durable.tick()
    [only] = durable.runs(key="k")
    assert (only.id, only.status, only.holds_key, only.result) == (run_id, Status.COMPLETED, True, "1")
    assert durable.activity(kinds=["key_duplicate", "key_handed_off"]) == []
