"""Completion: the words that may come next, in real shells, with keys that a shell would execute."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from durable_cli.cli.app import build
from durable_cli.cli.complete import bash_word, candidates, split_line, unquote
from durable_cli.cli.options import Group

COMPLETIONS = Path(__file__).resolve().parents[2] / "completions"
KEYS = [
    "plain",
    "a b",
    "it's",
    'say "hi"',
    "$(touch pwned)",
    "`touch pwned`",
    "article:42",
    "x=y;z",
    "back\\slash",
    "é→",
]


def commands(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize(("path", "command"), [((), build()), *commands(build())], ids=lambda value: str(value)[:40])
def test_options_that_are_completed_are_the_real_ones(path, command):
    """Every option of every command, and no other; the same for commands."""
    real = {name for param in command.params for name in param.opts if name.startswith("-")} | {"-h", "--help"}
    assert {word for word, _ in candidates(path, "-")} == real
    if isinstance(command, Group):
        assert {word for word, _ in candidates(path, "")} == set(command.commands)


@pytest.mark.parametrize(
    ("words", "typed", "found"),
    [
        ([], "ru", {"run", "runs"}),
        (["runs"], "", {"list", "show", "wait", "watch"}),
        (["db"], "", {"path", "info", "check", "backup", "vacuum", "migrate", "shell"}),
        ([], "t", {"top", "tick"}),
        (["top"], "--e", {"--every"}),
        ([], "in", {"init", "input", "inputs"}),
        (["--json", "runs"], "l", {"list"}),
        (["key"], "", {"list", "show"}),
        (["runs", "list", "--status"], "comp", {"completed", "compensating", "compensated", "compensation_failed"}),
        (["runs", "list", "--status=failed", "--format"], "js", {"json", "jsonl"}),
        (["runs", "list"], "--format=js", {"--format=json", "--format=jsonl"}),
        (["--color"], "", {"auto", "always", "never"}),
        (["run", "x", "--on-duplicate"], "c", {"cancel_existing"}),
        (["run", "--key"], "--js", set()),
        (["run", "--", "x"], "--", set()),
        (["nonsense"], "", set()),
    ],
)
def test_what_may_come_next(words, typed, found, monkeypatch, tmp_path):
    """Options, their values and commands (at least these); a value is never completed as an option."""
    monkeypatch.setenv("DURABLE_DB", str(tmp_path / "none.db"))
    offered = {word for word, _ in _or_nothing(words, typed)}
    assert offered >= found
    assert found or not offered
    assert all(word.startswith(typed) for word in offered)
    assert not (tmp_path / "none.db").exists()


def _or_nothing(words, typed):
    try:
        return candidates(words, typed)
    except Exception:
        return []  # `main` says nothing then


@pytest.mark.parametrize(
    ("value", "raw", "inserted"),
    [
        ("a b", "", "a\\ b"),
        ("a b", "a", "a\\ b"),
        ("a b", '"a', "a b"),
        ("$(x)", "", "\\$\\(x\\)"),
        ("$(x)", '"', "\\$(x)"),
        ("it's", "'it", "it'\\''s"),
        ("article:42", "article:", "42"),
        ("article:42", "arti", "article:42"),
        ("article:42", '"article:', "article:42"),
        ("--format=json", "--format=", "json"),
        ("--format=json", "--format=j", "json"),
        ("a:b c", "a\\:b", "a:b\\ c"),
    ],
)
def test_what_bash_inserts(value, raw, inserted):
    """bash replaces only what stands behind the last of its word breaks, or behind the open quote."""
    assert bash_word(value, raw) == inserted


@pytest.mark.parametrize(
    ("line", "raw", "texts"),
    [
        ("durable runs ", ["durable", "runs", ""], ["durable", "runs", ""]),
        ('durable "a b', ["durable", '"a b'], ["durable", "a b"]),
        ("durable a\\ b", ["durable", "a\\ b"], ["durable", "a b"]),
        ("durable 'a'\"b\"  c", ["durable", "'a'\"b\"", "c"], ["durable", "ab", "c"]),
    ],
)
def test_a_line_is_read_as_bash_reads_it(line, raw, texts):
    """Without expanding anything."""
    assert split_line(line) == raw
    assert [unquote(word)[0] for word in raw] == texts


@pytest.fixture(scope="module")
def keyed(shared_cli):
    """A database with awkward keys, and a program `durable` that completes as ours, else tells its arguments."""
    for key in [*KEYS, "line\nbreak", "esc\x1b[2J"]:
        assert shared_cli("start", "flows:quiet", "--key", key).code == 0
    tools = shared_cli.dir / "bin"
    tools.mkdir()
    (tools / "durable").write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = __complete ]; then "{sys.executable}" -m durable_cli "$@"; touch completed\n'
        """else printf '[%s]' "$@" > shown.tmp; mv shown.tmp shown; fi\n"""
    )
    (tools / "durable").chmod(0o755)
    return shared_cli


def test_keys_runs_and_workflows_come_from_the_database(keyed):
    """Never from user code; keys with control characters are left out."""
    keys = {line.split("\t")[0] for line in keyed("__complete", "zsh", "keys", "show", "").out.splitlines()}
    assert keys == set(KEYS)
    assert set(keyed("__complete", "zsh", "run", "flows:quiet", "--key", "a").out.splitlines()) == {
        "a b\tquiet pending",
        "article:42\tquiet pending",
    }
    runs = keyed("__complete", "zsh", "show", "").out.splitlines()
    assert len(runs) == len(KEYS) + 3
    assert keyed("__complete", "zsh", "run", "").out.split()[0] == "quiet"
    assert "flows.py" in keyed("__complete", "zsh", "run", "fl").out


def test_completion_says_nothing_when_something_is_wrong(cli):
    """No database, no such command, a broken configuration: no candidate, no message, no file."""
    (cli.dir / "durable.toml").write_text("broken = ")
    for argv in (
        ["zsh", "keys", "show", ""],
        ["zsh", "nope", "x", ""],
        ["bash"],
        [],
        ["zsh", "run", "--nope", "x", "y", ""],
    ):
        result = cli("__complete", *argv, env={"DURABLE_DB": ""})
        assert (result.out, result.err) == ("", "")
    assert not cli.db.exists()


class Shell:
    """An interactive shell on a terminal, with the completion script for the program `durable` of `keyed`."""

    def __init__(self, cli, name, argv, setup):
        self.pexpect = pytest.importorskip("pexpect")
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed here")
        self.dir, self.seen = cli.dir, ""
        env = cli.full_env({"PATH": f"{cli.dir}/bin:{os.environ['PATH']}", "TERM": "xterm", "INPUTRC": "/dev/null"})
        env["LC_ALL"] = "C.UTF-8"
        self.child = self.pexpect.spawn(
            argv[0], argv[1:], cwd=str(cli.dir), env=env, timeout=15, dimensions=(50, 200), encoding="utf-8"
        )
        for line in [*setup, "touch ready"]:
            self.child.sendline(line)
        self._until("ready")

    def _until(self, name: str) -> str:
        """Wait for a file, and take it away. The terminal is read meanwhile, or the shell would block."""
        end = time.monotonic() + 15
        while not (self.dir / name).exists():
            assert time.monotonic() < end, f"no file {name}; the terminal: {self.seen[-300:]!r}"
            self._read(0.03)
        text = (self.dir / name).read_text()
        (self.dir / name).unlink()
        return text

    def _read(self, seconds: float) -> bool:
        try:
            self.seen += self.child.read_nonblocking(65536, timeout=seconds)
        except self.pexpect.TIMEOUT:
            return False
        return True

    def complete(self, typed: str) -> str:
        """Type, press tab, press enter; the arguments that the program got."""
        self.child.send(typed + "\t")
        self._until("completed")
        while self._read(0.15):
            pass  # the shell still writes: it has not inserted the word yet
        self.child.send("\n")
        return self._until("shown")

    def close(self) -> None:
        self.child.close(force=True)


SHELLS = {
    "bash": (["bash", "--norc", "-i"], [f"source {COMPLETIONS}/durable.bash"]),
    "zsh": (["zsh", "-f", "-i"], ["autoload -U compinit; compinit -u -D", f"source {COMPLETIONS}/_durable"]),
    "fish": (
        ["fish", "--no-config", "-i"],
        ["set -g fish_greeting; set -g fish_autosuggestion_enabled 0", f"source {COMPLETIONS}/durable.fish"],
    ),
}
TYPED = [
    ("durable release-k", "release-key"),
    ("durable workflows show ", "quiet"),
    ("durable keys show 'a ", "a b"),
    ("durable keys show it", "it's"),
    ("durable keys show \\`", "`touch pwned`"),
    ("durable keys show article:", "article:42"),
    ("durable keys show x=", "x=y;z"),
    ("durable keys show é", "é→"),
    ("durable run flows:quiet --key \\$", "$(touch pwned)"),
]


@pytest.mark.parametrize("name", SHELLS)
def test_a_real_shell_inserts_the_key_and_executes_nothing(keyed, name):
    """Quotes, blanks, `$(...)`, backticks, colons: what the program gets is the key, literally (M08)."""
    argv, setup = SHELLS[name]
    shell = Shell(keyed, name, argv, setup)
    try:
        for typed, key in TYPED:
            got = shell.complete(typed)
            assert got.strip().endswith(f"[{key}]"), (typed, got)
        assert not (keyed.dir / "pwned").exists()
    finally:
        shell.close()
