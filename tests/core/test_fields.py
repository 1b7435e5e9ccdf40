"""Which names an input has."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, TypedDict

import pydantic
import pytest
import typing_extensions

from durable_cli.core.fields import known_fields


@dataclasses.dataclass
class Plain:
    a: int
    b: int = 1
    made: int = dataclasses.field(init=False, default=0)


class Typed(TypedDict, total=False):
    a: int


class Extended(typing_extensions.TypedDict):
    a: int


class Model(pydantic.BaseModel):
    a: int
    b: int = pydantic.Field(alias="bee")
    c: int = pydantic.Field(validation_alias=pydantic.AliasChoices("sea", "see"))


class Open(pydantic.BaseModel, extra="allow"):
    a: int


class ByPath(pydantic.BaseModel):
    a: int = pydantic.Field(validation_alias=pydantic.AliasPath("x", "y"))


class Before(pydantic.BaseModel):
    a: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return {"a": value["anything"]}


@pydantic.dataclasses.dataclass
class Mixed:
    a: int
    b: int = pydantic.Field(alias="bee")


@pytest.mark.parametrize(
    ("annotation", "names"),
    [
        (Plain, {"a", "b"}),
        (Plain | None, {"a", "b"}),
        (Optional[Plain], {"a", "b"}),  # noqa: UP045
        (Typed, {"a"}),
        (Extended, {"a"}),
        (Model, {"a", "b", "bee", "c", "sea", "see"}),
        (Mixed, {"a", "b", "bee"}),
        (Open, None),
        (ByPath, None),
        (Before, None),
        (Plain | Typed, None),
        (dict[str, int], None),
        (dict, None),
        (int, None),
        (Any, None),
        (None, None),
    ],
)
def test_known_fields(annotation: Any, names: set[str] | None) -> None:
    """None wherever any name may be right."""
    assert known_fields(annotation) == names
