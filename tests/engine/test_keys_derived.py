"""Keys that follow from the input (SPEC 3.1), what a mismatch gets, and how long a key may be held."""

from __future__ import annotations

import datetime as dt
import enum
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from enginekit import duplicates, live_owner, put, told, work

from durable_cli import Context, Durable, InputMismatch, InvalidKey, KeyTaken, cel, workflow
from durable_cli.errors import InvalidDefinition, InvalidInput, UsageError


@dataclass
class Article:
    """What the typed workflows take."""

    id: int
    author: dict[str, Any]
    when: dt.date | None = None


def define(key: Any = None, name: str = "article", **options: Any) -> Any:
    @workflow(name=name, key=key, **options)
    def article(ctx: Context, article: Any = None) -> Any:
        return ctx.run("work", work, article)

    return article


def define_typed(key: Any, **options: Any) -> Any:
    @workflow(name="typed", key=key, **options)
    def typed(ctx: Context, article: Article) -> int:
        return article.id

    return typed


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 7


# -- what gives which key ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "input", "key"),
    [
        (lambda article: f"article:{article['id']}", {"id": 5}, "article:5"),
        (lambda article: article["id"], {"id": 5}, "5"),
        (lambda article: -1, None, "-1"),
        (lambda article: Level.LOW, None, "7"),
        (lambda article: Color.RED, None, "red"),
        (lambda article: None, {"id": 5}, None),
        (lambda article: False, {"id": 5}, None),
        ("article:{id}", {"id": 5}, "article:5"),
        ("{id}", {"id": "é/ "}, "é/ "),
        ("{a.b.c}:{x}", {"a": {"b": {"c": -3}}, "x": "y"}, "-3:y"),
        ("{{{id}}}", {"id": 1}, "{1}"),
        (cel("event.data.user_id"), {"user_id": "u1"}, "u1"),
        (cel("'article:' + string(input.id)"), {"id": 5}, "article:5"),
        (cel("input.id"), {"id": 5}, "5"),
        (cel("input.id == 5 ? dyn(null) : dyn('x')"), {"id": 5}, None),
        (cel("input.vip ? input.id : dyn(false)"), {"vip": False, "id": "x"}, None),
        (cel("input"), "plain", "plain"),
    ],
)
def test_the_key_of_an_input(durable: Durable, rule: Any, input: Any, key: str | None) -> None:
    """Text is the key, an integer becomes its decimal text, None and False mean: no key."""
    article = define(rule)
    answer = durable.start(article, input)
    assert (answer.outcome, answer.key) == ("created", key)
    assert durable.run(answer.run_id).holds_key == (key is not None)
    again = durable.start(article, input)
    assert (again.outcome == "existing") == (key is not None)


def test_the_rule_sees_the_validated_input(durable: Durable) -> None:
    """A callable gets what the function gets, a template and CEL the JSON that is stored."""
    callable_, template = (
        define_typed(lambda article: f"{type(article).__name__}:{article.id + 1}:{article.when.year}"),
        define_typed("{id}:{when}"),
    )
    input = {"id": "5", "author": {}, "when": "2026-01-02"}
    assert durable.start(callable_, input).key == "Article:6:2026"
    assert durable.start(template, input).key == "5:2026-01-02"
    assert durable.start(define_typed(cel("string(input.id) + input.when")), input).key == "52026-01-02"
    with pytest.raises(InvalidInput):
        durable.start(template, {"id": "no"})


def test_a_rule_that_changes_its_argument_changes_nothing(durable: Durable) -> None:
    def rule(article: Any) -> str:
        article["id"] = "changed"
        return "k"

    assert durable.run(durable.start(define(rule), {"id": 1}).run_id).input == '{"id":1}'


# -- failing closed ------------------------------------------------------------------------------------------------

BAD: list[tuple[Any, Any, str]] = [
    (lambda article: article["nothing"], {}, "KeyError"),
    (lambda article: article.id, {}, "AttributeError"),
    (lambda article: 1 / 0, {}, "ZeroDivisionError"),
    (lambda article: sys.exit(3), {}, r"SystemExit: sys.exit\(3\) was called"),
    (lambda article: True, {}, "True"),
    (lambda article: 1.5, {}, "1.5"),
    (lambda article: b"k", {}, "bytes"),
    (lambda article: ["k"], {}, "list"),
    (lambda article: 10**5000, {}, "ValueError"),
    (lambda article: "", {}, "key"),
    (lambda article: "a\0b", {}, "key"),
    (lambda article: "k" * 256, {}, "255"),
    (lambda article: "é" * 128, {}, "255"),
    (lambda article: "\ud800", {}, "key"),
    ("a:{id}", {}, "id"),
    ("a:{id}", None, "id"),
    ("a:{id}", [1], "id"),
    ("a:{id}", {"id": None}, "None"),
    ("a:{id}", {"id": True}, "True"),
    ("a:{id}", {"id": 1.5}, "1.5"),
    ("a:{id}", {"id": {"x": 1}}, "text or an integer"),
    ("a:{id.x}", {"id": 5}, "id.x"),
    ("a:{id}", {"id": "k" * 254}, "255"),
    ("{id}", {"id": ""}, "key"),
    (cel("event.data.user_id"), {}, "user_id"),
    (cel("event.data.user_id"), None, "cel"),
    (cel("input.a + input.b"), {"a": 1, "b": "x"}, "cel"),
    (cel("1 / input.zero"), {"zero": 0}, "cel"),
    (cel("input.x"), {"x": 1.5}, "1.5"),
    (cel("input.x"), {"x": True}, "True"),
    (cel("input.x"), {"x": [1]}, "gave"),
    (cel("input.x"), {"x": {"y": 1}}, "gave"),
    (cel("input.x"), {"x": ""}, "key"),
    (cel("input.x"), {"x": "order-7\0:rev1"}, "NUL"),
    (cel("input.x.y"), {"x": {"y": "order-7", "z": [["\0"]]}}, "NUL"),
    (cel("input.x"), {"x": "order-7", "y\0": 1}, "NUL"),
    (cel("input"), "order-7\0", "NUL"),
    (cel("input.x"), {"x": "\ud800"}, "surrogate"),
    (cel("'\\u0000' + input.x"), {"x": "y"}, "NUL"),
]


@pytest.mark.parametrize(("rule", "input", "why"), BAD)
@pytest.mark.parametrize("entrance", ["start", "execute", "explain_start", "start_many"])
def test_whatever_goes_wrong_refuses_the_start(
    durable: Durable, db: Path, entrance: str, rule: Any, input: Any, why: str
) -> None:
    """Never started without its key, on no path, and nothing is written: not even the file."""
    article = define(rule)
    with pytest.raises(InvalidKey, match=why) as refused:
        if entrance == "start_many":
            [answer] = durable.start_many(article, [{"input": input}])
            assert isinstance(answer, InvalidKey)
            raise answer
        if entrance == "explain_start":
            durable.explain_start(article, input, execute=False)
        else:
            getattr(durable, entrance)(article, input)
    assert refused.value.exit_status == 2
    if entrance != "start_many":
        assert not db.exists()
    else:
        assert durable.runs() == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"key": "constant"}, "singleton=True"),
        ({"key": "{{}}"}, "singleton=True"),
        ({"key": "{"}, "template"),
        ({"key": "a{}"}, "name of a field"),
        ({"key": "a{0}"}, "name of a field"),
        ({"key": "a{id!r}"}, "formats or conversions"),
        ({"key": "a{id:>5}"}, "formats or conversions"),
        ({"key": "a{id.}"}, "name of a field"),
        ({"key": "a{id[0]}"}, "name of a field"),
        ({"key": ""}, "singleton=True"),
        ({"key": 5}, "key=5"),
        ({"key": True}, "key=True"),
        ({"key": ["a"]}, "key="),
        ({"key": "a:{id}", "singleton": True}, "does not go with"),
        ({"singleton": 1}, "True or False"),
        ({"on_mismatch": "ignore"}, "record, error"),
        ({"on_max_hold": "kill"}, "report, cancel"),
        ({"max_hold": 0}, "longer than nothing"),
        ({"max_hold": "soon"}, "soon"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_definition(options: dict[str, Any], why: str) -> None:
    with pytest.raises((InvalidDefinition, UsageError), match=why):
        define(**options)


def test_an_async_rule_is_refused_at_the_definition() -> None:
    async def rule(article: Any) -> str:
        return "k"

    with pytest.raises(InvalidDefinition, match="async"):
        define(rule)


@pytest.mark.parametrize(
    "expression",
    [
        "input.",
        "nothing + 1",
        "1.5",
        "[1]",
        "{'a': 1}",
        "input.a ? 1.5 : 2.5",
        "",
        None,
        5,
        b"input.id",
        "\ud800",
        "'\0'",
    ],
)
def test_a_cel_expression_that_cannot_give_a_key(expression: Any) -> None:
    """Wrong, or of a type that is no key: refused when it is written."""
    with pytest.raises(InvalidDefinition, match="cel"):
        cel(expression)


def test_cel_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    with pytest.raises(InvalidDefinition, match="extra `cel`"):
        cel("input.id")


# -- where it counts -----------------------------------------------------------------------------------------------


def test_a_key_that_is_given_wins(durable: Durable) -> None:
    """Also where the rule would have refused; a child's and a schedule's own key too."""
    article = define("a:{id}")
    assert durable.start(article, {"id": 1}, key="mine").key == "mine"
    assert durable.start(article, {}, key="other").key == "other"
    done = durable.execute(article, {"id": 1}, key="third")
    assert done.start is not None
    assert done.start.key == "third"


def test_singleton(durable: Durable) -> None:
    """One run of the workflow at a time, whatever the inputs."""
    article = define(singleton=True)
    first = durable.start(article, 1)
    assert durable.start(article, 2).run_id == first.run_id
    assert first.key is not None
    assert durable.start(article, 3, key="another").outcome == "created"


def test_children_have_the_childs_own_key_and_never_the_parents(durable: Durable) -> None:
    child = define("child:{id}", name="child")
    plain = define(name="plain")

    @workflow(name="parent", key="parent:{id}")
    def parent(ctx: Context, input: Any) -> list[Any]:
        return [
            ctx.call(child, input),
            ctx.call(plain, input),
            ctx.start(child, input, key="given"),
        ]

    done = durable.execute(parent, {"id": 1})
    assert done.run.status == "completed"
    keys = {(run.workflow, run.key) for run in durable.runs()}
    assert keys == {("parent", "parent:1"), ("child", "child:1"), ("plain", None), ("child", "given")}


def test_a_child_without_a_key_to_be_had_fails_its_step(durable: Durable) -> None:
    """The start of the child is refused: the parent sees an error and no keyless child exists."""
    child = define("child:{nothing}", name="child")

    @workflow(name="parent")
    def parent(ctx: Context) -> Any:
        return ctx.call(child, {"id": 1})

    done = durable.execute(parent)
    assert done.run.status == "failed"
    assert done.run.error is not None
    assert "nothing" in done.run.error.message
    assert [run.workflow for run in durable.runs()] == ["parent"]


def test_fires_have_the_workflows_key_or_the_schedules(durable: Durable, clock: Any) -> None:
    article = define("a:{id}")
    durable.schedule("own", "* * * * *", article, timezone="UTC", input={"id": 1})
    durable.schedule("given", "* * * * *", article, timezone="UTC", input={"id": 1}, key="given")
    assert durable.trigger_schedule("own").key == "a:1"
    assert durable.trigger_schedule("given").key == "given"
    again = durable.trigger_schedule("own")
    assert again.outcome == "existing"
    assert duplicates(durable, "a:1")[0]["schedule"] == "own"


def test_a_rerun_and_a_retry_keep_the_runs_key(durable: Durable) -> None:
    """They derive nothing: the key is the run's, also where the rule has changed."""
    run_id = durable.start(define("a:{id}"), {"id": 1}).run_id
    durable.cancel(run_id)
    define("b:{id}")
    assert durable.run(durable.rerun(run_id).run_id).key == "a:1"


# -- inputs that differ --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["pending", "running", "waiting", "completed"])
@pytest.mark.parametrize("policy", ["use_existing", "error"])
def test_another_input_is_an_error_where_the_workflow_says_so(durable: Durable, policy: str, status: str) -> None:
    """InputMismatch, which is a KeyTaken; the same value is answered as always."""
    article = define(on_mismatch="error", reuse="never")
    owner = live_owner(durable) if status == "running" else None
    run_id = put(durable, article, status, key="k", input={"a": 1, "b": 2}, owner=owner)
    with pytest.raises(KeyTaken) as taken:
        durable.start(article, {"a": 2}, key="k", on_duplicate=policy)
    assert taken.value.holder_id == run_id
    assert isinstance(taken.value, InputMismatch) == (policy == "use_existing")
    assert duplicates(durable, "k")[-1] == {"outcome": "error", "input_changed": True, "input": {"a": 2}}
    if policy == "use_existing":
        assert durable.start(article, {"b": 2, "a": 1}, key="k").run_id == run_id
        assert duplicates(durable, "k")[-1] == {"outcome": "use_existing", "input_changed": False}
    assert durable.check() == []


@pytest.mark.parametrize("state", ["dead", "recorded"])
@pytest.mark.parametrize("policy", ["use_existing", "error"])
def test_a_run_that_nobody_executes_is_taken_up_whatever_the_input(durable: Durable, policy: str, state: str) -> None:
    """Else a crash would leave a cron job answering "taken" for ever; the input that does not run is kept."""
    article = define(on_mismatch="error")
    run_id = put(durable, article, "running" if state == "dead" else "pending", key="k", input=1)
    with pytest.raises(KeyTaken):
        durable.start(article, 2, key="k", on_duplicate=policy)  # it only records
    done = durable.execute(article, 2, key="k", on_duplicate=policy)
    assert done.start is not None
    assert (done.start.outcome, done.run.id, done.run.status, done.run.result) == ("resumed", run_id, "completed", "1")
    assert duplicates(durable, "k")[-1] == {"outcome": "use_existing", "input_changed": True, "input": 2}
    assert durable.check() == []


@pytest.mark.parametrize("policy", ["use_existing", "error"])
def test_a_resting_run_is_not_taken_up_and_its_input_counts(durable: Durable, policy: str) -> None:
    """What refuses is the policy where it does, else the mismatch: as with a holder that is being executed."""
    article = define(on_mismatch="error")
    run_id = put(durable, article, "waiting", key="k", input=1)
    with pytest.raises(KeyTaken) as taken:
        durable.execute(article, 2, key="k", on_duplicate=policy)
    assert taken.value.holder_id == run_id
    assert isinstance(taken.value, InputMismatch) == (policy == "use_existing")
    assert duplicates(durable, "k")[-1] == {"outcome": "error", "input_changed": True, "input": 2}


@pytest.mark.parametrize("policy", ["cancel_existing", "run_again", "send_event:poke"])
def test_a_policy_that_uses_the_new_input_has_no_mismatch(durable: Durable, policy: str) -> None:
    article = define(on_mismatch="error")
    put(durable, article, "running", key="k", input=1, owner=live_owner(durable))
    assert durable.start(article, 2, key="k", on_duplicate=policy).outcome in ("replaced", "queued", "event_sent")


# -- held too long -------------------------------------------------------------------------------------------------


def look(durable: Durable) -> None:
    """What a worker does once a minute."""
    from durable_cli.housekeeping import Housekeeping

    Housekeeping(durable._engine).look()


@pytest.mark.parametrize("status", ["pending", "running", "waiting", "compensating", "completed", "failed"])
@pytest.mark.parametrize("then", ["report", "cancel"])
def test_a_key_that_is_held_too_long(durable: Durable, clock: Any, status: str, then: str) -> None:
    """Unfinished holders only, told once; cancelled where the workflow says so, but for one that undoes its work."""
    article = define(max_hold="1h", on_max_hold=then)
    owner = live_owner(durable) if status in ("running", "compensating") else None
    run_id = put(durable, article, status, key="k", owner=owner)
    clock.advance(3_600_000)
    look(durable)
    assert told(durable, "k", "key_held_long") == []
    clock.advance(1)
    look(durable)
    look(durable)
    rows = told(durable, "k", "key_held_long")
    if status in ("completed", "failed"):
        assert rows == []
        return
    assert [(row.run_id, row.details["action"]) for row in rows] == [(run_id, then)]
    cancelled = then == "cancel" and status != "compensating"
    assert durable.run(run_id).status == ("cancelled" if cancelled else status)
    if cancelled:
        assert "max_hold" in str(durable.run(run_id).error)
        assert durable.start(article, key="k").outcome == "created"
    assert durable.check() == []


def test_a_waiting_run_is_promoted_when_its_holder_is_cancelled_for_that(durable: Durable, clock: Any) -> None:
    """And counts its own hold from then on."""
    article = define(max_hold="1h", on_max_hold="cancel")
    put(durable, article, "running", key="k", owner=live_owner(durable))
    waiting = durable.start(article, 2, key="k", on_duplicate="run_again").run_id
    clock.advance(3_600_001)
    look(durable)
    run = durable.run(waiting)
    assert (run.holds_key, run.held_since, run.status) == (True, clock.now, "pending")
    clock.advance(60_000)
    look(durable)
    assert durable.run(waiting).status == "pending"
