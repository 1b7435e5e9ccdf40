"""What may be a key, and what may be the name of a workflow or of a step.

Nothing is trimmed, folded or converted: a key that was changed on the way in would be a different key for whoever takes
it, and a key that was quietly dropped would let both runs execute.
"""

from __future__ import annotations

import re
from typing import Final

from durable_cli.errors import DurableError, InvalidKey, InvalidName

MAX_KEY_BYTES: Final = 255
_RUN_ID: Final = re.compile(r"[a-z][a-z0-9]{9}")
_WORKFLOW_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.\-]{0,127}")


def check_key(key: object) -> str | None:
    """The key as it is stored; None (no key) stays None.

    A subclass of `str` counts by its characters. Anything else raises `InvalidKey`; nothing is ever made into text for
    the caller, because two callers would do that differently.
    """
    return None if key is None else _text(key, "a key", InvalidKey)


def check_step_name(name: object, what: str = "a step") -> str:
    """The name of a step, an event or a branch (`what`, for messages): the same rule as for keys, but there must be
    one (`InvalidName`)."""
    return _text(name, f"the name of {what}", InvalidName)


def check_run_id(run_id: object) -> str:
    """An id of a run as a caller may make it: ten lower-case letters and digits, a letter first (`InvalidName`)."""
    if not isinstance(run_id, str) or _RUN_ID.fullmatch(run_id) is None:
        raise InvalidName(f"{brief(run_id)} cannot be the id of a run: ten letters a-z and digits, a letter first")
    return str.__str__(run_id)


def check_workflow_name(name: object) -> str:
    """The name of a workflow: 1 to 128 letters, digits, `_`, `.` and `-`, beginning with an ASCII letter, a digit or
    `_`. `InvalidName` otherwise."""
    if not isinstance(name, str) or _WORKFLOW_NAME.fullmatch(name) is None:
        raise InvalidName(
            f"{brief(name)} cannot be the name of a workflow: 1 to 128 letters, digits, '_', '.' and '-', "
            "beginning with a letter, a digit or '_'"
        )
    return str.__str__(name)


def _text(value: object, what: str, error: type[DurableError]) -> str:
    """`value` as plain text of 1 to 255 bytes; `what` begins the message of `error`."""
    if not isinstance(value, str):
        raise error(f"{what} is text, not {type(value).__name__}: {brief(value)}")
    text = str.__str__(value)
    if not text:
        raise error(f"{what} is empty; it has 1 to {MAX_KEY_BYTES} bytes")
    if "\0" in text:
        raise error(f"{what} holds a NUL character: {brief(text)}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise error(f"{what} is not valid Unicode (a lone surrogate): {brief(text)}") from None
    if size > MAX_KEY_BYTES:
        raise error(f"{what} has {size} bytes in UTF-8, at most {MAX_KEY_BYTES} are allowed: {brief(text)}")
    return text


def brief(value: object) -> str:
    """A value for an error message: one short line of ASCII, whatever is in it and whatever its repr does."""
    try:
        shown = ascii(value)
    except Exception:  # an integer of more than 4300 digits, a __repr__ that raises
        return f"<{type(value).__name__}>"
    return shown if len(shown) <= 60 else shown[:57] + "..."
