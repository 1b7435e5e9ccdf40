"""What keeps the house in order: rules of the source, checked by reading it (`ast`), never by importing it.

The layers are those of the README's "How it is built", which a test compares. A rule that has to be broken somewhere is
broken here by name, with its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "durable_cli"

LAYERS = """
errors model
tracebacks patience wake terminal processes
core.timing core.keys core.arbitration core.lifecycle core.replay core.clocks core.policies core.plain core.shapes core.fields
core.cron_items core.cron_fields core.cron core.crontab core.schedules core.diff
store.process store.contention store.failures store.files store.filesystem store.guard store.library store.transaction store.schema
store.copying store.joined store.database store.checkpoint store.compacting store.console store.checks store.history store.runs store.transitions
store.workflows store.owners store.events store.schedules store.activity store.logs store.reports store.pruning
store.clock store.health store.facts store.overview
usercode places zones keyrules values inputs defined definition declaring importing
owners listeners
request adopting reopening settling starting explaining
engine lookup catalogue keylog logs outlook overview timekeeping pruning housekeeping
execution failing entering operations capture waits branches children shell http outside calls context faces undoing
commands loading codeload firststeps
runner foreground producing replaying
firing scheduling fires
worker
doctor
reading changing timetable care client
codecheck.names codecheck.rules codecheck.scopes codecheck.steps codecheck.visitor codecheck codecheck.target
testing pytest_plugin
render
cli.output cli.options cli.config cli.fitting cli.session cli.errors cli.asking cli.inputs cli.moments cli.installing cli.signals cli.screen
cli.following cli.bulk cli.stepnames cli.ends cli.rests cli.executing cli.starting cli.keyview cli.runview cli.runs cli.watching cli.commands cli.activity cli.top cli.keylog cli.keys cli.logs cli.events
cli.schedules cli.crontabs cli.workflows cli.prune cli.working cli.check cli.doctor cli.db cli.init cli.topics
cli.app cli.complete
__main__
""".split()  # noqa: SIM905  (a literal would be 150 lines)
"""Every module once; it imports only what stands above it. `core`, `store` and `cli` themselves are empty."""

EMPTY = {"", "core", "store", "cli"}

ALLOWED_IMPORTS = {
    ("definition", "client"): "WorkflowFunction.start is Durable().start for scripts; imported when it is called",
}
LONG_MODULES = {
    "errors": "one tree, to be read and compared as one list",
}
LONG_FUNCTIONS = {
    "cli.starting.run": "its parameters are the options of `durable run`, with their help",
    "cli.commands.execute_command": "its parameters are the options of `durable exec`, with their help",
}
EVALUATES = {
    "values.resolve": "an annotation written as text is resolved as typing.get_type_hints does: the user's own code",
}
PRINTS = {
    "__main__._main": "--version, before anything of the command line is imported",
    "faces._end_forked": "a traceback on stderr, as Python writes it at the end of a process",
}
MAX_MODULE, MAX_FUNCTION = 420, 80

IMPURE = {"apsw", "os", "time", "random", "secrets", "threading", "typer", "rich", "pydantic", "sys", "pathlib", "io"}
UNSAFE = {"sqlite3", "pickle", "marshal", "shelve"}
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|PRAGMA)\b")


# -- reading -------------------------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its name below the package ("" is the package)."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        found["" if name == "__init__" else name.removesuffix(".__init__")] = ast.parse(file.read_text())
    return found


def file_of(module: str) -> Path:
    """Where a module is."""
    path = PACKAGE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Everything that is imported at run time, at the top or in functions: (full name, line).

    What stands under `if TYPE_CHECKING:` is never executed and binds nothing.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        yield from imports(node)


def ours(name: str) -> str | None:
    """The module of the package that an import of `name` gets; None: not ours."""
    if name.partition(".")[0] != "durable_cli":
        return None
    below = name.partition(".")[2]
    while below and below not in modules():
        below = below.rpartition(".")[0]
    return below


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every function and class, those inside others too, by its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


def everything() -> Iterator[tuple[str, str, Any]]:
    """(module, qualified name, node) of every function and class of the package."""
    for module, tree in modules().items():
        for name, node in functions(tree):
            yield module, name, node


def calls(wanted: set[str]) -> Iterator[tuple[str, str]]:
    """(where, which) of every call of one of these builtins; where is the outermost function."""
    for module, tree in modules().items():
        for top in tree.body:
            for node in ast.walk(top):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in wanted:
                    yield f"{module}.{getattr(top, 'name', '')}", node.func.id


# -- layers --------------------------------------------------------------------------------------------------------


def test_every_module_has_one_place_in_the_list():
    """A new module says where it stands; a removed one leaves the list."""
    assert sorted(LAYERS) == sorted(set(modules()) - EMPTY)
    for name in EMPTY - {""}:
        assert [type(node) for node in modules()[name].body] == [ast.Expr], f"{name}/__init__.py has a docstring only"


def test_imports_go_upwards_only():
    """A module imports, at the top or late, only what stands above it in the list; so there are no cycles."""
    place = {name: number for number, name in enumerate(LAYERS)}
    wrong, needed = [], set()
    for module in LAYERS:
        for name, line in imports(modules()[module]):
            target = ours(name)
            if target is None or target in EMPTY or target == module:
                continue
            if (module, target) in ALLOWED_IMPORTS:
                needed.add((module, target))
            elif place.get(target, len(place)) >= place[module]:
                wrong.append(f"{module}:{line} imports {target}, which stands below it")
    assert wrong == []
    assert needed == set(ALLOWED_IMPORTS), "an exception that is needed no longer"


def test_the_root_imports_nothing():
    """`import durable_cli` is free: names come when they are used."""
    assert {name for name, _ in imports(modules()[""]) if ours(name) is not None} == set()


def test_core_is_pure():
    """The moment, the dice, the file and the threads are arguments; decisions are values."""
    for module in LAYERS:
        if module.startswith("core."):
            for name, line in imports(modules()[module]):
                assert name.partition(".")[0] not in IMPURE, f"{module}:{line} imports {name}"
                above = ours(name)
                assert above is None or above in ("errors", "model", "core") or above.startswith("core."), (
                    module,
                    name,
                )


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("apsw", ("store.",)),
        ("typer", ("cli.",)),
        ("rich", ("render", "cli.")),
        ("click", ()),
        ("pydantic", ("values",)),
        *((name, ()) for name in sorted(UNSAFE)),
    ],
)
def test_a_library_is_used_in_one_place(library, home):
    """apsw only in store, typer only in cli, rich only where text is made; no second SQLite and no pickle anywhere."""
    for module, tree in modules().items():
        for name, line in imports(tree):
            if name.partition(".")[0] == library:
                assert module.startswith(home) if home else False, f"{module}:{line} imports {name}"


def test_sql_is_in_store_only():
    """A statement outside would be a decision that nobody reviews beside the others."""
    for module, tree in modules().items():
        if module.startswith("store."):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not SQL.match(node.value), f"{module}:{node.lineno}: {node.value[:60]!r}"


def test_store_decides_nothing():
    """Of core it knows only the values it keeps."""
    for module in LAYERS:
        if module.startswith("store."):
            for name, line in imports(modules()[module]):
                above = ours(name)
                fine = above is None or above in ("errors", "model", "core.clocks") or above.startswith("store")
                assert fine, f"{module}:{line} imports {name}"


def test_nothing_is_evaluated():
    """No eval and no exec of text."""
    assert {where for where, _ in calls({"eval", "exec"})} == set(EVALUATES)


def test_nothing_counts_descriptors():
    """`select.select` fails in a process with more than 1,024 open files: `poll`, or `selectors`."""
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) != "select.select", f"{module}:{node.lineno}"


def test_nothing_prints():
    """What is said goes through the output of the session, or through logging."""
    outside = {where for where, _ in calls({"print"}) if not where.startswith("cli.")}
    assert outside == set(PRINTS)


# -- size and words ------------------------------------------------------------------------------------------------


def test_modules_are_short():
    """What does not fit into a head does not belong into a file."""
    long = {module for module in modules() if len(file_of(module).read_text().splitlines()) > MAX_MODULE}
    assert long == set(LONG_MODULES)


def test_functions_are_short():
    """A function fits a screen or two."""
    long = {
        f"{module}.{name}"
        for module, name, node in everything()
        if not isinstance(node, ast.ClassDef) and node.end_lineno - node.lineno >= MAX_FUNCTION
    }
    assert long == set(LONG_FUNCTIONS)


def is_public(name: str) -> bool:
    """No part of it begins with an underscore."""
    return not any(part.startswith("_") for part in name.split("."))


def is_overload(node: ast.AST) -> bool:
    """Is it a signature only?"""
    return any("overload" in ast.unparse(one) for one in getattr(node, "decorator_list", ()))


def test_everything_public_is_explained():
    """Every module, and every class, function and method without an underscore, has a docstring.

    A method whose class has a base in the same module that explains it needs no second explanation.
    """
    missing = [module for module, tree in modules().items() if not ast.get_docstring(tree)]
    for module, tree in modules().items():
        found = dict(functions(tree))
        for name, node in found.items():
            owner, _, method = name.rpartition(".")
            if not is_public(name) or ast.get_docstring(node) or is_overload(node):
                continue
            if owner and not isinstance(found[owner], ast.ClassDef):
                continue  # a function inside a function
            if owner and _explained_by_a_base(found, owner, method):
                continue
            missing.append(f"{module}.{name}")
    assert missing == []


def _explained_by_a_base(found: dict[str, Any], owner: str, method: str) -> bool:
    for base in found[owner].bases:
        name = ast.unparse(base)
        if name in found:
            inherited = found.get(f"{name}.{method}")
            if inherited is not None and ast.get_docstring(inherited):
                return True
            if _explained_by_a_base(found, name, method):
                return True
    return False


# -- README and docs -----------------------------------------------------------------------------------------------

DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("examples/*.md")]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    """Every relative link in a document names a file that is there, and a heading that is in it."""
    for target in LINK.findall(document.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, heading = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), f"{document.name} links to {target}"
        if heading:
            assert heading in _anchors(file), f"{document.name} links to {target}"


def _anchors(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands_in(text: str) -> set[str]:
    """What documents write as a call of durable: in `code` and in blocks, up to what is no word of a command."""
    code = re.findall(r"```.*?```", text, re.DOTALL)
    code += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = set()
    for piece in code:
        for match in re.finditer(r"(?<![\w.@-])(?:[\w./~-]*/)?durable((?: +-[a-z-]+)*(?: +[a-z][a-z_-]*)+)", piece):
            found.add(" ".join(match[1].split()))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_documents_exist(document):
    """Every `durable ...` in a document begins with the name of a command, an alias included."""
    from durable_cli.cli.app import build
    from durable_cli.cli.options import ALIASES, EXPANSIONS, Group

    for line in commands_in(document.read_text()):
        words = [word for word in line.split() if not word.startswith("-")]
        if words[0] in EXPANSIONS:
            continue
        command: Any = build()
        for word in words:
            if not isinstance(command, Group):
                break
            inner = command.commands.get(word) or command.commands.get(ALIASES.get(word, ""))
            assert inner is not None, f"{document.name}: durable {line}"
            command = inner


def test_the_readme_lists_the_layers():
    """The table under "How it is built" names every module once, in the order of the list above."""
    text = (ROOT / "README.md").read_text().partition("## How it is built")[2]
    rows = re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    wanted = list(dict.fromkeys(f"{name.partition('.')[0]}/" if _in_folder(name) else name for name in LAYERS))
    assert told == wanted[: wanted.index("__main__")]


def _in_folder(name: str) -> bool:
    return (PACKAGE / name.partition(".")[0]).is_dir()
