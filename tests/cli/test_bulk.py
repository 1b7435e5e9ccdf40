"""`durable start --input-lines`: an answer a line, in order, whatever the lines hold."""

from __future__ import annotations

import json
import os

import pytest

from durable_cli.cli import bulk


def lines(*items):
    return b"".join((item if isinstance(item, bytes) else json.dumps(item).encode()) + b"\n" for item in items)


def feed(cli, *items, more=(), target="flows:echo"):
    result = cli("start", target, "--input-lines", "-", *more, stdin=lines(*items))
    return result, [json.loads(line) for line in result.out.splitlines()]


def test_each_line_is_a_start_and_gets_an_answer(cli):
    """In order, with the number of the line; the ids can be shown at once; exit 0."""
    result, answers = feed(
        cli,
        {"input": {"n": 1}, "key": "a"},
        {"input": {"n": 2}, "key": "a", "on_duplicate": "cancel_existing"},
        {"key": "b", "delay": "1h"},
        {"key": "a"},
        {},
    )
    assert (result.code, result.err) == (0, "")
    assert [(one["line"], one["outcome"]) for one in answers] == [
        (1, "created"), (2, "replaced"), (3, "created"), (4, "existing"), (5, "created"),
    ]  # fmt: skip
    assert answers[1]["replaced_id"] == answers[0]["run_id"]
    assert answers[3]["run_id"] == answers[1]["run_id"]
    assert list(answers[0]) == [
        "line", "run_id", "workflow", "key", "outcome", "status", "holder_id", "holder_status", "replaced_id",
    ]  # fmt: skip
    assert cli("show", answers[1]["run_id"], "--json").document["input"] == {"n": 2}
    later = cli("show", answers[2]["run_id"], "--json").document
    assert later["due_at"] > later["created_at"]


def test_lines_in_a_process_with_many_open_files(cli, crowded):
    """More than 1,024 of them."""
    (cli.dir / "lines").write_bytes(lines({"input": 1}))
    out, err = crowded("start", "flows:echo", "--input-lines", "@lines").communicate(timeout=20)
    assert (json.loads(out)["outcome"], err) == ("created", b"")


BAD = [
    (b"nope", "invalid_input"),
    (b"[1]", "usage_error"),
    (b'"text"', "usage_error"),
    (b'{"foo": 1}', "usage_error"),
    (b'{"input": NaN}', "invalid_input"),
    (b'{"key": 5}', "invalid_key"),
    (b'{"key": ""}', "invalid_key"),
    (b'{"on_duplicate": 7}', "usage_error"),
    (b'{"on_duplicate": "replace"}', "usage_error"),
    (b'{"at": "2001-01-01"}', "usage_error"),
    (b'{"at": 5}', "usage_error"),
    (b'{"at": "soon"}', "usage_error"),
    (b'{"delay": {}}', "invalid_duration"),
    (b'{"timeout": "x"}', "invalid_duration"),
    (b'{"timeout": 0}', "usage_error"),
    (b'{"at": "9999-12-31T23:59:59-12:00"}', "usage_error"),
    (b'{"at": "2999-01-01", "delay": "1h"}', "usage_error"),
    (b"\xff\xfe", "invalid_input"),
    (b"[" * 200_000, "invalid_input"),
    (b'{"input": "text"}', "invalid_input"),
]


@pytest.mark.parametrize("dry", [(), ("-n",)])
def test_a_bad_line_is_answered_and_stops_no_other(cli, dry):
    """Its number and its error; the good ones around it start; exit 1 at the end, with a count on stderr."""
    items = [part for line, _ in BAD for part in ({"input": 1}, line)]
    result, answers = feed(cli, *items, more=dry, target="flows:sync")
    assert result.code == 1
    assert [one["line"] for one in answers] == list(range(1, 2 * len(BAD) + 1))
    assert [one["error"]["code"] for one in answers[1::2]] == [code for _, code in BAD]
    assert all("error" not in one for one in answers[::2])
    assert all(one["error"]["message"] for one in answers[1::2])
    assert result.err == f"error: {len(BAD)} of {2 * len(BAD)} lines were refused\n"
    assert len(cli("runs", "list", "--json").document) == (0 if dry else len(BAD))


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_line(cli):
    """Editors on Windows write one."""
    result, answers = feed(cli, b'\xef\xbb\xbf{"input": 1}', {"input": 2}, target="flows:sync")
    assert (result.code, [one["outcome"] for one in answers]) == (0, ["created", "created"])


def test_a_bug_is_told_although_the_answer_has_begun(cli, monkeypatch):
    """Its document cannot be written any more; it is on stderr then."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken inside")

    monkeypatch.setattr("durable_cli.cli.bulk._items", broken)
    result = cli("start", "flows:echo", "--input-lines", "-", "--json", stdin=lines({}))
    assert (result.code, result.out) == (70, "[]\n")
    assert "broken inside" in result.err


def test_a_refused_start_is_an_error_of_its_line(cli):
    """KeyTaken: with the holder, as everywhere; the duplicate is recorded."""
    result, [first, second] = feed(cli, {"key": "k"}, {"key": "k", "input": 2, "on_duplicate": "error"})
    assert result.code == 1
    assert second["error"]["code"] == "key_taken"
    assert second["error"]["holder_id"] == first["run_id"]
    assert cli("stats", "--json").document["keys"]["readds"] == {"error": 1}


def test_the_policy_of_the_command_counts_where_a_line_has_none(cli):
    """Per line over per call."""
    more = ("--on-duplicate", "run_again")
    _, answers = feed(
        cli, {"key": "k"}, {"key": "k", "input": 1}, {"key": "k", "on_duplicate": "use_existing"}, more=more
    )
    assert [one["outcome"] for one in answers] == ["created", "merged", "existing"]


def test_empty_lines_count_and_start_nothing(cli):
    """CRLF too; the last line needs no end."""
    result = cli("start", "flows:echo", "--input-lines", "-", stdin=b'\n{"key": "a"}\r\n  \n{"key": "b"}')
    assert [json.loads(line)["line"] for line in result.out.splitlines()] == [2, 4]
    assert cli("start", "flows:echo", "--input-lines", "-", stdin=b"").all == (0, "", "")


def test_from_a_file(cli):
    """@FILE; anything else is refused with what would be right, a missing file too."""
    (cli.dir / "work.jsonl").write_bytes(lines({"key": "a"}, {"key": "b"}))
    assert len(cli("start", "flows:echo", "--input-lines", "@work.jsonl").out.splitlines()) == 2
    bare = cli("start", "flows:echo", "--input-lines", "work.jsonl")
    assert (bare.code, "hint: --input-lines @work.jsonl" in bare.err) == (2, True)
    assert cli("start", "flows:echo", "--input-lines", "@none").code == 2
    assert cli("start", "flows:echo", "--input-lines", "@.").code == 2
    assert len(cli("runs", "list", "--json").document) == 2


@pytest.mark.parametrize(
    "more",
    [
        *(["--key", "k"], ["--input", "1"], ["-P", "a=1"], ["--at", "18:00"], ["--delay", "1h"], ["-E", "7"]),
        *(["--key", ""], ["--delay", ""], ["-E", "0"], ["--timeout", ""]),
    ],
    ids=str,
)
def test_what_a_line_says_is_not_said_beside_it(cli, more):
    """Never parsed and ignored."""
    result = cli("start", "flows:echo", "--input-lines", "-", *more, stdin=lines({}))
    assert (result.code, result.out) == (2, "")
    assert "does not go with --input-lines" in result.err
    assert not cli.db.exists()


def test_the_forms_of_the_answers(cli):
    """JSON lines; one list with --json, also where nothing came; ids; -q only what was refused; no tables."""
    items = ({"key": "a"}, b"bad", {"key": "b"})
    _, answers = feed(cli, *items)
    listed = cli("start", "flows:echo", "--input-lines", "-", "--json", stdin=lines(*items)).document
    assert [one["line"] for one in listed] == [1, 2, 3]
    assert listed[1] == answers[1]
    assert cli("start", "flows:echo", "--input-lines", "-", "--json").document == []
    ids = cli("start", "flows:echo", "--input-lines", "-", "--format", "ids", stdin=lines(*items)).out
    assert ids.split() == [answers[0]["run_id"], answers[2]["run_id"]]
    quiet = cli("start", "flows:echo", "--input-lines", "-", "-q", stdin=lines(*items))
    assert [json.loads(line)["line"] for line in quiet.out.splitlines()] == [2]
    assert cli("start", "flows:echo", "--input-lines", "-", "--format", "csv", stdin=lines(*items)).code == 2
    assert len(cli("runs", "list", "--json").document) == 2


def test_more_than_a_batch(cli):
    """Answers stay in order over batches; one workflow, many keys."""
    count = 2 * bulk.BATCH + 17
    result, answers = feed(cli, *({"key": f"k{n % 700}", "input": n} for n in range(count)))
    assert (result.code, len(answers)) == (0, count)
    assert [one["line"] for one in answers] == list(range(1, count + 1))
    assert [one["key"] for one in answers] == [f"k{n % 700}" for n in range(count)]
    assert sum(one["outcome"] == "created" for one in answers) == 700 == len(cli("keys", "list", "--json").document)
    assert cli("db", "check").code == 0


def test_a_line_without_an_end_is_not_kept_in_memory(tmp_path, monkeypatch):
    """Longer than allowed: told with its number, skipped to its end, and what follows is read."""
    monkeypatch.setattr(bulk, "MAX_LINE", 100_000)
    file = tmp_path / "lines"
    file.write_bytes(
        b"{}\n" + b"x" * 350_000 + b"\n{}\n" + b"y" * 100_001 + b"\n" + b"z" * 100_000 + b"\n" + b"w" * 400_000
    )
    descriptor = os.open(file, os.O_RDONLY)
    found = [line for batch in bulk.batches(descriptor) for line in batch]
    os.close(descriptor)
    assert [(line.number, None if line.text is None else len(line.text)) for line in found] == [
        (1, 2), (2, None), (3, 2), (4, None), (5, 100_000), (6, None),
    ]  # fmt: skip


def test_batches_are_bounded_in_bytes_too(tmp_path, monkeypatch):
    """Five hundred large inputs are not one transaction."""
    monkeypatch.setattr(bulk, "BATCH_BYTES", 1000)
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"x" * 400 + b"\n" for _ in range(7)))
    descriptor = os.open(file, os.O_RDONLY)
    assert [len(batch) for batch in bulk.batches(descriptor)] == [3, 3, 1]
    os.close(descriptor)


def test_a_producer_that_pauses_gets_its_answers(cli):
    """Streamed: what has come is started although the stream stays open; half a line is not a line."""
    import subprocess

    process = cli.process("start", "flows:echo", "--input-lines", "-", stdin=subprocess.PIPE)
    for n in range(3):
        process.stdin.write(lines({"key": f"k{n}"}) + b'{"ke')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["key"] == f"k{n}"
        process.stdin.write(b'y": "other"}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["key"] == "other"
    process.stdin.close()
    assert (process.wait(20), process.stdout.read()) == (0, b"")


@pytest.mark.parametrize("form", [[], ["--json"], ["--format", "ids"]], ids=str)
def test_a_file_that_fails_in_the_middle_ends_it(cli, monkeypatch, form):
    """What was committed is answered, what was not is not; the error is told, and its exit code."""
    import durable_cli.client
    from durable_cli.errors import DiskFull

    monkeypatch.setattr(bulk, "BATCH", 2)
    real = durable_cli.client.Durable.start_many

    def start_many(self, definition, items, *, moved):
        if "c" in [item["key"] for item in items]:
            raise DiskFull("no space left")
        return real(self, definition, items, moved=moved)

    monkeypatch.setattr(durable_cli.client.Durable, "start_many", start_many)
    stdin = lines(*({"key": key} for key in "abcdef"))
    result = cli("start", "flows:echo", "--input-lines", "-", *form, stdin=stdin)
    assert result.code == DiskFull.exit_code
    assert [run["key"] for run in cli("runs", "list", "--json").document] == ["b", "a"]
    if form == ["--format", "ids"]:
        assert len(result.out.split()) == 2
        assert result.err.startswith("error: no space left")
        return
    answers = result.document if form else [json.loads(line) for line in result.out.splitlines()]
    assert [one["key"] for one in answers if "key" in one] == ["a", "b"]
    if form:
        assert answers[-1]["error"]["message"] == "no space left"
    else:
        assert result.err.startswith("error: no space left")


def test_dry_run_says_for_each_line_what_it_would_do(cli):
    """Alone, by the file as it is; nothing is written."""
    cli("start", "flows:echo", "--key", "held")
    before = cli("runs", "list", "--json").document
    result, answers = feed(cli, {"key": "held"}, {"key": "new"}, {"key": "new"}, {}, more=("-n",))
    assert (result.code, [one["action"] for one in answers]) == (0, ["existing", "create", "create", "create"])
    assert cli("runs", "list", "--json").document == before
    assert cli("activity", "--json").document == []
