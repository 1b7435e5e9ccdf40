"""Annotations made only of what JSON has, checked without pydantic.

These are `str`, `int`, `float`, `bool`, `None`, `list`, `list[...]`, `dict`, `dict[str, ...]`, `Any`, `object` and
unions of them. A cron job whose steps return text and numbers should not pay for importing more.
"""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass
from typing import Any, Final

from durable_cli.core.plain import inside, step_into


class Misfit(Exception):
    """A plain value that an annotation does not allow; `path` grows while the exception rises."""

    def __init__(self, found: object, wanted: str) -> None:
        self.found = type(found).__name__
        self.wanted = wanted
        self.path: list[str] = []

    def message(self, place: str) -> str:
        """What does not fit, and where in `place`."""
        return f"{inside(place, self.path)} is {self.found}, but {self.wanted} is annotated"


@dataclass(frozen=True, slots=True)
class Shape:
    """The plain JSON that an annotation allows: these scalars exactly, lists of `items`, dicts of `values`."""

    name: str
    anything: bool = False
    scalars: frozenset[type] = frozenset()
    items: Shape | None = None
    values: Shape | None = None

    def fit(self, value: object) -> object:
        """A value that was just parsed, as annotated: an int becomes a float where only floats are. `Misfit`."""
        if self.anything or type(value) in self.scalars:
            return value
        if isinstance(value, list) and self.items is not None:
            return [self.items._fit_at(place, item) for place, item in enumerate(value)]
        if isinstance(value, dict) and self.values is not None:
            return {key: self.values._fit_at(key, item) for key, item in value.items()}
        if type(value) is int and float in self.scalars:
            try:
                return float(value)
            except OverflowError:
                pass
        raise Misfit(value, self.name)

    def _fit_at(self, place: object, item: object) -> object:
        try:
            return self.fit(item)
        except Misfit as problem:
            problem.path.append(step_into(place))
            raise


_ANYTHING: Final = Shape("any JSON value", anything=True)
_SIMPLE: Final[list[tuple[object, Shape]]] = [
    (inspect.Parameter.empty, _ANYTHING),
    (Any, _ANYTHING),
    (object, _ANYTHING),
    (None, Shape("None", scalars=frozenset({type(None)}))),
    (type(None), Shape("None", scalars=frozenset({type(None)}))),
    (str, Shape("str", scalars=frozenset({str}))),
    (int, Shape("int", scalars=frozenset({int}))),
    (float, Shape("float", scalars=frozenset({float}))),
    (bool, Shape("bool", scalars=frozenset({bool}))),
    (list, Shape("list", items=_ANYTHING)),
    (dict, Shape("dict", values=_ANYTHING)),
]


def shape_of(annotation: object) -> Shape | None:
    """The shape of an annotation made only of what JSON has; None for all others."""
    for simple, shape in _SIMPLE:
        if annotation is simple:
            return shape
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list:
        items = shape_of(arguments[0])
        return items and Shape(shown(annotation), items=items)
    if origin is dict and arguments[0] is str:
        values = shape_of(arguments[1])
        return values and Shape(shown(annotation), values=values)
    if origin is typing.Union or origin is types.UnionType:
        return _union(shown(annotation), [shape_of(argument) for argument in arguments])
    return None


def _union(name: str, members: list[Shape | None]) -> Shape | None:
    """One shape for several; None where it could not tell which of two lists or two dicts a value is."""
    shapes = [shape for shape in members if shape is not None]
    if len(shapes) < len(members):
        return None
    if any(shape.anything for shape in shapes):
        return _ANYTHING
    items = [shape.items for shape in shapes if shape.items is not None]
    values = [shape.values for shape in shapes if shape.values is not None]
    if len(items) > 1 or len(values) > 1:
        return None
    scalars = frozenset().union(*(shape.scalars for shape in shapes))
    return Shape(name, scalars=scalars, items=items[0] if items else None, values=values[0] if values else None)


def shown(annotation: object) -> str:
    """An annotation or a type as people write it."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")
