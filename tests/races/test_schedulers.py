"""Several schedulers on one file, and none the leader: I05, I06."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from crashkit import SUPPORT, Child, python, until
from scheduler import read, tell, write

from durable_cli import Durable

T0, M = 1_800_000_000_000, 60_000
MINUTES = range(1, 11)


class Schedulers:
    """Processes by name, and their clocks."""

    def __init__(self, folder: Path, db: Path, stack: ExitStack) -> None:
        self._folder, self._db, self._stack = folder, db, stack
        self.children: dict[str, Child] = {}

    def begin(self, name: str, at: int) -> None:
        self.show(at, [name])
        script = str(SUPPORT / "scheduler.py")
        self.children[name] = self._stack.enter_context(python(script, str(self._db), str(self._folder), name))

    def show(self, at: int, names: Iterable[str] | None = None) -> None:
        """Their clocks (all clocks, one right after the other) say this."""
        for name in self.children if names is None else names:
            write(self._folder / f"{name}.clock", at)

    def wait_swept(self, at: int, *names: str) -> None:
        """Each has looked at the file since its clock said so, and has nothing left to execute."""
        for name in names:
            until(lambda name=name: self._has_swept(name, at), f"{name} at {at}")

    def _has_swept(self, name: str, at: int) -> bool:
        assert not self.children[name].over(), self.children[name].end()
        return read(self._folder / f"{name}.swept") == at

    def stop_at_next_fire(self, name: str) -> None:
        """Once it executes no run any more: a thread of its own would be stopped with it in the middle of a write."""
        swept = self._folder / f"{name}.swept"
        with Durable(self._db) as it:
            until(lambda: not it.runs(unfinished=True), "the end of all runs")
        swept.unlink()
        until(swept.exists, f"{name}, with nothing in hand")
        (self._folder / f"{name}.stop").touch()

    def end(self) -> None:
        for name in self.children:
            (self._folder / f"{name}.clock").unlink(missing_ok=True)
        for child in self.children.values():
            child.end().ok()


@pytest.fixture
def schedulers(tmp_path: Path) -> Iterator[Schedulers]:
    db = tmp_path / "durable.db"
    with Durable(db, clock=lambda: T0) as it:
        it.schedule("s", "* * * * *", tell, timezone="UTC")
    with ExitStack() as stack:
        yield Schedulers(tmp_path, db, stack)


def test_each_due_minute_is_fired_once(schedulers: Schedulers, tmp_path: Path) -> None:
    """Ten minutes, three schedulers. One has seen the fourth minute due and is stopped over it and the next; one is
    killed in the sixth and comes back in the eighth. Ten fires, ten runs, all completed."""
    for name in "abc":
        schedulers.begin(name, T0)
    for minute in MINUTES:
        at = T0 + minute * M
        if minute == 4:
            schedulers.stop_at_next_fire("a")
            schedulers.show(at, "a")  # its clock is a little ahead
            schedulers.children["a"].wait_stopped()
        if minute == 6:
            schedulers.show(at, "c")
            schedulers.children.pop("c").kill()
        if minute == 8:
            schedulers.begin("c", at)
        schedulers.show(at)
        awake = [name for name in schedulers.children if not (name == "a" and minute == 4)]
        if minute == 5:
            schedulers.wait_swept(at, "b", "c")
            schedulers.children["a"].go_on()
        schedulers.wait_swept(at, *awake)
    schedulers.end()
    with Durable(tmp_path / "durable.db") as it:
        fires = it.schedule_fires("s", limit=100)
        assert [fire.due_at for fire in fires] == [T0 + minute * M for minute in reversed(MINUTES)]
        assert [fire.outcome for fire in fires] == ["created"] * 10
        assert sorted(run.id for run in it.runs()) == sorted(str(fire.run_id) for fire in fires)
        assert {str(run.status) for run in it.runs()} == {"completed"}
        one = it.find_schedule("s")
        assert (one.fires, one.missed, one.failures) == (10, 0, 0)
        assert it.check() == []
