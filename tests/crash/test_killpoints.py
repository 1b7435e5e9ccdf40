"""kill -9 at every boundary of a run, by real processes: the next `durable run` finishes the same run."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from crashkit import Child, Ended, Gate, Log, durable, each_on_its_own, image, quick, recorded_steps, spawn

from durable_cli import Durable, Run, Status

PHASES = ("before", "uncommitted", "committed")
STEPS = ("one", "two", "three")


@dataclass(frozen=True)
class Place:
    """A database and a trace of their own."""

    db: Path
    log: Log

    @classmethod
    def make(cls, folder: Path) -> Place:
        folder.mkdir(parents=True)
        return cls(folder / "durable.db", Log(folder / "trace"))

    def call(self, command: str = "run", target: str = "jobs:job") -> list[str]:
        return [command, target, "--key", "k", "--input", json.dumps(str(self.log.path)), "--json"]

    def left_behind(self) -> tuple[Run | None, set[str]]:
        """The run that a killed process left, and its recorded steps."""
        if not self.db.exists():
            return None, set()
        with image(self.db) as it:
            assert it.check() == []
            if not (found := it.runs()):
                return None, set()
            assert len(found) == 1
            run = it.run(found[0].id)
            return run, recorded_steps(run)


def finish_and_check(place: Place, before: Run | None, recorded: set[str]) -> Ended:
    """The next `durable run` finishes the same run, executing what has no record and nothing else."""
    executed = place.log.steps()
    answer = quick(place.db, *place.call()).ok()
    document = answer.json
    assert document["status"] == "completed"
    assert document["result"] == list(STEPS)
    if before is not None:
        assert document["run_id"] == before.id
        assert document["outcome"] == ("existing" if before.finished else "resumed")
    again = place.log.steps()[len(executed) :]
    assert again == [step for step in STEPS if step not in recorded]
    with Durable(place.db, create=False) as it:
        assert it.check() == []
        assert [run.id for run in it.runs()] == [document["run_id"]]
        [key] = it.keys()
        assert (key.holder_id, key.status) == (document["run_id"], Status.COMPLETED)
    return answer


def kill_at(place: Place, phase: str, n: int, *args: str) -> bool:
    """Kill `durable ARGS` there; False if it had no n-th write and ended well."""
    ended = quick(place.db, *args, strikes=[(signal.SIGKILL, phase, n)])
    if not ended.killed:
        ended.ok()
    return ended.killed


def kill_everywhere(folder: Path, *args: str, phase: str) -> int:
    """Kill a call at its first write, at its second, ... until it ends by itself; finish each. Counts the points."""
    n = 1
    while True:
        place = Place.make(folder / f"{phase}-{n}")
        killed = kill_at(place, phase, n, *(args or place.call()))
        before, recorded = place.left_behind()
        finish_and_check(place, before, recorded)
        if not killed:
            return n - 1
        n += 1


def test_kill_9_at_every_write_of_a_run(tmp_path: Path) -> None:
    """At each of its writes, before it, inside it and after its commit, a process may die: after its claim, before a
    step, after a body before its record, after the record, before the finish, after the finish before the answer."""
    points = each_on_its_own(lambda phase: kill_everywhere(tmp_path, phase=phase), PHASES)
    # claim, three records, finish: fewer would mean that the rig no longer sees the engine's writes.
    assert min(points) >= 5, points
    assert len(set(points)) == 1


def test_kill_9_inside_every_step(tmp_path: Path) -> None:
    """In step k of n, before or after its side effect: what has a record does not run again, the rest does."""

    def kill(point: tuple[str, str]) -> None:
        step, moment = point
        place = Place.make(tmp_path / f"{step}-{moment}")
        assert durable(place.db, *place.call(), JOBS_ACT=f"die:{step}:{moment}").killed
        before, recorded = place.left_behind()
        assert before is not None
        assert recorded == set(STEPS[: STEPS.index(step)])
        finish_and_check(place, before, recorded)
        assert place.log.steps().count(step) == (2 if moment == "after" else 1)

    each_on_its_own(kill, [(step, moment) for step in STEPS for moment in ("before", "after")])


def test_kill_9_at_every_write_of_the_recovery(tmp_path: Path) -> None:
    """The process that takes an orphan up may die as well, anywhere: the one after it finishes the same run."""

    def kill(phase: str) -> int:
        n = 1
        while True:
            place = Place.make(tmp_path / f"{phase}-{n}")
            assert quick(place.db, *place.call(), JOBS_ACT="die:two:after").killed
            killed = kill_at(place, phase, n, *place.call())
            before, recorded = place.left_behind()
            assert before is not None
            finish_and_check(place, before, recorded)
            if not killed:
                return n - 1
            n += 1

    points = each_on_its_own(kill, ("uncommitted", "committed"))
    assert min(points) >= 4, points


def test_a_start_killed_after_its_commit_is_found_again(tmp_path: Path) -> None:
    """A13: a start that died between its commit and its answer is answered with the same run by the next start."""
    place = Place.make(tmp_path / "p")
    assert kill_at(place, "committed", 1, *place.call("start"))
    before, _ = place.left_behind()
    assert before is not None
    document = quick(place.db, *place.call("start")).ok().json
    assert (document["run_id"], document["outcome"]) == (before.id, "existing")
    assert quick(place.db, *place.call("start")[:-1]).ok().out.strip() == before.id
    finish_and_check(place, before, set())


def test_a_start_killed_before_its_commit_left_nothing(tmp_path: Path) -> None:
    """No half of a start: its key is free and no run is there."""
    place = Place.make(tmp_path / "p")
    for phase in ("before", "uncommitted"):
        assert kill_at(place, phase, 1, *place.call("start"))
        assert place.left_behind() == (None, set())
    assert quick(place.db, *place.call("start")).ok().json["outcome"] == "created"


@pytest.mark.parametrize("phase", PHASES)
def test_kill_9_at_every_write_of_a_replacement(tmp_path: Path, phase: str) -> None:
    """cancel_existing is one transaction: killed anywhere, there is the old holder or the new one, not none or two."""
    n, seen = 1, set()
    while True:
        place = Place.make(tmp_path / f"{n}")
        old = quick(place.db, *place.call("start")).ok().json["run_id"]
        killed = kill_at(place, phase, n, *place.call(), "--on-duplicate", "cancel_existing")
        with image(place.db) as it:
            assert it.check() == []
            [key] = it.keys()
            replaced = it.run(old).status is Status.CANCELLED
            assert (key.holder_id == old) != replaced
            seen.add(replaced)
            new = key.holder_id
        document = quick(place.db, *place.call()).ok().json
        assert (document["run_id"], document["status"]) == (new, "completed")
        if not killed:
            break
        n += 1
    assert n > 5
    assert seen == ({True} if phase == "committed" else {True, False})


def test_a_waiting_run_is_promoted_whatever_dies(tmp_path: Path) -> None:
    """D07, G06: killed at any write around the end of a holder with a run waiting behind it, the next call leaves the
    waiting run completed and nothing stuck."""

    def kill(phase: str) -> int:
        n = 1
        while True:
            place = Place.make(tmp_path / f"{phase}-{n}")
            call = [*place.call(target="jobs:again"), "--on-duplicate", "run_again"]
            queue = ["start", *call[1:]]
            # A first process dies in step two; a start queues behind the orphan.
            assert quick(place.db, *place.call(target="jobs:again"), JOBS_ACT="die:two:before").killed
            holder, _ = place.left_behind()
            assert holder is not None
            queued = quick(place.db, *queue).ok().json
            assert queued["outcome"] == "queued"
            killed = kill_at(place, phase, n, *call)
            # Up to two calls are needed: the killed one may have finished all, then ours starts a fresh run.
            quick(place.db, *call).ok()
            with Durable(place.db, create=False) as it:
                assert it.check() == []
                assert it.run(holder.id).status is Status.COMPLETED
                assert it.run(queued["run_id"]).status is Status.COMPLETED
                assert it.runs(unfinished=True) == []
            executed = [line[1] for line in place.log.lines() if line[0] == holder.id]
            assert executed.count("one") == 1
            if not killed:
                return n - 1
            n += 1

    points = each_on_its_own(kill, ("uncommitted", "committed"))
    assert min(points) >= 8, points  # claim, two records, end and promotion, three records, end


def test_the_last_attempt_cut_off_by_a_crash_is_made_again(tmp_path: Path) -> None:
    """G18: a crash uses none of the retry budget, and `ctx.attempt` counts the attempt that it cut off."""
    place = Place.make(tmp_path / "p")
    call = place.call(target="jobs:last_attempt")
    for _ in range(2):
        assert durable(place.db, *call, JOBS_ACT="die:one:after").killed
    assert durable(place.db, *call).ok().json["status"] == "completed"
    assert [line[2] for line in place.log.lines()] == ["1", "2", "3"]
    with Durable(place.db, create=False) as it:
        [step] = it.run("last").steps or ()
        assert (step.attempts, step.failures) == (3, 0)


def test_a_dead_owner_is_dead_whoever_has_its_pid(tmp_path: Path) -> None:
    """G10: a process id proves nothing. The dead owner's number is a living process's here, and it is adopted."""
    place = Place.make(tmp_path / "p")
    gate = Gate(tmp_path)
    with spawn(place.db, *place.call(), JOBS_ACT=f"hold:two:{gate.path}") as child:
        gate.wait_arrived(child)
        child.kill()
    living = Child(["cat", str(gate.path)])
    with living, Durable(place.db, create=False) as it:
        change_pid = "UPDATE durable_owners SET pid = :pid"
        assert it._engine.database.write(lambda tx: tx.change(change_pid, pid=living.pid)) == 1
        owner = it.run("last").owner
        assert owner is not None
        assert (owner.pid, owner.alive) == (living.pid, False)
        it.close()
        finish_and_check(place, *place.left_behind())
    gate.close()


def test_db_check_says_nothing_after_a_kill(tmp_path: Path) -> None:
    """`durable db check` itself, right after a kill -9 in the middle of a step: clean, exit 0."""
    place = Place.make(tmp_path / "p")
    assert durable(place.db, *place.call(), JOBS_ACT="die:two:after").killed
    assert durable(place.db, "db", "check").ok().err == ""
