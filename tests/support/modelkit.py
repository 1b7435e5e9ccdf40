"""Machines that die at an exact moment: for tests that interrupt a workflow everywhere and look what becomes of it.

A `World` is one file, one clock and the processes on it, all inside of this one: a process is a `Durable` whose
liveness the world decides and whose n-th write transaction can be struck. What struck it is `Crash`, a BaseException
that nothing of the engine catches for good; from then on the process reads and writes nothing more.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bothways import step_of

from durable_cli import Durable, Run, Status
from durable_cli.definition import WorkflowFunction
from durable_cli.store import process
from durable_cli.store.database import Tx

HOSTS: Final = ("execute", "tick")
KEY: Final = "k"
QUICK: Final = "quick"
"""The input of the run that waits behind the one under test: its function has to return at once."""
_STUCK: Final = 300
_NEXT_DUE: Final = "SELECT min(due_at) FROM durable_runs WHERE finished_at IS NULL"


class Crash(BaseException):
    """The process was killed."""


class Boom(Exception):
    """What a step of a test raises."""


class Liveness:
    """One process's view of who is alive, as the world knows it."""

    def __init__(self, living: set[int]) -> None:
        self.living = living
        self.mine: set[int] = set()

    def hold(self, owner_id: int) -> None:
        self.living.add(owner_id)
        self.mine.add(owner_id)

    def release(self, owner_id: int) -> None:
        self.living.discard(owner_id)

    def alive(self, owner_id: int) -> bool:
        return owner_id in self.living

    def pid(self, owner_id: int) -> int | None:
        return None

    def reassert(self) -> list[int]:
        return []


@contextmanager
def without_the_lock() -> Iterator[None]:
    """The lock around SQLite is one for all that lives in this process: what another one does would wait for it."""
    held = process.LOCK._release_save() if process.LOCK._is_owned() else None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if held is not None:
            process.LOCK._acquire_restore(held)  # type: ignore[attr-defined]


class Process:
    """A process on the file. `strike` is called at one moment of its n-th write: "before" it or "after" its commit."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.liveness = Liveness(world.living)
        self.durable = Durable(
            world.path,
            clock=lambda: world.now,
            sleep=self._pause,
            dice=random.Random(1).random,
            liveness=self.liveness,
        )
        self.dead = False
        self.struck = False
        self.suspended_by = 0
        self.resumed = threading.Event()
        self.resumed.set()
        self._at: tuple[str, int, str, Callable[[], None]] | None = None
        self._numbers = itertools.count(1)
        database = self.durable._engine.database
        self._write, self._read = database.write, database.read
        database.write = self._watched_write  # type: ignore[method-assign, assignment]
        database.read = self._watched_read  # type: ignore[method-assign, assignment]

    def strike_at(self, what: str, n: int, phase: str, strike: Callable[[], None]) -> None:
        """`what`: a "write", or an "effect": then it is struck in the middle of a step."""
        self._at = (what, n, phase, strike)
        if what == "effect":
            self.world.on_effect = lambda number: self._look("effect", number, "before")

    def end(self) -> None:
        """The process is over, if it is not dead already."""
        self._at = None
        if self.dead:
            self.durable._engine.database.close()
        else:
            self.durable.close()

    def kill(self) -> None:
        """The process dies here and now."""
        self.dead = True
        self.world.living -= self.liveness.mine
        raise Crash()

    def _wait_while_suspended(self) -> None:
        if not self.resumed.is_set() and threading.get_ident() != self.suspended_by:
            with without_the_lock():
                self.resumed.wait()

    def _watched_write(self, operation: Callable[[Tx], Any], **more: Any) -> Any:
        self._wait_while_suspended()
        n = next(self._numbers)
        self._look("write", n, "before")
        result = self._write(operation, **more)
        self.world.queue_waiter()
        self._look("write", n, "after")
        return result

    def _watched_read(self, question: Callable[[Tx], Any], **options: Any) -> Any:
        self._wait_while_suspended()
        if self.dead:
            raise Crash()
        return self._read(question, **options)

    def _look(self, what: str, n: int, phase: str) -> None:
        if self.dead:
            raise Crash()
        if not self.struck and self._at is not None and self._at[:3] == (what, n, phase):
            self.struck = True
            self.world.on_effect = lambda number: None
            self._at[3]()

    def _pause(self, seconds: float) -> None:
        if self.dead:
            raise Crash()
        self.world.pause(seconds)


class World:
    """One file. `events` and `inputs`: what is sent to a run once it waits for it, by name; "event@step": once it waits
    in that step."""

    def __init__(self, path: Path, *, events: dict[str, Any] | None = None, inputs: dict[str, Any] | None = None):
        self.path = path
        self.now = 1_800_000_000_000
        self.living: set[int] = set()
        self.effects: list[str] = []
        self.on_effect: Callable[[int], None] = lambda number: None
        self.released = threading.Event()
        """Set at the end: what hangs in a step that timed out goes on."""
        self.waiter: str | None = None
        self.flow: WorkflowFunction[..., Any] | None = None
        self._waits = {"event": dict(events or {}), "input": dict(inputs or {})}
        self._pauses = 0
        self._lock = threading.RLock()
        self.client = Process(self).durable  # a bystander that nothing ever strikes

    def close(self) -> None:
        self.released.set()
        self.client.close()

    # -- what steps do --

    def effect(self, name: str) -> int:
        """A side effect. Returns how many of that name there were before."""
        with self._lock:
            self.effects.append(name)
            before, number = self.effects.count(name) - 1, len(self.effects)
        self.on_effect(number)
        return before

    # -- the run under test --

    def run(self) -> Run | None:
        """The run under test: the first of its key."""
        found = self.client.runs(key=KEY) if self.path.exists() else []
        return self.client.run(found[-1].id) if found else None

    def everything(self) -> list[Run]:
        """All runs with their steps, oldest first."""
        return [self.client.run(run.id) for run in self.client.runs()][::-1] if self.path.exists() else []

    def recorded(self) -> Counter[str]:
        """How often each operation that has ended on record has been executed."""
        ended = {step.name for run in self.everything() for step in run.steps or () if step.finished_at is not None}
        return Counter(name for name in self.effects if name in ended)

    def queue_waiter(self) -> None:
        """As soon as there is a run under test, another one waits behind it."""
        with self._lock:
            if self.waiter is not None or self.flow is None:
                return
            self.waiter = ""
            run = self.run()
            if run is None or run.finished or run.epoch == 0:  # a run that has not begun would take its input
                self.waiter = None
                return
            self.waiter = self.client.start(self.flow, QUICK, key=KEY, on_duplicate="run_again").run_id

    # -- time, and what comes from outside --

    def pause(self, seconds: float) -> None:
        """Somebody sleeps: what was waited for comes, or time passes until something is due."""
        with self._lock:
            self._pauses += 1
            assert self._pauses < _STUCK, f"nothing goes on: {[(run.status, run.steps) for run in self.everything()]}"
            if any(self._waits.values()) and self._send():
                self.now += 1
                return
            due = self.client._engine.database.read(lambda tx: tx.value(_NEXT_DUE))
            self.now = max(self.now + 1, self.now + round(seconds * 1000) if due is None else due)

    def _send(self) -> bool:
        """Send what is waited for. Was there any?"""
        before = sum(map(len, self._waits.values()))
        for run in self.everything():
            waiting = [step for step in run.steps or () if step.status == "waiting" and not run.finished]
            for step in waiting:
                for name in (step.details or {}).get("names", [step.name]):
                    self._send_one(run, step.kind, name)
        return sum(map(len, self._waits.values())) < before

    def _send_one(self, run: Run, kind: str, waited_for: str) -> None:
        for name in list(self._waits["event"]):
            event, _, when = name.partition("@")
            if (when or event) == waited_for and (when or kind == "event"):
                self.client.send_event(run.id, event, self._waits["event"].pop(name))
        if kind == "input" and waited_for in self._waits["input"]:
            self.client.provide_input(run.id, waited_for, self._waits["input"].pop(waited_for))

    # -- executing --

    def go(self, host: str, process: Process, *, stop: threading.Event | None = None) -> None:
        """Let a process execute all there is, to the end."""
        if host == "execute":
            self._execute(process, stop)
        else:
            self._tick(process, stop)

    def _execute(self, process: Process, stop: threading.Event | None) -> None:
        assert self.flow is not None
        for _ in range(10):
            if stop is not None and stop.is_set():
                return
            if self.client.runs(key=KEY, unfinished=True) or not self.client.runs(key=KEY):
                process.durable.execute(self.flow, None, key=KEY, stop=stop)
            elif self.client.runs(unfinished=True):
                process.durable.tick(stop=stop)  # children that nobody waits for are nobody's when their process died
            if not self._to_the_next_moment():
                return
        raise AssertionError(f"never over: {self.everything()}")

    def _tick(self, process: Process, stop: threading.Event | None) -> None:
        assert self.flow is not None
        if self.run() is None:
            process.durable.start(self.flow, None, key=KEY)
        for _ in range(100):
            process.durable.tick(stop=stop)
            if stop is not None and stop.is_set():
                return
            if not self._to_the_next_moment():
                return
        raise AssertionError(f"never over: {self.everything()}")

    def _to_the_next_moment(self) -> bool:
        """Let time pass until something is due. False: all is over."""
        left = self.client.runs(unfinished=True)
        due = [run.due_at for run in left if run.due_at is not None]
        if left and all(run.due_at is None or run.due_at > self.now for run in left):
            self.pause(0.2 if not due else (min(due) - self.now) / 1000)
        return bool(left)

    def take_over(self, host: str, robbed: Process) -> None:
        """Another process takes what `robbed` executes, who does not notice, and executes all to the end."""
        self.living -= robbed.liveness.mine
        robbed.suspended_by = threading.get_ident()
        robbed.resumed.clear()
        try:
            with without_the_lock():
                self._elsewhere(host)
        finally:
            self.living |= robbed.liveness.mine
            robbed.resumed.set()

    def _elsewhere(self, host: str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.recover(host)
        else:  # an event loop cannot run inside of another
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self.recover, host).result()

    def recover(self, host: str) -> None:
        """Another process comes and goes on with all there is."""
        other = Process(self)
        try:
            self.go(host, other)
        finally:
            other.end()


class Steps:
    """Steps for the body of a case: each notes its side effect in the world."""

    def __init__(self, world: World, kind: str) -> None:
        self.world = world
        self.kind = kind
        self.child: WorkflowFunction[..., Any] | None = None

    def do(self, name: str, value: Any = None) -> Callable[..., Any]:
        """A step with that side effect and that result."""

        def step(*_: Any) -> Any:
            self.world.effect(name)
            return value

        return step_of(self.kind, step)

    def fail(self, name: str, *, times: int = 10**6, then: Any = None) -> Callable[..., Any]:
        """A step that raises so many times."""

        def step(*_: Any) -> Any:
            if self.world.effect(name) < times:
                raise Boom(name)
            return then

        return step_of(self.kind, step)

    def item(self, name: str) -> Callable[..., Any]:
        """A step for the items of a map: its side effect is `name` and the item, its result twice the item."""

        def step(item: int) -> int:
            self.world.effect(f"{name} {item}")
            return item * 2

        return step_of(self.kind, step)

    def hang(self, name: str) -> Callable[..., Any]:
        """A step that takes longer than it may."""
        if self.kind == "async":

            async def sleep() -> None:
                self.world.effect(name)
                await asyncio.sleep(60)

            return sleep

        def step() -> None:
            self.world.effect(name)
            self.world.released.wait(60)

        return step


def undone(run: Run) -> list[str]:
    """The compensations that the record demands, newest first."""
    steps = sorted((step for step in run.steps or () if step.undo_order), key=lambda step: -(step.undo_order or 0))
    return [f"undo {step.name}" for step in steps]


def first_of_each(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


ENDED_BADLY: Final = (Status.FAILED, Status.COMPENSATED, Status.COMPENSATION_FAILED)
