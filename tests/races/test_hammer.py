"""Short versions of `hammer.py`: all modes on one key, collapsed bursts, events against the end of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from crashkit import Child

HAMMER = Path(__file__).resolve().with_name("hammer.py")


@pytest.mark.parametrize(
    "options", [("--seconds", "3"), ("--burst",), ("--events", "60")], ids=["all modes", "F02 burst", "E03 events"]
)
def test_hammer(options: tuple[str, ...]) -> None:
    """No busy error, no constraint error, a sound file all the time, and replies that add up."""
    with Child([sys.executable, str(HAMMER), *options]) as child:
        ended = child.end()
    assert " 0 violations" in ended.ok().out
