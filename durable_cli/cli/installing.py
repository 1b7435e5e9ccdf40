"""`--print-crontab`, `--print-systemd`, `--print-launchd`: the same call as a line or unit that can be pasted.

It begins with the directory of this call and names programs and files in full, since cron starts in the home directory
with another PATH; and it is quoted for who reads it: the shell that cron calls, systemd's own splitting, launchd's XML.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from durable_cli.cli import moments
from durable_cli.cli.session import Session
from durable_cli.errors import UsageError

PrintCrontab = Annotated[
    str | None, typer.Option("--print-crontab", metavar="EXPR", help="Print this call as a crontab line; run nothing.")
]
PrintSystemd = Annotated[
    bool,
    typer.Option("--print-systemd", help="Print it as a systemd service and timer (daily; edit that); run nothing."),
]
PrintLaunchd = Annotated[
    bool, typer.Option("--print-launchd", help="Print it as a launchd property list (daily; edit that); run nothing.")
]
_NICKNAMES: Final = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually", "@reboot")


def program() -> list[str]:
    """How this program is called from anywhere."""
    script = Path(sys.argv[0])
    if script.name == "durable" and os.path.isfile(script):
        return [str(script.absolute())]
    return [sys.executable, "-m", "durable_cli"]


@dataclass(frozen=True, slots=True)
class Form:
    """In which form the call is to be printed."""

    crontab: str | None
    systemd: bool
    launchd: bool


def asked(crontab: str | None, systemd: bool, launchd: bool, *, dry_run: bool) -> Form | None:
    """The form that was asked for, if one was. Raises UsageError where it was more than one."""
    forms = (crontab is not None) + systemd + launchd
    if forms + dry_run > 1:
        raise UsageError("--print-crontab, --print-systemd, --print-launchd and --dry-run: give one of them")
    return Form(crontab, systemd, launchd) if forms else None


def flags(given: Mapping[str, object]) -> list[str]:
    """Options as they were given: None and False are none, True is a switch."""
    told = [(name, value) for name, value in given.items() if value is not None and value is not False]
    return [word for name, value in told for word in ((name,) if value is True else (name, str(value)))]


def tell(session: Session, form: Form, name: str, words: Sequence[str], *, key: str | None) -> int:
    """Answer with the call `durable WORDS` in this form. `name`: the job's, of `job_name`; `key`: its run's."""
    argv, cwd = [*program(), *words], os.getcwd()
    if form.crontab is not None:
        kind, text = "crontab", crontab(form.crontab, argv, cwd=cwd)
    elif form.systemd:
        kind, text = "systemd", systemd(name, argv, cwd=cwd)
    else:
        kind, text = "launchd", launchd(name, argv, cwd=cwd)
    document = {"kind": kind, "text": text, "argv": argv, "cwd": cwd}
    session.one(document, lambda: session.out.answer(text), id_field="kind")
    if key is None:
        session.out.note("without --key copies may overlap")
    return 0


def job_name(session: Session, workflow: str, key: str | None, input_words: Sequence[str]) -> str:
    """What a job is called among those of this user: after workflow and key. A hash tells it from jobs whose names would
    look the same, and from those of another database or (without a key) with another input.
    """
    place = session.place()
    more = [] if place.source == "default" else [str(place.path)]
    more += input_words if key is None else []
    plain = workflow if key is None else f"{workflow}-{key}"
    text = _slug(plain)[:100]
    if text == plain and "-" not in workflow and not more:
        return text
    digest = hashlib.sha256(json.dumps([workflow, key, more]).encode()).hexdigest()
    return f"{text}-{digest[:8]}"


def tick_line(session: Session) -> str:
    """The crontab line that executes whatever is due in this call's database."""
    return crontab("* * * * *", [*program(), "-q", "tick", "--db", str(session.place().path)])


def crontab(expression: str, argv: Sequence[str], *, cwd: str | None = None) -> str:
    """One line for `crontab -e`. In it an unescaped `%` would be the end of the line."""
    fields = expression.split()
    if len(fields) != 5 and not (len(fields) == 1 and fields[0] in _NICKNAMES):
        raise UsageError(
            f"--print-crontab takes five fields or a nickname, not {expression!r}",
            hint="--print-crontab '*/5 * * * *', or --print-crontab @hourly",
        )
    if fields != ["@reboot"]:
        moments.check(" ".join(fields), None)
    _one_line([*argv, cwd or ""], "a crontab line")
    there = "" if cwd is None else f"cd {shlex.quote(cwd)} && "
    return f"{' '.join(fields)} {there}{shlex.join(argv)}".replace("%", "\\%")


def systemd(name: str, argv: Sequence[str], *, cwd: str | None = None) -> str:
    """A service and its timer (daily, to be edited), one after the other."""
    _one_line([*argv, cwd or ""], "a unit")
    there = "" if cwd is None else "WorkingDirectory=" + cwd.replace("%", "%%") + "\n"
    command = " ".join(_systemd_word(word) for word in argv)
    unit = f"durable-{_slug(name)}"
    return f"""\
# ~/.config/systemd/user/{unit}.service
[Unit]
Description={unit}

[Service]
Type=oneshot
{there}ExecStart={command}
# SIGTERM lets the running step end; then the run stays resumable.
TimeoutStopSec=15

# ~/.config/systemd/user/{unit}.timer    (then: systemctl --user enable --now {unit}.timer)
[Unit]
Description=when {unit} runs

[Timer]
# Every midnight. Edit it: *:0/15, Mon..Fri 03:00, ... (systemd-analyze calendar 'Mon..Fri 03:00' shows the next time).
OnCalendar=daily
Persistent=true

[Install]
WantedBy=timers.target"""


def _systemd_word(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@%+=:,./-]+", escaped) else f'"{escaped}"'


def launchd(name: str, argv: Sequence[str], *, cwd: str | None = None) -> str:
    """A property list (daily at 3:00, to be edited)."""
    import plistlib

    label = f"durable.{_slug(name)}"
    document: dict[str, object] = {"Label": label, "ProgramArguments": list(argv)}
    document |= {} if cwd is None else {"WorkingDirectory": cwd}
    document["StartCalendarInterval"] = {"Hour": 3, "Minute": 0}
    try:
        text = plistlib.dumps(document, sort_keys=False).decode().rstrip("\n")
    except ValueError as error:
        raise UsageError(f"this call cannot be written as a property list: {error}") from None
    where = f"<!-- ~/Library/LaunchAgents/{label}.plist (then: launchctl load FILE) -->\n"
    when = "\t<!-- Every day at 3:00. Edit it: without Hour every hour, with Weekday (0 to 6) once a week. -->\n"
    text = text.replace("<plist ", where + "<plist ", 1)
    return text.replace("\t<key>StartCalendarInterval", when + "\t<key>StartCalendarInterval", 1)


def _slug(name: str) -> str:
    """The name in what file names, unit names and XML comments may hold."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "job"


def _one_line(argv: Sequence[str], what: str) -> None:
    for word in argv:
        if "\n" in word or "\r" in word or "\0" in word:
            raise UsageError(f"{what} cannot hold a line break: {word!r}")
