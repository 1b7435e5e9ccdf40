"""`durable workflows list|show`."""

from __future__ import annotations

import pytest

FLOW = """
from durable_cli import workflow
from durable_cli.core.policies import Debounce


@workflow(reuse="never", on_duplicate="send_event:more", key="article:{id}", timeout="1h", max_hold="2h",
          on_max_hold="cancel", on_mismatch="error", debounce=Debounce("30s", timeout="5m"))
def full(ctx, value: dict | None = None):
    return ctx.run("s", lambda: value)
"""


@pytest.fixture
def cli(cli):
    (cli.dir / "full.py").write_text(FLOW)
    return cli


def test_the_list(cli):
    """Every workflow that was started, by name: policies, counts, place; TSV in a pipe."""
    cli("run", "flows:sync", "--key", "k")
    cli("start", "flows:sync", "--key", "open")
    cli("run", "flows:bad")
    cli("schedules", "add", "nightly", "0 3 * * *", "flows:sync", "--key", "n")
    found = cli("workflows", "list", "--json").document
    assert [(one["name"], one["runs"], one["unfinished"], one["keys_held"], one["schedules"]) for one in found] == [
        ("bad", 1, 0, 0, 0),
        ("sync", 2, 1, 2, 1),
    ]
    assert found[1]["file"] == str(cli.dir / "flows.py")
    assert cli("workflow", "ls", "--fields", "name,reuse").out == "bad\tafter_close\nsync\tafter_close\n"
    assert "sync" in cli("workflows", "list", "--format", "table").out
    assert cli("workflows", "list", "--limit", "1", "--format", "ids").out == "bad\n"


def test_one_of_them(cli):
    """Policies in force, code, schedules, runs by status, keys."""
    cli("start", "full:full", "-P", "id:=1")
    found = cli("workflows", "show", "full", "--json").document
    assert found["policies"] == {
        "reuse": "never",
        "on_duplicate": "send_event:more",
        "on_mismatch": "error",
        "key": "article:{id}",
        "timeout_ms": 3_600_000,
        "debounce_ms": 30_000,
        "debounce_timeout_ms": 300_000,
        "max_hold_ms": 7_200_000,
        "on_max_hold": "cancel",
    }
    assert (found["file"], found["qualname"], found["module"]) == (str(cli.dir / "full.py"), "full", "full")
    assert (found["runs"], found["keys_held"], found["schedules"]) == ({"pending": 1}, 1, [])
    assert [key["key"] for key in found["keys"]] == ["article:1"]
    shown = cli("workflows", "show", "full").out
    for text in (
        "send_event:more",
        "article:{id}",
        "30s, at most 5m",
        "2h, then cancel",
        "1 pending",
        "1, of which 1 are",
    ):
        assert text in shown
    cli("schedules", "add", "nightly", "0 3 * * *", "full:full", "--input", '{"id": 1}')
    assert [one["name"] for one in cli("workflows", "show", "full", "--json").document["schedules"]] == ["nightly"]
    assert "nightly" in cli("workflows", "show", "full").out


def test_it_loads_no_code(cli):
    """The file that has it may be gone, or raise."""
    cli("run", "flows:sync")
    (cli.dir / "flows.py").write_text("1 / 0")
    assert cli("workflows", "show", "sync").code == 0
    assert cli("workflows", "list").code == 0


def test_what_is_not_there(cli):
    """No database: an empty list, exit 3 for a name; a name that is near is suggested."""
    assert cli("workflows", "list", "--json").document == []
    assert cli("workflows", "show", "sync").code == 3
    assert not cli.db.exists()
    cli("run", "flows:sync")
    refused = cli("workflows", "show", "snyc", "--json")
    assert (refused.code, refused.document["error"]["code"]) == (3, "workflow_not_found")
    assert refused.document["error"]["hint"] == "did you mean sync?"


def test_many_keys_are_bounded_for_a_person(cli):
    """Fifty, and how to see the rest; all for a program, or as many as asked for."""
    stdin = b"".join(b'{"key": "k%d"}\n' % n for n in range(60))
    assert cli("start", "flows:echo", "--input-lines", "-", stdin=stdin).code == 0
    assert cli("workflows", "show", "echo").out.count("pending") == 51  # and one in the line of counts
    assert len(cli("workflows", "show", "echo", "--json").document["keys"]) == 60
    assert len(cli("workflows", "show", "echo", "--json", "--limit", "3").document["keys"]) == 3
    assert "10 more: durable keys list --workflow echo" in cli("workflows", "show", "echo", "-v").err


def test_the_name_of_a_workflow_is_completed(cli):
    """From the database."""
    cli("run", "flows:sync")
    assert cli("__complete", "zsh", "workflows", "show", "s").out.split("\t")[0] == "sync"
