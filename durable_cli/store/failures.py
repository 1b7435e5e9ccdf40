"""SQLite's errors as ours: one clear message each, with the path, the owner and the remedy.

SQLite says "unable to open database file" for six different things and "disk I/O error" for a full disk, so the
reason is looked up here, after the fact.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from pathlib import Path
from typing import Final

import apsw

from durable_cli.errors import (
    DatabaseCorrupt,
    DatabaseLocked,
    DatabaseNotFound,
    DatabaseReadOnly,
    DatabaseReplaced,
    DatabaseUnusable,
    DiskError,
    DiskFull,
    DurableError,
    InternalError,
    OutcomeUnknown,
)

_NO_SPACE = frozenset({apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE})
_FULL_BELOW = 1 << 20  # bytes; with less than this left a failure to create a file is a full disk


RESTORE: Final = "restore the last backup, with all durable processes stopped"
HOW_MUCH: Final = f"durable db check   # how much of it; then {RESTORE}"


def translate(error: apsw.Error, path: Path, system_errno: int = 0) -> DurableError:
    """The error of ours that says what `error` means for the database at `path`.

    `system_errno` is the operating system's number behind it (`Connection.system_errno`), 0 if unknown.
    """
    code = getattr(error, "extendedresult", 0)
    if isinstance(error, (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)):
        return locked(path)
    if isinstance(error, apsw.FullError):
        return disk_full(path)
    if isinstance(error, apsw.ReadOnlyError):
        return replaced(path) if code == apsw.SQLITE_READONLY_DBMOVED else read_only(path)
    if isinstance(error, apsw.IOError):
        if code == apsw.SQLITE_IOERR_CORRUPTFS:
            return _corrupt(path, error)
        if (code in _NO_SPACE and system_errno != errno.EIO) or system_errno in (errno.ENOSPC, errno.EDQUOT):
            return disk_full(path)
        return DiskError(
            f"the disk failed under {path}: {error}", hint="look at the system's log, then durable db check"
        )
    if isinstance(error, apsw.NotADBError):
        return DatabaseCorrupt(
            f"{path} is not an SQLite database", hint="give another path with --db, or restore a backup over it"
        )
    if isinstance(error, apsw.CorruptError):
        return _corrupt(path, error)
    if isinstance(error, (apsw.CantOpenError, apsw.PermissionsError)):
        return cannot_open(path, system_errno)
    return InternalError(f"SQLite refused a statement on {path}: {type(error).__name__}: {error}")


def locked(path: Path, *, here: bool = False) -> DatabaseLocked:
    """Somebody else held the write lock for as long as we wait. `here`: a connection of this very process."""
    facts = ("an apsw connection of this process has a write transaction on it: pass connection=, or commit it first",)
    return DatabaseLocked(
        f"the database {path} stayed locked for 30 s; nothing was written",
        facts=facts if here else (),
        hint=f"try again; if it stays so, a process stopped in the middle of a write: fuser {_quoted(path)}",
    )


def unknown(path: Path, failure: DurableError) -> OutcomeUnknown:
    """COMMIT failed in a way that leaves open whether it is done."""
    return OutcomeUnknown(
        f"the disk failed while a change was written to {path}, and whether it is there cannot be told",
        facts=(failure.message,),
        hint="mend the disk, then look the run up before you start it again",
    )


def disk_full(path: Path) -> DiskFull:
    """No space, or a limit that has the same effect (quota, `ulimit -f`)."""
    facts: tuple[str, ...] = ()
    free = free_bytes(path)
    if free is not None:
        facts = (f"{free >> 20} MiB are free on that file system",)
        if free > _FULL_BELOW:
            facts += ("a quota or a limit on the size of files (ulimit -f) may be what stopped it",)
    return DiskFull(
        f"no space left to write the database {path}; what was acknowledged is intact",
        facts=facts,
        hint="free some space and try again",
    )


def read_only(path: Path) -> DatabaseReadOnly:
    """The file, or the directory that has to take the files beside it, cannot be written by us."""
    if os.path.exists(path) and not allowed(path, os.W_OK):
        return DatabaseReadOnly(
            f"cannot write the database {path}",
            facts=_why(path),
            hint=f"run as its owner, or chmod u+w {_quoted(path)}",
        )
    folder = _nearest(path.parent)
    if not allowed(folder, os.W_OK):
        for_what = f"where SQLite keeps the -wal and -shm files of {path.name}"
        if folder != path.parent:
            for_what = f"to make the directory {path.parent} there"
        return DatabaseReadOnly(
            f"cannot write in the directory {folder}, {for_what}",
            facts=_why(folder),
            hint=f"run as its owner, or chmod u+w {_quoted(folder)}",
        )
    return DatabaseReadOnly(f"the database {path} cannot be written", facts=_why(path))


def replaced(path: Path) -> DatabaseReplaced:
    """The file we have open is no longer the file under its path."""
    return DatabaseReplaced(
        f"{path} was deleted or replaced while it was in use; nothing more is written to the old one",
        hint="stop all durable processes before you move or restore the database, then start again",
    )


def cannot_open(path: Path, system_errno: int = 0) -> DurableError:
    """Why the file cannot be opened, as far as it can be seen from outside."""
    if system_errno in (errno.EMFILE, errno.ENFILE):
        return DatabaseUnusable(f"cannot open {path}: too many open files", hint="raise the limit: ulimit -n")
    folder = path.parent
    try:
        about = os.stat(path)
    except FileNotFoundError:
        if not os.path.exists(folder):
            return DatabaseUnusable(
                f"cannot open {path}: the directory {folder} does not exist", hint=f"mkdir -p {_quoted(folder)}"
            )
        return DatabaseNotFound(f"there is no database {path}")
    except NotADirectoryError:
        return DatabaseUnusable(f"cannot open {path}: {folder} is not a directory")
    except PermissionError:
        return DatabaseUnusable(
            f"cannot open {path}: no permission to enter its directory", facts=_why(_nearest(path.parent))
        )
    except (OSError, ValueError) as error:
        return DatabaseUnusable(f"cannot open {path}: {error}")
    if stat.S_ISDIR(about.st_mode):
        return DatabaseUnusable(f"{path} is a directory, not a database", hint=f"--db {_quoted(path / 'durable.db')}")
    if not allowed(path, os.R_OK):
        return DatabaseUnusable(f"no permission to read the database {path}", facts=_why(path))
    free = free_bytes(path)
    if free is not None and free < _FULL_BELOW:
        return disk_full(path)
    if not allowed(path, os.W_OK) or not allowed(folder, os.W_OK):
        return read_only(path)
    return DatabaseUnusable(f"cannot open the database {path}: {os.strerror(system_errno or errno.EIO)}")


def allowed(path: Path, mode: int) -> bool:
    """May this process, with its effective user, do this to the path?"""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def free_bytes(path: Path) -> int | None:
    """Bytes free for us where the path is; None where that cannot be told."""
    try:
        about = os.statvfs(path.parent)
    except (OSError, AttributeError):
        return None
    return about.f_bavail * about.f_frsize


def owner_name(uid: int) -> str:
    """The user's name, or the number where it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _quoted(path: Path) -> str:
    """A path as a shell takes it."""
    return shlex.quote(str(path))


def _why(path: Path) -> tuple[str, ...]:
    try:
        about = os.stat(path)
        mounted = os.statvfs(path).f_flag
    except OSError:
        return ()
    if mounted & os.ST_RDONLY:
        return (f"the file system of {path} is mounted read-only",)
    return (
        f"{path} belongs to {owner_name(about.st_uid)} (mode {stat.S_IMODE(about.st_mode):04o});"
        f" this process runs as {owner_name(os.geteuid())}",
    )


def _nearest(folder: Path) -> Path:
    """The deepest directory on the way that can be looked at: the one that bars the way."""
    for place in (folder, *folder.parents):
        try:
            os.stat(place)
        except OSError:
            continue
        return place
    return folder


def _corrupt(path: Path, error: apsw.Error) -> DatabaseCorrupt:
    return DatabaseCorrupt(
        f"the database {path} is damaged: {error}",
        hint=HOW_MUCH,
    )
