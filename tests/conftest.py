"""What all tests share: a file of their own, and a clock that only they move."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_cli import Durable
from durable_cli import definition as definitions
from durable_cli.pytest_plugin import durable_engine, pytest_configure
from durable_cli.testing import Clock, Engine

__all__ = ["durable_engine", "pytest_configure"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "durable.db"


@pytest.fixture
def durable(db: Path, clock: Clock) -> Iterator[Durable]:
    """The library on a fresh file, with a clock that jumps where it would sleep."""
    with Engine(db, clock=clock, one_at_a_time=False) as engine:
        yield engine.durable


@pytest.fixture(autouse=True)
def _own_definitions() -> Iterator[None]:
    """Workflows that a test defines are gone after it."""
    before = {definition.name for definition in definitions.definitions()}
    yield
    for definition in definitions.definitions():
        if definition.name not in before:
            definitions.forget(definition.name)


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Modules that a test loaded from a temporary folder are gone after it: the next test has a `flows` of its own."""
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    temporary = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(temporary):
            del sys.modules[name]


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Ids that are the same in every process (pytest-xdist compares them): sets in order, no addresses."""
    if isinstance(val, set | frozenset):
        return ",".join(sorted(map(str, val)))[:60]
    try:
        shown = repr(val)
    except ValueError:  # an integer too long to be written
        return type(val).__name__
    return re.sub(r" at 0x[0-9a-f]+", "", shown)[:60] if " at 0x" in shown else None
