"""A user's crontab, read as Vixie cron reads it: settings, comments, `@daily`, and `%` in commands. Pure.

A line's command is one for the shell, so what becomes of it is an argument list that calls the shell with it, the
settings above it in front (`env NAME=VALUE sh -c COMMAND`), and its standard input, if it has one, before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from durable_cli.core.cron_fields import check_form
from durable_cli.errors import InvalidCron

_SETTING: Final = re.compile(r"""\s*(?P<q>["']?)(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P=q)\s*=\s*(?P<value>.*?)\s*""")
_ENTRY: Final = re.compile(r"\s*(?P<cron>@[A-Za-z]+|(?:\S+\s+){4}\S+)(?:\s+(?P<command>.*))?")
_MAIL: Final = ("MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING")
_OURS: Final = re.compile(r"\bdurable(?:_cli)?(?:\s+-\S+(?:\s+(?!tick\b|worker\b)[^-\s]\S*)?)*\s+(?:tick|worker)\b")
_BEFORE_PROGRAM: Final = re.compile(r"\s*(?:[A-Za-z_]\w*=\S*\s+|cd\s+\S+\s*(?:&&|;)\s*|exec\s+)+")
_WORDS_OF_THE_SHELL: Final = frozenset({"for", "if", "while", "until", "case", "test", "[", "[["})
SHELL: Final = "/bin/sh"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line that starts something. `command`: as it is given to the shell; `stdin`: what it reads, None for nothing.

    `settings`: the variables set above it. `refused`: why it cannot become a schedule.
    """

    line: int
    cron: str
    command: str
    stdin: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    refused: str | None = None

    @property
    def timezone(self) -> str | None:
        """`CRON_TZ`, by which some crons read the fields."""
        return self.settings.get("CRON_TZ") or None

    @property
    def home(self) -> str | None:
        """Where it is run, if the crontab says so."""
        return self.settings.get("HOME") or None

    @property
    def argv(self) -> list[str]:
        """What runs it."""
        shell = self.settings.get("SHELL") or SHELL
        called = [shell, "-c", self.command]
        if self.stdin is not None:
            called = [SHELL, "-c", 'printf %s "$1" | "$2" -c "$3"', "sh", self.stdin, shell, self.command]
        given = {name: value for name, value in self.settings.items() if name not in ("CRON_TZ", *_MAIL)}
        env = [f"{name}={value}" for name, value in given.items()]
        return ["/usr/bin/env", *env, *called] if env else called

    @property
    def program(self) -> str:
        """What it calls, for a name: `cd /srv && LANG=C ./bin/backup.sh --all` is backup.sh."""
        start = _BEFORE_PROGRAM.match(self.command)
        rest = self.command[start.end() if start else 0 :].lstrip("({ \t").split(maxsplit=1)
        word = rest[0].strip("\"';)").rstrip("/").rpartition("/")[2] if rest else ""
        word = "" if word in _WORDS_OF_THE_SHELL else word
        return re.sub(r"[^\w.\-]+", "-", word).strip("-.") or "job"

    @property
    def is_ours(self) -> bool:
        """It calls `durable tick` or a worker, which fire schedules: no schedule can do that."""
        return _OURS.search(self.command) is not None


def read(text: str) -> Iterator[Entry]:
    """The entries of a crontab, those that cannot be schedules with the reason."""
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        setting = _SETTING.fullmatch(line)
        if setting is not None:
            settings[setting["name"]] = _unquoted(setting["value"])
            continue
        yield _entry(number, line, dict(settings))


def mails(text: str) -> bool:
    """Does it ask for mail to somebody?"""
    found = (_SETTING.fullmatch(line) for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(one is not None and one["name"] == "MAILTO" and _unquoted(one["value"]) for one in found)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _entry(number: int, line: str, settings: dict[str, str]) -> Entry:
    found = _ENTRY.fullmatch(line)
    if found is None:
        return Entry(number, "", line.strip(), refused="it is neither NAME=VALUE nor five fields and a command")
    command, stdin = _split(found["command"] or "")
    entry = Entry(number, " ".join(found["cron"].split()), command.strip(), stdin, settings)
    return Entry(number, entry.cron, entry.command, stdin, settings, _why_not(entry))


def _why_not(entry: Entry) -> str | None:
    if entry.cron.lower() == "@reboot":
        return "@reboot names no time; let the system start it (systemd, launchd), or leave it to cron"
    try:
        check_form(entry.cron)
    except InvalidCron as error:
        where = "" if error.field == "expression" else f"{error.field}: "
        return f"{where}{error.reason}"
    if not entry.command:
        return "there is no command after the fields"
    if entry.is_ours:
        return "this is what fires schedules: leave it to cron"
    return None


def _split(text: str) -> tuple[str, str | None]:
    r"""A command and its standard input: the first `%` divides them, later ones are line breaks, `\%` is a `%`."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", text)]
    if len(parts) == 1:
        return parts[0], None
    given = "\n".join(parts[1:])
    return parts[0], given if given.endswith("\n") else given + "\n"
