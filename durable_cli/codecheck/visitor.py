"""Goes through the code of one workflow that is replayed, and into the functions of the file that it calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from durable_cli.codecheck.names import (
    Function,
    Names,
    body_of,
    file_method,
    is_environment,
    own_nodes,
    parameters,
    rule_of_call,
)
from durable_cli.codecheck.scopes import OPERATIONS, Scope, arguments_of
from durable_cli.codecheck.steps import leaks, operations_in

Report = Callable[[ast.AST, str, str], None]
"""Called with a node, the id of a rule and a message."""

_NAMED: Final = frozenset(
    (
        *("run", "sleep", "sleep_until", "wait_for_event", "wait_for_any", "wait_for_all", "wait_for_input", "map"),
        *("shell", "http"),
    )
)
_BRANCHING: Final = frozenset(("parallel", "race"))
_CALLS_BACK: Final = frozenset(("sorted", "min", "max", "map", "filter", "sort", "reduce"))
_STARTS_TASKS: Final = frozenset(("create_task", "start_soon", "submit", "run_in_executor", "apply_async"))
_WHAT: Final = {
    "clock": "outside a step: it says something else on every replay",
    "random": "outside a step: it gives something else on every replay",
    "environment": "outside a step: the process that goes on with the run may have another",
    "effect": "outside a step: it happens again on every replay",
    "input": "outside a step: nobody sits at a worker, and it is asked again on every replay",
    "sleep": "holds the process, and begins anew on every replay",
    "concurrency": "in a workflow function: operations that overlap cannot be replayed",
}


class Walk:
    """What is known of one workflow: which of its functions were gone through, and whether it has operations."""

    def __init__(self, names: Names, report: Report, *, is_async: bool) -> None:
        self.names = names
        self.report = report
        self.is_async = is_async
        self.operations = 0
        self.passed_on = False
        """The context was given to something that we cannot look into."""
        self._seen: set[tuple[int, str]] = set()

    def workflow(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Go through a workflow."""
        self.replayed(function, None, parameters(function)[:1], "")
        if not self.operations and not self.passed_on:
            self.report(function, "no-steps", f"workflow {function.name!r} has no step: nothing of it is recorded")

    def replayed(
        self, function: Function, outer: Scope | None, context: Iterable[str], via: str, *, branch: bool = False
    ) -> None:
        """Go through a function that is executed anew on every replay."""
        if not self._first(function, f"replay {sorted(context)} {branch}"):
            return
        scope = Scope(self.names, function, outer, context, branch=branch)
        visitor = _Replayed(self, scope, via)
        for statement in body_of(function):
            visitor.visit(statement)
        if branch:
            for leak in leaks(scope, deep=False):
                message = f"{leak.how} in a branch: branches go on at once, and again on every replay"
                self.report(leak.node, "branch-state", message)
        self._left_over(scope)

    def step(self, function: Function, outer: Scope | None, context: Iterable[str]) -> None:
        """Go through a step function."""
        if not self._first(function, "step"):
            return
        scope = Scope(self.names, function, outer, context)
        for node, name in operations_in(scope):
            self.report(node, "nested", f"ctx.{name} inside a step: a step is recorded whole, it has no operations")
        for leak in leaks(scope, deep=True):
            self.report(leak.node, "closure", f"{leak.how} in a step, which does not run again on a replay")
        for call in own_nodes(list(body_of(function))):
            found = scope.function_of(call.func) if isinstance(call, ast.Call) else None
            if isinstance(call, ast.Call) and found is not None:
                given = scope.context_parameters(found[0], call.args, call.keywords)
                if given or found[1] is not None:
                    self.step(found[0], found[1], given)

    def _first(self, function: Function, how: str) -> bool:
        key = (id(function), how)
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _left_over(self, scope: Scope) -> None:
        """Functions that are used in a way we did not follow: with operations in them, they are replayed."""
        gone_through = {number for number, _ in self._seen}
        for node in own_nodes(list(body_of(scope.function))):
            if isinstance(node, Function) and id(node) not in gone_through:
                inner = Scope(self.names, node, scope)
                if inner.has_operation(own_nodes(list(body_of(node)))):
                    self.replayed(node, scope, (), "")


class _Replayed(ast.NodeVisitor):
    def __init__(self, walk: Walk, scope: Scope, via: str) -> None:
        self.walk = walk
        self.scope = scope
        self.via = via
        self._awaited: set[int] = set()
        self._dropped: set[int] = set()
        self._in_name = False
        self._in_task = False

    def _report(self, node: ast.AST, rule: str, message: str) -> None:
        self.walk.report(node, rule, f"{message}{self.via}")

    # -- functions inside, which are gone through where they are used --

    def _visit_function(self, node: Function) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        pass

    # -- calls --

    def visit_Await(self, node: ast.Await) -> None:
        self._awaited.add(id(node.value))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(self.scope.function, ast.Lambda):
            self._dropped.add(id(node.value))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        operation = self.scope.operation(node)
        if operation is not None:
            self._operation(node, operation)
            return
        name = self.scope.dotted(node.func)
        rule = rule_of_call(name, node) if name is not None else None
        if isinstance(node.func, ast.Attribute) and rule is None:
            told = file_method(name, node.func.attr)
            name, rule = told or name, "effect" if told else None
        if self._in_name and (rule in ("clock", "random") or name in ("id", "hash")):
            self._report(node, "step-name", f"{name}() in a name: the name is another one on every replay")
        elif rule is not None:
            self._report(node, rule, f"{name}() {_WHAT[rule]}")
        self._follow(node, concurrent=rule == "concurrency")

    def _follow(self, node: ast.Call, *, concurrent: bool) -> None:
        """Go into the function that is called, if it is in this file, and into the arguments."""
        found = self.scope.function_of(node.func)
        arguments = arguments_of(node)
        if found is not None:
            function, home = found
            given = self.scope.context_parameters(function, node.args, node.keywords)
            name = getattr(function, "name", "the lambda")
            self.walk.replayed(function, home, given, self.via or f" (in {name}, which the workflow calls)")
            arguments = [one for one in arguments if not self.scope.is_context(one)]
        else:
            self.visit(node.func)
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        with self._set(_in_task=self._in_task or concurrent or last in _STARTS_TASKS):
            for argument in arguments:
                inline = self.scope.function_of(argument) if last in _CALLS_BACK else None
                if inline is not None:
                    self.walk.replayed(inline[0], inline[1], (), self.via)
                self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._environment(node)
        if not self.scope.is_context(node.value):
            self.visit(node.value)
        elif node.attr in OPERATIONS:  # not called here, but by somebody
            self.walk.passed_on = True

    def visit_Name(self, node: ast.Name) -> None:
        self._environment(node)
        if self.scope.is_context(node) and isinstance(node.ctx, ast.Load):
            self.walk.passed_on = True

    def _environment(self, node: ast.expr) -> None:
        name = self.scope.dotted(node)
        if name is not None and is_environment(name):
            self._report(node, "environment", f"{name} {_WHAT['environment']}")

    # -- operations --

    def _operation(self, node: ast.Call, operation: str) -> None:
        self.walk.operations += 1
        self._check_awaited(node, operation)
        self._check_own(node, operation)
        rest = list(node.args)
        if operation in _NAMED and rest:
            with self._set(_in_name=True):
                self.visit(rest.pop(0))
        if operation in ("run", "map") and rest:
            self._step(rest[0], rest[1:] if operation == "run" else [], node.keywords)
            rest.pop(0)
        if operation in _BRANCHING and rest:
            self._branches(rest.pop(0))
        for keyword in node.keywords:
            if keyword.arg == "compensate":
                self._step(keyword.value, [], [])
            elif keyword.arg == "branches" and operation in _BRANCHING:
                self._branches(keyword.value)
            else:
                rest.append(keyword.value)
        if operation == "map":
            self._check_order(rest[:1], f"the items of ctx.{operation}")
        for argument in rest:
            if not self.scope.is_context(argument):
                self.visit(argument)

    def _check_awaited(self, node: ast.Call, operation: str) -> None:
        if not self.walk.is_async or id(node) in self._awaited or self._in_task:
            return
        if isinstance(self.scope.function, ast.AsyncFunctionDef) or id(node) in self._dropped:
            self._report(node, "await", f"ctx.{operation} is not awaited")

    def _check_own(self, node: ast.Call, operation: str) -> None:
        used = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(used, ast.Name) and used.id in self.scope.foreign:
            message = f"{used.id}.{operation} in a branch is an operation of the function around it, which is not over"
            self._report(node, "concurrency", message)

    def _step(self, given: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]) -> None:
        found = self.scope.function_of(given)
        if found is None:
            self.visit(given)
            return
        context = self.scope.context_parameters(found[0], arguments, keywords)
        if isinstance(given, ast.Call):  # functools.partial
            context |= self.scope.context_parameters(found[0], given.args[1:], given.keywords)
        self.walk.step(found[0], found[1], context)

    def _branches(self, given: ast.expr) -> None:
        home = self.scope.home_of(given.id) if isinstance(given, ast.Name) else None
        value = home.values.get(given.id, given) if home is not None and isinstance(given, ast.Name) else given
        if isinstance(value, ast.Dict):
            with self._set(_in_name=True):
                for key in value.keys:
                    if key is not None:
                        self.visit(key)
            functions = value.values
        elif isinstance(value, ast.DictComp):
            self._check_order([one.iter for one in value.generators], "the branches")
            functions = [value.value]
        else:
            self.visit(given)
            return
        for one in functions:
            found = self.scope.function_of(one)
            if found is None:
                self.visit(one)
            else:
                self.walk.replayed(found[0], found[1], parameters(found[0])[:1], self.via, branch=True)

    # -- order --

    def _check_order(self, sources: Iterable[ast.expr], what: str) -> None:
        for source in sources:
            if self.scope.is_unordered(source):
                self._report(source, "unordered", f"{what} come from something that has no order of its own")

    def _visit_loop(self, node: ast.For | ast.AsyncFor) -> None:
        if self.scope.has_operation(own_nodes(node.body)):
            self._check_order([node.iter], "the operations of this loop")
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._visit_loop(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._visit_loop(node)

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        if self.scope.has_operation(own_nodes(made)):
            self._check_order([one.iter for one in node.generators], "the operations of this comprehension")
        self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension

    # -- swallowing --

    def visit_Try(self, node: ast.Try) -> None:
        self._visit_try(node)

    def _visit_try(self, node: ast.Try | ast.TryStar) -> None:
        if self.scope.has_operation(own_nodes(node.body)):
            for handler in node.handlers:
                if not any(isinstance(one, ast.Raise) for one in own_nodes(handler.body)):
                    self._check_caught(handler, handler.type)
            for one in own_nodes(node.finalbody):
                if isinstance(one, ast.Return):
                    self._report(one, "swallow", "`return` in `finally` swallows the exception that rests the run")
        self.generic_visit(node)

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self._visit_try(node)

    def _check_caught(self, place: ast.AST, caught: ast.expr | None) -> None:
        named = caught.elts if isinstance(caught, ast.Tuple) else [caught]
        names = {ast.unparse(one) if one is not None else "" for one in named}
        if names & {"", "BaseException", "builtins.BaseException"}:
            word = "a bare `except:`" if caught is None else "`except BaseException`"
            self._report(place, "swallow", f"{word} around operations swallows the exception that rests the run")
        elif names & {"Exception", "builtins.Exception"}:
            self._report(place, "broad-except", "`except Exception` around operations hides mistakes of your own code")

    def _visit_with(self, node: ast.With | ast.AsyncWith) -> None:
        calls = [one.context_expr for one in node.items if isinstance(one.context_expr, ast.Call)]
        suppressing = [one for one in calls if self.scope.dotted(one.func) == "contextlib.suppress" and one.args]
        if suppressing and self.scope.has_operation(own_nodes(node.body)):
            for call in suppressing:
                self._check_caught(call, ast.Tuple(call.args, ast.Load()))
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        self._visit_with(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        self._visit_with(node)

    def visit_Global(self, node: ast.Global) -> None:
        names = ", ".join(node.names)
        self._report(node, "global", f"`global {names}`: another process that goes on with the run has another value")

    @contextmanager
    def _set(self, **flags: bool) -> Iterator[None]:
        before = {name: getattr(self, name) for name in flags}
        for name, value in flags.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)
