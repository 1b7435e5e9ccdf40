"""A02: start, finish, start: many processes on one key for a few seconds, and every answer is checked at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from crashkit import Child

SOAK = Path(__file__).resolve().parents[1] / "crash" / "soak.py"


@pytest.mark.parametrize("keys", ["1", "2"])
def test_every_answer_holds(keys: str) -> None:
    """Each is a run that can be read at once, or a named refusal with a holder that can be read. Key 1 is one that
    nobody cancels, so the executions of two runs may never mix; with 2 keys the other one is cancelled and replaced."""
    argv = [sys.executable, str(SOAK), "--kills", "0", "--seconds", "2", "--keys", keys, "--executors", "6"]
    with Child(argv) as child:
        ended = child.end().ok()
    assert " 0 violations" in ended.out
