"""`durable __complete SHELL ...`: the words that may come next. Called by the scripts in `completions/`.

It reads the command tree (so that options never differ from the real ones) and, only where a run, a key or a workflow
is to be completed, the database, which it never creates. It never loads user code, prints nothing but candidates, and
says nothing at all when something is wrong: a shell is no place for a message in the middle of a line.

A key is somebody else's text. bash gets words that are quoted for the place they are inserted at; zsh and fish quote
candidates themselves. Keys with control characters are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typer import _click
from typer.core import TyperOption

from durable_cli import render
from durable_cli.cli import config as settings
from durable_cli.cli.executing import REPORTS
from durable_cli.cli.options import ALIASES, COLORS, EXPANSIONS, FORMATS, HELP_NAMES, Group
from durable_cli.model import ActivityKind, Policy, Status
from durable_cli.places import is_there

if TYPE_CHECKING:
    from durable_cli.client import Durable

Candidate = tuple[str, str]  # the word, and what is said beside it

_MOST: Final = 200
_CHOICES: Final = {
    "--format": FORMATS,
    "--color": COLORS,
    "--report": REPORTS,
    "--status": tuple(Status),
    "--kind": tuple(ActivityKind),
    "--on-duplicate": tuple(f"{kind}:" if kind is Policy.SEND_EVENT else str(kind) for kind in Policy),
}


def main(argv: Sequence[str]) -> int:
    """`bash LINE`, or `zsh|fish WORD...`: without the program's name, the last one as it is typed, quotes and all."""
    try:
        shell, *rest = argv
        if shell == "bash":
            raw = split_line(rest[0])
            words, typed = [unquote(word)[0] for word in raw[1:-1]], raw[-1]
            lines = [bash_word(value, typed) for value, _ in candidates(words, unquote(typed)[0])]
        else:
            typed = unquote(rest[-1])[0]
            lines = [f"{value}\t{said}" if said else value for value, said in candidates(rest[:-1], typed)]
        os.write(1, "".join(f"{line}\n" for line in lines).encode("utf-8", "ignore"))
    except Exception:  # see the module's docstring
        return 1
    return 0


# -- reading what was typed ----------------------------------------------------------------------------------------


@dataclass
class _Typed:
    """How far the words have led: the command, the option that wants a value, what counts for the database."""

    command: _click.Command
    option: TyperOption | None = None
    literal: bool = False
    arguments: int = 0
    values: dict[str, str] = field(default_factory=dict)


def candidates(words: Sequence[str], typed: str) -> list[Candidate]:
    """What may stand where `typed` is being typed, after `words`."""
    from durable_cli.cli.app import build

    state = _Typed(build())
    for word in words:
        _step(state, word)
    found = [pair for pair in _possible(state, typed) if pair[0].startswith(typed)]
    return [pair for pair in found if render.safe(pair[0]) == pair[0]][:_MOST]


def _step(state: _Typed, word: str) -> None:
    if state.option is not None:
        state.values[state.option.opts[-1]] = word
        state.option = None
    elif state.literal or not word.startswith("-") or word == "-":
        _argument(state, word)
    elif word == "--":
        state.literal = True
    else:
        name, equals, value = word.partition("=")
        option = _options(state.command).get(name if word.startswith("--") else word[:2])
        if option is None or option.is_flag:
            return
        if equals or (not word.startswith("--") and len(word) > 2):
            state.values[option.opts[-1]] = value
        else:
            state.option = option


def _argument(state: _Typed, word: str) -> None:
    if not isinstance(state.command, Group):
        state.arguments += 1
        return
    at_root = EXPANSIONS[word][0] in state.command.commands if word in EXPANSIONS else False
    for name in EXPANSIONS[word] if at_root else (word,):
        if not isinstance(state.command, Group):
            return
        inner = state.command.commands
        found = inner.get(name) or inner.get(ALIASES.get(name, ""))
        if found is None:
            raise _Nothing
        state.command = found


def _options(command: _click.Command) -> dict[str, TyperOption]:
    context = _click.Context(command, help_option_names=list(HELP_NAMES))
    params = command.get_params(context)
    return {name: param for param in params if isinstance(param, TyperOption) for name in param.opts}


def _possible(state: _Typed, typed: str) -> Iterable[Candidate]:
    if state.option is not None:
        return _values(state.option.opts, state, typed)
    if typed.startswith("--") and "=" in typed and not state.literal:
        name, _, value = typed.partition("=")
        option = _options(state.command).get(name)
        found = _values(option.opts, state, value) if option is not None and not option.is_flag else ()
        return [(f"{name}={word}", said) for word, said in found]
    if typed.startswith("-") and not state.literal:
        return [(name, option.help or "") for name, option in _options(state.command).items()]
    if isinstance(state.command, Group):
        inner = state.command.commands.items()
        return [(name, command.get_short_help_str(60)) for name, command in inner if not command.hidden]
    return _arguments(state, typed)


# -- values --------------------------------------------------------------------------------------------------------


def _values(names: Sequence[str], state: _Typed, typed: str) -> Iterable[Candidate]:
    for name in names:
        if name in _CHOICES:
            return [(str(value), "") for value in _CHOICES[name]]
    if "--key" in names:
        return _keys(state)
    if "--workflow" in names:
        return _workflows(state)
    if "--db" in names:
        return _files(typed, suffix="")
    if "--app-dir" in names:
        return _files(typed, suffix=None)
    if ("--input" in names or "--input-lines" in names) and typed.startswith("@"):
        return [(f"@{path}", "") for path, _ in _files(typed[1:], suffix="")]
    return ()


def _arguments(state: _Typed, typed: str) -> Iterable[Candidate]:
    params = [param for param in state.command.params if not isinstance(param, TyperOption)]
    if state.arguments >= len(params):
        return ()
    wanted = params[state.arguments].metavar
    if wanted == "RUN":
        return _runs(state)
    if wanted == "KEY":
        return _keys(state)
    if wanted == "W":
        return _workflows(state)
    if wanted == "TARGET":
        return [*_workflows(state), *_files(typed, suffix=".py")]
    if wanted == "[DIR]":
        return _files(typed, suffix=None)
    return _files(typed, suffix="") if wanted == "FILE" else ()


def _files(typed: str, *, suffix: str | None) -> Iterator[Candidate]:
    """Paths that continue `typed`: folders, and files with the suffix (None: folders only)."""
    head, slash, _ = typed.rpartition("/")
    folder = Path(os.path.expanduser(head + slash)) if slash else Path()
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith(".") and not typed.rpartition("/")[2].startswith("."):
            continue
        if entry.is_dir():
            yield f"{head}{slash}{entry.name}/", ""
        elif suffix is not None and entry.name.endswith(suffix):
            yield f"{head}{slash}{entry.name}", ""


class _Nothing(Exception):
    """There is nothing to complete from: no such command, no database."""


def _client(state: _Typed) -> Durable:
    env, app_dir = dict(os.environ), state.values.get("--app-dir")
    config = settings.find(settings.start_of_search(app_dir, env, None), env)
    path = settings.database(state.values.get("--db"), env, config).path
    if not is_there(path):
        raise _Nothing
    from durable_cli.client import Durable

    return Durable(path, create=False)


def _keys(state: _Typed) -> Iterable[Candidate]:
    with _client(state) as client:
        found = client.keys(workflow=state.values.get("--workflow"))
    return [(key.key, f"{key.workflow} {key.status or 'free'}") for key in found]


def _runs(state: _Typed) -> Iterable[Candidate]:
    with _client(state) as client:
        found = client.runs(limit=_MOST)
    named = [(run.id, f"{run.workflow} {run.status}") for run in found]
    return [*named, ("last", "the run started last")] if named else []


def _workflows(state: _Typed) -> Iterable[Candidate]:
    try:
        with _client(state) as client:
            return [(name, "workflow") for name in client.workflow_names()]
    except _Nothing:
        return []


# -- quoting -------------------------------------------------------------------------------------------------------

_BREAKS: Final = ":=@><;|&("
"""COMP_WORDBREAKS of bash besides blanks and quotes: it replaces only what stands behind the last of them."""


def split_line(line: str) -> list[str]:
    """The raw words of a line (quotes kept); the last one is what is being typed, perhaps empty."""
    words, word, quote, escaped = [], "", "", False
    for char in line:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in " \t":
            if word:
                words.append(word)
            word = ""
            continue
        word += char
    return [*words, word]


def unquote(raw: str) -> tuple[str, str]:
    """A raw word as text, and the quote that is still open at its end ('' for none)."""
    text, quote, escaped = "", "", False
    for char in raw:
        if escaped:
            text += char if not quote or char in '"\\$`' else "\\" + char
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            text += char
    return text, quote


def bash_word(value: str, raw: str) -> str:
    """What bash has to insert for `value` in place of its current word, where `raw` was typed so far."""
    _, quote = unquote(raw)
    if quote:
        begins = unquote(raw[: raw.rindex(quote)])[0]  # readline replaces what stands behind the open quote
        rest = value[len(begins) :]
        if quote == "'":
            return rest.replace("'", "'\\''")
        return "".join("\\" + char if char in '"\\$`' else char for char in rest)
    rest = value[len(unquote(raw[: _after_last_break(raw)])[0]) :]
    return "".join(char if char.isalnum() or char in "_%+,./-:=@" else "\\" + char for char in rest)


def _after_last_break(raw: str) -> int:
    """Where bash's current word begins in `raw`, which has no open quote."""
    last, quote, escaped = 0, "", False
    for place, char in enumerate(raw):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif not quote and char in _BREAKS:
            last = place + 1
    return last
