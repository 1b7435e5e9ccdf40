"""`durable prune`, and `retention` in the configuration."""

from __future__ import annotations

import json

import pytest
from enginekit import change

from durable_cli import Durable
from durable_cli.cli import config
from durable_cli.errors import InvalidConfig

ZERO = {"runs": 0, "keys_freed": 0, "never_keys_freed": 0, "activity": 0}


def test_prune_says_what_it_deleted(cli):
    """Runs, keys freed, keys of reuse=never among them; `-n` says the same and deletes nothing."""
    cli("run", "flows:once", "--key", "never")
    cli("run", "flows:sync", "--key", "free")
    cli("run", "flows:quiet")
    open_run = cli("start", "flows:sync", "--key", "open").out.strip()
    dry = cli("prune", "--older-than", "0s", "-n", "--json").document
    assert dry == {"runs": 3, "keys_freed": 2, "never_keys_freed": 1, "activity": 0, "dry_run": True}
    assert "3 runs" in cli("prune", "--older-than", "0s", "--dry-run").out
    assert len(cli("runs", "list", "--json").document) == 4
    assert cli("prune", "--older-than", "1h", "--json").document == {**ZERO, "dry_run": False}
    assert cli("prune", "--older-than", "0s", "--json").document == {**dry, "dry_run": False}
    assert cli("runs", "list", "--format", "ids").out == f"{open_run}\n"
    assert cli("start", "flows:once", "--key", "never", "--json").document["outcome"] == "created"
    assert cli("db", "check").code == 0


def test_prune_of_one_workflow_and_of_some_statuses(cli):
    """Narrowed by both; what was deleted is the answer, but not under -q."""
    for flow in ("sync", "quiet", "bad"):
        cli("run", f"flows:{flow}")
    told = "pruned 1 run, 0 keys freed, 0 rows of activity\n"
    assert cli("prune", "--older-than", "0s", "--workflow", "sync").all == (0, told, "")
    assert cli("prune", "--older-than", "0", "--workflow", "sync", "-q").all == (0, "", "")
    assert [run["workflow"] for run in cli("runs", "list", "--json").document] == ["bad", "quiet"]
    done = cli("prune", "--older-than", "0s", "--status", "failed", "--status", "cancelled", "--json").document
    assert done["runs"] == 1
    assert [run["workflow"] for run in cli("runs", "list", "--json").document] == ["quiet"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--older-than"),
        (["--older-than", "old"], "not a duration"),
        (["--older-than", "30"], "give a unit"),
        (["--older-than", "1d", "--status", "running"], "--status is one of"),
        (["--older-than", "1d", "--status", "faild"], "did you mean failed?"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_deletes_nothing(cli, argv, message):
    """Exit 2 with what would be right."""
    cli("run", "flows:sync")
    result = cli("prune", *argv)
    assert (result.code, message in result.err) == (2, True)
    assert len(cli("runs", "list", "--json").document) == 1


def test_prune_without_a_database_makes_none(cli):
    """Nothing to delete is no error; a file that was named has to be there."""
    assert cli("prune", "--older-than", "1d", "--json").document == {**ZERO, "dry_run": False}
    assert cli("prune", "--older-than", "1d").all == (0, "", "")
    assert cli("prune", "--older-than", "1d", "--db", str(cli.db)).code == 3
    assert not cli.db.exists()


def test_a_clock_that_jumped_deletes_nothing(cli):
    """A record of the future: 78 or what the error says, with the command that goes on; --trust-clock does."""
    cli("run", "flows:sync")
    with Durable(cli.db) as durable:
        change(durable, "UPDATE durable_runs SET created_at = created_at + 10 * 86400000")
    for more in ((), ("-y",), ("-n",)):
        refused = cli("prune", "--older-than", "0s", *more)
        assert (refused.code, refused.out) == (75, "")
        assert "the clock may have jumped" in refused.err
        assert "hint: date   # if it is right: durable prune --trust-clock\n" in refused.err
    assert len(cli("runs", "list", "--json").document) == 1
    [row] = cli("activity", "--json").document
    assert (row["kind"], row["workflow"]) == ("clock_jumped", None)
    assert cli("activity", "--format", "tsv", "--fields", "kind,workflow,key").out == "clock_jumped\t\t\n"
    assert cli("prune", "--older-than", "0s", "--trust-clock", "-n", "--json").document["runs"] == 1
    assert cli("prune", "--older-than", "0s", "--trust-clock", "--json").document["runs"] == 1


def test_trusting_the_clock_deletes_nothing(cli):
    """As doctor and the refusal name it: the command alone, which is enough for good."""
    assert cli("prune", "--trust-clock").all == (0, "", "")
    assert not cli.db.exists()
    cli("run", "flows:sync")
    with Durable(cli.db) as durable:
        change(durable, "UPDATE durable_runs SET created_at = created_at + 10 * 86400000")
    assert cli("prune", "--trust-clock", "--workflow", "sync").code == 2
    assert cli("prune", "--trust-clock", "-n", "--json").document == {**ZERO, "dry_run": True}
    assert cli("prune", "--older-than", "1d").code == 75
    assert cli("prune", "--trust-clock").all == (0, "", "")
    assert cli("prune", "--trust-clock", "--json").document == {**ZERO, "dry_run": False}
    assert cli("doctor", "--db", str(cli.db)).all == (0, "", "")
    assert cli("prune", "--older-than", "1d", "--json").document == {**ZERO, "dry_run": False}


# -- retention -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "found"), [("30d", 30 * 86_400_000), ("1w", 7 * 86_400_000), ("90m", 5_400_000)])
def test_a_retention_is_a_duration(tmp_path, text, found):
    """With its unit."""
    (tmp_path / "durable.toml").write_text(f'retention = "{text}"\n')
    assert config.find(tmp_path, {"HOME": str(tmp_path)}).retention_ms == found


@pytest.mark.parametrize("text", ["30", '"30"', '"soon"', '""', '"0d"', '"-1d"', "true", "[]", '"1d 30"'])
def test_a_retention_that_cannot_be_meant_is_refused(tmp_path, text):
    """A number without a unit would be seconds, and somebody meant days. Exit 78, with an example."""
    (tmp_path / "durable.toml").write_text(f"retention = {text}\n")
    with pytest.raises(InvalidConfig, match="30d") as refused:
        config.find(tmp_path, {"HOME": str(tmp_path)})
    assert refused.value.exit_status == 78


def test_a_tick_applies_the_retention(cli):
    """Of the configuration in force; without one nothing is ever deleted."""
    cli("run", "flows:once", "--key", "k")
    assert cli("tick").code == 0
    assert len(cli("runs", "list", "--json").document) == 1
    (cli.dir / "durable.toml").write_text('retention = "1ms"\n')
    assert cli("tick").code == 0
    assert cli("runs", "list", "--json").document == []
    assert [row["kind"] for row in cli("activity", "--json").document] == ["key_pruned"]
    (cli.dir / "durable.toml").write_text('retention = "1"\n')
    assert cli("tick").code == 78


def test_a_worker_applies_the_retention(cli, wait_for):
    """As the tick does, while it works."""
    cli("run", "flows:once", "--key", "k")
    (cli.dir / "durable.toml").write_text('retention = "1ms"\n')
    worker = cli.process("worker")
    wait_for(lambda: json.loads(cli("runs", "list", "--json").out) == [])
    worker.terminate()
    assert worker.wait(20) == 0


def test_one_of_a_thing_is_told_as_one(cli):
    """Before and after, with the key that becomes free."""
    cli("run", "flows:sync", "--key", "k")
    would = cli("prune", "--older-than", "0s", "-n").out
    assert would.startswith("would delete 1 run that ended 0s ago or earlier; 1 key becomes free; and ")
    assert cli("prune", "--older-than", "0s").out.startswith("pruned 1 run, 1 key freed, ")
