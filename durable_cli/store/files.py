"""The database as a file: where it may lie, how it comes into being, and whether it is still the same one."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from pathlib import Path

from durable_cli.errors import DatabaseNotFound, DatabaseUnusable
from durable_cli.store import failures

_LONGEST_NAME = 255  # bytes, on every file system of interest
Identity = tuple[int, int]  # (device, inode)


def identity(path: str) -> Identity | None:
    """Which file is under this path now; None: none."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def make_ready(path: Path, *, create: bool) -> None:
    """Refuse a path that cannot be a database of ours; make an empty file, 0600, where nothing is and `create`.

    SQLite would make it 0644 and give the -wal and -shm files the same mode. Missing directories are made (0700):
    all of them below the home directory, elsewhere the last one only, since a longer path is rather a slip of the pen.

    Raises `DatabaseNotFound` (nothing there and not `create`), `DatabaseUnusable`, `DatabaseReadOnly`, `DiskFull`.
    """
    _refuse_name(path)
    beside = [name for name in (f"{path}-wal", f"{path}-shm") if os.path.exists(name)]  # asked first: made later
    try:
        about = os.stat(path)
    except FileNotFoundError:
        if not create:
            raise DatabaseNotFound(f"there is no database {path}") from None
        if beside:
            raise _orphaned(path, beside) from None
        _make(path)
        about = os.stat(path)
    except (OSError, ValueError) as error:
        raise failures.cannot_open(path) from error
    if stat.S_ISDIR(about.st_mode):
        raise failures.cannot_open(path)
    if not stat.S_ISREG(about.st_mode):
        raise DatabaseUnusable(f"{path} is not a regular file")
    if about.st_nlink > 1:
        raise DatabaseUnusable(
            f"{path} has {about.st_nlink} names (hard links): each would get a -wal of its own and lose commits",
            hint=f"keep one name; find the others with: find / -xdev -inum {about.st_ino}",
        )
    _refuse_strangers(path, about)


def _refuse_name(path: Path) -> None:
    """SQLite takes UTF-8, and puts files of longer names beside it: said before anything is made."""
    raw = os.fsencode(path)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise DatabaseUnusable(f"the path {str(path)!a} is not valid UTF-8") from None
    if len(os.path.basename(raw)) > _LONGEST_NAME - len("-journal"):
        raise DatabaseUnusable(
            f"the name of the file has {len(os.path.basename(raw))} bytes: names beside it would not fit"
        )


def sync_directory(folder: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_empty(path: Path) -> bool:
    """Make an empty file that only we may read, and make its name durable; False where there is one already."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        os.fchmod(descriptor, 0o600)  # a umask such as 0277 would have taken our own right away
    finally:
        os.close(descriptor)
    sync_directory(path.parent)
    return True


def give_name(part: Path, target: Path) -> None:
    """Give a file that is whole its name, but never over one that is there, as far as the file system can promise that.

    Raises FileExistsError. Where hard links work, `part` is left behind as a second name.
    """
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:  # no hard links here (FAT): look and rename
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        os.rename(part, target)


def others_may_write(about: os.stat_result) -> bool:
    """May anybody but the owner (and root) write this? His private group may."""
    mode = about.st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return False  # as in /tmp: others may add files, not touch ours
    if mode & stat.S_IWOTH:
        return True
    return bool(mode & stat.S_IWGRP) and not is_private_group(about.st_gid, about.st_uid)


def is_private_group(gid: int, uid: int) -> bool:
    """Is this the group that holds only its user, as many systems make one for each?"""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _refuse_strangers(path: Path, about: os.stat_result) -> None:
    for place, found in ((path, about), (path.parent, os.stat(path.parent))):
        if others_may_write(found):
            raise DatabaseUnusable(
                f"others may write {place} (mode {stat.S_IMODE(found.st_mode):04o}), so they could make durable run"
                " their code",
                hint=f"chmod go-w {shlex.quote(str(place))}",
            )


def _orphaned(path: Path, beside: list[str]) -> DatabaseUnusable:
    """A new database in this place would share these files with whoever has the old one open, and both would lose."""
    return DatabaseUnusable(
        f"there is no database {path}, but {' and '.join(beside)} of one that was moved or deleted",
        facts=("the last commits of that database are in its -wal file; a process may still have it open",),
        hint=f"stop all durable processes, then bring the database back, or remove {shlex.join(beside)} to begin anew",
    )


def _make(path: Path) -> None:
    folder = path.parent
    try:
        if not os.path.exists(folder):
            home = Path(os.path.realpath(os.path.expanduser("~")))
            if home not in folder.parents and not os.path.exists(folder.parent):
                raise failures.cannot_open(path)
            _make_folders(folder)
        make_empty(path)
    except OSError as error:
        if isinstance(error, PermissionError) or not failures.allowed(folder, os.W_OK):
            raise failures.read_only(path) from error
        raise failures.cannot_open(path, error.errno or 0) from error


def _make_folders(folder: Path) -> None:
    if os.path.exists(folder):
        return
    _make_folders(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return  # another process was first
    sync_directory(folder.parent)
