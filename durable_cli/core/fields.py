"""Which fields an object of a type has, so that a name that is mistyped is not ignored."""

from __future__ import annotations

import types
import typing
from typing import Any


def known_fields(annotation: Any) -> frozenset[str] | None:
    """The names that the fields of such an object may have; None where any may be, or nobody can tell.

    For dataclasses, TypedDicts and pydantic models, also as `X | None`; by their attributes, without importing
    pydantic. A model that reads whatever it likes (`extra="allow"`, a validator before the fields) can take any name.
    """
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        return known_fields(parts[0]) if len(parts) == 1 else None
    if not isinstance(annotation, type):
        return None
    if typing.is_typeddict(annotation) or hasattr(annotation, "__required_keys__"):
        return frozenset(annotation.__annotations__)
    config = getattr(annotation, "model_config", None) or getattr(annotation, "__pydantic_config__", None) or {}
    validators = getattr(getattr(annotation, "__pydantic_decorators__", None), "model_validators", {})
    if config.get("extra") == "allow" or any(one.info.mode != "after" for one in validators.values()):
        return None
    model = getattr(annotation, "model_fields", None) or getattr(annotation, "__pydantic_fields__", None)
    if isinstance(model, dict):
        return _of_model(model)
    plain = getattr(annotation, "__dataclass_fields__", None)
    return None if plain is None else frozenset(name for name, one in plain.items() if one.init)


def _of_model(model: dict[str, Any]) -> frozenset[str] | None:
    names = set(model)
    for one in model.values():
        for alias in (getattr(one, "alias", None), getattr(one, "validation_alias", None)):
            choices = getattr(alias, "choices", [alias])
            if any(not isinstance(choice, str) for choice in choices if choice is not None):
                return None  # a path into the object
            names |= {choice for choice in choices if choice is not None}
    return frozenset(names)
