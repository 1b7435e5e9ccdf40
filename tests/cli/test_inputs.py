"""`--input` and `-P`."""

from __future__ import annotations

import pytest

from durable_cli.cli.inputs import apply_params, parse_json, parse_param
from durable_cli.errors import InvalidInput, UsageError


@pytest.mark.parametrize(
    ("param", "path", "value"),
    [
        ("a=text", ("a",), "text"),
        ("a=", ("a",), ""),
        ("a=1", ("a",), "1"),
        ("a=b=c", ("a",), "b=c"),
        ("a:=1", ("a",), 1),
        ('a:="x=y"', ("a",), "x=y"),
        ("a:=null", ("a",), None),
        ('a:={"b":[1,2]}', ("a",), {"b": [1, 2]}),
        ("a.b=x", ("a", "b"), "x"),
        ("a.b.c:=true", ("a", "b", "c"), True),
        ("a-b=x", ("a-b",), "x"),
        ("é=ü", ("é",), "ü"),
        ("a= :=", ("a",), " :="),
        ("a:b=x", ("a:b",), "x"),
    ],
)
def test_one_param(param, path, value):
    """name=text, name:=JSON, a.b=...; the first = divides."""
    assert parse_param(param) == (path, value)


@pytest.mark.parametrize("param", ["a", "", "=x", ":=1", ".a=1", "a.=1", "a..b=1", ".=1"])
def test_a_param_without_a_name_or_sign_is_refused(param):
    """UsageError that shows it."""
    with pytest.raises(UsageError, match=r"-P"):
        parse_param(param)


@pytest.mark.parametrize("param", ["a:=", "a:=x", "a:=NaN", "a:={", "a:='x'"])
def test_bad_json_in_a_param_is_refused(param):
    """InvalidInput, exit 2."""
    with pytest.raises(InvalidInput, match="not JSON"):
        parse_param(param)


@pytest.mark.parametrize(
    ("base", "params", "result"),
    [
        (None, ["a=1", "b:=2"], {"a": "1", "b": 2}),
        (None, ["a.b=1", "a.c=2"], {"a": {"b": "1", "c": "2"}}),
        ({"a": 1, "z": 0}, ["a=2"], {"a": "2", "z": 0}),
        ({"a": {"b": 1, "c": 2}}, ["a.b:=9"], {"a": {"b": 9, "c": 2}}),
        ({"a": {"b": 1}}, ["a=x"], {"a": "x"}),
    ],
)
def test_params_are_written_into_the_input(base, params, result):
    """On top of --input, which stays what it was."""
    before = repr(base)
    assert apply_params(base, params, given=base is not None) == result
    assert repr(base) == before


@pytest.mark.parametrize(
    ("base", "params", "message"),
    [
        (None, ["a=1", "a=2"], "twice"),
        (None, ["a=1", "a.b=2"], "twice"),
        (None, ["a.b=1", "a=2"], "twice"),
        ({"a": 1}, ["a.b=2"], "not an object"),
        ([1], ["a=2"], "not one"),
        (None, ["a.b=1", "a.b.c=2"], "twice"),
    ],
)
def test_params_that_contradict_are_refused(base, params, message):
    """Nothing is guessed."""
    with pytest.raises(UsageError, match=message):
        apply_params(base, params, given=base is not None)


@pytest.mark.parametrize(
    "text", ["", "{", "nope", "NaN", "-Infinity", "[" * 100_000, "1" * 5000, b"\xff", "{'a': 1}", "1 2"]
)
def test_what_is_no_json_is_refused_with_its_place(text):
    """Never a traceback."""
    with pytest.raises(InvalidInput, match="--input"):
        parse_json(text, "--input")


def test_input_from_file_and_stdin(cli):
    """@FILE, and `-` only when asked."""
    (cli.dir / "in.json").write_text('{"a": "é"}')
    assert cli("run", "flows:echo", "--input", "@in.json").document == {"a": "é"}
    assert cli("run", "flows:echo", "--input", "-", stdin=b"[1,2]").document == [1, 2]
    assert cli("run", "flows:echo", "--input", "@in.json", "-P", "b=1").document == {"a": "é", "b": "1"}
    assert cli("run", "flows:echo", stdin=b"[1,2]").out == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--input", "@."], "directory"),
        (["--input", "{"], "line 1 column 2"),
        (["--input", "text"], "a text is written in quotes"),
        (["--input", "-"], "the standard input is not JSON"),
        (["--key", ""], "empty"),
        (["--key", "é" * 128], "256 bytes"),
        (["--key", "\udcff"], "a lone surrogate"),
        (["--input", '"\udcff"'], "not valid UTF-8"),
        (["-P", "a=\udcff"], "not valid UTF-8"),
        (["-P", 'a:="\udcff"'], "not valid UTF-8"),
    ],
)
def test_a_bad_input_or_key_starts_nothing(cli, argv, message):
    """Exit 2 and no run; a key that is refused never becomes a start without key (A06)."""
    result = cli("run", "flows:echo", *argv)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert cli("runs", "list", "--json").document == []


def test_a_mistyped_param_is_no_default(cli):
    """Types ignore what they do not know; the command line does not."""
    (cli.dir / "typed.py").write_text(
        "import dataclasses\nfrom durable_cli import workflow\n\n"
        "@dataclasses.dataclass\nclass Job:\n    keep: int = 7\n    inner: dict | None = None\n\n"
        "@workflow\ndef job(ctx, job: Job):\n    return ctx.run('keep', lambda: job.keep)\n"
    )
    for command in ("run", "start"):
        result = cli(command, "typed.py", "-P", "kep:=1")
        assert (result.code, "did you mean keep?" in result.err) == (2, True)
    assert cli("runs", "list", "--json").document == []
    assert cli("run", "typed.py", "-P", "keep:=1", "-P", "inner.any=2").document == 1
    assert cli("run", "typed.py", "--input", '{"kep": 1}').document == 7  # what the type does with JSON is its own
