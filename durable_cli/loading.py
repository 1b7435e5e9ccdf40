"""From a TARGET or a stored place to the workflow's code. Imports nothing that it does not need."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from durable_cli.core.policies import listed
from durable_cli.definition import Definition, WorkflowFunction, definitions
from durable_cli.errors import ModuleNotFound, UsageError, WorkflowNotFound
from durable_cli.importing import file_of, import_named, load_file, prepare_path
from durable_cli.model import Workflow
from durable_cli.places import COMMANDS, check_safe, package_root, same_place

_MODULE: Final = re.compile(r"[^\s:/.]+(\.[^\s:/.]+)*")


def load_target(
    target: str,
    *,
    app_dir: Path | None,
    known: Callable[[str], Workflow | None],
    names: Callable[[], Iterable[str]] = tuple,
) -> Definition:
    """The workflow that a command line names.

    `module:workflow`, `package.module:workflow`, `path/file.py:workflow`; without `:workflow` where exactly one is
    defined there; or the bare name of a workflow that the database knows (`known`; `names` are all of them, for
    suggestions). `app_dir`: None for the current directory. Raises `ModuleNotFound`, `WorkflowNotFound`, `ModuleFailed`
    when the user's module raised, `UsageError` when the target fits several workflows.
    """
    home = os.path.realpath(app_dir if app_dir is not None else os.getcwd())
    where, attribute = split_target(target)
    if where.endswith(".py") or os.sep in where:
        return _pick(_load_path(where, home), attribute, where)
    if not attribute:
        row = known(where)
        if row is not None:
            _refuse_ambiguous(where, row, home)
            return load_workflow(row)
        if find_here(where, home) is None and where not in sys.modules:
            near = difflib.get_close_matches(where, list(names()), 1)
            if near:
                raise WorkflowNotFound(
                    f"no workflow or module is named {where!r}",
                    hint=f"did you mean {near[0]}? If it is a module: --app-dir DIR says where",
                )
    return _pick(_load_module(where, home, attribute), attribute, where)


def split_target(target: str) -> tuple[str, str]:
    """A TARGET as (module, file or workflow; what is named behind the colon, or ""). Raises UsageError."""
    where, colon, attribute = target.rpartition(":")
    if not colon or target.endswith(".py"):
        return target, ""
    if not (where and attribute):
        raise UsageError(f"{target!r} is no target", hint="write module:workflow or path/to/file.py:workflow")
    return where, attribute


def load_module(target: str, *, app_dir: Path | None) -> tuple[str, list[Definition]]:
    """A module or file that a command line names: its file (of a package: its directory), and the workflows that it
    holds or defines, those of the modules in a package too. Raises as `load_target`.
    """
    home = os.path.realpath(app_dir if app_dir is not None else os.getcwd())
    path = target.endswith(".py") or os.sep in target
    module = _load_path(target, home) if path else _load_module(target, home, "")
    file = file_of(module)
    root = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file
    inside = [one for one in definitions() if one.location.file.startswith(root + os.sep)]
    return root, list(dict.fromkeys([*_workflows_in(module), *inside]))


def load_workflow(row: Workflow) -> Definition:
    """The workflow of a row in the database, from the place stored there, unless this process has it already.

    The place was not named by whoever runs this process, so `UnsafeCode` is raised where others could have changed the
    file. `ModuleNotFound` when the file is gone, `WorkflowNotFound` when the workflow is no longer in it,
    `ModuleFailed` when it raises.
    """
    if row.location.file == COMMANDS:
        from durable_cli.commands import definition_of

        return definition_of(row.name, row.policies)
    found = _known_here(row)
    if found is not None:
        return found
    place = row.location
    shown = f"{place.module or place.file}:{place.qualname}"
    if not os.path.isfile(place.file):
        raise ModuleNotFound(
            f"the code of workflow {row.name!r} is gone: {shown}",
            facts=(f"there is no file {place.file} any more",),
            hint=f"start {row.name} once from its new place (durable start --app-dir DIR MODULE:WORKFLOW)",
        )
    check_safe(place.file, place.app_dir)
    module = load_file(place.file, place.app_dir, place.module)
    found = _known_here(row) or next(
        (one for one in _workflows_in(module) if one.name == row.name and same_place(one.location, place)), None
    )
    if found is None:
        raise WorkflowNotFound(
            f"workflow {row.name!r} is no longer at {shown}",
            facts=(f"the file is {place.file}", _workflows_line(_workflows_in(module))),
            hint="put it back under this name, or `durable cancel` its runs",
        )
    return found


def _known_here(row: Workflow) -> Definition | None:
    for definition in definitions():
        if definition.name == row.name and same_place(definition.location, row.location):
            return definition
    return None


def _refuse_ambiguous(name: str, row: Workflow, app_dir: str) -> None:
    """A bare name that is both a known workflow and a module of the app-dir with other code."""
    file = find_here(name, app_dir)
    if file is not None and os.path.realpath(file) != row.location.file:
        raise UsageError(
            f"{name!r} is a workflow of the database and a module here",
            facts=(f"the workflow: {row.location.file}:{row.location.qualname}", f"the module: {file}"),
            hint=f"write {name}:WORKFLOW for the module, {row.location.file}:{row.location.qualname} for the other",
        )


# -- choosing in a module ------------------------------------------------------------------------------------------


def _pick(module: ModuleType, attribute: str, where: str) -> Definition:
    """The workflow `attribute` (a Python name, or a workflow's name) of a module; "": the one defined there."""
    there = _workflows_in(module)
    own = [one for one in there if one.location.file == file_of(module)]
    if not attribute:
        if len(own) == 1:
            return own[0]
        if own:
            names = [one.name for one in own]
            raise UsageError(
                f"{where} defines {len(own)} workflows: {listed(names)}", hint=f"choose one: {where}:{names[0]}"
            )
        raise _no_workflow(f"{where} defines no workflow", there, where, "")
    value: object = module
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if isinstance(value, WorkflowFunction):
        return value.definition
    for one in there:
        if one.name == attribute:
            return one
    if value is not None:
        kind = type(value).__name__
        raise _no_workflow(f"{where}:{attribute} is no workflow but a {kind}", there, where, attribute)
    raise _no_workflow(f"{where} has no workflow {attribute!r}", there, where, attribute)


def _workflows_in(module: ModuleType) -> list[Definition]:
    """The workflows that a module holds or defines, each once, in order."""
    held = [value.definition for value in vars(module).values() if isinstance(value, WorkflowFunction)]
    file = file_of(module)
    defined = [one for one in definitions() if one.location.file == file and "<locals>" not in one.location.qualname]
    return list(dict.fromkeys([*held, *defined]))


def _workflows_line(there: Sequence[Definition]) -> str:
    return f"workflows there: {listed(one.name for one in there)}" if there else "there is no @workflow in it"


def _no_workflow(message: str, there: list[Definition], where: str, asked: str) -> WorkflowNotFound:
    near = difflib.get_close_matches(asked, [one.name for one in there], 1)
    if not near and len(there) == 1:
        near = [there[0].name]
    hint = f"did you mean {where}:{near[0]}?" if near else None
    if where.partition(".")[0] in sys.stdlib_module_names:
        hint = f"this is Python's own {where}; write ./{where}.py:{asked or 'WORKFLOW'} for a file of yours"
    return WorkflowNotFound(message, facts=(_workflows_line(there),), hint=hint)


# -- finding and importing -----------------------------------------------------------------------------------------


def _load_path(path: str, app_dir: str) -> ModuleType:
    """The module of a file named on the command line."""
    file = find_path(path, app_dir)
    return load_file(file, package_root(file), None)


def find_path(path: str, app_dir: str) -> str:
    """A Python file named on the command line: from the current directory, else from the app-dir. ModuleNotFound."""
    path = os.path.expanduser(path)
    file = next((f for f in (os.path.abspath(path), os.path.join(app_dir, path)) if os.path.isfile(f)), None)
    if file is None:
        raise ModuleNotFound(
            f"there is no file {path}" if not os.path.isdir(path) else f"{path} is a directory, not a Python file",
            facts=() if os.path.isabs(path) else (f"looked from {os.getcwd()}",),
            hint=_hint(path, _python_files(os.path.dirname(os.path.abspath(path)), ".py")),
        )
    if not file.endswith(".py"):
        raise ModuleNotFound(
            f"{path} is no Python file (.py)", hint="write path/to/file.py:workflow, or a module and --app-dir DIR"
        )
    return file


def _load_module(name: str, app_dir: str, attribute: str) -> ModuleType:
    """A module named on the command line."""
    here = find_here(name, app_dir)
    loaded = sys.modules.get(name)
    taken = here is not None and loaded is not None and file_of(loaded) != os.path.realpath(here)
    if here is not None and taken and name.partition(".")[0] not in sys.stdlib_module_names:
        return load_file(here, app_dir, name)  # a module of another app-dir was loaded before
    if _MODULE.fullmatch(name):
        prepare_path(app_dir)
        module = import_named(name, app_dir)
        if module is not None:
            return module
    what = "module" if attribute else "workflow or module"
    raise ModuleNotFound(
        f"no {what} is named {name!r}",
        facts=(f"looked in {app_dir} and in what is installed for {sys.executable}",),
        hint=_hint(f"{name}:{attribute}".rstrip(":"), _near_modules(name, app_dir, attribute)),
    )


def _near_modules(name: str, app_dir: str, attribute: str) -> list[str]:
    """What could have been meant by a module that is not there: those beside it, or `a:b` written as `a.b`."""
    package, _, last = name.rpartition(".")
    if package and not attribute and find_here(package, app_dir) is not None:
        return [f"{package}:{last}"]
    beside = _python_files(os.path.join(app_dir, *package.split(".")), "")
    return [f"{package}.{near}:{attribute}".strip(".:") for near in beside]


def find_here(name: str, app_dir: str) -> str | None:
    """The file of a module or package of the app-dir, looked up without importing."""
    base = os.path.join(app_dir, *name.split("."))
    candidates = (f"{base}.py", os.path.join(base, "__init__.py"))
    return next((file for file in candidates if os.path.isfile(file)), None)


def _python_files(folder: str, suffix: str) -> list[str]:
    """The names of the modules and packages in a directory, for suggestions."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return []
    packages = [one for one in entries if os.path.isfile(os.path.join(folder, one, "__init__.py"))]
    return [one.removesuffix(".py") + suffix for one in entries if one.endswith(".py")] + (
        packages if not suffix else []
    )


def _hint(asked: str, candidates: list[str]) -> str | None:
    near = difflib.get_close_matches(os.path.basename(asked), candidates, 1)
    if os.path.isabs(asked):  # an app-dir does not matter to it
        return f"did you mean {near[0]}?" if near else None
    meant = f"did you mean {near[0]}? Else " if near else ""
    return f"{meant}say where your modules are: --app-dir DIR"
