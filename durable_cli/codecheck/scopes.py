"""The scope of a function: which of its names are the context, functions, containers, or things without an order."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from durable_cli.calls import Calls
from durable_cli.codecheck.names import Function, Names, body_of, functions_in, locals_of, own_nodes, parameters
from durable_cli.context import Context

OPERATIONS: Final = frozenset(name for name in {*dir(Context)} - {*dir(Calls)} if not name.startswith("_"))
"""What is recorded and replayed. `heartbeat`, `attempt` and the like are of `Calls`: steps may use them."""

_CONTAINERS: Final = frozenset(
    ("list", "dict", "set", "collections.defaultdict", "collections.deque", "collections.Counter", "bytearray")
)
_SET_METHODS: Final = frozenset(("union", "intersection", "difference", "symmetric_difference", "copy"))
_KEEP_ORDER: Final = frozenset(("list", "tuple", "enumerate", "reversed", "iter", "dict.fromkeys", "zip", "map"))
_DICT_VIEWS: Final = frozenset(("keys", "values", "items"))
_NO_ORDER: Final = frozenset(("os.listdir", "os.scandir", "glob.glob", "glob.iglob"))
_SET_TYPES: Final = frozenset(("set", "frozenset", "Set", "AbstractSet", "MutableSet"))


class Scope:
    """A function's names, and those of the functions around it. `context`: its parameters that are the context.
    `branch`: it has a context of its own, and those around it are none that it may use (`foreign`)."""

    def __init__(
        self,
        names: Names,
        function: Function,
        outer: Scope | None,
        context: Iterable[str] = (),
        *,
        branch: bool = False,
    ) -> None:
        self.names = names
        self.function = function
        self.outer = outer
        self.locals = locals_of(function)
        self.functions = functions_in(body_of(function))
        inherited = outer.context - self.locals if outer is not None else frozenset()
        self.context: frozenset[str] = inherited | frozenset(context)
        around: frozenset[str] = outer.foreign - self.locals if outer is not None else frozenset()
        self.foreign: frozenset[str] = inherited if branch else around
        self.values = dict(_assigned(body_of(function)))
        self.context |= {name for name, value in self.values.items() if self.is_context(value)}
        self._annotations = _annotations(function)

    # -- looking names up --

    def home_of(self, name: str) -> Scope | None:
        """The scope, from here outwards, whose variable this is; None: the module's, a builtin, or nobody's."""
        at: Scope | None = self
        while at is not None and name not in at.locals:
            at = at.outer
        return at

    def dotted(self, node: ast.expr) -> str | None:
        """`Names.dotted`, where no variable of a function hides the import."""
        root: ast.expr = node
        while isinstance(root, ast.Attribute | ast.Call):
            root = root.value if isinstance(root, ast.Attribute) else root.func
        if isinstance(root, ast.Name) and self.home_of(root.id) is not None:
            return None
        return self.names.dotted(node)

    def function_of(self, node: ast.expr) -> tuple[Function, Scope | None] | None:
        """The function that an expression is, if it is one of this file, and the scope that it is defined in."""
        if isinstance(node, ast.Lambda):
            return node, self
        if isinstance(node, ast.Call) and self.dotted(node.func) == "functools.partial" and node.args:
            return self.function_of(node.args[0])
        if not isinstance(node, ast.Name):
            return None
        home = self.home_of(node.id)
        found = (home.functions if home is not None else self.names.functions).get(node.id)
        return None if found is None else (found, home)

    # -- the context --

    def is_context(self, node: ast.AST) -> bool:
        """Is this the context?"""
        return isinstance(node, ast.Name) and node.id in self.context

    def operation(self, node: ast.AST) -> str | None:
        """The name of the operation that this is a call of."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return None
        return node.func.attr if node.func.attr in OPERATIONS and self.is_context(node.func.value) else None

    def has_operation(self, nodes: Iterable[ast.AST], seen: frozenset[int] = frozenset()) -> bool:
        """Is there an operation in this code, or a call that is given the context or uses it from outside?"""
        for node in nodes:
            if self.operation(node) is not None:
                return True
            if not isinstance(node, ast.Call):
                continue
            if any(self.is_context(argument) for argument in arguments_of(node)):
                return True
            found = self.function_of(node.func)
            if found is not None and found[1] is not None and id(found[0]) not in seen:
                inner = Scope(self.names, found[0], found[1])
                if inner.has_operation(own_nodes(body_of(found[0])), seen | {id(found[0])}):
                    return True
        return False

    def context_parameters(
        self, function: Function, positional: list[ast.expr], keywords: list[ast.keyword]
    ) -> set[str]:
        """Which parameters of `function` are the context, when it is called with these arguments."""
        names = parameters(function)
        by_place = {name for name, given in zip(names, positional, strict=False) if self.is_context(given)}
        return by_place | {one.arg for one in keywords if one.arg in names and self.is_context(one.value)}

    # -- containers, and what has no order --

    def is_container(self, name: str) -> bool:
        """Was this variable of this function made as a list, dict, set or the like?"""
        value = self.values.get(name)
        if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
            return True
        return isinstance(value, ast.Call) and self._named(value.func) in _CONTAINERS

    def is_unordered(self, node: ast.expr) -> bool:
        """May this be gone through in another order in another process?"""
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Name):
            return self._is_unordered_name(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
            return self.is_unordered(node.left) or self.is_unordered(node.right)
        if isinstance(node, ast.DictComp | ast.ListComp | ast.GeneratorExp):
            return any(self.is_unordered(one.iter) for one in node.generators)
        return isinstance(node, ast.Call) and self._is_unordered_call(node)

    def _is_unordered_call(self, node: ast.Call) -> bool:
        name = self._named(node.func)
        if name in ("set", "frozenset") or name in _NO_ORDER:
            return True
        if name in _KEEP_ORDER:
            return any(self.is_unordered(argument) for argument in node.args)
        method = node.func
        if not isinstance(method, ast.Attribute):
            return False
        if method.attr in ("iterdir", "rglob"):
            return True
        return method.attr in _SET_METHODS | _DICT_VIEWS and self.is_unordered(method.value)

    def _is_unordered_name(self, name: str) -> bool:
        home = self.home_of(name)
        if home is None:
            return False
        if home._annotations.get(name) in _SET_TYPES:
            return True
        value = home.values.get(name)
        refers_to_itself = value is None or any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(value))
        return value is not None and not refers_to_itself and home.is_unordered(value)

    def _named(self, node: ast.expr) -> str | None:
        """A dotted name; a builtin that nobody hides is known by its own."""
        found = self.dotted(node)
        if found is not None:
            return found
        text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        root = text.partition(".")[0]
        hidden = self.home_of(root) is not None or root in self.names.own or root in self.names.imports
        return None if hidden or not text else text


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """All arguments of a call, in order."""
    return [*call.args, *[one.value for one in call.keywords]]


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """(name, value) of the variables that are assigned once and simply. One assigned twice is not known."""
    found: dict[str, list[ast.expr]] = {}
    for node in own_nodes(body):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.setdefault(node.target.id, []).append(node.value)
    for name, values in found.items():
        if len(values) == 1:
            yield name, values[0]


def _annotations(function: Function) -> dict[str, str]:
    """The outermost name of each annotation: "set" for `set[str]`."""
    pairs: list[tuple[str, ast.expr | None]] = []
    arguments = function.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        pairs.append((one.arg, one.annotation))
    for node in own_nodes(body_of(function)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            pairs.append((node.target.id, node.annotation))
    found = {}
    for name, annotation in pairs:
        base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
        if isinstance(base, ast.Name):
            found[name] = base.id
        elif isinstance(base, ast.Attribute):
            found[name] = base.attr
    return found
