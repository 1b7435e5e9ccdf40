"""stdout is the answer and nothing else; pipes, closed descriptors, encodings, colours. Real processes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from durable_cli.cli.executing import Steps
from durable_cli.cli.output import Output
from durable_cli.execution import Progress


@pytest.fixture(scope="module")
def filled(shared_cli):
    """A database with 300 keys."""
    (shared_cli.dir / "fill.py").write_text(
        "from durable_cli import Durable\nimport flows\n"
        "with Durable() as durable:\n"
        "    for n in range(300):\n"
        "        durable.start(flows.quiet, key=f'key-{n:05}-{chr(8594)}-' + 'x' * 200)\n"
    )
    env = shared_cli.full_env() | {"PYTHONPATH": f"{shared_cli.full_env()['PYTHONPATH']}:{shared_cli.dir}"}
    subprocess.run([sys.executable, "fill.py"], cwd=shared_cli.dir, env=env, check=True, timeout=60)
    return shared_cli


def shell(cli, line, **env):
    """A line of bash in which `durable` is the program; stderr apart."""
    text = f'durable() {{ "{sys.executable}" -m durable_cli "$@"; }}\nset -o pipefail\n{line}'
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=cli.dir,
        env=cli.full_env(env),
        capture_output=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    "line",
    [
        "durable keys list | head -1 | cut -c1-5",
        "durable keys list --json | head -c 10 >/dev/null; echo quiet",
        "durable keys list --format table | true; echo quiet",
        "durable activity | true; echo quiet",
        "durable keys list >&-; echo quiet",
        "durable --help >&-; echo quiet",
        "durable --help | true; echo quiet",
        "durable runs show nope --json >&-; echo quiet",
    ],
)
def test_a_reader_that_goes_away_is_no_error(filled, line):
    """No traceback, nothing on stderr; a script with pipefail goes on (M01)."""
    code, out, err = shell(filled, line)
    assert (code, err) == (0, "")
    assert out in ("quiet\n", "quiet\r\n") or out.startswith("quiet")


def test_head_is_exit_0_under_pipefail(filled):
    """A closed pipe is what the reader wanted."""
    assert shell(filled, "durable keys list | head -1 >/dev/null")[0] == 0
    assert shell(filled, "durable keys list --format csv | sed -n 1q")[0] == 0


def test_start_into_a_closed_pipe_still_commits(cli):
    """`start | true`, `run | true`, `run >&-`: the work is done (M01)."""
    assert shell(cli, "durable start flows:quiet --key a | true")[2] == ""
    assert shell(cli, "durable run flows:sync --key b | true")[2] == ""
    assert shell(cli, "durable run flows:sync --key c >&-")[::2] == (0, "")
    assert shell(cli, "durable run flows:sync --key d >&- 2>&- <&-")[0] == 0
    assert len(cli("keys", "list", "--json").document) == 4
    assert cli("db", "check").code == 0


def test_a_run_does_not_die_of_the_pipe_that_its_prints_go_to(cli):
    """A step that prints into a closed pipe does not fail."""
    (cli.dir / "talk.py").write_text(
        "import sys, time\nfrom durable_cli import workflow\n\n@workflow\ndef talk(ctx):\n"
        "    def say():\n        time.sleep(0.1)\n"
        "        for _ in range(3000):\n            print('x' * 100)\n            print('e', file=sys.stderr)\n"
        "    ctx.run('say', say)\n    return 'said'\n"
    )
    code, out, _ = shell(cli, "durable run talk:talk 2> >(true)")
    assert (code, out) == (0, '"said"\n')


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_stdout_is_one_json_document_whatever_user_code_writes(cli, quiet):
    """print(), os.write(1), a child, C's stdio: to stderr (or nowhere under -q), the document alone on stdout."""
    result = cli.real("run", "flows:noisy", "--json", *quiet)
    assert result.document["result"] == "quiet"
    wanted = ["a print", "a write to descriptor 1", "a child", "a line of C"]
    assert [line for line in wanted if line in result.err] == ([] if quiet else wanted)


def test_stdout_is_the_result_alone_without_json_too(cli):
    """The same for the plain form, also while importing."""
    (cli.dir / "loud.py").write_text("print('at import')\nfrom flows import noisy\n")
    result = cli.real("run", "loud:noisy")
    assert result.out == '"quiet"\n'
    assert result.err.startswith("at import\n")
    result = cli.real("run", "flows:noisy")
    assert result.out == '"quiet"\n'


def test_the_database_is_never_descriptor_1(cli):
    """With stdout and stderr closed a print goes nowhere, and not into the file that took their number."""
    for closed in (">&-", "2>&-", ">&- 2>&-", ">&- 2>&- <&-"):
        shell(cli, f"durable run flows:noisy {closed}")
    assert cli("db", "check", "--json").document["ok"]
    assert [run["status"] for run in cli("runs", "list", "--json").document] == ["completed"] * 4


def test_a_daemon_left_behind_holds_neither_pipe_nor_key(cli):
    """`out=$(durable run ...)` returns when the run ends; the next start begins at once (M17)."""
    (cli.dir / "daemon.py").write_text(
        "import subprocess\nfrom durable_cli import workflow\n\n@workflow\ndef leave(ctx):\n"
        "    def spawn():\n"
        "        child = subprocess.Popen(['sleep', '20'], start_new_session=True, close_fds=False)\n"
        "        open('pids', 'a').write(f'{child.pid}\\n')\n"
        "    ctx.run('spawn', spawn)\n    return 'left'\n"
    )
    began = time.monotonic()
    # stderr is where a daemon's output goes: as with any program, whoever captures it too waits for the daemon
    code, out, _ = shell(
        cli, "out=$(durable run daemon:leave --key k 2>/dev/null); echo got $out", PYTHONUNBUFFERED="1"
    )
    assert (code, out) == (0, 'got "left"\n')
    assert cli("run", "daemon:leave", "--key", "k", "-q").code == 0
    assert time.monotonic() - began < 15
    for pid in (cli.dir / "pids").read_text().split():
        held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert not [path for path in held if "test.db" in path]
        os.kill(int(pid), 9)


@pytest.mark.parametrize(
    "env", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}]
)
def test_any_locale_can_list_any_key(filled, env):
    """Escaped if need be, exit 0 (M06)."""
    for form in ("tsv", "table", "json", "csv"):
        result = filled.real("keys", "list", "--format", form, env=env | {"LANG": ""})
        assert result.code == 0
        assert result.err == ""
        if form == "table" or "ascii" in env.values():
            assert result.out.isascii()
        if form == "json":
            assert "→" in json.loads(result.out)[0]["key"]


def test_bytes_that_are_not_utf_8_are_no_key(cli):
    """A clear error, no run (M06)."""
    code, _, err = shell(cli, "durable run flows:quiet --key $'\\xff'")
    assert code == 2
    assert "key" in err
    assert cli("runs", "list", "--json").document == []


def test_an_empty_environment_is_enough(cli):
    """env -i: no HOME, no PATH, no terminal; quiet on success (M19)."""
    argv = [sys.executable, "-m", "durable_cli", "run", "flows:sync", "--key", "k", "-q", "--db", str(cli.db)]
    path = {"PYTHONPATH": cli.full_env()["PYTHONPATH"]}
    done = subprocess.run(argv, cwd=cli.dir, env=path, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    failed = subprocess.run(
        [*argv[:4], "flows:bad", "--input", '"é→"', "-q", "--db", str(cli.db)],
        cwd=cli.dir,
        env=path,
        capture_output=True,
        timeout=30,
    )
    assert failed.returncode == 1
    assert failed.stderr.isascii()
    assert b"\\xe9\\u2192" in failed.stderr


@pytest.mark.parametrize(
    ("argv", "env", "coloured"),
    [
        (["keys", "list", "--format", "table"], {}, False),
        (["keys", "list", "--format", "table"], {"FORCE_COLOR": "1"}, True),
        (["keys", "list", "--format", "table"], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["keys", "list", "--format", "table"], {"FORCE_COLOR": "1", "TERM": "dumb"}, False),
        (["keys", "list", "--format", "table", "--color", "always"], {"NO_COLOR": "1"}, True),
        (["keys", "list", "--format", "table", "--color=never"], {"FORCE_COLOR": "1"}, False),
        (["keys", "list", "--json"], {"FORCE_COLOR": "1"}, False),
        (["keys", "list"], {"FORCE_COLOR": "1"}, False),
        (["--help"], {"FORCE_COLOR": "1"}, False),
        (["runs", "show", "nope"], {}, False),
        (["runs", "show", "nope"], {"FORCE_COLOR": "1"}, True),
        (["runs", "show", "nope"], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["runs", "show", "nope", "--json"], {"FORCE_COLOR": "1"}, False),
    ],
    ids=str,
)
def test_colour_only_where_it_may_be(filled, argv, env, coloured):
    """NO_COLOR wins over FORCE_COLOR, --color over both; never in JSON, TSV or help (M03)."""
    result = filled(*argv, env=env)
    assert ("\x1b" in result.out + result.err) is coloured


@pytest.mark.parametrize("form", ["json", "jsonl", "tsv", "csv", "ids"])
def test_a_pipe_gets_everything(filled, form):
    """No limit, nothing cut, every line of the same shape."""
    result = filled("keys", "list", "--format", form)
    rows = result.document if form == "json" else result.out.splitlines()
    assert len(rows) == 300
    if form != "ids":
        assert all("x" * 200 in str(row) for row in rows)
    assert filled("keys", "list", "--format", "table").out.count("pending") == 50
    assert len(filled("keys", "list", "--limit", "7", "--format", form).out.splitlines()) == (
        1 if form == "json" else 7
    )


def on_a_terminal(cli, *argv, size=(40, 100), **env):
    """Run with a terminal as stdin, stdout and stderr; what it showed."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    full = cli.full_env({"TERM": "xterm", **env})
    del full["COLUMNS"]
    process = subprocess.Popen(cli.argv(*argv), cwd=cli.dir, env=full, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(master)
    return process.wait(timeout=20), shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_tables_ages_icons_and_words(cli):
    """Icon and word, an age, colours; no control byte of a user."""
    cli("run", "flows:sync", "--key", "\x1b]0;title\x07[red]:bug:")
    code, shown = on_a_terminal(cli, "keys", "list", size=(40, 200))
    assert code == 0
    assert "✓ completed" in shown
    assert "ago" in shown or "now" in shown
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "\\x1b]0;title\\x07[red]:bug:" in bare
    assert all(char.isprintable() or char == "\n" for char in bare)
    assert "\x1b" not in on_a_terminal(cli, "keys", "list", NO_COLOR="1")[1]
    assert on_a_terminal(cli, "keys", "list", LANG="C")[1].isascii()


def test_a_terminal_is_told_of_each_step(cli):
    """One line a step, with its duration; a live line for the running one, none where TERM is dumb."""
    code, shown = on_a_terminal(cli, "run", "flows:sync", "--key", "k")
    assert code == 0
    assert re.search(r"✓.* fetch  0\.\ds\n", shown)
    assert "\r\x1b[K" in shown
    assert shown.endswith("2\n")
    code, dumb = on_a_terminal(cli, "run", "flows:sync", "--key", "k", TERM="dumb")
    assert "\x1b" not in dumb
    assert "✓ fetch" in dumb
    assert on_a_terminal(cli, "run", "flows:sync", "-q")[1] == ""


def test_each_step_of_several_at_once_has_its_own_time(monkeypatch):
    """Of one name, too: what counts is the place in the run."""
    said, now = [], [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = Output({"LANG": "C.UTF-8"})
    out.verbose, out.say = True, said.append
    steps = Steps(SimpleNamespace(out=out, shown=str), None, always=True)
    for at, kind, branch in (
        (0, "step_started", "a"),
        (1, "step_started", "b"),
        (1.5, "step_completed", "a"),
        (4, "step_completed", "b"),
    ):
        now[0] = at
        steps(Progress(kind, "run", "fetch", place=(branch, 1)))
    assert [line.split()[-1] for line in said] == ["1.5s", "3.0s"]


def test_a_terminal_is_told_what_a_start_did(cli):
    """A15: created and existing differ; an empty list names the file."""
    assert f"no database yet: {cli.db}" in on_a_terminal(cli, "keys", "list")[1]
    assert "was recorded" in on_a_terminal(cli, "start", "flows:sync", "--key", "k")[1]
    assert "nothing started: run" in on_a_terminal(cli, "start", "flows:sync", "--key", "k")[1]
    assert "no runs" in on_a_terminal(cli, "runs", "list", "nothing-like-it")[1]


def test_json_on_a_terminal_is_ascii(cli):
    """Escaped, so that nothing in it can drive the terminal."""
    code, shown = on_a_terminal(cli, "run", "flows:echo", "--input", '"\\u009b é"', "--json", "-q")
    assert code == 0
    assert json.loads(shown)["result"] == "\x9b é"
    assert shown.isascii()


def test_no_input_forbids_reading_from_the_terminal(cli):
    """`--input -` at a terminal with --no-input: exit 2 naming the flag."""
    code, shown = on_a_terminal(cli, "run", "flows:sync", "--input", "-", "--no-input")
    assert code == 2
    assert "--no-input" in shown
