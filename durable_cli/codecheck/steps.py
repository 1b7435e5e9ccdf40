"""What a step function, and a branch, must not do: use operations, and hand values out by a variable from outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from durable_cli.codecheck.names import Function, body_of, locals_of, own_nodes
from durable_cli.codecheck.scopes import Scope

_MUTATING: Final = frozenset(
    (
        *("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear"),
        *("appendleft", "extendleft", "sort", "reverse", "intersection_update", "difference_update"),
    )
)


@dataclass(frozen=True, slots=True)
class Leak:
    """A place where a function changes `name`, a variable of a function around it."""

    node: ast.AST
    name: str
    how: str


def leaks(scope: Scope, *, deep: bool) -> Iterator[Leak]:
    """The places where the function of `scope` changes variables of the functions around it. `deep`: also in the
    functions inside of it."""
    if scope.outer is None:
        return
    for node, own in _nodes(scope.function, frozenset(), deep=deep):
        for name, how in _changed(node):
            home = None if name in own else scope.outer.home_of(name)
            if how == "global":
                yield Leak(node, name, f"`global {name}`")
            elif home is None:
                continue
            elif how == "nonlocal":
                yield Leak(node, name, f"`nonlocal {name}`")
            elif how == "store" or home.is_container(name):
                yield Leak(node, name, f"{name!r} of the function around it is changed")


def _nodes(function: Function, own: frozenset[str], *, deep: bool) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """The nodes of a function with the names that are its own."""
    own = own | locals_of(function)
    for node in own_nodes(list(body_of(function))):
        yield node, own
        if deep and isinstance(node, Function):
            yield from _nodes(node, own, deep=True)


def _changed(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(variable, how) that a node changes: nonlocal, global, store (of an item or an attribute), or a method."""
    if isinstance(node, ast.Nonlocal):
        yield from ((name, "nonlocal") for name in node.names)
    elif isinstance(node, ast.Global):
        yield from ((name, "global") for name in node.names)
    elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        root = _root(node)
        if root is not None:
            yield root, "store"
    elif isinstance(node, ast.Attribute) and node.attr in _MUTATING and isinstance(node.value, ast.Name):
        yield node.value.id, "method"


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def operations_in(scope: Scope) -> Iterator[tuple[ast.Call, str]]:
    """The operations that a step function uses itself, also in functions inside of it."""
    for node in own_nodes(list(body_of(scope.function))):
        name = scope.operation(node)
        if name is not None:
            assert isinstance(node, ast.Call)
            yield node, name
        if isinstance(node, Function):
            yield from operations_in(Scope(scope.names, node, scope))
