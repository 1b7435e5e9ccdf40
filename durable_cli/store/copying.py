"""Copies of a database that other processes go on using: for a backup, and before a migration.

`VACUUM INTO` reads one snapshot, keeps nobody waiting and writes a file without a log beside it, which is why it is
used and no copy of the file (which lacks what is in the -wal) nor SQLite's backup interface (which begins anew at every
commit of another process, and under a busy worker never ends). The copy comes into being under another name and is
checked before it gets its own: under that name there is a sound copy, or nothing.
"""

from __future__ import annotations

import errno
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import apsw

from durable_cli.errors import DatabaseCorrupt, DiskFull, DurableError, NotFound, UsageError
from durable_cli.store import failures, files

_RESERVED = ("", "-wal", "-shm", "-lock", "-journal")


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy that was made: where it is, and its size."""

    path: Path
    bytes: int


def refuse(target: Path, source: Path) -> Path:
    """Where a backup of `source` to `target` goes, absolute. Raises what is wrong with the place.

    UsageError: something is there already, or it is a name that SQLite or durable uses beside a database. NotFound:
    there is no such directory.
    """
    folder = Path(os.path.realpath(target.parent))
    place = folder / target.name
    if str(place) in {f"{source}{suffix}" for suffix in _RESERVED}:
        raise UsageError(f"{place} belongs to the database that is to be backed up", hint="name another file")
    if not os.path.isdir(folder):
        raise NotFound(f"there is no directory {folder}", hint=f"mkdir -p {shlex.quote(str(folder))}")
    if target.name in ("", "..") or os.path.isdir(place):
        raise UsageError(f"{place} is a directory; name the file that the backup is to be")
    if os.path.lexists(place):
        raise UsageError(f"{place} is there already; a backup replaces nothing", hint="name a new file, or remove it")
    return place


def copy(
    connection: apsw.Connection, source: Path, target: Path, *, replace: bool = False, vfs: str | None = None
) -> int:
    """Copy the database of `connection`, which is `source`, to `target`; how many bytes that is.

    `replace`: also over a copy that is there. Raises DiskFull, DatabaseCorrupt (of the source, or of what was
    written), DurableError (the place cannot be written); then nothing is left behind.
    """
    part = target.with_name(f"{target.name}.part" if replace else f".durable-{os.urandom(6).hex()}.part")
    try:
        if replace:
            part.unlink(missing_ok=True)  # of one that was killed here
        files.make_empty(part)  # 0600 from its first moment; VACUUM would make it 0644
        _write(connection, source, part)
        _check(part, vfs)
        size = _sync(part)
        if replace:
            os.replace(part, target)
        else:
            files.give_name(part, target)
        return size
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(target) from error
        raise DurableError(f"cannot write a copy of {source} to {target}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
        if os.path.isdir(target.parent):
            files.sync_directory(target.parent)


def _write(connection: apsw.Connection, source: Path, part: Path) -> None:
    try:
        connection.execute("VACUUM INTO ?", (str(part),)).fetchall()
    except apsw.FullError as error:
        raise _full(part) from error
    except apsw.Error as error:
        failure = failures.translate(error, source, connection.system_errno)
        raise _full(part) if isinstance(failure, DiskFull) else failure from error


def _check(part: Path, vfs: str | None) -> None:
    """Read back what was written. Nobody else knows the file, so no lock and no log is made for that."""
    from urllib.parse import quote

    place = f"file:{quote(str(part))}?immutable=1"
    reader = apsw.Connection(place, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, vfs=vfs)
    try:
        found = [str(row[0]) for row in reader.execute("PRAGMA integrity_check").fetchall()]
    except apsw.Error as error:
        found = [str(error)]
    finally:
        reader.close()
    if found != ["ok"]:
        raise DatabaseCorrupt(
            f"the copy is damaged, and was thrown away: {found[0]}", hint="durable db check   # is the database sound?"
        )


def _sync(part: Path) -> int:
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _full(place: Path) -> DiskFull:
    free = failures.free_bytes(place)
    facts = () if free is None else (f"{free >> 20} MiB are free on that file system",)
    return DiskFull(f"no space left for a copy of the database in {place.parent}", facts=facts, hint="free some space")
