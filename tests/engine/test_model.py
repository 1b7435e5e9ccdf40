"""The whole programming model, interrupted at every write and in every step: by a crash, a cancel, a timeout, a request
to stop, and by another process that takes the run.

Each operation of `model_cases`, plain and `async`, in the foreground and by `tick`. However it was interrupted, the run
goes on to the end that the specification demands, and nothing on record is executed a second time.

By default each case meets each interruption on one of the four (host, kind), a crash at every write and the others at
every eighth; with `DURABLE_MODEL=all` in the environment it is everything everywhere (about a quarter of an hour).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from bothways import KINDS, define
from model_cases import CASES, Case
from modelkit import ENDED_BADLY, HOSTS, KEY, QUICK, Crash, Process, Steps, World, first_of_each, undone

from durable_cli import Durable, Run, Status

ALL: Final = os.environ.get("DURABLE_MODEL") == "all"
PLACES: Final = list(itertools.product(HOSTS, KINDS))
Worlds = Callable[..., World]


def somewhere(turn: int) -> Any:
    """Every case on one (host, kind), another one for each `turn`; on all of them where all is asked for."""
    chosen = [
        pytest.param(case, host, kind, id=f"{case}-{host}-{kind}")
        for number, case in enumerate(CASES)
        for place, (host, kind) in enumerate(PLACES)
        if ALL or (number + turn) % len(PLACES) == place
    ]
    return pytest.mark.parametrize(("case", "host", "kind"), chosen)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that has the tables and nothing else."""
    path = tmp_path_factory.mktemp("empty") / "durable.db"
    with Durable(path) as durable:
        durable.check()
    return path


@pytest.fixture
def worlds(empty: Path, db: Path, case: Case) -> Iterator[Worlds]:
    """Makes the world of a case, over and over."""
    numbers = itertools.count()
    made: list[World] = []

    def make(kind: str, **options: Any) -> World:
        path = db.with_name(f"{next(numbers)}.db")
        shutil.copyfile(empty, path)
        path.chmod(0o600)
        world = World(path, events=case.events, inputs=case.inputs)
        made.append(world)
        it = Steps(world, kind)

        async def body(ctx: Any, what: Any) -> Any:
            return QUICK if what == QUICK else await case.body(ctx, it)

        world.flow = define(kind, body, **options)
        child = case.child
        if child is not None:

            async def child_body(ctx: Any) -> Any:
                return await child(ctx, it)

            it.child = define(kind, child_body, name="child")
        return world

    yield make
    for world in made:
        world.close()


def everywhere(case: Case, *, every: int) -> Iterator[tuple[str, int, str, Callable[[bool], None]]]:
    """The moments of a run, one after the other: (what, number, phase, tell). `tell(False)`: there was no such moment,
    so there are no later ones either. What: a "write" or an "effect", which is in the middle of a step.
    """
    for what, phases in (("write", ("before", "after")), ("effect", ("before",))):
        reached = True

        def tell(struck: bool) -> None:
            nonlocal reached
            reached = struck

        stride = 1 if ALL else every if what == "write" else max(every, 2)
        for n in itertools.count(1 + CASES.index(case) % stride, stride):
            for phase in phases if ALL else (phases[(n + CASES.index(case)) % len(phases)],):
                if reached:
                    yield what, n, phase, tell
            if not reached:
                assert what == "effect" or n > 2, "nothing was interrupted"
                break


def ended_as_uninterrupted(world: World, case: Case) -> Run:
    """The run ended as the case says, the key was handed on, and the file is sound."""
    run = as_the_case_says(world, case)
    sound(world, run)
    return run


def as_the_case_says(world: World, case: Case) -> Run:
    run = world.run()
    assert run is not None
    assert (str(run.status), run.error.type if run.error else None) == (case.status, case.error), run.error
    assert (json.loads(run.result) if run.result is not None else None) == case.result
    return run


def sound(world: World, run: Run) -> None:
    """What holds after every end: compensations, the key and the run that waited behind, the file."""
    undo = [name for name in world.effects if name.startswith("undo") and not name.startswith("undo c1")]
    assert first_of_each(undo) == (undone(run) if run.status in ENDED_BADLY else [])
    assert "never" not in world.effects
    assert world.client.check() == []
    assert all(one.finished and one.owner is None for one in world.client.runs())
    if world.waiter:
        waiter = world.client.run(world.waiter)
        assert (waiter.status, waiter.holds_key, run.holds_key) == (Status.COMPLETED, True, False)
        handed = [one.details["reason"] for one in world.client.activity(kinds=["key_handed_off"], key=KEY)]
        assert handed.count("promoted") == 1


@somewhere(2)
def test_uninterrupted(worlds: Worlds, case: Case, host: str, kind: str) -> None:
    """The table tells the truth about runs that nothing interrupts, and each step is executed once."""
    world = worlds(kind)
    process = Process(world)
    world.go(host, process)
    process.end()
    ended_as_uninterrupted(world, case)
    assert world.waiter
    again = {name for name in world.effects if world.effects.count(name) > 1}
    assert again <= {"r", "undo b", "undo c"}, "only what is retried is executed twice"


@somewhere(0)
def test_crash(worlds: Worlds, case: Case, host: str, kind: str) -> None:
    """The process dies: another one goes on to the same end."""
    for what, n, phase, tell in everywhere(case, every=1):
        world = worlds(kind)
        process = Process(world)
        process.strike_at(what, n, phase, process.kill)
        try:
            world.go(host, process)
        except Crash:
            pass
        recorded = world.recorded()
        world.recover(host)
        process.end()
        ended_as_uninterrupted(world, case)
        assert {name: world.effects.count(name) for name in recorded} == dict(recorded)
        tell(process.struck)


@somewhere(1)
def test_stop(worlds: Worlds, case: Case, host: str, kind: str) -> None:
    """The process is asked to stop: it gives everything back, and another one goes on to the same end."""
    for what, n, phase, tell in everywhere(case, every=8):
        world = worlds(kind)
        process, stop = Process(world), threading.Event()
        process.strike_at(what, n, phase, stop.set)
        world.go(host, process, stop=stop)
        left = [run for run in world.client.runs(unfinished=True) if run.status == "running"]
        assert not left, "a process that was asked to stop keeps nothing"
        recorded = world.recorded()
        process.end()
        world.recover(host)
        ended_as_uninterrupted(world, case)
        assert {name: world.effects.count(name) for name in recorded} == dict(recorded)
        tell(process.struck)


@somewhere(2)
def test_taken_by_another_process(worlds: Worlds, case: Case, host: str, kind: str) -> None:
    """Another process takes the run and executes it to its end; whatever the first one still does changes nothing."""
    for what, n, phase, tell in everywhere(case, every=8):
        world = worlds(kind)
        process = Process(world)
        recorded: dict[str, int] = {}
        ended: list[Any] = []

        def take() -> None:
            if world.run() is None:
                return  # what would come first would not be robbed
            recorded.update(world.recorded())
            world.take_over(host, process)
            ended.extend(world.everything())

        process.strike_at(what, n, phase, take)
        world.go(host, process)
        process.end()
        ended_as_uninterrupted(world, case)
        assert {name: world.effects.count(name) for name in recorded} == recorded
        if ended:
            same = {run.id: run for run in world.everything()}
            assert [same[run.id] for run in ended] == ended, "the one that was robbed has changed something"
        tell(process.struck)


@somewhere(3)
def test_cancel_and_retry(worlds: Worlds, case: Case, host: str, kind: str) -> None:
    """A cancelled run begins nothing more and undoes nothing; its children end with it, and the run behind it has the
    key at once. Retried, it goes on to the same end. One that undoes what it did cannot be cancelled.
    """
    for what, n, phase, tell in everywhere(case, every=8):
        world = worlds(kind)
        process = Process(world)
        cancelled: list[int] = []

        def cancel() -> None:
            run = world.run()
            if run is not None and world.client.cancel(run.id).cancelled:
                cancelled.append(len(world.effects))
                now = world.client.run(run.id)
                assert (now.status, now.owner) == (Status.CANCELLED, None)
                assert not world.waiter or world.client.run(world.waiter).holds_key

        process.strike_at(what, n, phase, cancel)
        world.go(host, process)
        process.end()
        tell(process.struck)
        if not cancelled:
            ended_as_uninterrupted(world, case)
            continue
        run = world.run()
        assert run is not None
        assert run.status is Status.CANCELLED
        assert len(fresh(world, cancelled[0])) <= (case.branches if case.branches > 1 else 0)
        sound(world, run)
        recorded = world.recorded()
        world.client.retry(run.id)
        world.recover(host)
        as_the_case_says(world, case)
        assert {name: world.effects.count(name) for name in recorded} == dict(recorded)
        assert [one.key for one in world.client.runs() if one.holds_key] == [KEY]
        assert world.client.check() == []


@somewhere(1)
def test_workflow_timeout(worlds: Worlds, case: Case, host: str, kind: str) -> None:
    """A run whose time is over begins nothing more, undoes what it did, and fails with Timeout; retried, it goes on."""
    for what, n, phase, tell in everywhere(case, every=8):
        world = worlds(kind, timeout="1h")
        process = Process(world)
        at: list[tuple[Status, int]] = []

        def pass_time() -> None:
            run = world.run()
            at.append((run.status if run is not None else Status.COMPLETED, len(world.effects)))
            world.now += 7_200_000

        process.strike_at(what, n, phase, pass_time)
        world.go(host, process)
        process.end()
        tell(process.struck)
        run = world.run()
        assert run is not None
        if run.error is None or run.error.type != "Timeout":
            # It was over, or undoing, or had nothing left to begin, or its deadline did not yet count.
            assert str(run.status) == case.status
            assert not at or at[0][0] is not Status.RUNNING or case.child or not fresh(world, at[0][1])
            continue
        assert run.status in ENDED_BADLY
        assert (run.status is Status.FAILED) == (not undone(run))
        assert case.child or len(fresh(world, at[0][1])) <= (case.branches if case.branches > 1 else 0)
        sound(world, run)
        if run.status is Status.FAILED and not case.events and not case.inputs:
            recorded = world.recorded()
            world.client.retry(run.id)
            world.recover(host)
            as_the_case_says(world, case)
            assert {name: world.effects.count(name) for name in recorded} == dict(recorded)


def fresh(world: World, since: int) -> list[str]:
    """The side effects since, but for compensations."""
    return [name for name in world.effects[since:] if not name.startswith("undo")]
