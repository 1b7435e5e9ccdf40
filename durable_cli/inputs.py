"""What a run asks a person, and what counts as an answer.

The question is kept in the record of the wait (`details`), so that `durable inputs` can show it and `durable input`
can check an answer without the workflow's code; only an answer that has a type of the user's needs that type.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from durable_cli.errors import InvalidInput, UsageError
from durable_cli.values import Codec, canonical, codec

KINDS = ("text", "choice", "approval", "form")
_YES, _NO = (
    frozenset({"yes", "y", "true", "approve", "approved"}),
    frozenset({"no", "n", "false", "reject", "rejected"}),
)


@dataclass(frozen=True, slots=True)
class Question:
    """`details` is what is recorded; `values` rebuilds an answer."""

    details: dict[str, Any]
    values: Codec


def question(name: str, prompt: str | None, type: Any, choices: Sequence[str] | None) -> Question:
    """A question as `ctx.wait_for_input` asks it. Raises UsageError for one that cannot be answered."""
    details: dict[str, Any] = {"prompt": prompt}
    if isinstance(type, str):
        if type not in KINDS:
            raise UsageError(f"wait_for_input {name!r}: type={type!r} is none of {', '.join(KINDS)}, nor a type")
        if (type == "choice") != (choices is not None):
            raise UsageError(f'wait_for_input {name!r}: choices= goes with type="choice"')
        if choices is not None:
            _check_choices(name, choices)
            details["choices"] = list(choices)
        annotation = {"text": str, "choice": str, "approval": bool, "form": dict[str, Any]}[type]
        return Question({**details, "type": type}, codec(annotation))
    if choices is not None:
        raise UsageError(f'wait_for_input {name!r}: choices= goes with type="choice"')
    details |= {"type": "form", "model": f"{type.__module__}:{type.__qualname__}"}
    schema = getattr(type, "model_json_schema", None)
    if callable(schema):
        details["schema"] = schema()
    return Question(details, codec(type))


def _check_choices(name: str, choices: Sequence[str]) -> None:
    if isinstance(choices, str) or not choices or not all(isinstance(one, str) for one in choices):
        raise UsageError(f"wait_for_input {name!r}: choices= is a list of texts")


def answer(details: dict[str, Any], value: object, *, load_code: Callable[[], object], limit: int) -> str:
    """An answer, checked against the question, as the JSON text to store. Raises InvalidInput.

    `value` is what a program gives, or text as typed at a command line. `load_code` imports the workflow's module; it
    is called only where the answer has a type of the user's. `limit`: in bytes of JSON.
    """
    kind = details["type"]
    if kind == "approval":
        return canonical(_approval(value))
    if kind == "form":
        return _form(details, value, load_code, limit)
    if not isinstance(value, str):
        raise InvalidInput(f"the answer is text, not {type(value).__name__}")
    if kind == "choice" and value not in details["choices"]:
        raise InvalidInput(f"{value!r} is none of the choices: {', '.join(details['choices'])}")
    return codec(str).accept(value, place="answer", limit=limit)


def _approval(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in _YES or word in _NO:
        return word in _YES
    raise InvalidInput(f"{value!r} is no answer to an approval: yes or no")


def _form(details: dict[str, Any], value: object, load_code: Callable[[], object], limit: int) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InvalidInput(f"the answer is a JSON object: {error}") from None
    if "model" not in details:
        return codec(dict[str, Any]).accept(value, limit=limit)
    load_code()
    return codec(_model(details["model"])).accept(value, limit=limit)


def _model(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise InvalidInput(f"the type of the answer, {name}, is not in the workflow's code any more")
    return found
