"""VACUUM: the file without the space that pruned runs left, while other processes use it.

SQLite writes the whole content twice, into a temporary file and into the -wal, in one transaction: whoever reads sees
the old content, whoever writes waits, and a crash or a full disk in the middle leaves the file as it was. So there has
to be space for that, and nobody may have to wait for longer than writers do (`contention.DEADLINE`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import apsw

from durable_cli.errors import DiskFull
from durable_cli.store import checkpoint, failures, joined
from durable_cli.store.database import Database

_TEMPORARY = ("/var/tmp", "/usr/tmp", "/tmp", ".")  # where SQLite looks, after its two variables
_LOOK_EVERY = 100_000  # instructions of SQLite's machine; some milliseconds


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What it did: the size of the content before and after. `log_emptied`: the file itself has become smaller too;
    else a process that reads was in the way, and it will when that has gone."""

    bytes_before: int
    bytes_after: int
    log_emptied: bool


def content_bytes(database: Database) -> int:
    """How much VACUUM has to write: the pages in use."""
    pages, free, size = database.read(
        lambda tx: [tx.value(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")]
    )
    return int((pages - free) * size)


def vacuum(database: Database) -> Vacuumed:
    """Rewrite the file without its free space. Waits for whoever writes.

    Raises DiskFull (also before anything is written, if there is too little space), DatabaseLocked; nothing has changed
    then. A KeyboardInterrupt is heard in the middle.
    """
    joined.refuse_to_wait(database.path)
    _refuse_without_space(database.path, content_bytes(database))
    with database._alone():
        connection = database._ready(create=False)
        database._check_identity()
        before = _size(connection)
        connection.set_progress_handler(_go_on, _LOOK_EVERY)
        try:
            connection.execute("VACUUM").fetchall()
            after = _size(connection)
        except apsw.Error as error:
            raise failures.translate(error, database.path, connection.system_errno) from error
        finally:
            connection.set_progress_handler(None)
    return Vacuumed(before, after, checkpoint.shrink_log(database, larger_than=0))


def _go_on() -> bool:
    """Called now and then in the middle: Python runs the handlers of signals in it, and what they raise ends VACUUM."""
    return False


def _size(connection: apsw.Connection) -> int:
    return int(connection.pragma("page_count")) * int(connection.pragma("page_size"))


def _refuse_without_space(path: Path, content: int) -> None:
    wanted: dict[int, int] = {}
    for folder in (path.parent, _temporary_folder()):
        device = os.stat(folder).st_dev
        wanted[device] = wanted.get(device, 0) + content
        free = failures.free_bytes(folder / "file")
        if free is not None and free < wanted[device]:
            raise DiskFull(
                f"vacuuming {path} needs {_mib(wanted[device])} MiB in {folder} for a while",
                facts=(f"{free >> 20} MiB are free on that file system",),
                hint="free some space, or name another folder for temporary files: SQLITE_TMPDIR",
            )


def _temporary_folder() -> Path:
    """Where SQLite makes its temporary files."""
    named = (os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), *_TEMPORARY)
    fit = (name for name in named if name and os.path.isdir(name) and os.access(name, os.W_OK | os.X_OK))
    return Path(next(fit, "."))


def _mib(size: int) -> int:
    return -(-size // (1 << 20))
