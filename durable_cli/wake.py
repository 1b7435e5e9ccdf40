"""Waking workers: a datagram to each live worker's socket beside the database.

Only a hint: whoever misses one looks again half a second later, and nothing is believed that the file does not say.
Where the path is too long for a socket's address (about 100 bytes), there is no socket and polling alone remains.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import cast

_LONGEST_ADDRESS = 100


def address(database: Path, worker: int) -> str | None:
    """The address of a worker's socket, if there can be one."""
    path = f"{database}-worker-{worker}"
    return path if len(os.fsencode(path)) <= _LONGEST_ADDRESS else None


def ring(database: Path, workers: Iterable[int]) -> None:
    """Tell workers to look; those that are gone are passed over."""
    for worker in workers:
        path = address(database, worker)
        if path is None:
            continue
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
                bell.setblocking(False)
                bell.sendto(b"!", path)
        except OSError:
            pass  # gone, or its buffer is full of the same message


def remove(database: Path, worker: int) -> None:
    """The worker is gone: so is its socket."""
    path = address(database, worker)
    if path is not None:
        try:
            os.unlink(path)
        except OSError:
            pass


class Bell:
    """What a worker waits on: its socket, and its own threads. Safe to `ring` from any thread."""

    def __init__(self, database: Path, worker: int) -> None:
        self._database, self._worker = database, worker
        self._inner, self._outer = socket.socketpair()
        self._sockets = [self._inner]
        path = address(database, worker)
        if path is not None:
            remove(database, worker)
            outside = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            old = os.umask(0o177)  # only the owner of the file may ring
            try:
                outside.bind(path)
                self._sockets.append(outside)
            except OSError:
                outside.close()  # a file system without sockets
            finally:
                os.umask(old)
        for each in (*self._sockets, self._outer):
            each.setblocking(False)
        self._selector = selectors.DefaultSelector()  # not `select`: it ends at the 1024th open file of a process
        for each in self._sockets:
            self._selector.register(each, selectors.EVENT_READ)

    def ring(self) -> None:
        """Wake the waiting thread."""
        try:
            self._outer.send(b"!")
        except OSError:
            pass  # full: it is awake already; closed: nobody waits

    def wait(self, seconds: float) -> bool:
        """Wait until somebody rings, at most so long. Did somebody?"""
        ready = self._selector.select(max(0.0, seconds))
        for key, _ in ready:
            try:
                while cast(socket.socket, key.fileobj).recv(64):
                    pass
            except OSError:
                pass  # emptied
        return bool(ready)

    def close(self) -> None:
        """Nobody waits any more."""
        remove(self._database, self._worker)
        self._selector.close()
        for each in (*self._sockets, self._outer):
            each.close()
