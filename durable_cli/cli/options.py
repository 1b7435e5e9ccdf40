"""Options that every command has, and how the command line is read.

`--db --app-dir --json --format -q -v --color --no-input` are declared on every group and every command by the classes
here, so that they may stand before or after the command; where both are given the command's counts. No token is ever
moved for that: `--key --json` makes `--json` the key, and what follows `--` is nobody's option.

Typer 0.28 brings its own copy of click's parser; what is used of it is `typer._click` and `typer.core` (the
dependency is pinned below 0.29).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from typer import _click
from typer._click.exceptions import MissingParameter, NoSuchOption
from typer._click.exceptions import UsageError as ParseError
from typer._click.parser import _OptionParser, _ParsingState
from typer.core import TyperCommand, TyperGroup, TyperOption

from durable_cli.core.timing import parse_duration
from durable_cli.errors import UsageError

if TYPE_CHECKING:
    from durable_cli.cli.session import Session

FORMATS: Final = ("table", "json", "jsonl", "tsv", "csv", "ids")
HELP_NAMES: Final = ("-h", "--help")
COLORS: Final = ("auto", "always", "never")

ALIASES: Final = {
    "ls": "list",
    "rm": "remove",
    "key": "keys",
    "schedule": "schedules",
    "workflow": "workflows",
    "provide-input": "input",
}
EXPANSIONS: Final = {
    "ps": ("runs", "list", "--unfinished"),
    "show": ("runs", "show"),
    "logs": ("runs", "logs"),
    "wait": ("runs", "wait"),
}
_VERBS_OF_RUNS: Final = ("list", "ls", "show", "logs", "wait", "watch")
# Options that people try, with what to do instead.
ANSWERS: Final = {
    "--reuse": (
        "reuse is set on the workflow, not on a start: it has to be the same for everyone who starts it",
        'write it where the workflow is defined: @workflow(reuse="after_failure")',
    ),
}


def check_choice(option: str, given: str | None, values: Sequence[str]) -> None:
    """Refuse any other value, and name them."""
    if given is not None and given not in values:
        near = difflib.get_close_matches(given, values, 1)
        raise UsageError(
            f"{option} is one of {', '.join(values)}; not {given!r}", hint=f"did you mean {near[0]}?" if near else None
        )


def check_duration(given: str | None) -> str | None:
    """The duration as it was given, once it is known to be one: also where there is no database to ask."""
    if given is not None:
        parse_duration(given)
    return given


def shared_options() -> list[TyperOption]:
    """Fresh objects of the options that every command has."""

    def option(*names: str, help: str, metavar: str | None = None) -> TyperOption:
        flag = metavar is None
        return TyperOption(
            param_decls=list(names),
            help=help,
            metavar=metavar,
            is_flag=flag or None,
            type=None if flag else str,
            expose_value=False,
            callback=_gather,
        )

    return [
        option("shared_db", "--db", metavar="PATH", help="The database file (else DURABLE_DB, else the config)."),
        option("shared_app_dir", "--app-dir", metavar="DIR", help="Where your code is (else DURABLE_APP_DIR)."),
        option("shared_json", "--json", help="Print one JSON document."),
        option("shared_format", "--format", metavar="FORMAT", help="table, json, jsonl, tsv, csv or ids."),
        option("shared_quiet", "-q", "--quiet", help="Nothing on success, the full report on failure."),
        option("shared_verbose", "-v", "--verbose", help="Say what happens, also without a terminal."),
        option("shared_color", "--color", metavar="WHEN", help="auto, always or never."),
        option("shared_no_input", "--no-input", help="Never read from the terminal."),
    ]


def _gather(ctx: _click.Context, param: Any, value: Any) -> None:
    if value is not None and value is not False and not ctx.resilient_parsing:
        ctx.meta.setdefault("durable.gathered", {})[param.name.removeprefix("shared_")] = value


class Parser(_OptionParser):
    """The parser, which reads on after a mistake: what follows may say that errors are wanted as JSON."""

    literal = False  # a `--` of this level was read: what is left are plain arguments

    def parse_args(self, args: list[str]) -> tuple[dict[str, Any], list[str], list[Any]]:
        """Read a command line to its end, then raise the first mistake in it."""
        state = _ParsingState(args)
        first: ParseError | None = None
        while True:
            try:
                self._process_args_for_options(state)
                break
            except ParseError as error:
                first = first or error
        note_form(self.ctx, state.opts)
        if first is None:
            self._process_args_for_args(state)
            return state.opts, state.largs, cast("list[Any]", state.order)
        if self.ctx is not None and self.ctx.resilient_parsing:
            return state.opts, state.largs, cast("list[Any]", state.order)
        if not self.allow_interspersed_args and not self.literal:
            note_form(self.ctx, glean(state.rargs))
        raise first

    def _process_args_for_options(self, state: _ParsingState) -> None:
        while state.rargs:
            arg = state.rargs.pop(0)
            if arg == "--":
                self.literal = True
                return
            if arg[:1] == "-" and len(arg) > 1:
                self._process_opts(arg, state)
            elif self.allow_interspersed_args:
                state.largs.append(arg)
            else:
                state.rargs.insert(0, arg)
                return


def glean(args: Sequence[str]) -> dict[str, Any]:
    """Shared options in arguments whose command is not known."""
    parser = _OptionParser()
    parser.ignore_unknown_options = True
    for option in shared_options():
        option.add_to_parser(parser, cast(Any, None))
    state = _ParsingState(list(args))
    while True:
        try:
            parser._process_args_for_options(state)
            return state.opts
        except ParseError:
            continue


def note_form(ctx: _click.Context | None, opts: Mapping[str, Any]) -> None:
    """Remember how errors are to be told, before the line was read to its end."""
    if ctx is None or ctx.resilient_parsing:
        return
    session: Session = ctx.obj
    form = opts.get("shared_format")
    if opts.get("shared_json") or form in ("json", "jsonl"):
        session.out.format = "json"
    elif form in FORMATS:
        session.out.format = form


class _Shared(_click.Command):
    """What groups and commands have in common."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(shared_options())

    def make_parser(self, ctx: _click.Context) -> Parser:
        parser = Parser(ctx)
        for param in self.get_params(ctx):
            param.add_to_parser(parser, ctx)
        ctx.meta["durable.parser"] = parser
        return parser

    def parse_args(self, ctx: _click.Context, args: list[str]) -> list[str]:
        ctx.meta["durable.gathered"] = {}
        try:
            rest = super().parse_args(ctx, args)
        except ParseError as error:
            error.ctx = error.ctx or ctx  # an option without its value does not say whose it is
            raise
        if not ctx.resilient_parsing:
            session: Session = ctx.obj
            session.take(ctx.meta["durable.gathered"])
        return rest


class Command(_Shared, TyperCommand):
    """A command with the shared options."""


class Group(_Shared, TyperGroup):
    """A group with the shared options, aliases and did-you-mean."""

    def parse_args(self, ctx: _click.Context, args: list[str]) -> list[str]:
        """Also note whether a `--` ended the options of this level."""
        rest = super().parse_args(ctx, args)
        ctx.meta["durable.literal"] = ctx.meta["durable.parser"].literal
        return rest

    def get_command(self, ctx: _click.Context, cmd_name: str) -> _click.Command | None:
        """A command by its name or an alias of it."""
        return self.commands.get(cmd_name) or self.commands.get(ALIASES.get(cmd_name, ""))

    def resolve_command(
        self, ctx: _click.Context, args: list[str]
    ) -> tuple[str | None, _click.Command | None, list[str]]:
        """The command that the arguments name, and what is left of them. Raises UsageError with what was meant."""
        literal = ["--"] if ctx.meta["durable.literal"] else []
        if ctx.parent is None and args[0] in EXPANSIONS:
            first, *more = EXPANSIONS[args[0]]
            return first, self.commands[first], [*more, *literal, *args[1:]]
        command = self.get_command(ctx, args[0])
        if command is None:
            note_form(ctx, {} if literal else glean(args[1:]))
            raise _no_such_command(self, ctx, args[0], args[1:])
        return command.name, command, [*literal, *args[1:]]

    def invoke(self, ctx: _click.Context) -> Any:
        """Call the command that was named; without one, say which there are."""
        if not ctx._protected_args and not self.invoke_without_command:
            names = [name for name, command in self.commands.items() if not command.hidden]
            raise UsageError(
                f"{ctx.command_path} needs a command: {', '.join(names)}", hint=f"{ctx.command_path} --help"
            )
        return super().invoke(ctx)


def _no_such_command(group: Group, ctx: _click.Context, word: str, rest: Sequence[str]) -> UsageError:
    """`rest`: what follows the word."""
    path = ctx.command_path
    root = cast(Group, ctx.find_root().command)
    if ":" in word or word.endswith(".py"):
        hint = f"did you mean: durable run {word}"
    else:
        visible = [name for name, command in group.commands.items() if not command.hidden]
        names = [*visible, *(alias for alias, name in ALIASES.items() if name in group.commands)]
        if group is root:
            names += EXPANSIONS
        near = difflib.get_close_matches(word, names)
        fitting = [name for name in near if rest and _takes(group.commands.get(name), ctx, rest[0])]
        elsewhere = [f"durable {noun} {word}" for noun, command in root.commands.items() if _takes(command, ctx, word)]
        if elsewhere:  # the very word, only not here
            hint = f"did you mean: {' or '.join(elsewhere)}"
        elif group is not root and word in root.commands:
            hint = f"did you mean: durable {word}"
        elif near:
            hint = f"did you mean: {path} {(fitting or near)[0]}"
        else:
            hint = f"{path} --help"
    return UsageError(f"{path} has no command {word!r}", hint=hint)


def _takes(command: _click.Command | None, ctx: _click.Context, word: str) -> bool:
    """Is this a group that has a command of that name?"""
    return isinstance(command, Group) and command.get_command(ctx, word) is not None


def meant_of_target(target: str) -> str | None:
    """What was meant where `durable run` got a verb as its TARGET; None where it may be one."""
    return f"did you mean: durable runs {target}" if target in _VERBS_OF_RUNS else None


def as_usage_error(error: ParseError) -> UsageError:
    """What the parser refused, in our words."""
    path = error.ctx.command_path if error.ctx else "durable"
    help_hint = f"{path} --help"
    if isinstance(error, NoSuchOption):
        if error.option_name in ANSWERS:
            message, hint = ANSWERS[error.option_name]
            return UsageError(message, hint=hint)
        near = list(error.possibilities or ())
        hint = f"did you mean {near[0]}?" if near else help_hint
        return UsageError(f"{path} has no option {error.option_name}", hint=hint)
    if isinstance(error, MissingParameter) and error.param is not None:
        return UsageError(f"{path} needs {error.param.human_readable_name}", hint=help_hint)
    text = error.format_message().rstrip(".")
    if "unexpected extra argument" in text and error.ctx is not None:
        help_hint = meant_of_target(str(error.ctx.params.get("target"))) or help_hint
    return UsageError(text[:1].lower() + text[1:], hint=help_hint)
