"""How users' code is imported, and what is told when that fails.

Their directory (the app-dir) goes on `sys.path` behind the standard library and before site-packages: `./json.py` must
not become everybody's json. A finder in front of all others gives durable its own dependencies from where durable is
installed: a user's `rich.py` must not become ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, TracebackType
from typing import Final, NoReturn

from durable_cli.definition import definitions, forget
from durable_cli.errors import AlreadyDefined, InvalidDefinition, ModuleFailed, ModuleNotFound
from durable_cli.places import FILE_MODULE_PREFIX, module_name
from durable_cli.tracebacks import user_traceback


def load_file(file: str, app_dir: str, name: str | None) -> ModuleType:
    """The module of a file: imported as `name` (None: as its place below `app_dir` says), once.

    Where that name belongs to something else (`./queue.py`, or a module of another directory), the file is loaded under
    a name that nobody else has.
    """
    wanted = os.path.realpath(file)
    prepare_path(app_dir)
    for known_as in (name, module_name(file, app_dir)):
        if known_as is not None and _leads_to(known_as, wanted):
            module = import_named(known_as, app_dir)
            if module is not None and file_of(module) == wanted:
                return module
    alias = f"{FILE_MODULE_PREFIX}{zlib.crc32(wanted.encode(errors='surrogateescape')):08x}"
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, file)
    if spec is None or spec.loader is None:
        raise ModuleNotFound(f"{file} is no Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as problem:
        del sys.modules[alias]
        _raise(problem, file, app_dir)
    return module


def _leads_to(name: str, file: str) -> bool:
    """Would importing `name` give `file`? Asked without importing anything but the packages around it."""
    if name in sys.modules:
        return file_of(sys.modules[name]) == file
    top, _, rest = name.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    if not rest:
        return spec.origin is not None and os.path.realpath(spec.origin) == file
    inside = rest.replace(".", os.sep)
    candidates = (f"{inside}.py", os.path.join(inside, "__init__.py"))
    roots = spec.submodule_search_locations or ()
    return any(os.path.realpath(os.path.join(root, one)) == file for root in roots for one in candidates)


def import_named(name: str, app_dir: str) -> ModuleType | None:
    """Import a module; None when there is none of this name. `ModuleFailed` when it raises."""
    try:
        importlib.invalidate_caches()
        __import__(name)  # and not import_module, whose frame would head the traceback
    except BaseException as problem:
        missing = isinstance(problem, ModuleNotFoundError) and f"{name}.".startswith(f"{problem.name}.")
        if missing and _user_frame(problem.__traceback__, app_dir) is None:
            return None
        _raise(problem, name, app_dir)
    return sys.modules[name]


def _raise(problem: BaseException, what: str, app_dir: str) -> NoReturn:
    """Raise for an exception of the user's module: `ModuleFailed`, but our own messages and Ctrl-C as they are."""
    for definition in definitions():
        if definition.function.__module__ not in sys.modules:  # of a module that is gone again
            forget(definition.name)
    if isinstance(problem, InvalidDefinition | AlreadyDefined | KeyboardInterrupt | GeneratorExit):
        raise problem
    cause = f"{type(problem).__name__}: {problem}".split("\n")[0].rstrip(": ")
    facts: tuple[str, ...] = ()
    hint = None
    frame = _user_frame(problem.__traceback__, app_dir)
    if isinstance(problem, SyntaxError):
        cause = f"{type(problem).__name__}: {problem.msg}"
        facts = (f"{problem.filename}:{problem.lineno}: {(problem.text or '').strip()}",)
    elif frame is not None:
        facts = (f"{frame[0]}:{frame[1]}",)
    if isinstance(problem, ModuleNotFoundError):
        hint = f"install it for {sys.executable}; a module of your own is looked for in --app-dir ({app_dir})"
    elif isinstance(problem, SystemExit):
        hint = 'what a script does belongs under `if __name__ == "__main__":`'
    raise ModuleFailed(
        f"{what} cannot be imported: {cause}", facts=facts, hint=hint, traceback=user_traceback(problem)
    ) from problem


def _user_frame(trace: TracebackType | None, app_dir: str) -> tuple[str, int] | None:
    """File and line of the innermost frame in the user's code, else of the outermost that is not import machinery."""
    frames: list[tuple[str, int]] = []
    ours = os.path.dirname(__file__) + os.sep
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((ours, "<frozen ")):
            frames.append((name, trace.tb_lineno))
        trace = trace.tb_next
    inside = [one for one in frames if os.path.realpath(one[0]).startswith(app_dir.rstrip(os.sep) + os.sep)]
    return inside[-1] if inside else frames[0] if frames else None


def file_of(module: ModuleType) -> str:
    """The file of a module, resolved."""
    return os.path.realpath(getattr(module, "__file__", None) or "")


# -- sys.path ------------------------------------------------------------------------------------------------------

_OURS: Final = frozenset(
    (
        "durable_cli",
        "typer",
        "click",
        "shellingham",
        "rich",
        "markdown_it",
        "mdurl",
        "pygments",
        "apsw",
        "pydantic",
        "pydantic_core",
        "annotated_types",
        "annotated_doc",
        "typing_extensions",
        "typing_inspection",
        "croniter",
        "dateutil",
        "six",
        "pytz",
        "tzdata",
    )
)


class _OwnDependencies:
    """Finds durable's dependencies where durable is installed, whatever lies in the user's directory."""

    def __init__(self, path: list[str]) -> None:
        self._path = path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, self._path, target) if fullname in _OURS else None


def prepare_path(app_dir: str) -> None:
    """Make the modules of `app_dir` importable, behind the standard library. Twice is once.

    In durable's own program the directory of its script (or, for `python -m`, the current one) leaves the path and its
    dependencies are pinned; a program that uses durable as a library keeps its path as it is.
    """
    if _is_our_program() and not any(isinstance(finder, _OwnDependencies) for finder in sys.meta_path):
        _drop_script_directory()
        home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        sys.meta_path.insert(0, _OwnDependencies([*sys.path[_behind_stdlib() :], home]))
    position = _behind_stdlib()
    if app_dir not in sys.path[: position + 1]:
        sys.path.insert(position, app_dir)


def _behind_stdlib() -> int:
    """The index in `sys.path` behind the last directory of the standard library."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    own = {library, os.path.join(library, "lib-dynload")}
    return max((index + 1 for index, entry in enumerate(sys.path) if entry in own), default=0)


def _is_our_program() -> bool:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    started = getattr(getattr(main, "main", None), "__module__", None)  # a console script has `import main`
    return started == "durable_cli.__main__" or (spec is not None and spec.name == "durable_cli.__main__")


def _drop_script_directory() -> None:
    by_name = getattr(sys.modules["__main__"], "__spec__", None) is not None  # python -m durable_cli
    first = os.getcwd() if by_name else os.path.dirname(os.path.abspath(sys.argv[0]))
    if not sys.flags.safe_path and sys.path and os.path.abspath(sys.path[0] or ".") == first:
        del sys.path[0]
