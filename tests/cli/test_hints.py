"""What a person is told to do next can be pasted, and does it."""

from __future__ import annotations

import re
import shlex

import pytest


def hint_of(text: str) -> str:
    """The command behind `hint:`, without what is said of it."""
    return re.search(r"^hint: (?:did you mean: )?(.*)$", text, re.M)[1].partition("  #")[0]


@pytest.fixture
def other(tmp_path):
    """A database that nothing but --db names; quoted, since its path has a blank and a quote."""
    return str(tmp_path / "o'ther one.db")


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_hint_in_a_mail_of_cron_names_the_database_of_its_line(cli, other, place):
    """The line of --print-crontab has --db; so has the command that goes on, and it does."""
    argv = ("--db", other, "run", "flows:bad", "-q") if place == "before" else ("run", "flows:bad", "-q", "--db", other)
    words = shlex.split(hint_of(cli(*argv).err))
    assert words[:2] == ["durable", "retry"]
    assert words[3:] == ["--foreground", "--db", other]
    assert "Traceback" in cli(*words[1:]).err
    plain = hint_of(cli("run", "flows:bad", "-q").err)
    assert plain.endswith(" --foreground"), "an environment variable or the default needs no --db"


def test_every_command_that_is_told_names_the_database(cli, other):
    """Errors for a person and for a program, facts, advice of several commands, lines of doctor."""
    named = f"--db {shlex.quote(other)}"
    cli("run", "flows:bad_once", "--key", "k", "--db", other)
    told = cli("run", "flows:bad_once", "--key", "k", "--db", other).err
    assert re.search(rf"durable retry \w+ --foreground {re.escape(named)}\n", told)
    assert re.search(rf"durable release-key \w+ {re.escape(named)}, then durable rerun \w+ {re.escape(named)}\n", told)
    told = cli("run", "flows:bad_once", "--key", "k", "--db", other, "--on-duplicate", "error").err
    assert re.search(rf"durable retry \w+ --foreground {re.escape(named)}\n", told)
    refused = cli("runs", "show", "nobody", "--db", other, "--json").document["error"]
    assert refused["hint"].endswith(named)
    cli("schedules", "add", "s", "@yearly", "flows:sync", "--db", other)
    cli("schedules", "pause", "s", "--db", other)
    assert f"    mend: durable schedules resume s {named}\n" in cli("doctor", "--db", other).out


def test_help_is_hinted_without_a_database(cli, other):
    """It is not in there."""
    assert hint_of(cli("runs", "--db", other).err) == "durable runs --help"


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (("runz", "list"), "durable runs"),
        (("keyz", "log", "k"), "durable keys"),
        (("ls",), "durable runs ls or durable keys ls or durable workflows ls or durable schedules ls"),
        (("run", "show", "last"), "durable runs show"),
        (("run", "logs", "last"), "durable runs logs"),
        (("run", "logs"), "durable runs logs"),
        (("key", "cancel"), "durable cancel"),
        (("runz",), "durable run"),
    ],
)
def test_what_was_meant(shared_cli, argv, meant):
    """The very word where it is a command, else the nearest one that what follows goes with."""
    result = shared_cli(*argv)
    assert (result.code in (2, 3), hint_of(result.err)) == (True, meant)


def test_remarks_do_not_hinder_pasting(cli, tmp_path):
    """What is said of a command stands behind a #; paths are as a shell takes them."""
    missing = cli("runs", "show", "last", "--db", str(tmp_path / "none.db"))
    assert re.search(r"^hint: durable db path   # ", missing.err, re.M)
    folder = tmp_path / "a b"
    made = cli("start", "flows:quiet", "--db", str(folder / "c d" / "x.db"))
    assert hint_of(made.err) == f"mkdir -p '{folder}/c d'"


def test_a_key_or_a_run_with_a_slip_in_it(cli):
    """The nearest of the newest is told, of the workflow that was named; nothing like it: the list."""
    for key in ("article:42", "it's; 7"):
        cli("start", "flows:quiet", "--key", key)
    cli("start", "flows:sync", "--key", "article:44")
    for argv in (("runs", "show", "--key"), ("keys", "show"), ("keys", "log"), ("wait", "--key")):
        assert hint_of(cli(*argv, "article:42x", "--workflow", "quiet").err) == "did you mean article:42?"
        assert hint_of(cli(*argv, "its; 7").err) == """did you mean 'it'"'"'s; 7'?"""
        assert hint_of(cli(*argv, "else").err) == "durable keys list"
    run_id = cli("runs", "list", "--format", "ids").out.split()[0]
    wrong = ("z" if run_id[0] != "z" else "y") + run_id[1:]
    assert hint_of(cli("runs", "show", wrong).err) == f"did you mean {run_id}?"
    assert hint_of(cli("runs", "show", "nonesuch").err) == "durable runs list"
