"""SIGSTOP: a stopped owner is alive, and one whose run was taken from it by hand changes nothing when it wakes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from crashkit import Gate, Log, contents, durable, each_on_its_own, nursling, quick, spawn

from durable_cli import Durable, Status


def call(log: Path, command: str = "run") -> list[str]:
    return [command, "jobs:again", "--key", "k", "--input", json.dumps(str(log)), "--json"]


@pytest.mark.parametrize("how", ["cancelled", "replaced"])
def test_an_owner_stopped_in_a_step_changes_nothing_when_it_wakes(tmp_path: Path, how: str) -> None:
    """Its run is cancelled or replaced while it is stopped, and another run finishes: its late result is discarded,
    no later step of it begins, and it says that its run was cancelled (exit 5)."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    with spawn(db, *call(log.path), JOBS_ACT=f"hold:two:{gate.path}") as owner:
        gate.wait_arrived(owner)
        owner.stop()
        with Durable(db, create=False) as it:
            old = it.find(key="k").id
        if how == "cancelled":
            assert durable(db, "cancel", "--key", "k", "--json").ok().json["cancelled"] == 1
            answer = durable(db, *call(log.path)).ok().json
            assert answer["outcome"] == "created"
        else:
            answer = durable(db, *call(log.path), "--on-duplicate", "cancel_existing").ok().json
            assert (answer["outcome"], answer["replaced_id"]) == ("replaced", old)
        before = contents(db)
        gate.open()
        owner.go_on()
        ended = owner.end()
    gate.close()
    assert ended.code == 5, ended
    assert (ended.json["run_id"], ended.json["status"]) == (old, "cancelled")
    assert contents(db) == before
    assert [line[1] for line in log.lines() if line[0] == old] == ["one", "two"]
    with Durable(db, create=False) as it:
        assert it.check() == []
        assert it.find(key="k").status is Status.COMPLETED
        assert [step.name for step in it.run(old).steps or ()] == ["one"]


@pytest.mark.parametrize("how", ["replaced", "retried"])
def test_an_owner_stopped_at_any_write_changes_nothing_when_it_wakes(tmp_path: Path, how: str) -> None:
    """Stopped right before or right after each of its writes. `retried`: the same run was cancelled, retried and
    completed by another process, so that only the epoch tells the sleeper that it is not its any more."""

    def stop(phase: str) -> int:
        n = 1 if phase == "committed" else 2  # before its first write it is nobody's owner
        while True:
            folder = tmp_path / f"{phase}-{n}"
            folder.mkdir()
            db, log = folder / "durable.db", Log(folder / "trace")
            with nursling(db, *call(log.path), strikes=[(signal.SIGSTOP, phase, n)]) as owner:
                owner.wait_stopped()
                with Durable(db, create=False) as it:
                    old = it.find(key="k")
                if not old.finished and how == "replaced":
                    answer = quick(db, *call(log.path), "--on-duplicate", "cancel_existing").ok().json
                    assert (answer["outcome"], answer["replaced_id"]) == ("replaced", old.id)
                elif not old.finished:
                    quick(db, "cancel", old.id).ok()
                    assert quick(db, "retry", old.id, "--foreground", "--json").ok().json["run_id"] == old.id
                before = contents(db)
                owner.go_on()
                ended = owner.end()
            assert contents(db) == before, (phase, n, how)
            if old.finished:
                assert ended.code == 0
                return n
            if how == "replaced":
                assert ended.code == 5, ended
            else:  # it follows the run that was taken from it to its end
                assert (ended.code, ended.json["status"]) == (0, "completed"), ended
            n += 1

    points = each_on_its_own(stop, ("before", "committed"))
    assert min(points) >= 5, points


def test_a_sleeper_is_refused_while_another_has_its_run(tmp_path: Path) -> None:
    """Stopped before a write, its run cancelled, retried and executed by another process that is still at it: the
    sleeper's record, or its end of the run, is not accepted, although the run is unfinished and its place is empty."""
    n = 2
    while True:
        folder = tmp_path / str(n)
        folder.mkdir()
        db, log = folder / "durable.db", Log(folder / "trace")
        strikes = [(signal.SIGSTOP, "before", n), (signal.SIGSTOP, "committed", n)]
        with nursling(db, *call(log.path), strikes=strikes) as sleeper:
            sleeper.wait_stopped()
            with Durable(db, create=False) as it:
                old = it.find(key="k")
            if old.finished:
                break
            quick(db, "cancel", old.id).ok()
            # The other one is stopped when it has claimed the run: its first write revives and claims it.
            retry = ["retry", old.id, "--foreground", "--json"]
            with nursling(db, *retry, strikes=[(signal.SIGSTOP, "committed", 1)]) as other:
                other.wait_stopped()
                with Durable(db, create=False) as it:
                    owner = it.run(old.id).owner
                    assert owner is not None
                    assert owner.pid == other.pid
                before = contents(db)
                sleeper.go_on()
                sleeper.wait_stopped()
                assert contents(db) == before, n
                sleeper.go_on()
                other.go_on()
                assert other.end().ok().json["status"] == "completed"
            assert sleeper.end().ok().json["status"] == "completed"
        n += 1
    assert n >= 6


def test_a_stopped_owner_is_alive(tmp_path: Path) -> None:
    """G07: however long it is stopped, its key stays taken and nobody takes its run up; when it goes on, it finishes
    its run as if nothing had been."""
    db, log, gate = tmp_path / "durable.db", Log(tmp_path / "trace"), Gate(tmp_path)
    with spawn(db, *call(log.path), JOBS_ACT=f"hold:two:{gate.path}") as owner:
        gate.wait_arrived(owner)
        owner.stop()
        again = durable(db, *call(log.path)).ok().json
        assert (again["outcome"], again["status"]) == ("existing", "running")
        refused = durable(db, *call(log.path), "--on-duplicate", "error")
        assert (refused.code, refused.json["error"]["code"]) == (75, "key_taken")
        assert durable(db, "resume", again["run_id"], "--json").code == 4
        [key] = durable(db, "keys", "list", "--json").ok().json
        assert (key["holder_id"], key["owner_alive"]) == (again["run_id"], True)
        gate.open()
        owner.go_on()
        ended = owner.end().ok()
    gate.close()
    assert (ended.json["run_id"], ended.json["status"]) == (again["run_id"], "completed")
    assert log.steps() == ["one", "two", "three"]
    with Durable(db, create=False) as it:
        assert it.check() == []
