"""Who is alive: one byte of a private file, locked by each owner for as long as its process lives.

`<database>-lock` is opened once by each process and never closed, and owner N holds a POSIX lock on its byte N. The
kernel drops the lock when the process ends, however it ends, and at no other time: a stopped process is alive, a
zombie is dead, a forked child that outlives the owner holds nothing (measured against flock, OFD locks, pid files and
leases; RELIABILITY 2.1). A lock belongs to (process, file) and is lost when the process closes *any* descriptor of
the file. So there is one descriptor for each file in a process, whatever number of `Durable` objects use it, and the
guard refuses other opens; if it happens all the same, `reassert` takes the bytes again, and the fence of every write
(owner and epoch) makes a false "dead" a lost attempt and nothing worse.

A file system on which such locks do not work is refused when the lock file is made. A lease would be no way out:
SQLite's own exclusion is made of the same locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from durable_cli.errors import DatabaseReadOnly, DatabaseUnusable, InternalError
from durable_cli.store import failures, guard, process

Alive = Callable[[int], bool]
"""`Liveness.alive` of the file at hand."""


class Liveness(Protocol):
    """Tells living owners from dead ones."""

    def hold(self, owner_id: int) -> None:
        """Make this process that owner; called in the transaction that registers it, before its commit."""

    def release(self, owner_id: int) -> None:
        """Be that owner no longer (also when the transaction was not committed)."""

    def alive(self, owner_id: int) -> bool:
        """Does the process that is this owner live? Exact inside a write transaction."""

    def pid(self, owner_id: int) -> int | None:
        """The process that is this owner, for display; None: dead, or it cannot be told."""

    def reassert(self) -> list[int]:
        """Take this process's bytes again, should they have been lost; the owners it can no longer be."""


def lock_file_liveness(db_path: Path) -> Liveness:
    """Liveness by the lock file beside the database. Only `hold` creates it; without one all owners are dead."""
    return _ByteLocks(db_path)


def forget_lock_file(db_path: Path) -> None:
    """Close the lock file of a database that is about to be deleted, and that nobody owns anything in any more."""
    with _lock:
        for identity, file in list(_open_files.items()):
            if file.path == f"{db_path}-lock":
                del _open_files[identity]
                os.close(file.descriptor)


class _LockFile:
    """The one descriptor of this process on a lock file, and the owners that this process is in it."""

    def __init__(self, path: str, descriptor: int, *, writable: bool) -> None:
        self.path = path
        self.descriptor = descriptor
        self.writable = writable
        self.mine: set[int] = set()


_lock = threading.RLock()
_open_files: dict[tuple[int, int], _LockFile] = {}  # by (device, inode); never closed while the file is in use


def _forget() -> None:
    global _lock
    # The child inherits no locks. Its descriptors are leaked: closing them is harmless here, and of no use.
    _lock = threading.RLock()
    _open_files.clear()


process.on_fork(forget=_forget)


class _ByteLocks:
    def __init__(self, db_path: Path) -> None:
        self._database = db_path
        self._path = f"{db_path}-lock"

    def hold(self, owner_id: int) -> None:
        with _lock:
            file = self._file(create=True)
            assert file is not None
            if not _take(file, owner_id):
                raise InternalError(f"owner {owner_id} of {self._database} is another living process")

    def release(self, owner_id: int) -> None:
        with _lock:
            for file in self._ours():
                if owner_id in file.mine:
                    file.mine.discard(owner_id)
                    fcntl.lockf(file.descriptor, fcntl.LOCK_UN, 1, owner_id)

    def alive(self, owner_id: int) -> bool:
        with _lock:
            if self._is_mine(owner_id):  # a process is not told of its own locks
                return True
            try:
                file = self._file(create=False)
            except DatabaseReadOnly:
                return True  # not ours to look at: a run is never taken from an owner on a guess
            return file is not None and _probe(file.descriptor, owner_id) is not None

    def pid(self, owner_id: int) -> int | None:
        with _lock:
            if self._is_mine(owner_id):
                return os.getpid()
            try:
                file = self._file(create=False)
            except DatabaseReadOnly:
                return None
            return (_probe(file.descriptor, owner_id) or None) if file is not None else None

    def reassert(self) -> list[int]:
        with _lock:
            mine = {owner_id for file in self._ours() for owner_id in file.mine}
            if not mine:
                return []
            file = self._file(create=True)  # a new one, should the file have been deleted
            assert file is not None
            lost = sorted(owner_id for owner_id in mine if not _take(file, owner_id))
            for other in self._ours():
                if other is not file:
                    other.mine.clear()
            file.mine.difference_update(lost)
            return lost

    def _ours(self) -> list[_LockFile]:
        """By path, a deleted one too, and by what is under the path now: another name may have opened it."""
        try:
            about = os.stat(self._path)
            here = _open_files.get((about.st_dev, about.st_ino))
        except OSError:
            here = None
        return [file for file in _open_files.values() if file is here or file.path == self._path]

    def _is_mine(self, owner_id: int) -> bool:
        return any(owner_id in file.mine for file in self._ours())

    def _file(self, *, create: bool) -> _LockFile | None:
        """The lock file that is under the path now, opened by this process at most once. `create`: to lock in it."""
        try:
            about = os.stat(self._path)
            known = _open_files.get((about.st_dev, about.st_ino))
        except FileNotFoundError:
            known = None
            if not create:
                return None
        if known is not None:
            if create and not known.writable:
                raise failures.read_only(Path(self._path))
            return known
        try:
            descriptor, made, writable = self._open(create)
        except FileNotFoundError:  # deleted since we looked
            return None
        about = os.fstat(descriptor)
        if made and not _locks_work(self._path, descriptor):
            raise DatabaseUnusable(
                f"byte locks do not work on the file system of {self._database}; SQLite is not safe there either",
                hint="--db on a local disk",
            )
        file = _LockFile(self._path, descriptor, writable=writable)
        _open_files[about.st_dev, about.st_ino] = file
        guard.protect_file(self._path)
        return file

    def _open(self, create: bool) -> tuple[int, bool, bool]:
        """A descriptor, whether this call made the file, and whether it can be locked in.

        A new one is 0600, and the database's owner's when root makes it. Also who only asks opens it for writing if
        he may: he may want to hold a byte later, and there is but one descriptor.
        """
        flags = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        try:
            if create:
                try:
                    descriptor = os.open(self._path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                except FileExistsError:
                    return os.open(self._path, flags | os.O_RDWR), False, True
                os.fchmod(descriptor, 0o600)
                owner = os.stat(self._database)
                if os.geteuid() == 0 and owner.st_uid != 0:
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
                return descriptor, True, True
            try:
                return os.open(self._path, flags | os.O_RDWR), False, True
            except PermissionError:
                return os.open(self._path, flags | os.O_RDONLY), False, False
        except PermissionError as error:
            raise failures.read_only(Path(self._path)) from error
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not create:
                raise
            raise DatabaseUnusable(f"cannot open the lock file {self._path}: {error.strerror}") from error


def _take(file: _LockFile, owner_id: int) -> bool:
    """Lock the byte, at once or not at all. Taking one that we have changes nothing."""
    try:
        fcntl.lockf(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, owner_id)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise DatabaseUnusable(f"the file system of {file.path} refuses byte locks: {error.strerror}") from error
    file.mine.add(owner_id)
    return True


# The kernel's `struct flock`, and where its type and pid are. Elsewhere probing is trying to lock.
_LAYOUT: tuple[str, int, int] | None
if sys.platform == "linux" and struct.calcsize("P") == 8:
    _LAYOUT = ("hhqqi4x", 0, 4)  # type, whence, start, length, pid
elif sys.platform == "darwin":
    _LAYOUT = ("qqihh", 3, 2)  # start, length, pid, type, whence
else:
    _LAYOUT = None


def _probe(descriptor: int, byte: int, command: int = fcntl.F_GETLK) -> int | None:
    """Who holds this byte: None: nobody; a pid; 0: somebody without a name here (another pid namespace)."""
    if _LAYOUT is None:
        return _try(descriptor, byte)
    layout, kind, pid = _LAYOUT
    if sys.platform == "darwin":
        question = struct.pack(layout, byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    else:
        question = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer = struct.unpack(layout, fcntl.fcntl(descriptor, command, question))
    return None if answer[kind] == fcntl.F_UNLCK else max(int(answer[pid]), 0)


def _try(descriptor: int, byte: int) -> int | None:
    """As `_probe`, by taking the byte for an instant. Two that try at once see each other: write transactions only."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, byte)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return 0
        raise
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)
    return None


def _locks_work(path: str, descriptor: int) -> bool:
    """Is a lock on this new file seen from outside? True where that cannot be asked.

    Byte 0 is no owner's. A second description of the file asks as another process would; closing it drops our locks
    on the file, which is why only the process that made the file, and has no other lock in it, asks.
    """
    ask = getattr(fcntl, "F_OFD_GETLK", None)
    if ask is None or _LAYOUT is None:
        return True
    other = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        return _probe(other, 0, ask) is not None
    except OSError as error:
        return error.errno == errno.EINVAL  # a kernel without this question
    finally:
        os.close(other)
