"""`durable activity -f`: what happens to keys, while it happens."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest


def again(cli: Any, value: int, *options: str) -> None:
    assert cli("start", "flows:echo", "--key", "k", "--input", str(value), *options).code == 0


@pytest.fixture
def five(cli: Any) -> Any:
    """A key that was asked for five times while it was taken, with 1 to 5."""
    for value in range(6):
        again(cli, value)
    return cli


def test_what_came_last_and_then_what_comes(five: Any) -> None:
    """Oldest first, one document a line, each row once, narrowed as without -f; an interrupt ends it."""
    command = ("activity", "-f", "--limit", "2", "--key", "k", "--kind", "key_duplicate", "--json")
    with five.process(*command) as follower:
        assert follower.stdout is not None

        def read() -> Any:
            return json.loads(follower.stdout.readline())["details"]["input"]

        assert [read(), read()] == [4, 5]
        again(five, 6)
        assert read() == 6
        five("start", "flows:echo", "--key", "other", "--input", "1")
        five("start", "flows:echo", "--key", "other", "--input", "2")
        again(five, 7, "--on-duplicate", "cancel_existing")
        assert read() == 0  # the holder's own input, which was superseded
        follower.send_signal(signal.SIGINT)
        out, err = follower.communicate(timeout=15)
        assert (follower.wait(15), out, err) == (130, b"", b"")


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ([], ["key_duplicate\tk", "key_duplicate\tk"]),
        (["--header"], ["kind\tkey", "key_duplicate\tk", "key_duplicate\tk"]),
        (["--format", "csv", "--header"], ["kind,key", "key_duplicate,k", "key_duplicate,k"]),
        (["--format", "jsonl"], ['{"kind": "key_duplicate", "key": "k"}'] * 2),
    ],
)
def test_forms_that_programs_read(five: Any, form: list[str], lines: list[str]) -> None:
    """The head of a table stands once, at its top."""
    again(five, 9)
    with five.process("activity", "-f", "--limit", "1", "--fields", "kind,key", *form) as follower:
        assert follower.stdout is not None
        got = [follower.stdout.readline().decode().rstrip("\n") for _ in lines[:-1]]
        again(five, 8)
        assert [*got, follower.stdout.readline().decode().rstrip("\n")] == lines
        follower.kill()


def test_a_reader_that_leaves_ends_it(five: Any) -> None:
    """As `durable activity -f | head -1` does."""
    with five.process("activity", "-f") as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        follower.stdout.close()
        assert follower.wait(15) == 0


def test_there_has_to_be_something_to_follow(cli: Any) -> None:
    """Exit 3 where there is no database; a field that is none is refused before anything is said."""
    assert cli("activity", "-f").code == 3
    assert not cli.db.exists()
    again(cli, 1)
    assert cli("activity", "-f", "--fields", "no").code == 2


@pytest.mark.parametrize("command", ["activity --since", "stats --since", "runs list --since", "keys list --stuck"])
def test_a_bad_duration_is_refused_without_a_database_too(cli: Any, command: str) -> None:
    """Not only where there is something to narrow."""
    answer = cli(*command.split(), "a while", "--json")
    assert (answer.code, json.loads(answer.out)["error"]["code"]) == (2, "invalid_duration")
