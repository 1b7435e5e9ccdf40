"""A crontab is read as Vixie cron reads it."""

from __future__ import annotations

import subprocess

import pytest

from durable_cli.core.crontab import Entry, mails, read


def one(text: str) -> Entry:
    (entry,) = read(text)
    return entry


def test_comments_blanks_and_settings_start_nothing() -> None:
    """Settings count for the lines below them, blanks around the = and quotes are not part of the value."""
    found = list(read('# c\n\n  # d\nA=1\n* * * * * x\n B = \' two \'\n"C" = ""\n@daily y\n'))
    assert [(entry.line, entry.command) for entry in found] == [(5, "x"), (8, "y")]
    assert [entry.settings for entry in found] == [{"A": "1"}, {"A": "1", "B": " two ", "C": ""}]


@pytest.mark.parametrize(
    ("line", "cron", "command"),
    [
        ("*/5\t* * *  mon  run it", "*/5 * * * mon", "run it"),
        ("  30 2 1,15 * * x", "30 2 1,15 * *", "x"),
        ("@Hourly   x y", "@Hourly", "x y"),
        ("0 0 * * * A=b ./x", "0 0 * * *", "A=b ./x"),
        ("0 0 * * * x # no comment to cron", "0 0 * * *", "x # no comment to cron"),
    ],
)
def test_fields_and_commands(line: str, cron: str, command: str) -> None:
    """Any blanks between fields; the rest of the line is the command."""
    entry = one(line)
    assert (entry.cron, entry.command, entry.refused) == (cron, command, None)


@pytest.mark.parametrize(
    ("written", "command", "stdin"),
    [
        ("cat", "cat", None),
        (r"date +\%F", "date +%F", None),
        ("cat%one", "cat", "one\n"),
        ("cat%one%two", "cat", "one\ntwo\n"),
        (r"cat%10\%%two", "cat", "10%\ntwo\n"),
        ("cat%", "cat", "\n"),
    ],
)
def test_percent_signs(written: str, command: str, stdin: str | None) -> None:
    """The first divides command and standard input, others are line breaks, an escaped one is itself."""
    entry = one(f"* * * * * {written}")
    assert (entry.command, entry.stdin) == (command, stdin)


def test_what_runs_it_does_what_cron_does() -> None:
    """The shell of the crontab, its settings, the input: the argument list is run here. Its exit code is the line's."""
    text = 'A=it\'s "x"\nSHELL=/bin/bash\n* * * * * cat; echo "$A" $0 ${BASH_VERSION:+bash}; exit 3 %in put%$A\n'
    done = subprocess.run(one(text).argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, 'in put\n$A\nit\'s "x" /bin/bash bash\n')
    assert one("* * * * * x").argv == ["/bin/sh", "-c", "x"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("@reboot x", "@reboot names no time"),
        ("@sometimes x", "@sometimes is not known"),
        ("61 * * * * x", "minute: 61"),
        ("* * * * *", "no command"),
        ("garbage", "neither"),
        ("* * * * * durable tick -q", "leave it to cron"),
        ("* * * * * /opt/x/bin/python -m durable_cli --db f worker", "leave it to cron"),
    ],
)
def test_what_cannot_be_a_schedule_is_told(line: str, reason: str) -> None:
    """Each with its reason; the lines beside it are read."""
    refused, good = read(f"{line}\n0 3 * * * good\n")
    assert reason in (refused.refused or "")
    assert good.refused is None


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/local/bin/backup.sh --all", "backup.sh"),
        ("cd /srv/app && LANG=C ./sync now", "sync"),
        ("'/opt/my tool/run' x", "my"),
        ("(date; uptime) >> log", "date"),
        ("for i in 1 2; do x; done", "job"),
        ("[ -x /usr/sbin/anacron ] || run-parts /etc", "job"),
        ("...", "job"),
    ],
)
def test_a_line_is_named_after_its_program(command: str, name: str) -> None:
    """A name that a workflow can have, whatever the line is."""
    assert one(f"0 3 * * * {command}").program == name


def test_other_settings() -> None:
    """CRON_TZ is the zone and no variable; MAILTO is no variable, and asks for mail unless it is empty."""
    entry = one("CRON_TZ=Asia/Tokyo\nMAILTO=me\nHOME=/srv\n0 3 * * * x")
    assert (entry.timezone, entry.home) == ("Asia/Tokyo", "/srv")
    assert entry.argv == ["/usr/bin/env", "HOME=/srv", "/bin/sh", "-c", "x"]
    assert mails("MAILTO=me\n")
    assert not mails('# MAILTO=me\nMAILTO=""\n')
