"""`durable help`: one place for each rule, and the README does not contradict it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from durable_cli import errors
from durable_cli.cli.topics import EXIT_CODES, TOPICS

ROOT = Path(__file__).parents[2]
SIGNALS = {129, 130, 143}
OURS = {0, 8}  # the code of no error: all is well; NotOver has 8 too
CODES = {int(number) for numbers, _ in EXIT_CODES for number in numbers.split(", ")}


def every_error() -> list[type[errors.DurableError]]:
    """All classes of the tree."""
    found, new = [], [errors.DurableError]
    while new:
        found += new
        new = [below for one in new for below in one.__subclasses__() if below.__module__.startswith("durable_cli.")]
    return found


def test_the_topics(cli):
    """Without a topic: which there are. Each is plain text, at most 120 wide, and says the same as JSON."""
    listed = cli("help")
    assert listed.code == 0
    for topic, (title, text) in TOPICS.items():
        assert f"durable help {topic} " in listed.out
        shown = cli("help", topic)
        assert shown.all == (0, text + "\n", "")
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= 120
        assert cli("help", topic, "--json").document == {"topic": topic, "title": title, "text": text}
    assert [one["topic"] for one in cli("help", "--json").document] == list(TOPICS)


@pytest.mark.parametrize(
    ("asked", "hint"),
    [("exit-code", "durable help exit-codes"), ("run", "durable run --help"), ("xyzzy", "durable --help")],
)
def test_a_topic_that_is_none(cli, asked, hint):
    """Did you mean; a command is sent to its own help."""
    result = cli("help", asked)
    assert result.code == 2
    assert result.err.endswith(f"hint: {hint}\n")


def test_the_readme_has_the_same_exit_codes():
    """Its table, row by row and word by word."""
    section = (ROOT / "README.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+) \| (.+) \|$", section, re.MULTILINE)
    assert rows == list(EXIT_CODES)


def test_every_error_has_one_of_these_codes():
    """And no code is told that no error has: signals and 0 aside."""
    used = {one.exit_code for one in every_error() if one is not errors.ShellFailed}  # its field is the command's
    kept = errors.KeyTaken("", holder_id="a", holder_status="completed", finished=True).exit_status
    assert used | {kept} | OURS | SIGNALS == CODES


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidKey, 2),
        (errors.RunNotFound, 3),
        (errors.NotFinished, 4),
        (errors.Cancelled, 5),
        (errors.NotOver, 8),
        (errors.InternalError, 70),
        (errors.DatabaseLocked, 75),
        (errors.DiskFull, 75),
        (errors.DatabaseTooNew, 78),
        (errors.NetworkFilesystem, 78),
        (errors.InvalidConfig, 78),
    ],
)
def test_what_the_table_says_of_errors(error, code):
    """The errors that the words of the table name."""
    assert error.exit_code == code


def test_every_error_is_explained():
    """Its docstring is its default message, and `code` its name in snake_case."""
    for one in every_error():
        assert "__doc__" in vars(one), one
        assert vars(one)["__doc__"], one
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", one.code())


def test_the_environment_topic_names_every_variable():
    """What the source reads, and nothing that it does not."""
    source = "\n".join(file.read_text() for file in (ROOT / "durable_cli").rglob("*.py") if file.name != "topics.py")
    used = set(re.findall(r"\bDURABLE_[A-Z_]+\b", source))
    assert set(re.findall(r"\bDURABLE_[A-Z_]+\b", TOPICS["environment"][1])) == used


def test_the_keys_topic_names_every_policy():
    """`reuse` and `on_duplicate`, from the words of the model."""
    from durable_cli.model import Outcome, Policy, Reuse

    for word in (*Reuse, *Policy):
        assert re.search(rf"^  {word}\b", TOPICS["keys"][1], re.MULTILINE), word
    assert f"outcome is one of     {' '.join(Outcome)}" in TOPICS["json"][1]


def test_the_json_topic_names_the_fields(cli):
    """Of a run and of a start, as they are printed."""
    text = " ".join(TOPICS["json"][1].split())
    started = cli("run", "flows:sync", "--key", "k", "--json").document
    assert f"durable run --json {' '.join(started)} a run" in text
    shown = cli("runs", "list", "--json").document[0]
    told = re.search(r"a run (.*?); runs show", text)
    assert told is not None
    assert set(told[1].replace("owner{alive,pid}", "owner").split()) <= set(shown)
    assert f"a key {' '.join(cli('keys', 'list', '--json').document[0])} [held_too_long] activity" in text


def test_the_lines_for_cron_are_accepted(cli):
    """The line that the topic shows parses, options and all."""
    line = re.search(r"^  0 3 \* \* \* cd \S+ && \S+/durable (.*)$", TOPICS["cron"][1], re.MULTILINE)
    assert line is not None
    assert cli(*line[1].split(), "--help").code == 0
