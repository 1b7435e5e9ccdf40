"""`send-event`, `inputs`, `input`, and waits as the other commands show them."""

from __future__ import annotations

import pytest

ASKS = """
from durable_cli import workflow

@workflow
def asks(ctx):
    went = ctx.wait_for_event("go")
    colour = ctx.wait_for_input("colour", prompt="Which \\x1b[31m?", type="choice", choices=["red", "blue"])
    return [went, colour]
"""


@pytest.fixture
def asked(cli):
    """A run that waits for the event `go`; its id."""
    (cli.dir / "asking.py").write_text(ASKS)
    run_id = cli("start", "asking:asks", "--key", "k").out.strip()
    assert cli("tick").code == 0
    return run_id


def test_an_event_and_an_answer(cli, asked):
    """Each is sent by id or by key, shown where it is waited for, and the run goes on at the next tick."""
    assert "for event 'go'" in cli("runs", "show", asked).out
    sent = cli("send-event", "--key", "k", "go", '{"n": 1}', "--json")
    assert (sent.code, sent.document["id"]) == (0, asked)
    assert cli("tick").code == 0
    (question,) = cli("inputs", "--json").document
    assert (question["run_id"], question["name"], question["choices"]) == (asked, "colour", ["red", "blue"])
    assert "\x1b" not in cli("inputs", "--format", "table").out
    refused = cli("input", asked, "colour", "green", "--json")
    assert (refused.code, refused.document["error"]["code"]) == (2, "invalid_input")
    assert cli("provide-input", asked, "colour", "blue").code == 0
    assert cli("inputs", "--json").document == []
    assert cli("tick", "--json").document["runs"] == {"completed": 1}
    assert cli("runs", "show", asked, "--json").document["result"] == [{"n": 1}, "blue"]


def test_what_was_sent_is_part_of_the_run(cli, asked):
    """`runs show` has events and answers: those that the run got, and those that wait until it asks, or for ever."""
    cli("send-event", asked, "go", "1")
    cli("send-event", asked, "later", '"\\u001b[31m"')
    cli("tick")
    cli("input", asked, "colour", "red")
    assert [(one["kind"], one["name"], one["payload"], one["received"]) for one in shown(cli, asked)] == [
        ("event", "go", 1, True),
        ("event", "later", "\x1b[31m", False),
        ("input", "colour", "red", True),
    ]
    told = cli("runs", "show", "--key", "k").out
    assert "event      go  1  received  (" in told
    assert "event      later  " in told
    assert "  kept, not received  (" in told
    assert "\x1b" not in told
    cli("tick")
    assert [one["received"] for one in shown(cli, asked)] == [True, False, True]


def shown(cli, run_id):
    return cli("runs", "show", run_id, "--json").document["events"]


def test_refusals(cli, asked):
    """4 for what the state refuses, 2 for what is said wrongly, 3 for what is not there."""
    for argv, code in (
        (["send-event", asked, "other", "--no-buffer"], 4),
        (["send-event", asked], 2),
        (["send-event", asked, "go", "{"], 2),
        (["send-event", asked, "go", "1", "--key", "k"], 2),
        (["send-event", "zzzzzzzzzz", "go"], 3),
        (["input", asked, "colour", "red"], 4),
        (["input", asked, "colour"], 2),
    ):
        assert cli(*argv, "--json").code == code, argv
    cli("cancel", asked)
    assert cli("send-event", asked, "go").code == 4


def test_lists_of_a_missing_database(cli):
    """An empty list, and no file."""
    assert cli("inputs", "--json").document == []
    assert cli("tick", "-n", "--json").document["due"] == 0
    assert not list(cli.dir.glob("**/*.db"))
