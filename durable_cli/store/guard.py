"""The guard: no second SQLite, and no plain `open`, on the database's files in a process that has them open.

POSIX locks belong to (process, file), and any `close` of any descriptor of the file drops all of them. A step that
looks into the database with the standard library's `sqlite3`, or a backup job that copies it, would let other
processes write into the middle of our transactions and delete the live WAL: 1,148 of 1,149 acknowledged commits were
lost when it was tried. So an audit hook, installed when the first database is opened, refuses such calls with
`EngineFileOpened`: a `PermissionError`, so that what walks folders can skip the file as it skips others.

Every `open` by path costs one `stat` more (3 of 16 microseconds), so symlinks, hard links and relative paths are seen.
Not seen: `ATTACH` on a connection of the standard library to another file, native code that opens files itself, and
`dir_fd` (a relative name is looked up in the current directory, as if there were none). apsw is allowed: it is the
same SQLite, which knows its own locks.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any

from durable_cli.errors import EngineFileOpened
from durable_cli.store import process

_BESIDE = ("", "-wal", "-shm")

_users: dict[str, int] = {}  # connections of this process by database path
_files: dict[tuple[int, int], str] = {}  # (device, inode) -> path of the files nobody else may open
_installed = False
# Its own: whoever waits for a database holds the lock of the process, and may wait for a caller of these.
_lock = threading.RLock()


def protect(path: Path) -> None:
    """One more connection of this process is on the database at `path`."""
    with _lock:
        _users[str(path)] = _users.get(str(path), 0) + 1
        refresh(path)


def refresh(path: Path) -> None:
    """Look again which files the database at `path` consists of: its -wal and -shm come later than itself."""
    for suffix in _BESIDE:
        protect_file(str(path) + suffix)


def release(path: Path) -> None:
    """One connection less; after the last one the files may be opened again (durable's lock file never)."""
    with _lock:
        left = _users.pop(str(path), 0) - 1
        if left > 0:
            _users[str(path)] = left
            return
        ours = {str(path) + suffix for suffix in _BESIDE}
        for identity in [identity for identity, name in list(_files.items()) if name in ours]:
            _files.pop(identity, None)


def protect_file(path: str) -> None:
    """Guard this one file for the life of the process, or until `release` of its database. Absent: nothing."""
    try:
        about = os.stat(path)
    except OSError:
        return
    _files[about.st_dev, about.st_ino] = path
    _install()


def _install() -> None:
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_hook())


def _hook() -> Any:
    # Everything is bound here: the hook is still called while the interpreter is taken down, without our globals.
    files, look, fsdecode, refusal = _files, os.stat, os.fsdecode, _refusal
    failures = (OSError, ValueError, TypeError)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if (event != "open" and event != "sqlite3.connect") or not files:
            return
        asked = arguments[0]
        if isinstance(asked, int) or asked is None:
            return
        try:
            name = fsdecode(asked)
        except failures:
            return
        for candidate in (name,) if event == "open" else _meanings(name):
            try:
                about = look(candidate)
                guarded = files.get((about.st_dev, about.st_ino))
                if guarded is None:
                    continue
                now = look(guarded)
            except failures:
                continue
            if (now.st_dev, now.st_ino) == (about.st_dev, about.st_ino):
                raise refusal(name)
            # The guarded file is gone and its inode number belongs to another file now.
            files.pop((about.st_dev, about.st_ino), None)

    return hook


def _meanings(name: str) -> tuple[str, ...]:
    """The paths that sqlite3 may open for this name: the name itself, and the path of a URI."""
    if not name.startswith("file:"):
        return (name,)
    from urllib.parse import unquote

    place = name[5:].split("#", 1)[0].split("?", 1)[0]
    if place.startswith("//"):
        place = "/" + place[2:].partition("/")[2]
    return (name, unquote(place))


def _refusal(name: str) -> EngineFileOpened:
    return EngineFileOpened(
        errno.EACCES,
        "durable has this file open in this process; opening it here a second time would drop durable's locks and"
        " lose commits. Read it from another process, or copy it with `durable db backup`",
        name,
    )


def _forget() -> None:
    # The locks stay with the parent, so nothing here can be lost.
    global _lock
    _lock = threading.RLock()
    _users.clear()
    _files.clear()


process.on_fork(forget=_forget)
