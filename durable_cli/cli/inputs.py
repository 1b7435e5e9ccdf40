"""The input of a start as the command line gives it: `--input JSON|@FILE|-` and `-P name=text | n:=JSON | a.b=...`."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from durable_cli.errors import InvalidInput, NotFound, UsageError

MAX_BYTES = 16 * 1024 * 1024
"""More is not even read; what a workflow takes is checked by the library."""
NOT_BY_PARAMS = "-P builds an object; this input is not one: --input '...'"


def read_input(text: str, *, may_ask: bool) -> Any:
    """The value of `--input`. `may_ask`: stdin may be read although it is a terminal."""
    return read_value(text, "--input", may_ask=may_ask)


def read_value(text: str, where: str, *, may_ask: bool) -> Any:
    """A JSON value given as JSON, `@FILE` or `-`; `where` names the option or argument."""
    if text == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise UsageError(f"{where} - reads the standard input, which is closed")
        if sys.stdin.isatty() and not may_ask:
            raise UsageError(f"{where} - would read from the terminal, and --no-input forbids it")
        return parse_json(_read(sys.stdin.buffer, "the standard input"), "the standard input")
    if text.startswith("@"):
        return parse_json(_read_file(text[1:], where), text[1:])
    return parse_json(text, where)


def _read_file(name: str, where: str) -> bytes:
    try:
        with Path(os.path.expanduser(name)).open("rb") as file:
            return _read(file, name)
    except FileNotFoundError:
        raise NotFound(f"{where} @{name}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{where} @{name}: {error.strerror or error}") from None


def _read(file: BinaryIO, name: str) -> bytes:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidInput(f"{name} has more than {MAX_BYTES // 1024 // 1024} MiB; store a reference instead")
    return data


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse_json(text: str | bytes, where: str) -> Any:
    """A JSON value. Raises InvalidInput with the place of the mistake."""
    try:
        decoded = text.decode() if isinstance(text, bytes) else _valid(text)
        return json.loads(decoded, parse_constant=_no_constant)
    except UnicodeError:
        raise InvalidInput(f"{where} is not valid UTF-8") from None
    except RecursionError:
        raise InvalidInput(f"{where} is nested too deeply") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        hint = None if where != "--input" else "a text is written in quotes: --input '\"text\"'"
        raise InvalidInput(f"{where} is not JSON: {error.msg} at {place}", hint=hint) from None
    except ValueError as error:
        raise InvalidInput(f"{where} is not JSON: {error}") from None


def _valid(text: str) -> str:
    """An argument, unless it stands for bytes that are no text (Python makes lone surrogates of those)."""
    text.encode()
    return text


def apply_params(base: Any, params: Sequence[str], *, given: bool) -> Any:
    """`base` (an object, or nothing where `given` is False) with every `-P` written into it."""
    if given and not isinstance(base, dict):
        raise UsageError("-P sets fields of an object, and --input is not one", hint=NOT_BY_PARAMS)
    result: dict[str, Any] = dict(base) if given else {}
    seen: set[tuple[str, ...]] = set()
    for param in params:
        path, value = parse_param(param)
        _set(result, path, value, param, seen)
    return result


def parse_param(param: str) -> tuple[tuple[str, ...], Any]:
    """`name=text`, `name:=JSON`, `a.b=...` as (path, value). The first `=` divides."""
    name, equals, text = param.partition("=")
    if not equals:
        raise UsageError(f"-P {param!r}: write name=text, name:=JSON or a.b=text")
    is_json = name.endswith(":")
    path = tuple((name[:-1] if is_json else name).split("."))
    if not all(path):
        raise UsageError(f"-P {param!r}: a name is missing before the =")
    try:
        return path, parse_json(text, f"-P {path[-1]}") if is_json else _valid(text)
    except UnicodeEncodeError:
        raise InvalidInput(f"-P {path[-1]!a} is not valid UTF-8") from None


def refuse_unknown(params: Sequence[str], fields: frozenset[str] | None) -> None:
    """UsageError for a `-P` that names none of the fields; `fields` None: any name will do.

    Types mostly ignore what they do not know, and a mistyped name would be a default instead of what was meant.
    """
    if fields is None:
        return
    for param in params:
        name = parse_param(param)[0][0]
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            raise UsageError(
                f"-P {param!r}: the input has no field {name!r}",
                facts=(f"there are: {', '.join(sorted(fields))}",) if fields else (),
                hint=f"did you mean {near[0]}?" if near else None,
            )


def _set(target: dict[str, Any], path: tuple[str, ...], value: Any, param: str, seen: set[tuple[str, ...]]) -> None:
    if any(path[: len(other)] == other or other[: len(path)] == path for other in seen):
        raise UsageError(f"-P {param!r}: {'.'.join(path)} is given twice")
    seen.add(path)
    for name in path[:-1]:
        inner = target.get(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"-P {param!r}: {name} in --input is not an object")
        target[name] = dict(inner)  # a copy: what `--input` gave stays as it is
        target = target[name]
    target[path[-1]] = value
