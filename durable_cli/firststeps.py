"""The first workflow that `durable init` writes: it runs as it stands, and is there to be changed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from durable_cli.errors import DiskFull, DurableError, NotFound, UsageError
from durable_cli.store import files

FILE: Final = "flows.py"
TEXT: Final = '''\
"""A first workflow. Run it:

    durable run flows.py --key first

Kill it in the middle (Ctrl-C, kill -9) and run the same line again: the same run goes on, and no finished step is
executed a second time. A second copy that is started meanwhile gets the run that is there.
"""

from durable_cli import Context, Retry, workflow


def fetch(count: int) -> list[int]:
    """A step: whatever takes time, may fail, or must not happen twice."""
    print("fetching", count, "rows")
    return list(range(1, count + 1))


def store(rows: list[int]) -> str:
    """Another one. What a step returns is recorded as JSON."""
    return f"stored {len(rows)} rows, {sum(rows)} in total"


@workflow(reuse="after_close", on_duplicate="use_existing")
def NAME(ctx: Context, count: int = 3) -> str:
    """The code around the steps runs again from its top after each wait; recorded steps answer at once."""
    rows = ctx.run("fetch", fetch, count, retry=Retry(max_attempts=3))
    ctx.sleep("let the other side breathe", "2s")
    return ctx.run("store", store, rows)
'''


def write(target: Path, name: str) -> None:
    """Write the workflow, called `name`, to a new file. Its directory is made if only that is missing.

    The file comes into being whole, or not at all. Raises UsageError (something is there already), NotFound (no
    directory above), DiskFull, DurableError (cannot be written).
    """
    refuse(target)
    folder, made = target.parent, False
    part = folder / f".{FILE}-{os.urandom(6).hex()}.part"
    try:
        made = _make(folder)
        _fill(part, TEXT.replace("NAME", name).encode())
        files.give_name(part, target)
    except OSError as error:
        refuse(target)
        if made:
            part.unlink(missing_ok=True)
            folder.rmdir()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space left to write {target}", hint="free some space") from error
        raise DurableError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    files.sync_directory(folder)


def refuse(target: Path) -> None:
    """Raise UsageError, with what is there, where something has that name; NotFound where there is no directory."""
    folder = target.parent
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{folder} is no directory", hint="durable init DIR")
    if not folder.parent.is_dir():
        raise NotFound(f"there is no directory {folder.parent}", hint=f"mkdir -p {folder.parent}")
    if not os.path.lexists(target):
        return
    about = os.lstat(target)
    what = f"a file of {about.st_size} bytes"
    if stat.S_ISLNK(about.st_mode):
        what = f"a link to {os.readlink(target)}"
    elif stat.S_ISDIR(about.st_mode):
        what = "a directory"
    raise UsageError(
        f"{target} is there already; init replaces nothing",
        facts=(f"it is {what}",),
        hint=f"durable run {target}" if stat.S_ISREG(about.st_mode) else "durable init DIR",
    )


def _make(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o755)
    except FileExistsError:
        return False
    return True


def _fill(part: Path, data: bytes) -> None:
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
