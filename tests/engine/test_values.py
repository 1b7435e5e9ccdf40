"""Typed values as JSON (SPEC 4.2, CASES G16): the next line sees the same on the first pass and after a crash."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import functools
import inspect
import json
import math
import os
import subprocess
import sys
import typing
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from durable_cli.errors import InvalidDefinition, InvalidInput, Unreadable, Unstorable
from durable_cli.values import MAX_VALUE_BYTES, canonical, codec, parse, result_codec, same_value

PLAIN = codec(inspect.Parameter.empty)
ROOT = Path(__file__).parents[2]


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Pair(typing.NamedTuple):
    a: int
    b: str


class Options(TypedDict):
    depth: int
    tags: list[str]


@dataclass
class Point:
    x: float
    seen: dt.datetime
    raw: bytes = b""
    near: dict[int, set[str]] = field(default_factory=dict)


class Article(BaseModel):
    id: int = Field(alias="articleId")
    title: str
    price: decimal.Decimal | None = None
    parts: tuple[int, str] = (0, "")


utc = st.datetimes(timezones=st.sampled_from([dt.UTC, None]))
finite = st.floats(allow_nan=False, allow_infinity=False)
clean = st.text(st.characters(codec="utf-8"))  # pydantic reads no lone surrogates
decimals = st.decimals(allow_nan=False, allow_infinity=False)
TYPED: dict[object, st.SearchStrategy[Any]] = {
    dt.datetime: utc,
    dt.date: st.dates(),
    dt.timedelta: st.timedeltas(min_value=dt.timedelta(days=-9999), max_value=dt.timedelta(days=9999)),
    decimal.Decimal: decimals,
    uuid.UUID: st.uuids(),
    bytes: st.binary(),
    set[int]: st.sets(st.integers()),
    frozenset[bytes]: st.frozensets(st.binary()),
    dict[int, str]: st.dictionaries(st.integers(), clean),
    tuple[int, str]: st.tuples(st.integers(), clean),
    tuple[float, ...]: st.lists(finite).map(tuple),
    Pair: st.builds(Pair, st.integers(), clean),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Word: st.sampled_from(Word),
    float: finite,
    int: st.integers(min_value=-(10**400), max_value=10**400),
    str: st.text(),
    bool: st.booleans(),
    dt.datetime | None: st.none() | utc,
    list[str | None]: st.lists(st.none() | st.text()),
    dict[str, list[float]]: st.dictionaries(st.text(), st.lists(finite)),
    int | str: st.integers() | st.text(),
    Options: st.fixed_dictionaries({"depth": st.integers(), "tags": st.lists(clean)}),
    Point: st.builds(Point, finite, utc, st.binary(), st.dictionaries(st.integers(), st.sets(clean))),
    Article: st.builds(Article, articleId=st.integers(), title=clean, price=st.none() | decimals),
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


# -- what the next line sees ---------------------------------------------------------------------------------------


@given(json_values)
@settings(max_examples=200, deadline=None)
def test_plain_values_are_stable(value: object) -> None:
    """Without annotation a value that was read once is read the same for ever, and its text does not change."""
    text, seen = PLAIN.round_trip(value)
    assert seen == PLAIN.load(text)
    assert PLAIN.dump(seen) == PLAIN.dump(PLAIN.load(PLAIN.dump(seen)))
    assert text.isascii()


@pytest.mark.parametrize("annotation", TYPED)
def test_typed_values_are_rebuilt(annotation: object) -> None:
    """With an annotation the value itself comes back, of its own type, on the first pass and on every replay."""
    values = codec(annotation)

    @given(TYPED[annotation])
    @settings(max_examples=40, deadline=None)
    def check(value: object) -> None:
        text, first = values.round_trip(value)
        replayed = values.load(text)
        assert first == replayed == value
        assert type(first) is type(replayed) is type(value)
        assert values.load(values.dump(replayed)) == first

    check()


@pytest.mark.parametrize(
    ("annotation", "value", "seen"),
    [
        (float, 3, 3.0),
        (list[float], (1, 2.5), [1.0, 2.5]),
        (dict[str, list[float]], {"a": (1,)}, {"a": [1.0]}),
        (int, True, None),
        (list[int], (1, 2), [1, 2]),
        (float | str, 3, 3.0),
    ],
)
def test_values_that_nearly_fit(annotation: object, value: object, seen: object) -> None:
    """An int is a float and a tuple a list, once for both passes; a bool is no int."""
    if seen is None:
        with pytest.raises(Unstorable, match="is bool, but int is annotated"):
            codec(annotation).dump(value)
        return
    text, first = codec(annotation).round_trip(value)
    assert repr(first) == repr(codec(annotation).load(text)) == repr(seen)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ((1, (2,)), [1, [2]]),
        (2**70, 2**70),
        (10**4300 - 1, 10**4300 - 1),
        ("a\0b\udc80", "a\0b\udc80"),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (type("Markup", (str,), {})("x"), "x"),
        (type("Metres", (float,), {})(1.5), 1.5),
    ],
)
def test_plain_values_as_json_has_them(value: object, seen: object) -> None:
    """Tuples are lists, subclasses are the plain value they hold, and text may hold anything that Python's may."""
    _, first = PLAIN.round_trip(value)
    assert first == seen
    assert type(first) is type(seen)


# -- what cannot be stored -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        ({"a": [0, 1, 2, {1}]}, 'result["a"][3]', "set"),
        ({"a": {1: 2}}, 'result["a"]', "dict"),
        ([b"x"], "result[0]", "bytes"),
        (dt.datetime(2026, 1, 1), "result", "datetime.datetime"),
        ((1, decimal.Decimal(1)), "result[1]", "decimal.Decimal"),
        ({"p": Point(1, dt.datetime.now())}, 'result["p"]', "Point"),
        (math.nan, "result", "float"),
        ([-math.inf], "result[0]", "float"),
        ([Level.LOW], "result[0]", "Level"),
        ({Word.YES: 1}, "result", "dict"),
        (Word.YES, "result", "Word"),
        (Pair(1, ""), "result", "Pair"),
        (10**4300, "result", "int"),
        ([-(10**5000)], "result[0]", "int"),
        (iter([]), "result", "list_iterator"),
        (object(), "result", "object"),
    ],
)
def test_unstorable_names_place_and_type(value: object, place: str, kind: str) -> None:
    """What plain JSON cannot hold is refused in one line that says where in the value it is and of which type."""
    with pytest.raises(Unstorable) as caught:
        PLAIN.dump(value)
    assert caught.value.message.startswith(place + " ")
    assert caught.value.value_type.endswith(kind)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("value", [{1}, {1: 2}, b"x", Level.LOW, Pair(1, "")])
def test_unstorable_tells_to_annotate(value: object) -> None:
    """Where an annotation would help, the hint says so."""
    with pytest.raises(Unstorable) as caught:
        PLAIN.dump(value)
    assert "annotate" in (caught.value.hint or "")


def test_depth_and_self_reference() -> None:
    """100 levels are stored, 101 are not, and a list that holds itself ends in an error, not in a hang."""
    deep: list[Any] = []
    for _ in range(99):
        deep = [deep]
    assert PLAIN.load(PLAIN.dump(deep)) == deep
    with pytest.raises(Unstorable, match="deeper than 100"):
        PLAIN.dump([deep])
    deep.append(deep)
    with pytest.raises(Unstorable, match="contain itself"):
        PLAIN.dump(deep)


def test_shared_lists_that_would_explode() -> None:
    """A value that is small in memory and endless as text is refused without writing the text."""
    value: list[Any] = []
    for _ in range(64):
        value = [value, value]
    with pytest.raises(Unstorable, match="at most 1,000 are stored"):
        PLAIN.dump(value, limit=1000)


@pytest.mark.parametrize("annotation", [inspect.Parameter.empty, str, Annotated[str, Field(min_length=1)]])
def test_size_limit(annotation: object) -> None:
    """1 MiB of JSON text is stored, one byte more is not; the limit is an argument."""
    values = codec(annotation)
    assert len(values.dump("x" * (MAX_VALUE_BYTES - 2))) == MAX_VALUE_BYTES
    with pytest.raises(Unstorable, match=r"1,048,577 bytes as JSON; at most 1,048,576"):
        values.dump("x" * (MAX_VALUE_BYTES - 1))
    with pytest.raises(InvalidInput, match="at most 9"):
        values.accept("12345678", limit=9)
    assert values.accept("1234567", limit=9) == '"1234567"'


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        (set[int], [1], "result (list) cannot be written as set[int]"),
        (int, "42", "result is str, but int is annotated"),
        (list[int], [1, "a"], "result[1] is str, but int is annotated"),
        (dict[str, Any], {"a": {1}}, 'result["a"] is of type set'),
        (dict, {1: 2}, "result has the key 1 of type int"),
        (set[float], {math.nan}, "result[0] is nan"),
        (Point, Point(math.inf, dt.datetime(2020, 1, 1)), 'result["x"] is inf'),
        (decimal.Decimal, decimal.Decimal("NaN"), "finite number"),
        (Annotated[int, Field(gt=3)], 1, "greater than 3"),
        (typing.Iterator[int], iter([1]), "return a list"),
        (Path("x").__class__, object(), "cannot be written as"),
        (type("Alien", (), {}), 1, "Alien is no type of JSON values"),
        (Article, {"id": 1}, "result (dict) cannot be written as Article"),
    ],
)
def test_result_that_does_not_fit(annotation: object, value: object, told: str) -> None:
    """A result that is not what was annotated is refused at once: never coerced, never turned into null, and never
    written as a text that could not be read again."""
    with pytest.raises(Unstorable) as caught:
        codec(annotation).dump(value)
    assert told in caught.value.message
    assert "\n" not in caught.value.message


# -- inputs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "given", "stored"),
    [
        (int, "42", "42"),
        (float, 3, "3.0"),
        (dict[str, int], {"a": "1"}, '{"a":1}'),
        (list[int], ("1", 2), "[1,2]"),
        (bool, "yes", "true"),
        (dt.datetime, "2026-11-29T12:00:00Z", '"2026-11-29T12:00:00Z"'),
        (dt.date, dt.date(2026, 11, 29), '"2026-11-29"'),
        (bytes, "aGk=", '"aGk="'),
        (bytes, b"hi", '"aGk="'),
        (list[bytes], [b"hi"], '["aGk="]'),
        (Colour, "red", '"red"'),
        (Word, Word.YES, '"yes"'),
        (tuple[int, str], [1, "a"], '[1,"a"]'),
        (Article, {"articleId": "7", "title": "x"}, '{"id":7,"title":"x","price":null,"parts":[0,""]}'),
        (Article, {"id": 7, "title": "x", "price": "1.10"}, '{"id":7,"title":"x","price":"1.10","parts":[0,""]}'),
        (Article, Article(articleId=7, title="x"), '{"id":7,"title":"x","price":null,"parts":[0,""]}'),
        (Options, {"depth": "1", "tags": []}, '{"depth":1,"tags":[]}'),
        (int | None, None, "null"),
        (inspect.Parameter.empty, {"a": (1, 2)}, '{"a":[1,2]}'),
    ],
)
def test_accept_stores_the_validated_value(annotation: object, given: object, stored: str) -> None:
    """An input may be JSON, or text from a command line, or a typed value: what is stored is the validated one."""
    assert codec(annotation).accept(given) == stored
    codec(annotation).load(stored)


@pytest.mark.parametrize(
    ("annotation", "given", "told"),
    [
        (int, "x", "input: Input should be a valid integer"),
        (int, None, "input: Input should be a valid integer"),
        (int, 10**5000, "input is an integer of more than 4300 digits"),
        (dict[str, list[int]], {"a": [1, "x"]}, 'input["a"][1]: Input should be a valid integer'),
        (Article, {"title": 1}, 'input["articleId"]: Field required'),
        (Article, [], "input: Input should be an object"),
        (inspect.Parameter.empty, {"a": {1}}, 'input["a"] is of type set'),
        (float, math.nan, "input is nan"),
        (Point, {"x": math.nan, "seen": "2026-01-01"}, 'input["x"] is nan'),
        (str, 3, "input: Input should be a valid string"),
    ],
)
def test_accept_refuses_with_the_place(annotation: object, given: object, told: str) -> None:
    """An input that does not fit is InvalidInput, in one line with the place in it."""
    with pytest.raises(InvalidInput) as caught:
        codec(annotation).accept(given)
    assert caught.value.message.startswith(told)
    assert "\n" not in caught.value.message


def test_accept_shows_the_other_misfits_as_facts() -> None:
    """All that is wrong with an input is told at once, up to four things."""
    with pytest.raises(InvalidInput) as caught:
        codec(dict[str, int]).accept(dict.fromkeys("abcdef", "x"))
    assert caught.value.message.startswith('input["a"]')
    assert [fact.split(":")[0] for fact in caught.value.facts] == ['input["b"]', 'input["c"]', 'input["d"]']


def test_annotation_that_nothing_fits() -> None:
    """An input of a type that pydantic does not know is a mistake in the definition, not in the input."""
    alien = type("Alien", (), {})
    with pytest.raises(InvalidDefinition, match="Alien is no type of JSON values"):
        codec(alien).accept(1)


def test_validator_of_the_user_that_raises_anything() -> None:
    """An exception of the user's own validator is a refusal like any other."""

    class Odd(BaseModel):
        x: Annotated[int, Field()] = 0

        def model_post_init(self, _: object) -> None:
            raise RuntimeError("odd\nvery odd")

    with pytest.raises(InvalidInput, match="input was refused: RuntimeError: odd"):
        codec(Odd).accept({})


# -- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (inspect.Parameter.empty, "{"),
        (inspect.Parameter.empty, "NaN"),
        (inspect.Parameter.empty, ""),
        (inspect.Parameter.empty, "[" * 100_000),
        (int, '"x"'),
        (Article, '{"id":1}'),
        (set[int], '["x"]'),
        (type("Alien", (), {}), "1"),
    ],
)
def test_unreadable(annotation: object, text: str) -> None:
    """A stored text that does not fit (any more) is Unreadable, whatever is wrong with it."""
    with pytest.raises(Unreadable):
        codec(annotation).load(text)


def test_definition_that_became_another() -> None:
    """A value that was stored under an older annotation is read where it can be understood."""
    assert codec(int).load('"42"') == 42
    assert codec(Article).load('{"id":1,"title":"t","gone":true}') == Article(articleId=1, title="t")


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "{", "[" * 100_000, "1" * 5000, ""])
def test_parse_is_strict(text: str) -> None:
    """What is no JSON, or could not be kept, is a ValueError of one line."""
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


# -- comparing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ('{"a":1,"b":2}', '{ "b" : 2, "a" : 1 }', True),
        ('{"a":1,"b":2}', '{"a":1,"b":3}', False),
        ("[1,2]", "[2,1]", False),
        ("1", "1.0", True),
        ("1", "true", False),
        ("[0]", "[false]", False),
        ('{"a":{"b":[1]}}', '{"a":{"b":[true]}}', False),
        ("null", "false", False),
        ('"\\u00e9"', '"é"', True),
        ('{"a":null}', "{}", False),
        ("[]", "{}", False),
        ("[1]", "[1,2]", False),
    ],
)
def test_same_value(a: str, b: str, same: bool) -> None:
    """Inputs are compared as JSON values (CASES A08): key order and blanks do not count, 1 is 1.0 and not true."""
    assert same_value(a, b) is same
    assert same_value(b, a) is same


@given(json_values)
@settings(max_examples=100, deadline=None)
def test_same_value_knows_the_value_itself(value: object) -> None:
    """However a value is spelled, it is the same value."""
    assert same_value(canonical(value), json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))


# -- annotations of functions --------------------------------------------------------------------------------------


def days() -> set[int]:
    return {1}


async def later() -> dt.date:
    return dt.date(2026, 1, 1)


def awaitable() -> typing.Awaitable[dt.date]:
    return later()


def unresolvable() -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    return 1


T = typing.TypeVar("T")


def same(value: T) -> T:
    return value


class Tool:
    def method(self) -> set[int]:
        return {1}

    @classmethod
    def klass(cls) -> set[int]:
        return {1}

    @staticmethod
    def static() -> set[int]:
        return {1}

    def __call__(self) -> set[int]:
        return {1}


@functools.wraps(days)
def wrapped() -> object:
    return days()


def logged() -> typing.Callable[[], object]:
    def inner() -> typing.List[Mine]:  # noqa: UP006
        return [Mine()]

    class Mine(BaseModel):
        pass

    return inner


@pytest.mark.parametrize(
    "function",
    [
        days,
        wrapped,
        functools.partial(functools.partial(days)),
        Tool().method,
        Tool.klass,
        Tool.static,
        Tool(),
        Tool().__call__,
    ],
)
def test_return_annotation_is_found(function: typing.Callable[..., object]) -> None:
    """Partials, methods and callable objects have the return type of the function inside."""
    assert result_codec(function).annotation == set[int]
    assert result_codec(function) is result_codec(function)


def test_what_is_awaited_counts() -> None:
    """`async def` and a function that returns an awaitable: the type of what is awaited."""
    assert result_codec(later).annotation is dt.date
    assert result_codec(awaitable).annotation is dt.date


def test_class_returns_itself() -> None:
    """A class used as a step function makes values of its own type."""
    assert result_codec(Point).annotation is Point


def test_annotation_of_a_local_class() -> None:
    """A name that only the surrounding function knows is found in the closure."""
    assert "Mine" in str(result_codec(logged()).annotation)


@pytest.mark.parametrize("function", [unresolvable, same, lambda: 1, len, print, dt.datetime.now, os.getcwd])
def test_everything_else_is_plain(function: typing.Callable[..., object]) -> None:
    """No annotation, none that means anything here, or only a type variable: plain JSON."""
    with pytest.raises(Unstorable):
        result_codec(function).dump({1})
    assert result_codec(function).dump([1]) == "[1]"


def test_codec_is_one_for_one_annotation() -> None:
    """Codecs are cached, but the order of a union's members, which may decide, is kept."""
    assert codec(set[int]) is codec(set[int])
    assert str(codec(typing.Union[Article, Point]).annotation) != str(codec(typing.Union[Point, Article]).annotation)  # noqa: UP007
    assert codec(Annotated[int, ["unhashable"]]).accept("1") == "1"


def test_plain_jobs_do_not_import_pydantic() -> None:
    """A cron job whose values are what JSON has does not pay for pydantic, asyncio or rich."""
    script = """
import sys
from durable_cli.values import codec, result_codec
def step(a: int, b) -> dict[str, list[str] | int | None]: ...
text = result_codec(step).dump({"a": ["x"], "b": 1, "c": None})
result_codec(step).load(text); codec(float).accept(3); codec(int | None).accept(None); codec(dict).accept({"a": [1]})
loaded = {"pydantic", "asyncio", "rich", "sqlite3", "pickle"} & set(sys.modules)
sys.exit(f"imported {loaded}" if loaded else 0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
