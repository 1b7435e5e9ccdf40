"""The files of the engine's tests lie in memory where there is such a place: they prove logic, not the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Path]:
    """The path of a file that is not there yet."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        yield tmp_path / "durable.db"
        return
    folder = Path(tempfile.mkdtemp(prefix="durable-test-", dir=_MEMORY))
    yield folder / "durable.db"
    shutil.rmtree(folder, ignore_errors=True)
