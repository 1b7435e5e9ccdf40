"""`@workflow` and `Retry`: what is refused when it is written down (SPEC 4.1, 4.3; CASES B08, B09, G12)."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from durable_cli import Durable
from durable_cli.definition import (
    UNSET,
    Retry,
    WorkflowFunction,
    definitions,
    parse_on_duplicate,
    refuse_start_options,
    workflow,
)
from durable_cli.errors import AlreadyDefined, InvalidDefinition, InvalidInput, Unreadable, UsageError
from durable_cli.model import OnDuplicate, Policy, Reuse

if TYPE_CHECKING:
    from nowhere import Unknown


def module_of(path: Path, source: str, name: str) -> types.ModuleType:
    """A module whose code is in a file, as an import makes it."""
    path.write_text(source)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec"), vars(module))
    return module


FLOW = "from durable_cli.definition import workflow\n"
TWO = FLOW + "@workflow\ndef process(ctx): ...\n"


@dataclass
class Article:
    id: int
    at: dt.date = dt.date(2026, 1, 1)


# -- what it is afterwards -----------------------------------------------------------------------------------------


def test_defaults() -> None:
    """A bare @workflow has the function's name, `after_close` and `use_existing`."""

    @workflow
    def sync(ctx: Any) -> None: ...

    definition = sync.definition
    assert (definition.name, definition.reuse) == ("sync", Reuse.AFTER_CLOSE)
    assert definition.on_duplicate == OnDuplicate(Policy.USE_EXISTING)
    assert (definition.parameter, definition.is_async, definition.default) == (None, False, UNSET)


def test_options() -> None:
    """The options arrive, and `async def` is seen."""

    @workflow(name="sync-all.v2", reuse="never", on_duplicate="send_event:again")
    async def sync(ctx: Any, article: Article) -> None: ...

    definition = sync.definition
    assert (definition.name, definition.reuse, definition.is_async) == ("sync-all.v2", Reuse.NEVER, True)
    assert definition.on_duplicate == OnDuplicate(Policy.SEND_EVENT, "again")
    assert definition.parameter == "article"


def test_it_is_still_the_function() -> None:
    """Unit tests call a workflow with a context of their own; name, docstring and signature are the function's."""

    @workflow
    def double(ctx: str, x: int) -> str:
        """Twice."""
        return ctx + str(2 * x)

    @workflow
    async def later(ctx: str) -> str:
        return ctx

    assert double("c", 2) == double("c", x=2) == "c4"
    assert asyncio.run(later("c")) == "c"
    assert (double.__name__, double.__doc__, double.__module__) == ("double", "Twice.", __name__)
    assert list(inspect.signature(double).parameters) == ["ctx", "x"]
    assert isinstance(double.__wrapped__, types.FunctionType)


def test_function_behind_another_decorator() -> None:
    """The place is that of the code a person wrote, not of a decorator's wrapper."""

    def twice(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args), function(*args)

        return wrapper

    @workflow
    @twice
    def sync(ctx: Any, x: int = 1) -> int:
        return x

    assert sync(None, 3) == (3, 3)
    assert sync.definition.parameter == "x"
    assert sync.definition.line == inspect.unwrap(sync).__code__.co_firstlineno


def test_location_of_a_module(tmp_path: Path) -> None:
    """File resolved, qualified name, module, and the directory that makes the import work."""
    real = tmp_path / "real"
    (real / "pkg").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    module = module_of(tmp_path / "link" / "pkg" / "flows.py", TWO, "pkg.flows")
    location = module.process.definition.location
    assert location.file == str((real / "pkg" / "flows.py").resolve())
    assert (location.qualname, location.module, location.app_dir) == ("process", "pkg.flows", str(real.resolve()))
    inside = module_of(tmp_path / "link" / "pkg" / "__init__.py", TWO.replace("process", "other"), "pkg")
    assert inside.other.definition.location.app_dir == str(real.resolve())


def test_location_of_main(tmp_path: Path) -> None:
    """A script's workflow has the same file and qualified name as when it is imported, and no module."""
    imported = module_of(tmp_path / "flows.py", TWO, "flows").process.definition.location
    script = module_of(tmp_path / "flows.py", TWO, "__main__").process.definition.location
    assert (script.file, script.qualname, script.app_dir) == (imported.file, imported.qualname, imported.app_dir)
    assert (script.module, imported.module) == (None, "flows")


def test_location_without_a_file() -> None:
    """A workflow typed at a prompt is legal; its location says that there is no file."""
    module = types.ModuleType("__main__")
    exec(compile(TWO, "<stdin>", "exec"), vars(module))
    assert module.process.definition.location.file == "<stdin>"


# -- the function --------------------------------------------------------------------------------------------------


def no_context() -> None: ...
def two_inputs(ctx: Any, a: int, b: int) -> None: ...
def more_with_default(ctx: Any, a: int, b: int = 1) -> None: ...
def star(ctx: Any, *rest: int) -> None: ...
def star_star(ctx: Any, **rest: int) -> None: ...
def keyword(ctx: Any, *, a: int = 1) -> None: ...
def method(self: Any, ctx: Any) -> None: ...


def generator(ctx: Any) -> Iterator[int]:
    yield 1


async def async_generator(ctx: Any) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (no_context, "first parameter has to be the context"),
        (two_inputs, "it has 3 parameters"),
        (more_with_default, "it has 3 parameters"),
        (star, r"`\*rest"),
        (star_star, r"`\*\*rest"),
        (keyword, "`a: int = 1`|`a: 'int' = 1`"),
        (method, "first parameter has to be the context"),
        (generator, "generator"),
        (async_generator, "generator"),
    ],
)
def test_functions_that_are_no_workflows(function: Any, told: str) -> None:
    """Anything but a context and at most one input is refused, with the function's name, file and line."""
    with pytest.raises(InvalidDefinition, match=told) as caught:
        workflow(function)
    assert f"{function.__name__!r} ({__file__}:{function.__code__.co_firstlineno})" in caught.value.message
    assert all(one.function is not function for one in definitions())


@pytest.mark.parametrize("thing", [len, Article, functools.partial(two_inputs, None), "name", staticmethod(star)])
def test_things_that_are_no_functions(thing: Any) -> None:
    """Classes, builtins, partials and a name in the wrong place are told what belongs there."""
    with pytest.raises(InvalidDefinition, match="belongs on a function made with `def`"):
        workflow(thing)


def test_workflow_of_a_workflow() -> None:
    """Decorating twice is refused."""
    with pytest.raises(InvalidDefinition, match="not on WorkflowFunction"):
        workflow(workflow(lambda_named("sync")))


def lambda_named(name: str) -> Any:
    def function(ctx: Any) -> None: ...

    function.__name__ = name
    return function


# -- the options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"reuse": "always"}, "reuse is one of after_close, after_failure, never, not 'always'"),
        ({"reuse": None}, "reuse is one of"),
        (
            {"on_duplicate": "skip"},
            "use_existing, error, cancel_existing, run_again, send_event:NAME, not 'skip'",
        ),
        ({"on_duplicate": "send_event"}, "send_event:NAME"),
        ({"on_duplicate": "send_event:"}, "the name of an event is empty"),
        ({"on_duplicate": "error:x"}, "on_duplicate is one of"),
        ({"on_duplicate": 7}, "not 7"),
        ({"reuse": "never", "on_duplicate": "run_again"}, 'on_duplicate="run_again" does not fit reuse="never"'),
        ({"name": "a b"}, "cannot be the name of a workflow"),
        ({"name": ""}, "cannot be the name of a workflow"),
        ({"concurrency": 2}, "'concurrency' does not exist yet"),
        ({"rate_limit": 2}, "'rate_limit' does not exist yet"),
        ({"throttle": 2}, "'throttle' does not exist yet"),
        ({"batch": 2}, "'batch' does not exist yet"),
        ({"retries": 3}, "steps are retried, not workflows"),
        ({"on_dupliacte": "error"}, "did you mean 'on_duplicate'"),
        ({"colour": "red"}, "the options are name, reuse, on_duplicate"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], told: str) -> None:
    """A bad option fails when it is written down, with the valid values and the place (CASES B09)."""
    with pytest.raises(InvalidDefinition) as caught:
        workflow(**options)(lambda_named("sync"))
    assert told in caught.value.message
    assert f"({__file__}:" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "policy", ["use_existing", "error", "cancel_existing", "run_again", "send_event:article_updated", "send_event:a:b"]
)
def test_policies_as_text(policy: str) -> None:
    """Each policy is read, and its text is the same again."""
    assert str(parse_on_duplicate(policy)) == policy
    assert parse_on_duplicate(parse_on_duplicate(policy)) == parse_on_duplicate(policy)


@pytest.mark.parametrize("policy", ["cancel_existing", "use_existing", "error", "send_event:e"])
def test_policies_of_a_key_used_once(policy: str) -> None:
    """Under reuse="never" every policy but run_again makes sense."""
    assert workflow(reuse="never", on_duplicate=policy)(lambda_named("once")).definition.reuse is Reuse.NEVER


def test_reuse_is_no_option_of_a_start() -> None:
    """A start that sets `reuse` is told where it belongs (CASES B08)."""
    flow = workflow(lambda_named("sync"))
    with pytest.raises(UsageError, match="reuse is set on the workflow"):
        flow.start(1, reuse="never")
    with pytest.raises(UsageError, match="no option 'colour'"):
        refuse_start_options(["colour"])


def test_a_workflow_is_started_with_all_options_of_a_start(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flow.start(...)` is `Durable().start(flow, ...)`."""
    monkeypatch.setenv("DURABLE_DB", str(db))
    flow = workflow(lambda_named("later"))
    started = flow.start(key="k", at=dt.datetime(2999, 1, 1, tzinfo=dt.UTC), timeout="2h", run_id="abcdefghjk")
    with Durable() as durable:
        run = durable.run("abcdefghjk")
    assert (started.run_id, run.timeout_ms) == (run.id, 7_200_000)
    assert run.due_at == dt.datetime(2999, 1, 1, tzinfo=dt.UTC).timestamp() * 1000


# -- Retry ---------------------------------------------------------------------------------------------------------


def test_retry_defaults() -> None:
    """One attempt; when there are more, exponential from 1 s to 1 h with a quarter of jitter."""
    retry = Retry()
    assert (retry.max_attempts, retry.backoff, retry.base_ms, retry.max_delay_ms) == (1, "exponential", 1000, 3_600_000)
    assert (retry.jitter, retry.retry_on) == (0.25, Exception)


def test_retry_durations() -> None:
    """Durations may be text, seconds or a timedelta."""
    retry = Retry(base=0.5, max_delay=dt.timedelta(minutes=2))
    assert (retry.base_ms, retry.max_delay_ms) == (500, 120_000)
    assert Retry(base="1m30s").base_ms == 90_000


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_attempts": 0}, "1 or more"),
        ({"max_attempts": True}, "1 or more"),
        ({"max_attempts": 2.0}, "1 or more"),
        ({"max_attempts": "3"}, "1 or more"),
        ({"backoff": "quadratic"}, "one of exponential, linear, constant"),
        ({"base": "soon"}, r"Retry\(base=...\)"),
        ({"base": -1}, r"Retry\(base=...\)"),
        ({"max_delay": None}, r"Retry\(max_delay=...\)"),
        ({"jitter": 1.1}, "from 0 to 1"),
        ({"jitter": float("nan")}, "from 0 to 1"),
        ({"jitter": True}, "from 0 to 1"),
        ({"jitter": "0.1"}, "from 0 to 1"),
        ({"retry_on": BaseException}, "subclass of Exception"),
        ({"retry_on": [ValueError]}, "subclass of Exception"),
        ({"retry_on": (ValueError, "OSError")}, "subclass of Exception"),
        ({"retry_on": ValueError("x")}, "subclass of Exception"),
    ],
)
def test_retry_options_that_do_not_fit(options: dict[str, Any], told: str) -> None:
    """Each bad option fails when the Retry is made, and says what would be right."""
    with pytest.raises(InvalidDefinition, match=told):
        Retry(**options)


def test_retry_on_several() -> None:
    """A tuple of exception types is what isinstance takes."""
    assert Retry(retry_on=(OSError, ValueError)).retry_on == (OSError, ValueError)


# -- inputs --------------------------------------------------------------------------------------------------------


def test_absent_input() -> None:
    """Absent is the parameter's default, validated; without a default null; and null where there is no parameter."""

    @workflow
    def none(ctx: Any) -> None: ...

    @workflow
    def plain(ctx: Any, x) -> None: ...  # type: ignore[no-untyped-def]

    @workflow
    def default(ctx: Any, x: Article = Article(7)) -> None: ...  # noqa: B008

    assert none.definition.accept_input() == "null"
    assert none.definition.arguments("null") == ()
    assert plain.definition.accept_input() == "null"
    assert plain.definition.arguments("null") == (None,)
    assert default.definition.accept_input() == '{"id":7,"at":"2026-01-01"}'
    assert default.definition.arguments('{"id":7,"at":"2026-01-01"}') == (Article(7),)


def test_input_is_validated() -> None:
    """What is stored is the validated value; what does not fit is refused with the workflow's name and the place."""

    @workflow
    def article(ctx: Any, article: Article) -> None: ...

    accept = article.definition.accept_input
    assert accept({"id": "3"}) == '{"id":3,"at":"2026-01-01"}'
    assert accept(Article(3)) == '{"id":3,"at":"2026-01-01"}'
    with pytest.raises(InvalidInput, match=r"""workflow 'article': input\["id"\]: Input should be a valid integer"""):
        accept({"id": "x"})
    with pytest.raises(InvalidInput, match="workflow 'article' needs an input"):
        accept()
    with pytest.raises(InvalidInput, match="workflow 'article': input"):
        accept(None)
    with pytest.raises(Unreadable):
        article.definition.arguments('{"id":"x"}')


def test_input_for_a_workflow_that_takes_none() -> None:
    """An input that nobody would see is refused, not dropped; null is nothing."""

    @workflow
    def none(ctx: Any) -> None: ...

    with pytest.raises(InvalidInput, match="takes no input"):
        none.definition.accept_input({"id": 1})
    assert none.definition.accept_input(None) == "null"


def test_default_that_does_not_fit() -> None:
    """A default that its own annotation refuses is a mistake in the definition."""

    @workflow
    def odd(ctx: Any, x: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    with pytest.raises(InvalidDefinition, match=r"'odd' \(.*: the default: Input should be a valid integer"):
        odd.definition.accept_input()
    assert odd.definition.accept_input(3) == "3"


def test_annotations_of_local_classes() -> None:
    """A class of the surrounding function may be the input's type, also when annotations are text."""

    @dataclass
    class Local:
        x: int

    @workflow(name="local-one")
    def flow(ctx: Any, x: Local) -> Local:
        return x

    assert flow.definition.arguments(flow.definition.accept_input({"x": "1"})) == (Local(1),)
    assert flow.definition.result.load('{"x":1}') == Local(1)


def test_annotations_further_down(tmp_path: Path) -> None:
    """An annotation may name a class that the module defines later."""
    source = "from __future__ import annotations\n" + FLOW
    source += "@workflow\ndef later(ctx, x: Later) -> Later: ...\nLater = dict[str, int]\n"
    definition = module_of(tmp_path / "flows.py", source, "flows").later.definition
    assert definition.accept_input({"x": "1"}) == '{"x":1}'


def test_annotation_that_means_nothing_here() -> None:
    """An input's type that only type checkers can see would go unchecked: refused. A result is then plain JSON."""

    @workflow
    def unknown(ctx: Any, x: Unknown) -> Unknown:
        return x

    with pytest.raises(InvalidDefinition, match="the annotation of 'x': 'Unknown' cannot be resolved"):
        unknown.definition.accept_input(1)
    assert unknown.definition.result.load("1") == 1


# -- the register --------------------------------------------------------------------------------------------------


def test_one_name_in_two_modules(tmp_path: Path) -> None:
    """Two modules with one name: refused with both places, and the first one stays (CASES G12)."""
    first = module_of(tmp_path / "a.py", TWO, "a").process
    with pytest.raises(AlreadyDefined) as caught:
        module_of(tmp_path / "b.py", "\n" + TWO, "b")
    assert caught.value.facts == (f"process in {tmp_path / 'a.py'}:2", f"process in {tmp_path / 'b.py'}:3")
    assert first.definition in definitions()


def test_one_name_for_two_functions(tmp_path: Path) -> None:
    """Two functions of one module cannot share a name either."""
    source = FLOW + "@workflow(name='x1')\ndef a(ctx): ...\n@workflow(name='x1')\ndef b(ctx): ...\n"
    with pytest.raises(AlreadyDefined):
        module_of(tmp_path / "a.py", source, "a")


@pytest.mark.parametrize("name", ["flows", "__main__", "elsewhere.flows"])
def test_same_function_again(tmp_path: Path, name: str) -> None:
    """A reload, or the script imported by its own name, takes the place of the first."""
    module_of(tmp_path / "flows.py", TWO, "flows")
    again = module_of(tmp_path / "flows.py", TWO, name).process
    assert [one for one in definitions() if one.name == "process"] == [again.definition]


def test_functions_in_functions_share_names(tmp_path: Path) -> None:
    """Tests and factories may reuse a name: the last counts, but never against a workflow at the top of a module."""
    first, second = workflow(lambda_named("process")), workflow(lambda_named("process"))
    assert second.definition in definitions()
    assert first.definition not in definitions()
    top = module_of(tmp_path / "a.py", TWO, "a").process
    assert isinstance(top, WorkflowFunction)
    workflow(lambda_named("process"))
    assert [one for one in definitions() if one.name == "process"] == [top.definition]
