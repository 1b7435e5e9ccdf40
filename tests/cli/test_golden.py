"""What a person sees, word for word. `UPDATE_GOLDEN=1 pytest tests/cli/test_golden.py` writes the files anew.

Ids, moments, ages and paths are replaced by names, so that the files show the shape and nothing else.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def story(shared_cli):
    """A database in which something happened; `names` maps each id to what it is called in the files."""
    names: dict[str, str] = {}

    def run(called: str, *argv: str) -> str:
        document = shared_cli(*argv, "--json").document
        run_id = document.get("run_id") or document["id"]
        names.setdefault(run_id, f"<{called}>")
        return str(run_id)

    run("sync-1", "run", "flows:sync", "--key", "nightly")
    run("sync-2", "run", "flows:sync", "--key", "nightly", "--input", "5")
    run("once", "run", "flows:once", "--key", "k")
    run("once", "run", "flows:once", "--key", "k")
    run("bad", "run", "flows:bad", "--key", " a\tb", "--input", '"\\u001b[31mred"')
    cancelled = run("cancelled", "start", "flows:echo", "--key", "article:42", "-P", "id:=42")
    run("cancelled", "start", "flows:echo", "--key", "article:42", "-P", "id:=43")
    shared_cli("cancel", cancelled, "--reason", "not wanted")
    run("keyless", "start", "flows:echo", "--input", '"é"')
    return shared_cli, names


CASES = {
    "screen": [],
    "runs-list-table": ["runs", "list", "--format", "table"],
    "runs-list-tsv": ["runs", "list", "--header"],
    "runs-list-csv": ["runs", "list", "--format", "csv", "--header"],
    "runs-list-json": ["runs", "list", "--limit", "2", "--json"],
    "runs-search": ["runs", "list", "key:article:42 status:cancelled", "--fields", "id,key,status"],
    "runs-show-completed": ["runs", "show", "--key", "nightly"],
    "runs-show-failed": ["runs", "show", "--key", " a\tb"],
    "runs-show-json": ["show", "--key", "nightly", "--json"],
    "keys-list-table": ["keys", "list", "--format", "table"],
    "keys-list-tsv": ["keys", "list", "--header"],
    "keys-show": ["keys", "show", "article:42"],
    "keys-log-table": ["keys", "log", "article:42", "--format", "table"],
    "keys-log-tsv": ["keys", "log", "article:42", "--header"],
    "keys-eval-none": ["keys", "eval", "flows:sync"],
    "keys-replay-dry": ["keys", "replay", "article:42", "-n"],
    "keys-replay-nothing": ["keys", "replay", "nightly"],
    "workflows-list-table": ["workflows", "list", "--format", "table"],
    "prune-dry": ["prune", "--older-than", "30d", "-n"],
    "start-at-is-over": ["start", "flows:sync", "--at", "2001-01-01T00:00Z"],
    "stats": ["stats", "--format", "table"],
    "stats-tsv": ["stats", "--header"],
    "stats-json": ["stats", "--json"],
    "activity-table": ["activity", "--format", "table"],
    "activity-tsv": ["activity"],
    "run-failed": ["run", "flows:bad", "-q", "--report", "always"],
    "run-kept": ["run", "flows:once", "--key", "k"],
    "run-dry": ["run", "flows:once", "--key", "k", "--dry-run"],
    "run-taken": ["run", "flows:once", "--key", "k", "--on-duplicate", "error"],
    "run-taken-json": ["run", "flows:once", "--key", "k", "--on-duplicate", "error", "--json"],
    "crontab": ["run", "flows:sync", "--key", "50%", "--print-crontab", "@daily"],
    "systemd": ["run", "flows:sync", "--key", "50%", "--print-systemd"],
    "no-such-run": ["show", "zzzzzzzzzz"],
    "no-such-command": ["rnus"],
}


def normal(text: str, cli, names: dict[str, str]) -> str:
    """Ids, moments, ages, paths and line numbers by their names; runs of blanks as one (columns move with ids)."""
    for run_id, called in names.items():
        text = text.replace(run_id, called)
    text = text.replace(str(cli.dir), "<dir>").replace(str(cli.db), "<db>")
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "<time>", text)
    text = re.sub(r"\b\d+[smhd] ago\b|(?<!-)\bnow\b", "<age>", text)
    text = re.sub(r"\b\d+\.\ds\b", "<took>", text)
    for run_id in cli("runs", "list", "--format", "ids").out.split():  # not by their looks: one may be a word
        text = text.replace(run_id, "<new>")
    text = re.sub(r"(/\S+/)?python3?(\.\d+)? -m durable_cli", "<durable>", text)
    text = re.sub(r"(?<=-)[0-9a-f]{8}(?=[.\s])", "<hash>", text)
    text = re.sub(r'", line \d+', '", line <n>', text)
    text = re.sub(r"[─-]{20,}", "<rule>", text)
    return re.sub(r" {3,}", "   ", text)


@pytest.mark.parametrize("name", CASES)
def test_the_output_is_as_written_down(story, name):
    """Exit code, stdout and stderr of each case."""
    cli, names = story
    result = cli(*CASES[name], env={"COLUMNS": "160"})
    text = f"exit {result.code}\n--- stdout\n{result.out}--- stderr\n{result.err}"
    found = normal(text, cli, names)
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(found)
    assert found == file.read_text()


def test_there_is_no_golden_file_without_its_case():
    """Nothing is left behind."""
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(CASES)
