"""How a command line is read: shared options anywhere, values that look like options, suggestions."""

from __future__ import annotations

import os

import pytest

import durable_cli

POSITIONS = [
    ["--json", "runs", "list"],
    ["runs", "--json", "list"],
    ["runs", "list", "--json"],
    ["runs", "list", "--format", "json"],
    ["--format=json", "runs", "list"],
    ["--format", "tsv", "runs", "list", "--json"],
    ["--json", "--format", "json", "runs", "list"],
    ["run" + "s", "ls", "--json"],
    ["ps", "--json"],
    ["--json", "ps"],
    ["keys", "list", "--json"],
    ["key", "list", "--json"],
    ["key", "ls", "--json"],
]


@pytest.mark.parametrize("argv", POSITIONS, ids=" ".join)
def test_shared_options_may_stand_anywhere(cli, argv):
    """Before or after the command: the same empty document."""
    assert cli(*argv).document == []


def test_the_options_of_the_command_count_over_those_before_it(cli, tmp_path):
    """`--db`, `--app-dir`, `--format`, `-q`/`-v` given twice: the one nearer to the end of the tree."""
    named = cli(
        "--db", str(tmp_path / "a.db"), "db", "--db", str(tmp_path / "b.db"), "path", "--db", str(tmp_path / "c.db")
    )
    assert named.out == f"{tmp_path / 'c.db'}\n"
    assert cli("--json", "db", "path", "--format", "table").out == f"{cli.db}\n"
    assert cli("-q", "db", "path", "-v").err.startswith("database: ")
    assert cli("-v", "db", "path", "-q").err == ""


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["--key", "--json"], "--json"),
        (["--key=--json"], "--json"),
        (["--key", "-abc"], "-abc"),
        (["--key=-abc"], "-abc"),
        (["--key", "--help"], "--help"),
        (["--key", "--"], "--"),
        (["--key", "-q"], "-q"),
        (["--key", "0"], "0"),
        (["--key", "false"], "false"),
        (["--key", " a "], " a "),
        (["--key", "a=b"], "a=b"),
        (["--key", "--db"], "--db"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_value_that_looks_like_an_option_is_the_value(shared_cli, argv, key):
    """No token is moved: what stands behind `--key` is the key."""
    result = shared_cli("start", "flows:quiet", *argv, "--format", "json")
    assert result.document["key"] == key


@pytest.mark.parametrize("argv", [["--input", "-1"], ["--input=-1"]])
def test_a_negative_input_is_an_input(cli, argv):
    """`--input '-1'` is the number."""
    assert cli("run", "flows:sync", *argv).out == "0\n"


def test_what_follows_two_dashes_is_never_ours(cli):
    """Behind `--` stand arguments, whatever they look like."""
    result = cli("runs", "show", "--", "--json")
    assert (result.code, result.out) == (3, "")
    cli("run", "flows:quiet", "--key", "k")
    result = cli("keys", "show", "--", "-id")
    assert (result.code, result.out) == (3, "")
    assert "'-id'" in result.err
    assert cli("--", "keys", "show", "--json").err.startswith("error: no run has the key '--json'")


def test_the_short_option_takes_its_value_attached_too(cli):
    """-Pname=text and -E9, as everywhere."""
    assert cli("run", "flows:echo", "-Pa=1", "-P", "b:=2").document == {"a": "1", "b": 2}
    cli("run", "flows:once", "--key", "k")
    assert cli("run", "flows:once", "--key", "k", "-E9").code == 9


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["rnus", "list"], "durable has no command 'rnus'", "did you mean: durable runs"),
        (["runs", "lst"], "durable runs has no command 'lst'", "did you mean: durable runs list"),
        (["runs", "flows:sync"], "durable runs has no command 'flows:sync'", "did you mean: durable run flows:sync"),
        (["flows.py"], "durable has no command 'flows.py'", "did you mean: durable run flows.py"),
        (["path"], "durable has no command 'path'", "did you mean: durable db path"),
        (["list"], "durable has no command 'list'", "did you mean: durable runs list or durable keys list"),
        (["runs", "cancel"], "durable runs has no command 'cancel'", "did you mean: durable cancel"),
        (["run", "flows:sync", "--kye", "k"], "durable run has no option --kye", "did you mean --key?"),
        (["run", "flows:sync", "--ke", "k"], "durable run has no option --ke", "did you mean --key?"),
        (["runs", "list", "--stat", "failed"], "durable runs list has no option --stat", "did you mean --status?"),
        (["runs", "list", "--status", "faild"], "not 'faild'", "did you mean failed?"),
        (["runs", "list", "--fields", "idd"], "there is no field 'idd'", "did you mean id?"),
        (["runs", "list", "--format", "jsno"], "not 'jsno'", "did you mean json?"),
        (["run"], "durable run needs TARGET", "durable run --help"),
        (["runs"], "durable runs needs a command: list, show", "durable runs --help"),
        (["runs", "show"], "name the run: RUN", None),
        (["runs", "show", "abc", "--key", "k"], "name the run twice", None),
        (["runs", "show", "abc", "--workflow", "w"], "--workflow goes with --key", None),
        (["run", "flows:sync", "--reuse", "never"], "reuse is set on the workflow", "@workflow(reuse="),
        (["start", "flows:sync", "--reuse=never"], "reuse is set on the workflow", "@workflow(reuse="),
        (["run", "flows:sync", "-E", "300"], "'-E' / '--conflict-exit-code'", None),
        (["run", "flows:sync", "--json=yes"], "does not take a value", None),
        (["run", "flows:sync", "--key"], "'--key' requires an argument", None),
        (["runs", "list", "-q", "-v"], "say two things", None),
        (["runs", "list", "--color", "maybe"], "not 'maybe'", None),
        (["run", "flows:sync", "--max-wait", "soon"], "is not a duration", None),
        (["run", "flows:sync", "--on-duplicate", "replace"], "on_duplicate", None),
        (["db", "path", "--db", ""], "--db is empty", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_line_is_refused_with_one_message(shared_cli, argv, message, hint):
    """Exit 2, one `error:`, what would be right; nothing on stdout, no traceback, nothing started."""
    result = shared_cli(*argv)
    assert (result.code, result.out) == (2, "")
    assert result.err.count("error:") == 1
    assert message in result.err
    assert "Traceback" not in result.err
    if hint is not None:
        assert f"hint: {hint}" in result.err or hint in result.err.split("hint: ")[1]


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "flows:sync", "--kye", "k", "--json"],
        ["--json", "run", "flows:sync", "--kye", "k"],
        ["--bogus", "runs", "list", "--json"],
        ["rnus", "list", "--json"],
        ["rnus", "list", "--format", "json"],
        ["run", "--json"],
        ["runs", "list", "--status", "x", "--json"],
        ["runs", "list", "--fields", "x", "--json"],
        ["runs", "--json"],
        ["--json", "runs"],
        ["run", "flows:sync", "--json", "--format", "csv"],
    ],
    ids=" ".join,
)
def test_a_wrong_line_with_json_gets_an_error_object(shared_cli, argv):
    """Stdout is one JSON document for usage errors too, wherever `--json` stands."""
    result = shared_cli(*argv)
    assert result.code == 2
    assert result.err == ""
    assert result.document["error"]["code"] == "usage_error"
    assert result.document["error"]["message"]


def test_a_json_that_is_a_value_asks_for_nothing(cli):
    """`--key --json` in a wrong line does not make the error JSON."""
    result = cli("run", "flows:sync", "--bogus", "--key", "--json")
    assert (result.code, result.out) == (2, "")


def test_bare_durable_is_help_without_a_database_and_a_screen_with_one(cli):
    """It creates nothing."""
    assert cli().out.startswith("Usage: durable ")
    assert not cli.db.exists()
    cli("run", "flows:sync", "--key", "k")
    screen = cli()
    assert screen.out.startswith(f"{cli.db}\n1 completed; 1 key held\n")
    assert cli("--json").document["runs"] == {"completed": 1}


@pytest.mark.parametrize(
    "argv", [["wait", "last"], ["show", "last"], ["runs", "show", "last"], ["runs", "wait", "last"]]
)
def test_aliases(cli, argv):
    """The verbs people type stand alone."""
    cli("run", "flows:sync", "--key", "k")
    assert cli(*argv, "--json").document["result"] == 2


def test_fields_format_and_header(cli):
    """A list in every form; `--fields` chooses, `--header` names."""
    cli("run", "flows:sync", "--key", "=a")
    run_id = cli("runs", "list", "--format", "ids").out.strip()
    assert cli("runs", "list", "--fields", "id,key").out == f"{run_id}\t=a\n"
    assert cli("runs", "list", "--fields", "id,key", "--header").out == f"id\tkey\n{run_id}\t=a\n"
    assert cli("runs", "list", "--fields", "key,id", "--format", "csv").out == f"'=a,{run_id}\n"
    assert cli("runs", "list", "--fields", "id", "--json").document == [{"id": run_id}]
    assert cli("runs", "list", "--fields", "id", "--format", "jsonl").out == f'{{"id": "{run_id}"}}\n'
    assert cli("keys", "list", "--format", "ids").out == f"{run_id}\n"
    table = cli("runs", "list", "--fields", "id,key", "--format", "table").out.splitlines()
    assert table[0].split() == ["id", "key"]


FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full here")


@FULL
@pytest.mark.parametrize(
    "argv", [("--version",), ("--help",), ("runs", "list", "--json"), ("help", "cron"), ("run", "--help")]
)
def test_a_full_disk_under_stdout_is_75(cli, argv):
    """Trying again will help; no traceback, and not Python's 120."""
    with open("/dev/full", "wb") as full:
        result = cli.real(*argv, stdout=full)
    assert (result.code, "Traceback" in result.err) == (75, False), result.err
    assert "cannot write the answer: No space left on device" in result.err


def test_an_interrupt_while_we_are_imported_has_no_traceback(cli):
    """Ctrl-C in the first moments: 130, silently."""
    (cli.dir / "site").mkdir()
    (cli.dir / "site" / "sitecustomize.py").write_text(
        "import sys\nclass Late:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'durable_cli.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Late())\n"
    )
    path = f"{cli.dir / 'site'}:{cli.full_env()['PYTHONPATH']}"
    assert cli.real("runs", "list", env={"PYTHONPATH": path}).all == (130, "", "")


def test_the_version_as_json(shared_cli):
    """Exactly one JSON document, as for everything."""
    assert shared_cli("--version", "--json").document == {"version": durable_cli.__version__}
    assert shared_cli("--version").out == f"durable {durable_cli.__version__}\n"


@pytest.mark.parametrize("argv", [("stats",), ("db", "check")])
def test_an_answer_without_ids_has_none(cli, argv):
    """No text of Python's in their place; a list of names is one."""
    cli("run", "flows:sync", "--key", "k")
    result = cli(*argv, "--format", "ids")
    assert (result.code, result.out) == (2, "")


def test_an_option_without_its_value_names_the_help_of_its_command(shared_cli):
    """Not that of all."""
    assert "hint: durable run --help" in shared_cli("run", "flows:sync", "--key").err
    assert "hint: durable runs list --help" in shared_cli("runs", "list", "--limit").err


@pytest.mark.parametrize(
    "argv",
    [
        ("run", "flows:sync", "--input", "@none"),
        ("start", "flows:sync", "--input-lines", "@none"),
        ("schedules", "import", "none"),
    ],
)
def test_a_file_that_is_not_there_is_3(cli, argv):
    """As everything that is not found."""
    result = cli(*argv, "--json")
    assert (result.code, result.document["error"]["code"]) == (3, "not_found")


def test_fields_of_a_log_count_without_a_format(cli):
    """In a pipe: TSV of these."""
    cli("run", "flows:bad", "--key", "k")
    assert cli("logs", "last", "--fields", "stream,text").out == "stdout\tnoise of the step\n"


@pytest.mark.parametrize("expression", ["99 * * * *", "0 0 31 2 *", "* * * * funday"])
def test_print_crontab_refuses_what_no_schedule_would_take(cli, expression):
    """A line that never fires, or stops cron from reading the others; @reboot is cron's own."""
    result = cli("run", "flows:sync", "--key", "k", "--print-crontab", expression, "--json")
    assert (result.code, result.document["error"]["code"]) == (2, "invalid_cron")
    assert cli("run", "flows:sync", "--key", "k", "--print-crontab", "@reboot").code == 0


def test_a_sync_that_fails_says_so_once(cli):
    """Nothing about schedules on stdout where the module cannot be loaded."""
    result = cli("schedules", "sync", "nomod")
    assert (result.code, result.out) == (3, "")
