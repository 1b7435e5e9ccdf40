"""Where code is: the place of a function, the module of a file, and whether a place can be trusted."""

from __future__ import annotations

import inspect
import os
import stat
import sys
import types
from typing import Final

from durable_cli.errors import UnsafeCode
from durable_cli.model import Location

COMMANDS: Final = "<durable exec>"
"""The place of the workflows that `durable exec` makes: no file, since durable itself has their code."""

FILE_MODULE_PREFIX: Final = "_durable_file_"
"""How `loading` names a module whose own name is taken by another one; nobody else can import it by that name."""


def locate(function: types.FunctionType) -> Location:
    """Where the code of a function is. `app_dir` is what has to be on `sys.path` to import its module."""
    inner = inspect.unwrap(function)
    written = inner.__code__.co_filename
    if written.startswith("<"):  # typed at a prompt: there is no file
        return Location(file=written, qualname=function.__qualname__, module=None, app_dir=os.getcwd())
    module: str | None = function.__module__
    name = module or ""
    if module == "__main__":
        main = sys.modules.get("__main__")
        spec = getattr(main, "__spec__", None)  # python -m package.module has one
        ran = os.path.realpath(getattr(main, "__file__", None) or "")
        name, module = (spec.name if spec is not None and ran == os.path.realpath(written) else ""), None
    dots = name.count(".") + (os.path.basename(written) == "__init__.py" and module is not None)
    folder = os.path.dirname(os.path.abspath(written))
    for _ in range(dots):
        folder = os.path.dirname(folder)
    if module is not None and module.startswith(FILE_MODULE_PREFIX):
        module = None
    return Location(
        file=os.path.realpath(written),
        qualname=function.__qualname__,
        module=module,
        app_dir=os.path.realpath(folder),
    )


def same_place(a: Location, b: Location) -> bool:
    """Are two locations one workflow? How it was imported does not count."""
    return (a.file, a.qualname) == (b.file, b.qualname)


def is_there(path: str | os.PathLike[str]) -> bool:
    """Is something under this path? Yes too where we may not look: whoever opens it is told why he cannot."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def package_root(file: str) -> str:
    """The directory that has to be on `sys.path` for a file: the first one upwards that is no package."""
    folder = os.path.dirname(os.path.abspath(file))
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def module_name(file: str, app_dir: str) -> str | None:
    """What a file is imported as when `app_dir` is on `sys.path`. None when it cannot be imported from there."""
    path = os.path.relpath(os.path.abspath(file), app_dir)
    parts = os.path.splitext(path)[0].split(os.sep)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    if not path.endswith(".py") or any(not part or "." in part for part in parts):
        return None  # outside (".."), or with a dot inside a name
    return ".".join(parts)


def check_safe(file: str, app_dir: str) -> None:
    """Refuse code that somebody else could have written (`UnsafeCode`), as ssh refuses such keys.

    The file and every directory above it must belong to us or to root and be writable by nobody else. The owner's
    private group counts as the owner. A sticky directory such as /tmp, where nobody can rename what belongs to others,
    is good enough above `app_dir`, but not from there on: a module put beside the file would be imported.
    """
    path = os.path.realpath(file)
    inside = os.path.realpath(app_dir)
    while True:
        sticky_will_do = path != inside and not path.startswith(inside.rstrip(os.sep) + os.sep)
        problem = who_else(path, sticky_will_do)
        if problem is not None:
            raise UnsafeCode(
                f"the code in {file} is not loaded: {path} {problem}",
                hint=f"mend the owner or the mode of {path}, or name the file on the command line",
            )
        if path == os.path.dirname(path):
            return
        path = os.path.dirname(path)


def who_else(path: str, sticky_will_do: bool) -> str | None:
    """Who besides us and root could change what is at `path`, in words; None when nobody."""
    found = os.stat(path)
    mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to user {found.st_uid}"
    if sticky_will_do and found.st_mode & stat.S_ISVTX:
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"can be written by everybody ({mode})"
    if found.st_mode & stat.S_IWGRP:
        from durable_cli.store.files import is_private_group  # late: it brings apsw

        if is_private_group(found.st_gid, found.st_uid):
            return None
        return f"can be written by group {found.st_gid} ({mode})"
    return None
