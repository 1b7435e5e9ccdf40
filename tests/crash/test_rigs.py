"""The short versions of the rigs: each is a command of its own that takes minutes when asked for all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from crashkit import Child, Ended

HERE = Path(__file__).resolve().parent


def rig(name: str, *options: str) -> Ended:
    """Run a rig to its end."""
    with Child([sys.executable, str(HERE / name), *options]) as child:
        return child.end()


def test_random_kills() -> None:
    """60 processes are killed at random moments: nothing acknowledged is lost, nothing recorded is executed again, and
    nothing is stuck."""
    ended = rig("soak.py", "--kills", "60").ok()
    assert " 0 violations" in ended.out


def test_kills_at_system_calls() -> None:
    """16 of the system calls of a process that starts, executes and replaces runs: killed there, and looked at."""
    ended = rig("syscalls.py", "--points", "16")
    if ended.code == 77:
        pytest.skip(ended.out.strip())
    assert " 0 violations" in ended.ok().out
