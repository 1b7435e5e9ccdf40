"""`keys log|eval|replay`, the key view of a run, `keys list --stuck`: keys, completely."""

from __future__ import annotations

import json
import os
import pty
import select
import time

import pytest

HOSTILE = "\x1b[2J\u202e[/]:key:\nx"

KEYED = """
from durable_cli import workflow


@workflow(key="article:{id}")
def article(ctx, value: dict | None = None):
    return ctx.run("s", lambda: value)


@workflow(key=lambda value: None)
def keyless(ctx, value: dict | None = None):
    return ctx.run("s", lambda: value)


@workflow(key=lambda value: value["no"])
def failing(ctx, value: dict | None = None):
    return ctx.run("s", lambda: value)


@workflow
def plain(ctx, value: object = None):
    return ctx.run("s", lambda: value)


@workflow(max_hold="1ms")
def impatient(ctx, value: object = None):
    return ctx.run("s", lambda: value)
"""


@pytest.fixture
def keyed(cli):
    (cli.dir / "keyed.py").write_text(KEYED)
    return cli


def start(cli, value, *more, key="k", target="keyed:plain"):
    return cli("start", target, "--key", key, "--input", json.dumps(value), *more).out.strip()


# -- log -----------------------------------------------------------------------------------------------------------


def test_the_log_is_a_list_oldest_first(keyed):
    """`--json`: one list; each dropped and superseded input with its diff."""
    first = start(keyed, {"n": 1})
    start(keyed, {"n": 2, "new": True})
    second = start(keyed, {"n": 3}, "--on-duplicate", "cancel_existing")
    keyed("cancel", second)
    keyed("release-key", second, "--by", "me")
    found = keyed("keys", "log", "k", "--json").document
    assert [(one["kind"], one["run_id"]) for one in found] == [
        ("run_created", first),
        ("key_duplicate", first),
        ("key_duplicate", first),
        ("run_created", second),
        ("key_handed_off", second),
        ("key_released", second),
    ]
    assert list(found[0]) == ["at", "kind", "run_id", "details", "superseded", "against_id", "diff", "id"]
    assert found[0]["details"] == {"status": "cancelled", "input": {"n": 1}}
    assert (found[1]["superseded"], found[1]["against_id"]) == (False, first)
    assert found[1]["diff"] == {
        "changes": [
            {"path": "n", "change": "changed", "from": 1, "to": 2},
            {"path": "new", "change": "added", "from": None, "to": True},
        ],
        "more": False,
    }
    assert (found[2]["superseded"], found[2]["against_id"]) == (True, second)
    assert found[3]["diff"] is None
    assert [one["at"] for one in found] == sorted(one["at"] for one in found)
    ids = [one["id"] for one in keyed("activity", "--key", "k", "--json").document]
    assert [one["id"] for one in found if one["id"] is not None] == ids[::-1]
    assert keyed("keys", "log", "k", "--limit", "2", "--json").document == found[-2:]
    assert keyed("keys", "log", "k", "--limit", "0", "--json").document == []


def test_the_log_needs_a_known_key(keyed):
    """3 for an unknown key or database, 2 with the candidates where several workflows have it."""
    assert keyed("keys", "log", "k").code == 3
    start(keyed, 1)
    assert keyed("keys", "log", "other", "--json").document["error"]["code"] == "key_not_found"
    start(keyed, 1, target="keyed:impatient")
    refused = keyed("keys", "log", "k", "--json")
    assert (refused.code, refused.document["error"]["candidates"]) == (2, ["impatient", "plain"])
    assert len(keyed("keys", "log", "k", "--workflow", "plain", "--json").document) == 1


def test_strangers_texts_are_shown_literally_everywhere(keyed):
    """Keys, fields and values of inputs, who released it: no control reaches the terminal; JSON has them raw."""
    holder = start(keyed, {HOSTILE: "a"}, key=HOSTILE)
    start(keyed, {HOSTILE: HOSTILE, "deep": {"er.": [HOSTILE]}}, key=HOSTILE)
    keyed("cancel", holder)
    keyed("release-key", holder, "--by", HOSTILE)
    shown = [
        keyed("keys", "log", HOSTILE, "--format", "table"),
        keyed("keys", "log", HOSTILE),
        keyed("keys", "show", HOSTILE),
        keyed("runs", "show", holder),
        keyed("keys", "replay", HOSTILE, "-n", "-v"),
        keyed("keys", "replay", HOSTILE, "-v"),
        keyed("keys", "replay", HOSTILE),
        keyed("workflows", "show", "plain"),
    ]
    for result in shown:
        assert all(char.isprintable() or char in "\n\t" for char in result.out + result.err), result
    assert "\\x1b[2J\\u202e[/]:key:" in shown[0].out
    paths = [
        change["path"]
        for change in keyed("keys", "show", HOSTILE, "--json").document["lost_inputs"][-1]["diff"]["changes"]
    ]
    assert paths == [json.dumps(HOSTILE, ensure_ascii=False), "deep"]


def test_a_huge_input_is_shown_in_bounds(keyed):
    """Thousands of changed fields: some for a person, fifty for a program, `more` says so."""
    start(keyed, {})
    start(keyed, {f"field {n}": "x" * 200 for n in range(3000)})
    change = keyed("keys", "log", "k", "--json").document[1]["diff"]
    assert (len(change["changes"]), change["more"]) == (50, True)
    for argv in (["keys", "log", "k", "--format", "table"], ["keys", "show", "k"], ["show", "--key", "k"]):
        shown = keyed(*argv).out
        assert "40+ more" in shown
        assert len(shown) < 5000


def test_a_run_and_a_key_show_what_did_not_run(keyed):
    """The key view of a run: all runs of the key, re-adds, lost inputs; null for a run without a key."""
    first = start(keyed, {"n": 1})
    start(keyed, {"n": 2})
    keyed("cancel", first)
    second = start(keyed, {"n": 3})
    view = keyed("runs", "show", first, "--json").document["key_view"]
    assert [(run["id"], run["holds_key"]) for run in view["runs"]] == [(second, True), (first, False)]
    assert view["readds"] == {"use_existing": 1}
    [lost] = view["lost_inputs"]
    assert (lost["outcome"], lost["input"], lost["against_id"], lost["run_id"]) == (
        "use_existing",
        {"n": 2},
        first,
        first,
    )
    assert keyed("keys", "show", "k", "--json").document["lost_inputs"] == [lost]
    assert "~ n: 1 -> 2" in keyed("runs", "show", second).out
    assert "~ n: 1 -> 2" in keyed("keys", "show", "k").out
    keyed("start", "keyed:plain")
    assert keyed("runs", "show", "last", "--json").document["key_view"] is None


def test_stuck_keys_are_marked(keyed):
    """Held longer than max_hold: in `keys list`, and by --stuck whatever its length."""
    start(keyed, 1, key="patient")
    start(keyed, 1, key="stuck", target="keyed:impatient")
    time.sleep(0.005)
    marks = {one["key"]: one.get("held_too_long", False) for one in keyed("keys", "list", "--json").document}
    assert marks == {"patient": False, "stuck": True}
    assert keyed("keys", "list", "--held", "--stuck", "1w", "--fields", "key").out == "stuck\n"
    assert "too long" in keyed("keys", "list", "--format", "table").out
    assert "longer than max_hold" in keyed("keys", "show", "stuck").out
    assert "too long" in keyed("keys", "list", "--format", "table", "--stuck", "1w").out


# -- eval ----------------------------------------------------------------------------------------------------------


def test_eval_prints_the_key_or_says_that_there_is_none(keyed):
    """Nothing on stdout where there is none, and the reason on stderr; nothing is written."""
    assert keyed("keys", "eval", "keyed:article", "--input", '{"id": 7}').all == (0, "article:7\n", "")
    assert keyed("keys", "eval", "keyed:article", "-P", "id=x y").out == "article:x y\n"
    assert keyed("keys", "eval", "keyed:article", "-P", "id= x").out == "article: x\n"
    for hostile, written in (
        (" x ", "article: x\\x20"),
        ("x\ny", r"article:x\ny"),
        (r"x\ny", r"article:x\\ny"),
        ("x\x1b[31m\x9b2J\u202e", r"article:x\x1b[31m\x9b2J\u202e"),
    ):
        call = ("keys", "eval", "keyed:article", "--input", json.dumps({"id": hostile}))
        assert {keyed(*call, *form).out for form in ((), ("--format", "ids"))} == {f"{written}\n"}
    assert keyed("keys", "eval", "keyed:article", "-P", "id=x ", "--format", "table").out == '"article:x "\n'
    found = keyed("keys", "eval", "keyed:article", "-P", "id:=7", "--json").document
    assert found == {"workflow": "article", "key": "article:7", "rule": "article:{id}"}
    none = keyed("keys", "eval", "keyed:keyless", "-P", "id:=7")
    assert (none.code, none.out) == (0, "")
    assert none.err.startswith("no key: <lambda>(input) gives none")
    assert keyed("keys", "eval", "keyed:plain", "--json").document == {"workflow": "plain", "key": None, "rule": None}
    assert "no key expression" in keyed("keys", "eval", "keyed:plain").err
    assert not keyed.db.exists()


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["keyed:article", "-P", "x=1"], "lacks"),
        (["keyed:article", "--input", '{"id": ""}'], None),
        (["keyed:article", "--input", '{"id": null}'], "text or an integer"),
        (["keyed:article", "-P", f"id={'x' * 300}"], "255"),
        (["keyed:failing", "-P", "x=1"], "KeyError"),
        (["keyed:article", "--input", "7"], "dict"),
        (["keyed:article", "--input", "{"], "not JSON"),
        (["keyed"], "more than one"),
    ],
)
def test_eval_refuses_what_a_start_would_refuse(keyed, argv, reason):
    """Exit 2 with the reason; the same inputs are refused by `start`."""
    result = keyed("keys", "eval", *argv)
    if reason is None:  # an empty field leaves a key that is not empty
        assert result.all == (0, "article:\n", "")
        return
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert keyed("start", *argv).code == 2
    assert keyed("keys", "eval", *argv, "--json").document["error"]["message"]


def test_eval_tells_an_unknown_target(keyed):
    """3, as for a start."""
    assert keyed("keys", "eval", "keyed:nothing").code == 3


# -- replay --------------------------------------------------------------------------------------------------------


def test_replay_starts_the_newest_lost_input(keyed):
    """Prints the id; the document of `start` with the row that it brings again; the log tells of it."""
    first = start(keyed, {"n": 1})
    start(keyed, {"n": 2})
    keyed("cancel", first)
    dry = keyed("keys", "replay", "k", "-n")
    assert (dry.code, "a new run would start" in dry.out) == (0, True)
    assert keyed("runs", "list", "--format", "ids").out == f"{first}\n"
    document = keyed("keys", "replay", "k", "--json").document
    assert (document["outcome"], document["workflow"], document["key"]) == ("created", "plain", "k")
    assert keyed("show", document["run_id"], "--json").document["input"] == {"n": 2}
    row = keyed("keys", "log", "k", "--json").document[-1]
    assert (row["kind"], row["details"]) == ("key_replayed", {"replayed": document["replayed"], "start": "created"})
    again = keyed("keys", "replay", "k", "--json")
    assert (again.code, again.document["error"]["code"]) == (4, "already_replayed")
    assert again.document["error"]["run_id"] == document["run_id"]
    keyed("cancel", document["run_id"])
    named = keyed("keys", "replay", "k", str(document["replayed"]))
    assert (named.code, named.err) == (0, "")
    assert named.out.strip() not in (first, document["run_id"])


def test_replay_into_a_taken_key_says_that_nothing_started(keyed):
    """Exit 0, as the policy says, but never in silence; `--on-duplicate` chooses, `error` is 75."""
    holder = start(keyed, {"n": 1})
    start(keyed, {"n": 2})
    result = keyed("keys", "replay", "k")
    assert (result.code, result.out) == (0, f"{holder}\n")
    assert "nothing started" in result.err
    assert "hint: --on-duplicate run_again" in result.err
    assert keyed("keys", "replay", "k", "--on-duplicate", "error").code == 75
    merged = keyed("keys", "replay", "k", "--on-duplicate", "run_again", "--json").document
    assert (merged["outcome"], merged["run_id"]) == ("merged", holder)


def test_replay_without_anything_to_replay(keyed):
    """3: an unknown key, nothing lost, a number that names nothing of this key; 2: no number."""
    assert keyed("keys", "replay", "k").code == 3
    start(keyed, 1)
    for argv in (["other"], ["k"], ["k", "99"]):
        assert keyed("keys", "replay", *argv).code == 3
    assert keyed("keys", "replay", "k", "--json").document["error"]["code"] == "input_not_found"
    assert keyed("keys", "replay", "k", "x").code == 2


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, cli, *argv):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cli.dir)
            os.execvpe(cli.argv()[0], cli.argv(*argv), cli.full_env())
        self.seen = ""

    def until(self, text):
        watched = select.poll()
        watched.register(self.fd, select.POLLIN)
        while text not in self.seen and watched.poll(20_000):
            try:
                self.seen += os.read(self.fd, 4096).decode()
            except OSError:
                break
        assert text in self.seen, self.seen

    def says(self, text):
        os.write(self.fd, text.encode())

    def code(self):
        while True:
            try:
                more = os.read(self.fd, 4096)
            except OSError:
                break
            if not more:
                break
            self.seen += more.decode()
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize(("typed", "code", "runs"), [("y\n", 0, 2), ("\n", 1, 1), ("no\n", 1, 1), ("\x04", 1, 1)])
def test_replay_asks_a_person(keyed, typed, code, runs):
    """Shows which input; anything but yes starts nothing."""
    first = start(keyed, {"n": 1})
    start(keyed, {"n": 2})
    keyed("cancel", first)
    terminal = Terminal(keyed, "keys", "replay", "k")
    terminal.until("start it again, as plain with the key k? [y/N]")
    assert "~ n: 1 -> 2" in terminal.seen
    terminal.says(typed)
    assert terminal.code() == code
    assert len(keyed("runs", "list", "--json").document) == runs


@pytest.mark.parametrize("flag", ["-y", "--no-input"])
def test_who_does_not_want_to_be_asked_is_not(keyed, flag):
    """-y, and --no-input, which never reads from the terminal."""
    first = start(keyed, {"n": 1})
    start(keyed, {"n": 2})
    keyed("cancel", first)
    terminal = Terminal(keyed, "keys", "replay", "k", flag)
    assert terminal.code() == 0
    assert "[y/N]" not in terminal.seen


def test_prune_asks_a_person(keyed):
    """With what would go; nothing to delete is no question."""
    run_id = keyed("run", "flows:once", "--key", "k", "--json").document["run_id"]
    terminal = Terminal(keyed, "prune", "--older-than", "0s")
    terminal.until("delete 1 run that ended 0s ago or earlier; 1 key becomes free, 1 of them of reuse=never? [y/N]")
    terminal.says("n\n")
    assert terminal.code() == 1
    assert keyed("show", run_id).code == 0
    terminal = Terminal(keyed, "prune", "--older-than", "1w")
    assert terminal.code() == 0
    assert "[y/N]" not in terminal.seen
    assert Terminal(keyed, "prune", "--older-than", "0s", "-y").code() == 0
    assert keyed("show", run_id).code == 3
