"""Typed values as JSON text: inputs, results of steps, results of runs. Never pickle.

A value has an annotation or it has none. Without one it is plain JSON (`core/plain.py`). With one it is written and
rebuilt as that type: annotations made only of what JSON has (`str`, `int`, `float`, `bool`, `None`, `list[...]`,
`dict[str, ...]`, `Any` and unions of those) by the few lines below, everything else by pydantic, which is imported only
then.

What the next line of a workflow sees is the same on the first pass and on a replay, because both times it is what
`Codec.load` makes of the recorded text; `Codec.dump` refuses a value whose text could not be loaded again.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from durable_cli.core import plain
from durable_cli.core.keys import brief
from durable_cli.core.plain import MAX_VALUE_BYTES, parse, same_value
from durable_cli.core.shapes import Misfit, shape_of, shown
from durable_cli.errors import InvalidDefinition, InvalidInput, Unreadable, Unstorable
from durable_cli.usercode import answering, type_and_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

__all__ = ["MAX_VALUE_BYTES", "Codec", "canonical", "codec", "parse", "resolve", "result_codec", "same_value"]


def canonical(value: object, *, place: str = "the value", limit: int = MAX_VALUE_BYTES) -> str:
    """A value that is plain JSON as the one text that durable writes for it. Raises `Unstorable`, which names `place`."""
    return plain.dump(value, place=place, limit=limit)


class Codec:
    """Writes and rebuilds the values of one annotation (`inspect.Parameter.empty`: plain JSON). Made by `codec()`."""

    def __init__(self, annotation: object) -> None:
        self.annotation = annotation
        self._shape = shape_of(annotation)
        self._pydantic: TypeAdapter[Any] | None = None

    def dump(self, value: object, *, place: str = "result", limit: int = MAX_VALUE_BYTES) -> str:
        """The value as JSON text of at most `limit` bytes. `Unstorable` when it does not fit the annotation."""
        return self.round_trip(value, place=place, limit=limit)[0]

    def round_trip(self, value: object, *, place: str = "result", limit: int = MAX_VALUE_BYTES) -> tuple[str, object]:
        """`dump` and what `load` makes of its text, for the price of one of them."""
        if self._shape is None:
            return self._dump_typed(value, place, limit)
        text = plain.dump(value, place=place, limit=limit)
        try:
            return text, self._shape.fit(parse(text))
        except Misfit as problem:
            raise Unstorable(problem.message(place), value_type=problem.found) from None

    def load(self, text: str) -> object:
        """The value that a stored text stands for. `Unreadable` when it does not fit the annotation (any more)."""
        try:
            value = parse(text)
            if self._shape is not None:
                return self._shape.fit(value)
        except ValueError as problem:
            raise Unreadable(f"the stored text is not JSON: {problem}") from None
        except Misfit:
            pass  # what pydantic can still make of it: the annotation may have changed since
        try:
            return self._load_typed(text)
        except _Invalid as problem:
            raise Unreadable(f"the stored value does not fit its annotation: {problem.at('value')[0]}") from None
        except _Unsupported as problem:
            raise Unreadable(str(problem)) from None

    def accept(self, value: object, *, place: str = "input", limit: int = MAX_VALUE_BYTES) -> str:
        """What a caller gives, validated, as the JSON text to store.

        `value` is JSON as it came from a command line or a queue (`{"id": "42"}` becomes an int where one is annotated)
        or a typed value (a model, a datetime). Raises `InvalidInput` with the places that do not fit, and
        `InvalidDefinition` where nothing can be of that type.
        """
        try:
            text = plain.dump(value, place=place, limit=limit)
        except Unstorable as problem:
            if self._shape is not None:
                raise InvalidInput(problem.message, hint=problem.hint) from None
            return self._accept_typed(value, None, place, limit)
        if self._shape is not None:
            try:
                return plain.dump(self._shape.fit(parse(text)), place=place, limit=limit)
            except Misfit:
                pass  # "42" for an int: pydantic decides
        return self._accept_typed(value, text, place, limit)

    # -- pydantic --------------------------------------------------------------------------------------------------

    def _adapter(self) -> TypeAdapter[Any]:
        """Reads and writes a tuple of one value: so its settings reach dataclasses and TypedDicts too."""
        if self._pydantic is None:
            from pydantic import ConfigDict, TypeAdapter

            settings = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
            try:
                boxed: Any = types.GenericAlias(tuple, (self.annotation,))
                with answering():
                    self._pydantic = TypeAdapter(boxed, config=settings)
            except Exception as problem:
                reason = str(problem).split("\n")[0].split(". Set `arbitrary_types_allowed")[0]
                raise _Unsupported(f"{shown(self.annotation)} is no type of JSON values: {reason}") from None
        return self._pydantic

    def _dump_typed(self, value: object, place: str, limit: int) -> tuple[str, object]:
        kind = shown(type(value))
        if isinstance(value, Iterator):
            raise Unstorable(f"{place} is an iterator ({kind}); return a list instead", value_type=kind)
        try:
            text = self._write((value,), place, limit)
            return text, self._load_typed(text)
        except _Unsupported as problem:
            raise Unstorable(f"{place} cannot be stored: {problem}", value_type=kind) from None
        except _Invalid as problem:
            reason = problem.at(place)[0]
            raise Unstorable(
                f"{place} could not be read back as {shown(self.annotation)}: {reason}", value_type=kind
            ) from None

    def _write(self, boxed: tuple[object], place: str, limit: int) -> str:
        """The JSON text of the one value in `boxed`, by names of fields and not by aliases, as it is read back."""
        adapter = self._adapter()
        try:
            with answering():
                [value] = adapter.dump_python(boxed, mode="json", by_alias=False, round_trip=True, warnings="error")
        except Exception as problem:
            reason = _serializer_reason(problem)
            kind = shown(type(boxed[0]))
            raise Unstorable(
                f"{place} ({kind}) cannot be written as {shown(self.annotation)}: {reason}", value_type=kind
            ) from None
        return plain.dump(value, place=place, limit=limit)

    def _load_typed(self, text: str) -> object:
        adapter = self._adapter()
        try:
            with answering():
                [value] = adapter.validate_json(f"[{text}]", by_alias=True, by_name=True)
        except Exception as problem:
            raise _Invalid(problem) from None
        return value

    def _accept_typed(self, value: object, text: str | None, place: str, limit: int) -> str:
        """`text` is the value as JSON, where it is plain: then it is read as JSON, so that base64 is bytes."""
        try:
            if text is not None:
                value = self._load_typed(text)
            else:
                adapter = self._adapter()
                try:
                    with answering():
                        [value] = adapter.validate_python((value,), by_alias=True, by_name=True)
                except Exception as problem:
                    raise _Invalid(problem) from None
            return self._dump_typed(value, place, limit)[0]
        except _Unsupported as problem:
            raise InvalidDefinition(str(problem)) from None
        except _Invalid as problem:
            first, *others = problem.at(place)
            raise InvalidInput(first, facts=tuple(others[:3])) from None
        except Unstorable as problem:
            raise InvalidInput(problem.message, hint=problem.hint) from None


def codec(annotation: object) -> Codec:
    """The codec of an annotation, the same one for the same annotation."""
    try:
        return _codec(annotation, repr(annotation))  # by repr too: Union[A, B] == Union[B, A], and order may decide
    except TypeError:  # unhashable: Annotated[int, [...]]
        return Codec(annotation)


@functools.lru_cache(maxsize=1024)
def _codec(annotation: object, _repr: str) -> Codec:
    return Codec(annotation)


PLAIN: Final = codec(inspect.Parameter.empty)


# -- annotations of functions --------------------------------------------------------------------------------------

_results: weakref.WeakKeyDictionary[object, Codec] = weakref.WeakKeyDictionary()


def result_codec(function: Callable[..., object]) -> Codec:
    """The codec of what a function returns: of its return annotation (for `async def`: of what is awaited).

    Understands partials, methods, callable objects, and classes (which return themselves). Without an annotation, or
    with one that cannot be resolved (a name imported for type checkers only), results are plain JSON.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    try:
        return _results[function]
    except (KeyError, TypeError):
        made = codec(_return_annotation(function))
    try:
        _results[function] = made
    except TypeError:  # not hashable or not weakly referable
        pass
    return made


def _return_annotation(function: Callable[..., object]) -> object:
    if isinstance(function, type):
        return function
    if not isinstance(function, types.FunctionType | types.BuiltinFunctionType):
        function = getattr(type(function).__call__, "__func__", type(function).__call__)
    try:
        annotation = resolve(function, "return")
    except NameError:
        return inspect.Parameter.empty
    if typing.get_origin(annotation) in (collections.abc.Awaitable, collections.abc.Coroutine):
        annotation = typing.get_args(annotation)[-1]
    if annotation in (typing.NoReturn, typing.Never) or isinstance(annotation, typing.TypeVar):
        return inspect.Parameter.empty
    return annotation


def resolve(function: Callable[..., object], name: str, local: dict[str, object] | None = None) -> object:
    """The annotation of a parameter (or of "return") as an object; `inspect.Parameter.empty` where there is none.

    `local` are names that the module does not have: those of the function in which this one was defined. Raises
    NameError when a name in the annotation means nothing.
    """
    annotations: dict[str, object] = getattr(function, "__annotations__", None) or {}
    if name not in annotations:
        return inspect.Parameter.empty
    annotation = annotations[name]
    if not isinstance(annotation, str):
        return annotation
    inner = inspect.unwrap(function)
    code, cells = getattr(inner, "__code__", None), getattr(inner, "__closure__", None)
    names = dict(local or {})
    for free, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
        try:
            names[free] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    try:
        with answering():
            return eval(annotation, getattr(inner, "__globals__", {}), names)
    except Exception as problem:
        raise NameError(f"{annotation!r} cannot be resolved: {problem}") from None


# -- what pydantic says --------------------------------------------------------------------------------------------


class _Unsupported(Exception):
    """pydantic has no schema for an annotation."""


class _Invalid(Exception):
    """A value was refused by pydantic, or by a validator of the user's."""

    def at(self, place: str) -> list[str]:
        """One line for each thing that does not fit, with its place; at least one."""
        cause = self.args[0]
        errors = getattr(cause, "errors", None)
        if not callable(errors) or not hasattr(cause, "error_count"):
            return [f"{place} was refused: {type_and_text(cause)}".split("\n")[0]]
        return [_line(place, error) for error in typing.cast("ValidationError", cause).errors(include_url=False)]


def _line(place: str, error: Any) -> str:
    where = place + "".join(plain.step_into(part) for part in error["loc"][1:])
    if error["type"] in ("missing", "json_invalid"):
        return f"{where}: {error['msg']}"
    return f"{where}: {error['msg']} (got {brief(error['input'])})".replace("\n", " ")


def _serializer_reason(problem: Exception) -> str:
    """The one line that says why a value could not be serialized."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
    reason = lines[-1] if lines[0] == "Pydantic serializer warnings:" else lines[0]
    reason = reason.removeprefix("PydanticSerializationUnexpectedValue(").removesuffix(")")
    return reason.split(" - serialized value may not be")[0]
