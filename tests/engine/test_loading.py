"""From a TARGET, or a stored place, to the workflow (CLI.md "Starting", SPEC 4.7; CASES G12, G13, M11, M13)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_cli import places
from durable_cli.definition import Definition, definitions
from durable_cli.errors import (
    AlreadyDefined,
    DurableError,
    InvalidDefinition,
    ModuleFailed,
    ModuleNotFound,
    UnsafeCode,
    UsageError,
    WorkflowNotFound,
)
from durable_cli.loading import load_target, load_workflow
from durable_cli.model import Location, OnDuplicate, Policies, Policy, Workflow
from durable_cli.store import files

ROOT = Path(__file__).parents[2]
FLOW = "from durable_cli.definition import workflow\n"
ONE = FLOW + "@workflow\ndef sync(ctx): ...\n"
TWO = ONE + "@workflow(name='nightly-backup')\nasync def backup(ctx): ...\ndef helper(): ...\n"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of the user's, which is the current one; what was imported from it is forgotten afterwards."""
    home = tmp_path / "app"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield home
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(path: Path, source: str = ONE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path


def package(path: Path) -> Path:
    write(path / "__init__.py", "")
    return path


def load(target: str, *, app_dir: Path | None = None, row: Workflow | None = None) -> Definition:
    return load_target(target, app_dir=app_dir, known=lambda name: row if row and row.name == name else None)


def refusal(kind: type[DurableError], call: Callable[[], Any]) -> DurableError:
    """The error of exactly this class that `call` raises; its message is one line."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert "\n" not in caught.value.message
    return caught.value


def row_of(definition: Definition, **changes: Any) -> Workflow:
    """The row that a start of `definition` writes."""
    place = definition.location
    fields = {
        "file": place.file,
        "qualname": place.qualname,
        "module": place.module,
        "app_dir": place.app_dir,
    } | changes
    return Workflow(1, definition.name, Location(**fields), Policies(on_duplicate=OnDuplicate(Policy.ERROR)))


def stored(name: str, file: Path, qualname: str, module: str | None, app_dir: Path) -> Workflow:
    place = Location(str(file.resolve()), qualname, module, str(app_dir.resolve()))
    return Workflow(1, name, place, Policies(on_duplicate=OnDuplicate(Policy.ERROR)))


# -- targets that fit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("flows:sync", "sync"),
        ("flows:backup", "nightly-backup"),
        ("flows:nightly-backup", "nightly-backup"),
        ("flows.py:sync", "sync"),
        ("./flows.py:nightly-backup", "nightly-backup"),
        ("one", "sync1"),
        ("one.py", "sync1"),
        ("reexport:sync", "sync"),
        ("pkg.sub.mod:deep", "deep"),
        ("pkg/sub/mod.py:deep", "deep"),
        ("pkg.sub.mod", "deep"),
        ("pkg", "inpkg"),
        ("pkg/__init__.py", "inpkg"),
        ("my-flow.py", "dashed"),
        ("my-flow:sync", "dashed"),
        ("with.dot.py:sync", "dotted"),
        ("flows:Group.inner", "inner"),
    ],
)
def test_targets(app: Path, target: str, name: str) -> None:
    """Module, package or file; an attribute or a workflow's name behind the colon, or nothing where one is there."""
    write(app / "flows.py", TWO + "class Group:\n    @staticmethod\n    @workflow\n    def inner(ctx): ...\n")
    write(app / "one.py", "from flows import backup\n" + ONE.replace("@workflow\n", "@workflow(name='sync1')\n"))
    write(app / "reexport.py", "from flows import sync\n")
    write(package(package(app / "pkg") / "sub") / "mod.py", "from ..sub import other\n" + ONE.replace("sync", "deep"))
    write(app / "pkg" / "sub" / "other.py", "")
    write(app / "pkg" / "__init__.py", ONE.replace("sync", "inpkg"))
    write(app / "my-flow.py", ONE.replace("@workflow\n", "@workflow(name='dashed')\n"))
    write(app / "with.dot.py", ONE.replace("@workflow\n", "@workflow(name='dotted')\n"))
    assert load(target).name == name


def test_absolute_path_and_app_dir(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cron job's current directory does not matter: absolute paths, modules of --app-dir, and files in it."""
    write(app / "flows.py", "import beside\n" + ONE)
    write(app / "beside.py", "")
    monkeypatch.chdir("/")
    by_path = load(f"{app}/flows.py:sync")
    assert by_path.location.app_dir == str(app.resolve())
    assert load("flows:sync", app_dir=app) is by_path
    assert load("flows.py:sync", app_dir=app) is by_path


def test_one_identity_for_all_spellings(app: Path) -> None:
    """However a workflow is named, it is one place; a module that is there is not imported again."""
    write(app / "flows.py", "import sys\nsys.times = getattr(sys, 'times', 0) + 1\n" + ONE)
    found = [
        load(target) for target in ("flows:sync", "./flows.py:sync", "flows.py", f"{app}/../app/flows.py", "flows")
    ]
    assert len({id(definition) for definition in found}) == 1
    assert found[0].location == Location(str((app / "flows.py").resolve()), "sync", "flows", str(app.resolve()))
    assert sys.times == 1  # type: ignore[attr-defined]
    del sys.times  # type: ignore[attr-defined]


def test_modules_of_two_directories_with_one_name(app: Path, tmp_path: Path) -> None:
    """Where `flows` was loaded from one directory, `flows` of another is still its own file."""
    write(app / "flows.py", ONE)
    write(tmp_path / "other" / "flows.py", ONE.replace("sync", "async_"))
    assert load("flows").name == "sync"
    assert load("flows", app_dir=tmp_path / "other").name == "async_"
    assert load(str(tmp_path / "other" / "flows.py")).name == "async_"
    assert load("flows").name == "sync"


def test_file_with_the_name_of_a_library(app: Path) -> None:
    """./queue.py is the user's when it is named as a file, and Python's queue stays what it is."""
    import queue

    write(app / "queue.py", ONE)
    definition = load("./queue.py")
    assert definition.location.module is None
    assert sys.modules["queue"] is queue
    assert load_workflow(row_of(definition)) is definition
    error = refusal(WorkflowNotFound, lambda: load("queue:sync"))
    assert error.hint == "this is Python's own queue; write ./queue.py:sync for a file of yours"


# -- targets that do not ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "kind", "message", "hint"),
    [
        ("flowz:sync", ModuleNotFound, "no module is named 'flowz'", "did you mean flows:sync?"),
        ("flowz", ModuleNotFound, "no workflow or module is named 'flowz'", "did you mean flows?"),
        ("flows.sync", ModuleNotFound, "no workflow or module is named 'flows.sync'", "did you mean flows:sync?"),
        ("pkg.mox:a", ModuleNotFound, "no module is named 'pkg.mox'", "did you mean pkg.mod:a?"),
        ("nopkg.mod:a", ModuleNotFound, "no module is named 'nopkg.mod'", "--app-dir"),
        ("a b:c", ModuleNotFound, "no module is named 'a b'", "--app-dir"),
        ("..:c", ModuleNotFound, "no module is named '..'", "--app-dir"),
        ("flow.py:sync", ModuleNotFound, "there is no file flow.py", "did you mean flows.py?"),
        ("no/where.py", ModuleNotFound, "there is no file no/where.py", "--app-dir"),
        ("./pkg", ModuleNotFound, "./pkg is a directory", "--app-dir"),
        ("./notes.txt", ModuleNotFound, "./notes.txt is no Python file", "--app-dir"),
        ("flows:synk", WorkflowNotFound, "flows has no workflow 'synk'", "did you mean flows:sync?"),
        ("flows.py:synk", WorkflowNotFound, "flows.py has no workflow 'synk'", "did you mean flows.py:sync?"),
        ("flows:helper", WorkflowNotFound, "flows:helper is no workflow but a function", None),
        ("reexport", WorkflowNotFound, "reexport defines no workflow", "did you mean reexport:sync?"),
        ("pkg.mod:a", WorkflowNotFound, "pkg.mod has no workflow 'a'", None),
        ("flows", UsageError, "flows defines 2 workflows: sync, nightly-backup", "choose one: flows:sync"),
        (":", UsageError, "':' is no target", "module:workflow"),
        ("flows:", UsageError, "'flows:' is no target", "module:workflow"),
        (":sync", UsageError, "':sync' is no target", "module:workflow"),
        ("", ModuleNotFound, "no workflow or module is named ''", "--app-dir"),
    ],
)
def test_targets_that_lead_nowhere(
    app: Path, target: str, kind: type[DurableError], message: str, hint: str | None
) -> None:
    """Each wrong target is one line, with the near name and, where a module is missing, `--app-dir`."""
    write(app / "flows.py", TWO)
    write(app / "reexport.py", "from flows import sync\n")
    write(package(app / "pkg") / "mod.py", "")
    write(app / "notes.txt", "")
    error = refusal(kind, lambda: load(target))
    assert error.message.startswith(message)
    assert error.hint is None if hint is None else hint in (error.hint or "")
    if kind is ModuleNotFound:
        assert "--app-dir" in (error.hint or "")


def test_missing_attribute_lists_the_workflows(app: Path) -> None:
    """What there is instead is told (CASES M11)."""
    write(app / "flows.py", TWO)
    assert refusal(WorkflowNotFound, lambda: load("flows:x")).facts == ("workflows there: sync, nightly-backup",)
    write(app / "empty.py", "")
    assert refusal(WorkflowNotFound, lambda: load("empty:x")).facts == ("there is no @workflow in it",)


# -- modules that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "cause", "fact"),
    [
        ("import nope_missing\n", "ModuleNotFoundError: No module named 'nope_missing'", "{file}:1"),
        ("\nfrom os import nope\n", "ImportError: cannot import name 'nope' from 'os'", "{file}:2"),
        ("def f():\n    return 1 / 0\nx = f()\n", "ZeroDivisionError: division by zero", "{file}:2"),
        ("import json\njson.loads('{')\n", "json.decoder.JSONDecodeError: Expecting", "{file}:2"),
        ("x = 1\nx = (\n", "SyntaxError: '(' was never closed", "{file}:2: x = ("),
        ("if x:\npass\n", "IndentationError: expected an indented block", "{file}:2: pass"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", "{file}:2"),
        ("raise RuntimeError('two\\nlines')\n", "RuntimeError: two", "{file}:1"),
    ],
)
@pytest.mark.parametrize("target", ["flows:sync", "./flows.py:sync", "flows"])
def test_module_that_raises(app: Path, target: str, source: str, cause: str, fact: str) -> None:
    """A failing import shows the user's cause with file and line, never "module not found" (CASES M11)."""
    file = write(app / "flows.py", source)
    error = refusal(ModuleFailed, lambda: load(target))
    assert cause.removeprefix("json.decoder.") in error.message
    assert error.facts == (fact.format(file=file),)
    assert error.exit_status == 1
    trace = getattr(error, "traceback", "")
    first = next(line for line in trace.splitlines() if line.lstrip().startswith("File "))
    assert f'File "{file}"' in first
    assert "durable_cli" not in trace
    assert "flows" not in sys.modules


def test_missing_import_in_a_package(app: Path) -> None:
    """A package that misses something is not a missing package; the hint tells where it would have to be."""
    write(package(app / "pkg") / "flows.py", "from pkg import helpers\n")
    assert "cannot import name 'helpers'" in refusal(ModuleFailed, lambda: load("pkg.flows:sync")).message
    write(app / "broken" / "__init__.py", "import broken.nothing\n")
    error = refusal(ModuleFailed, lambda: load("broken.nothing:sync"))
    assert "No module named 'broken.nothing'" in error.message
    assert sys.executable in (error.hint or "")
    assert "--app-dir" in (error.hint or "")


def test_failed_module_leaves_no_workflows(app: Path) -> None:
    """A workflow of a module that failed further down is not known afterwards, and a mended module loads."""
    write(app / "flows.py", ONE + "1 / 0\n")
    refusal(ModuleFailed, lambda: load("flows:sync"))
    assert [one for one in definitions() if one.name == "sync"] == []
    write(app / "flows.py", ONE + "pass  # mended\n")
    assert load("flows:sync").name == "sync"


def test_our_own_refusals_pass_through(app: Path) -> None:
    """A bad option, or a name that another module has, is told as itself (exit 2)."""
    write(app / "bad.py", FLOW + "@workflow(reuse='always')\ndef sync(ctx): ...\n")
    error = refusal(InvalidDefinition, lambda: load("bad:sync"))
    assert f"({app / 'bad.py'}:2)" in error.message
    assert error.__cause__ is None
    write(app / "a.py", ONE)
    write(app / "b.py", "import a\n" + ONE)
    assert refusal(AlreadyDefined, lambda: load("./b.py:sync")).facts == (
        f"sync in {app / 'a.py'}:2",
        f"sync in {app / 'b.py'}:3",
    )


# -- names that the database knows -----------------------------------------------------------------------------------


def test_bare_name(app: Path, tmp_path: Path) -> None:
    """A workflow that the database knows is loaded from its place, wherever this process is."""
    file = write(tmp_path / "other" / "jobs.py", "import beside\n" + ONE)
    write(tmp_path / "other" / "beside.py", "")
    definition = load("sync", row=stored("sync", file, "sync", "jobs", tmp_path / "other"))
    assert definition.location.file == str(file.resolve())


def test_bare_name_that_is_also_a_module(app: Path, tmp_path: Path) -> None:
    """A name that could be either is refused with both places, unless both are one file."""
    row = stored("sync", write(tmp_path / "other" / "jobs.py"), "sync", "jobs", tmp_path / "other")
    write(app / "sync.py", ONE.replace("sync", "another"))
    error = refusal(UsageError, lambda: load("sync", row=row))
    assert error.facts == (f"the workflow: {row.location.file}:sync", f"the module: {app.resolve() / 'sync.py'}")
    mine = stored("sync", write(app / "sync.py"), "sync", "sync", app)
    assert load("sync", row=mine).location.file == mine.location.file


def test_near_names_of_the_database(app: Path) -> None:
    """A slip in the name of a known workflow is answered with the name."""
    with pytest.raises(WorkflowNotFound) as caught:
        load_target("nightly_bakcup", app_dir=None, known=lambda name: None, names=lambda: ["nightly_backup", "x"])
    assert "did you mean nightly_backup?" in (caught.value.hint or "")


@pytest.mark.parametrize("module", ["pkg.flows", None, "moved.elsewhere"])
def test_stored_place(app: Path, module: str | None) -> None:
    """A row leads to the code whether it tells a module, none (a script) or one that is no longer right."""
    file = write(package(app / "pkg") / "flows.py", "from pkg import other\n" + ONE)
    write(app / "pkg" / "other.py", "")
    definition = load_workflow(stored("sync", file, "sync", module, app))
    assert definition.location.module == "pkg.flows"
    assert load_workflow(row_of(definition)) is definition


def test_stored_place_behind_a_link(app: Path, tmp_path: Path) -> None:
    """A file behind a symbolic link is found again under the name by which it is imported."""
    real = write(tmp_path / "elsewhere" / "real.py")
    (app / "flows.py").symlink_to(real)
    definition = load("flows:sync")
    assert definition.location == Location(str(real.resolve()), "sync", "flows", str(app.resolve()))
    del sys.modules["flows"]
    assert load_workflow(row_of(definition, qualname="sync")).location == definition.location


@pytest.mark.parametrize(
    ("source", "kind", "told"),
    [
        (None, ModuleNotFound, "the code of workflow 'sync' is gone: flows:sync"),
        ("", WorkflowNotFound, "workflow 'sync' is no longer at flows:sync"),
        ("def sync(ctx): ...\n", WorkflowNotFound, "workflow 'sync' is no longer at flows:sync"),
        (
            ONE.replace("@workflow\n", "@workflow(name='x')\n"),
            WorkflowNotFound,
            "workflow 'sync' is no longer at flows:sync",
        ),
        (ONE.replace("def sync", "def sync2"), WorkflowNotFound, "workflow 'sync' is no longer at flows:sync"),
        ("import nope_missing", ModuleFailed, "ModuleNotFoundError: No module named 'nope_missing'"),
    ],
)
def test_stored_place_that_is_gone(app: Path, source: str | None, kind: type[DurableError], told: str) -> None:
    """A workflow that was renamed, removed or broken is one clear message naming module:attribute (CASES G13)."""
    row = stored("sync", app / "flows.py", "sync", "flows", app)
    if source is not None:
        write(app / "flows.py", source)
    assert told in refusal(kind, lambda: load_workflow(row)).message
    write(app / "flows.py", ONE + "# it is back\n")
    sys.modules.pop("flows", None)
    assert load_workflow(row).name == "sync"


# -- code that others could have written -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "mode", "told"),
    [
        ("flows.py", 0o666, "can be written by everybody (mode 0666)"),
        ("flows.py", 0o620, "can be written by group"),
        (".", 0o777, "can be written by everybody (mode 0777)"),
        (".", 0o1777, "can be written by everybody (mode 1777)"),
        (".", 0o770, "can be written by group"),
        ("..", 0o777, "can be written by everybody (mode 0777)"),
        ("..", 0o1777, None),
        ("flows.py", 0o644, None),
        (".", 0o755, None),
    ],
)
def test_permissions_of_stored_code(
    app: Path, monkeypatch: pytest.MonkeyPatch, what: str, mode: int, told: str | None
) -> None:
    """Code that others may write is not loaded from a stored place, as ssh treats its keys; a sticky directory is
    good enough above the app-dir, where nobody can put a module beside ours."""
    monkeypatch.setattr(files, "is_private_group", lambda gid, uid: False)
    file = write(app / "flows.py")
    (app / what).chmod(mode)
    row = stored("sync", file, "sync", "flows", app)
    if told is None:
        assert load_workflow(row).name == "sync"
        return
    error = refusal(UnsafeCode, lambda: load_workflow(row))
    assert str((app / what).resolve()) in error.message
    assert told in error.message
    assert "flows" not in sys.modules
    assert load("flows:sync").name == "sync"  # named on the command line
    assert load_workflow(row).name == "sync"  # and so this process has it already


def test_private_group(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the owner's private group may write is as good as the owner's."""
    monkeypatch.setattr(files, "is_private_group", lambda gid, uid: True)
    file = write(app / "flows.py")
    file.chmod(0o664)
    assert load_workflow(stored("sync", file, "sync", "flows", app)).name == "sync"


def test_owner_of_stored_code(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another user's is refused, root's is not."""
    file = write(app / "flows.py")
    owner = file.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        assert places.check_safe(str(file), str(app)) is None  # type: ignore[func-returns-value]
        os.chown(file, 4242, -1)
    with pytest.raises(UnsafeCode, match=f"belongs to user {file.stat().st_uid}"):
        places.check_safe(str(file), str(app))


# -- sys.path, as the real program has it ------------------------------------------------------------------------------

REPORT = """
import json, sys
from pathlib import Path
from durable_cli.errors import DurableError
from durable_cli.loading import load_target

def main():
    app, target = sys.argv[1:3]
    found = load_target(target, app_dir=Path(app), known=lambda name: None)
    import rich, json as standard
    print(json.dumps({
        "rich": rich.__file__, "json": standard.__file__, "path": sys.path, "app": app,
        "name": found.name, "module": found.location.module, "file": found.location.file,
        "loads": found.function(None),
    }))
"""


def report(tmp_path: Path, app: Path, target: str, *, script: str) -> dict[str, Any]:
    """What a fresh process sees that runs `script`, a console script in a directory of its own."""
    write(tmp_path / "bin" / "durable", script)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "bin" / "durable"), str(app), target]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=app)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


AS_PROGRAM = "import sys\nsys.argv[0] = __file__\n" + REPORT + "main.__module__ = 'durable_cli.__main__'\nmain()\n"
AS_LIBRARY = "import sys\n" + REPORT.replace("def main", "def run") + "run()\n"
TRAP = "raise SystemExit('the wrong one')\n"


def test_app_dir_on_the_path(app: Path, tmp_path: Path) -> None:
    """In our program the app-dir is behind the standard library and before site-packages, the script's directory is
    gone, json is Python's, rich is ours, and what lies beside the flow is the user's."""
    for name in ("json", "rich", "typer", "pydantic"):
        write(app / f"{name}.py", TRAP)
    write(app / "hypothesis.py", "USERS = True\n")
    write(
        app / "flows.py",
        "import json, rich, hypothesis\n" + FLOW + "@workflow\ndef sync(ctx): return hypothesis.USERS\n",
    )
    seen = report(tmp_path, app, "flows:sync", script=AS_PROGRAM)
    path = seen["path"]
    standard = os.path.dirname(os.__file__)
    assert seen["loads"] is True
    assert str(app) not in (os.path.dirname(seen["rich"]), os.path.dirname(seen["json"]))
    site = next(entry for entry in path if entry.endswith("-packages"))
    assert path.index(standard) < path.index(str(app.resolve())) < path.index(site)
    assert str(tmp_path / "bin") not in path


def test_library_keeps_its_path(app: Path, tmp_path: Path) -> None:
    """In somebody else's program the script's directory stays and its modules are its own, whatever their names."""
    write(tmp_path / "bin" / "rich.py", "")
    write(app / "flows.py", FLOW + "@workflow\ndef sync(ctx): ...\n")
    seen = report(tmp_path, app, "flows:sync", script=AS_LIBRARY)
    assert seen["path"][0] == str(tmp_path / "bin")
    assert seen["rich"] == str(tmp_path / "bin" / "rich.py")


def test_script_and_import_are_one_workflow(app: Path) -> None:
    """`python flows.py` and `python -m pkg.flows` store what `flows:sync` stores, but for the module (CASES M13)."""
    tell = "if __name__ == '__main__':\n    import json, dataclasses\n"
    tell += "    print(json.dumps(dataclasses.asdict(sync.definition.location)))\n"
    write(app / "flows.py", ONE + tell)
    write(
        package(app / "pkg") / "flows.py",
        "from pkg import other\n" + ONE.replace("@workflow\n", "@workflow(name='two')\n") + tell,
    )
    write(app / "pkg" / "other.py", "")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command, target in ((["flows.py"], "flows:sync"), (["-m", "pkg.flows"], "pkg.flows:sync")):
        out = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, check=True)
        script = Location(**json.loads(out.stdout))
        imported = load(target).location
        assert places.same_place(script, imported)
        assert (script.module, script.app_dir) == (None, imported.app_dir)
        row = Workflow(1, load(target).name, script, Policies(on_duplicate=OnDuplicate(Policy.ERROR)))
        assert load_workflow(row) is load(target)
