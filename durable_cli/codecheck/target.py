"""From a TARGET to the file with its code, by the ways of `loading`, but without importing anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

from durable_cli.codecheck import Checked, check_source
from durable_cli.errors import ModuleFailed, ModuleNotFound
from durable_cli.loading import find_here, find_path, split_target
from durable_cli.model import Workflow


def check_target(target: str, *, app_dir: Path | None, known: Callable[[str], Workflow | None]) -> Checked:
    """Check the workflow that TARGET names, or all that its file defines.

    `known`: looks a workflow of the database up by its bare name. Raises as `loading.load_target` does where there is
    no such file or workflow, and `ModuleFailed` where the file is no Python.
    """
    home = os.path.realpath(app_dir if app_dir is not None else os.getcwd())
    where, workflow = split_target(target)
    if where.endswith(".py") or os.sep in where:
        return _check(find_path(where, home), workflow)
    row = known(where) if not workflow else None
    if row is not None:
        return _check(row.location.file, row.name)
    file = find_here(where, home) or _installed(where)
    if file is None:
        raise ModuleNotFound(
            f"no {'module' if workflow else 'workflow or module'} is named {where!r}",
            facts=(f"looked in {home} and in what is installed for {sys.executable}",),
            hint="say where your modules are: --app-dir DIR",
        )
    return _check(file, workflow)


def _installed(name: str) -> str | None:
    """The file of an installed module. `importlib.util.find_spec` would import the packages around it."""
    path: list[str] | None = None
    for index, _ in enumerate(parts := name.split(".")):
        spec = PathFinder.find_spec(".".join(parts[: index + 1]), path)
        if spec is None:
            return None
        if index == len(parts) - 1:
            return spec.origin if spec.origin is not None and spec.origin.endswith(".py") else None
        path = list(spec.submodule_search_locations or ())
    return None


def _check(file: str, workflow: str) -> Checked:
    try:
        with open(file, "rb") as code:
            text = _decoded(code.read())
    except FileNotFoundError:
        raise ModuleNotFound(f"there is no file {file} any more") from None
    except (OSError, UnicodeDecodeError, SyntaxError, LookupError) as problem:
        raise ModuleFailed(f"{file} cannot be read: {problem}") from None
    return check_source(text, file, workflow)


def _decoded(data: bytes) -> str:
    """The text of a Python file, in the encoding that it says."""
    import io
    import tokenize

    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return io.TextIOWrapper(io.BytesIO(data), encoding, newline=None).read()
