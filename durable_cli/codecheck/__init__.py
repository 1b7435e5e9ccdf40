"""`durable check`: finds in the code of workflows what replay cannot forgive. It reads the code, and executes nothing.

What is looked into: each workflow function, the functions of the same file that it calls, its branches, and its step
functions (for what a step must not do). What is imported from elsewhere is not looked into. A finding is silenced by
`# durable: ok RULE` on its line; without a rule, all of that line are.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from durable_cli.codecheck.names import Names
from durable_cli.codecheck.rules import RULES, Finding
from durable_cli.codecheck.visitor import Walk
from durable_cli.errors import ModuleFailed, WorkflowNotFound

__all__ = ["RULES", "Checked", "Finding", "check_source"]

_DECORATORS = ("durable_cli.workflow", "durable_cli.definition.workflow")
_COMMENT = re.compile(r"#\s*durable:\s*ok\b(?:[ :(]+([a-z][a-z-]*(?:\s*,\s*[a-z][a-z-]*)*))?")

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Checked:
    """What was checked, and what was found, in the order of the lines."""

    file: str
    workflows: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(one.severity == "error" for one in self.findings)


def check_source(text: str, file: str, workflow: str = "") -> Checked:
    """Check the workflows in a file (`workflow`: only that one, by its function's name or its own).

    Raises `ModuleFailed` when the text is no Python, `WorkflowNotFound` when there is no such workflow.
    """
    try:
        tree = ast.parse(text, file)
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None) or 1
        raise ModuleFailed(f"{file} is no Python: {problem}", facts=(f"{file}:{line}",)) from None
    names = Names(tree)
    there = dict(_workflows(tree, names))
    wanted = {node: name for node, name in there.items() if workflow in ("", name, node.name)}
    if not wanted:
        what = f"workflow {workflow!r}" if workflow else "@workflow"
        raise WorkflowNotFound(
            f"there is no {what} in {file}",
            facts=(f"workflows there: {', '.join(there.values())}",) if there else (),
        )
    silenced, misspelt = _comments(text)
    found = {
        Finding(file, line, 1, "suppression", "warning", f"there is no rule {word!r}", RULES["suppression"].right, "")
        for line, word in misspelt
    }
    for node, name in wanted.items():
        found |= _findings(node, name, names, file, silenced)
    return Checked(file, tuple(wanted.values()), tuple(sorted(found)))


def _findings(
    node: Definition, name: str, names: Names, file: str, silenced: dict[int, frozenset[str]]
) -> set[Finding]:
    found: dict[tuple[int, int, str], Finding] = {}

    def report(place: ast.AST, rule: str, message: str) -> None:
        first, last = _lines(place)
        if any(rule in silenced.get(line, ()) for line in range(first, last + 1)):
            return
        line, column = place.lineno, place.col_offset + 1  # type: ignore[attr-defined]
        about = RULES[rule]
        found.setdefault(
            (line, column, rule), Finding(file, line, column, rule, about.severity, message, about.right, name)
        )

    Walk(names, report, is_async=isinstance(node, ast.AsyncFunctionDef)).workflow(node)
    return set(found.values())


def _lines(place: ast.AST) -> tuple[int, int]:
    """The lines on which a comment is about this place: an expression's own; of what has a body, its head."""
    first: int = place.lineno  # type: ignore[attr-defined]
    if isinstance(place, Definition):
        return min([first, *[one.lineno for one in place.decorator_list]]), first
    if isinstance(place, ast.ExceptHandler):
        return first, first
    return first, getattr(place, "end_lineno", None) or first


def _workflows(tree: ast.Module, names: Names) -> Iterator[tuple[Definition, str]]:
    """The functions decorated with @workflow, and the names of the workflows."""
    for node in ast.walk(tree):
        if not isinstance(node, Definition):
            continue
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            if names.dotted(call.func if call else decorator) in _DECORATORS:
                given = [one.value for one in call.keywords if one.arg == "name"] if call else []
                named = given[0].value if given and isinstance(given[0], ast.Constant) else node.name
                yield node, str(named)


def _comments(text: str) -> tuple[dict[int, frozenset[str]], list[tuple[int, str]]]:
    """The rules that comments silence, by line, and the words in them that are no rule."""
    silenced: dict[int, frozenset[str]] = {}
    misspelt: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
        if found is None:
            continue
        words = [word.strip() for word in (found[1] or "").split(",") if word.strip()]
        misspelt += [(token.start[0], word) for word in words if word not in RULES]
        silenced[token.start[0]] = frozenset(words or RULES)
    return silenced, misspelt
