"""`--print-crontab`, `--print-systemd`, `--print-launchd`: the same call as a line or unit that can be pasted.

Everything in it is absolute, since cron starts in the home directory with another PATH, and quoted for who reads it:
the shell that cron calls, systemd's own splitting, launchd's XML.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from durable_cli.cli import moments
from durable_cli.errors import UsageError

_NICKNAMES: Final = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually", "@reboot")


def program() -> list[str]:
    """How this program is called from anywhere."""
    script = Path(sys.argv[0])
    if script.name == "durable" and os.path.isfile(script):
        return [str(script.absolute())]
    return [sys.executable, "-m", "durable_cli"]


def crontab(expression: str, argv: Sequence[str]) -> str:
    """One line for `crontab -e`. In it an unescaped `%` would be the end of the line."""
    fields = expression.split()
    if len(fields) != 5 and not (len(fields) == 1 and fields[0] in _NICKNAMES):
        raise UsageError(
            f"--print-crontab takes five fields or a nickname, not {expression!r}",
            hint="--print-crontab '*/5 * * * *', or --print-crontab @hourly",
        )
    if fields != ["@reboot"]:
        moments.check(" ".join(fields), None)
    _one_line(argv, "a crontab line")
    return f"{' '.join(fields)} {shlex.join(argv)}".replace("%", "\\%")


def systemd(name: str, argv: Sequence[str]) -> str:
    """A service and its timer (daily, to be edited), one after the other."""
    _one_line(argv, "a unit")
    command = " ".join(_systemd_word(word) for word in argv)
    unit = f"durable-{_slug(name)}"
    return f"""\
# ~/.config/systemd/user/{unit}.service
[Unit]
Description=durable run {_slug(name)}

[Service]
Type=oneshot
ExecStart={command}
# SIGTERM lets the running step end; then the run stays resumable.
TimeoutStopSec=15

# ~/.config/systemd/user/{unit}.timer    (then: systemctl --user enable --now {unit}.timer)
[Unit]
Description=when durable runs {_slug(name)}

[Timer]
OnCalendar=daily
Persistent=true

[Install]
WantedBy=timers.target"""


def _systemd_word(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@%+=:,./-]+", escaped) else f'"{escaped}"'


def launchd(name: str, argv: Sequence[str]) -> str:
    """A property list for ~/Library/LaunchAgents (daily at 3:00, to be edited)."""
    import plistlib

    document = {
        "Label": f"durable.{_slug(name)}",
        "ProgramArguments": list(argv),
        "StartCalendarInterval": {"Hour": 3, "Minute": 0},
    }
    try:
        return plistlib.dumps(document).decode().rstrip("\n")
    except ValueError as error:
        raise UsageError(f"this call cannot be written as a property list: {error}") from None


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "job"


def _one_line(argv: Sequence[str], what: str) -> None:
    for word in argv:
        if "\n" in word or "\r" in word or "\0" in word:
            raise UsageError(f"{what} cannot hold a line break: {word!r}")
