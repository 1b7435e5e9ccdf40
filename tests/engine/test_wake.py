"""What wakes a worker."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from durable_cli.wake import Bell, ring


def test_a_bell_is_heard_in_a_process_with_many_open_files(db: Path) -> None:
    """`select` refuses descriptors from 1024 on, and took a worker with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip("this machine allows fewer open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1024:
            opened.append(os.dup(opened[0]))
        bell = Bell(db, 1)
        try:
            assert not bell.wait(0)
            bell.ring()
            assert bell.wait(5)
            ring(db, [1])
            assert bell.wait(5)
            assert not bell.wait(0)
        finally:
            bell.close()
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
