"""How a workflow derives its key from the validated input, so that producers need not pass one.

Three forms, all checked when the workflow is defined: a callable, a template `"article:{id}"`, and `cel("...")`. They
fail closed: whatever goes wrong refuses the start (InvalidKey), never starts it without protection. Text is the key,
an integer becomes its decimal text, None and False mean "no key"; nothing else is guessed at.
"""

from __future__ import annotations

import inspect
import json
import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from durable_cli.core.keys import brief, check_key
from durable_cli.errors import InvalidDefinition, InvalidKey
from durable_cli.usercode import answering, type_and_text


class KeyRule(Protocol):
    """A checked key expression. `source` is its text, for people."""

    @property
    def source(self) -> str:
        """The expression, for people to read."""

    def value(self, typed: object, plain: object) -> object:
        """What the expression gives for an input: `typed` as the function sees it, `plain` as its JSON."""


def key_rule(given: object, *, singleton: bool) -> KeyRule | None:
    """The rule of a workflow's `key=` and `singleton=`. Raises InvalidDefinition."""
    if singleton:
        if given is not None:
            raise InvalidDefinition("singleton=True is one run of the whole workflow; it does not go with key=")
        return _Singleton()
    if given is None:
        return None
    if isinstance(given, Cel):
        return given
    if isinstance(given, str):
        return _template(given)
    if callable(given):
        if inspect.iscoroutinefunction(given):
            raise InvalidDefinition("key= is an async function; a key is made by a plain one")
        name = getattr(given, "__name__", type(given).__name__)
        return _Callable(given, f"{name}(input)")
    raise InvalidDefinition(
        f'key={brief(given)}: it is a function of the input, a template such as "article:{{id}}", or cel("...")'
    )


def derive(rule: KeyRule, workflow: str, typed: object, plain: object) -> str | None:
    """The key of a start. Raises InvalidKey for whatever is not text, an integer, None or False."""
    try:
        with answering():
            value = rule.value(typed, plain)
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(int(value))  # a very long one cannot be written
    except InvalidKey:
        raise
    except Exception as error:
        raise InvalidKey(
            f"the key of workflow {workflow!r}, {rule.source}, failed: {type_and_text(error)}",
            hint="nothing was started; mend the input or the key expression",
        ) from None
    if value is None or value is False:
        return None
    if not isinstance(value, str):
        raise InvalidKey(
            f"the key of workflow {workflow!r}, {rule.source}, gave {brief(value)} ({type(value).__name__}); it has to "
            "give text, an integer, or None for no key"
        )
    return check_key(value)


@dataclass(frozen=True, slots=True)
class _Singleton:
    source: str = "singleton"

    def value(self, typed: object, plain: object) -> object:
        return "singleton"


@dataclass(frozen=True, slots=True)
class _Callable:
    function: Callable[[Any], object]
    source: str

    def value(self, typed: object, plain: object) -> object:
        return self.function(typed)


@dataclass(frozen=True, slots=True)
class _Template:
    source: str
    parts: tuple[tuple[str, tuple[str, ...] | None], ...]

    def value(self, typed: object, plain: object) -> object:
        text = []
        for literal, field in self.parts:
            text.append(literal)
            if field is not None:
                text.append(self._text(field, plain))
        return "".join(text)

    def _text(self, field: tuple[str, ...], plain: object) -> str:
        at = plain
        for name in field:
            if not isinstance(at, Mapping) or name not in at:
                raise InvalidKey(f"the key {self.source!r} needs the field {'.'.join(field)!r}, which the input lacks")
            at = at[name]
        if isinstance(at, bool) or not isinstance(at, (str, int)):
            raise InvalidKey(
                f"the field {'.'.join(field)!r} of the key {self.source!r} is {brief(at)}; it has to be text or an integer"
            )
        return str(at)


def _template(source: str) -> KeyRule:
    try:
        parsed = list(string.Formatter().parse(source))
    except ValueError as error:
        raise InvalidDefinition(f"key={source!r} is not a template: {error}") from None
    parts: list[tuple[str, tuple[str, ...] | None]] = []
    for literal, field, spec, conversion in parsed:
        if spec or conversion:
            raise InvalidDefinition(f"key={source!r}: a field is a name, dotted if need be; no formats or conversions")
        if field is not None and not all(part.isidentifier() for part in field.split(".")):
            raise InvalidDefinition(f"key={source!r}: {{{field}}} is not the name of a field")
        parts.append((literal, None if field is None else tuple(field.split("."))))
    if all(field is None for _, field in parts):
        raise InvalidDefinition(
            f"key={source!r} would be one key for every input: singleton=True says that; a template has fields in braces"
        )
    return _Template(source, tuple(parts))


_UNREADABLE = re.compile("[\0\ud800-\udfff]")


class Cel:
    """A key expression in the Common Expression Language; `input` and `event.data` both name the input."""

    def __init__(self, expression: str) -> None:
        try:
            from cel_expr_python import cel as library
        except ImportError:
            raise InvalidDefinition("cel(...) needs the extra `cel`", hint="pip install 'durable-cli[cel]'") from None
        if not isinstance(expression, str) or _UNREADABLE.search(expression):
            raise InvalidDefinition(f"cel({brief(expression)}): an expression is text")
        self.expression = expression
        self.source = f"cel({expression!r})"
        self._library = library
        environment = library.NewEnv(variables={"input": library.Type.DYN, "event": library.Type.DYN})
        try:
            self._compiled = environment.compile(expression)
        except RuntimeError as error:
            raise InvalidDefinition(f"{self.source} is not an expression: {_first_line(error)}") from None
        kind = self._compiled.return_type()
        types = library.Type
        if kind not in (types.STRING, types.INT, types.UINT, types.NULL, types.BOOL, types.DYN):
            raise InvalidDefinition(f"{self.source} gives {kind.name()}; a key is text, an integer, or null for no key")

    def value(self, typed: object, plain: object) -> object:
        """See KeyRule. An error of the evaluation comes back as a value of the type ERROR, and is raised here.

        The library reads texts only up to a NUL: two inputs that differ behind it would share a key, so they have none.
        """
        for text in _texts(plain):
            if _UNREADABLE.search(text):
                raise InvalidKey(
                    f"{self.source} cannot read {brief(text)}: CEL takes no NUL and no half of a surrogate pair"
                )
        result = self._compiled.eval(data={"input": plain, "event": {"data": plain}})
        kind = result.type()
        if kind in (self._library.Type.ERROR, self._library.Type.UNKNOWN):
            raise InvalidKey(f"{self.source} failed: {_first_line(result.value())}")
        return result.plain_value()


def cel(expression: str) -> Cel:
    """A key expression in the Common Expression Language, for `@workflow(key=cel("event.data.user_id"))`.

    Raises InvalidDefinition where the extra `cel` is not installed, or the expression is wrong or cannot give a key.
    """
    return Cel(expression)


def _texts(plain: object) -> Iterator[str]:
    """Every text in a JSON value, names of fields too."""
    if isinstance(plain, str):
        yield plain
    elif isinstance(plain, Mapping):
        for name, value in plain.items():
            yield from _texts(name)
            yield from _texts(value)
    elif isinstance(plain, list):
        for value in plain:
            yield from _texts(value)


def _first_line(error: object) -> str:
    return str(error).split("\n")[0][:300]


def plain_of(text: str) -> object:
    """The stored input as plain JSON."""
    return json.loads(text)
