"""What all tests share: a file of their own, and a clock that only they move."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_cli import Durable
from durable_cli import definition as definitions


class Clock:
    """A wall clock in ms UTC that stands still until somebody sleeps or moves it."""

    def __init__(self, now: int = 1_800_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        self.now += ms

    def sleep(self, seconds: float) -> None:
        self.now += max(1, round(seconds * 1000))


@pytest.fixture()
def clock() -> Clock:
    return Clock()


@pytest.fixture()
def db(tmp_path: Path) -> Path:
    return tmp_path / "durable.db"


@pytest.fixture()
def durable(db: Path, clock: Clock) -> Iterator[Durable]:
    """The library on a fresh file, with a clock that jumps where it would sleep."""
    with Durable(db, clock=clock, sleep=clock.sleep, dice=random.Random(1).random) as it:
        yield it


@pytest.fixture(autouse=True)
def _own_definitions() -> Iterator[None]:
    """Workflows that a test defines are gone after it."""
    before = {definition.name for definition in definitions.definitions()}
    yield
    for definition in definitions.definitions():
        if definition.name not in before:
            definitions.forget(definition.name)
