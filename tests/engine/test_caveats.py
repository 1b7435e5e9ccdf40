"""The pairs of docs/replay.md, executed: each wrong one gives the named error or is harmless in the way that is said
there, each right one does what was meant; and `durable check` finds the wrong ones only."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from durable_cli.codecheck import check_source
from durable_cli.errors import ConcurrentOperation
from durable_cli.execution import Execution
from durable_cli.testing import Engine

DOCS = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
PRELUDE = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)[0]


def _pairs() -> Iterator[tuple[str, str, str, str]]:
    """(title, rule, wrong, right) of each section with a pair."""
    for section in DOCS.split("\n## ")[1:]:
        blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        if blocks:
            title, rule = re.fullmatch(r"(.*) \[([a-z-]+)\]", section.split("\n", 1)[0]).groups()
            wrong, right = blocks
            yield title, rule, wrong, right


PAIRS = {title: (rule, wrong, right) for title, rule, wrong, right in _pairs()}


@dataclass
class World:
    """What the examples call, as a record of what was called."""

    engine: Engine
    calls: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)

    def workflow(self, code: str, which: str) -> Any:
        """The workflow of an example."""
        namespace: dict[str, Any] = {"__name__": "example"}
        exec(PRELUDE, namespace)
        namespace |= {"fetch": self.fetch, "send": self.send, "work": self.work} | self.names
        exec(compile(code, f"<{which}>", "exec", dont_inherit=True), namespace)
        return namespace[which]

    def fetch(self, what: str) -> str:
        self.calls.append(f"fetch {what}")
        return f"page {what}"

    def send(self, what: str) -> str:
        self.calls.append(f"send {what}")
        return what

    def work(self, *given: Any) -> str:
        self.calls.append("work")
        return "done"

    def run(self, code: str, which: str, *input: Any) -> Any:
        """Run an example to its end: its result, or the name of the error that it failed with."""
        run = self.engine.run(self.workflow(code, which), *input)
        self.engine.advance("13h")
        run = self.engine.get(run)
        assert run.finished, run
        return self.engine.result(run) if run.status == "completed" else run.error.type

    def kinds(self) -> list[str]:
        """The names of the steps of the last run."""
        return [step.name for step in self.engine.get("last").steps]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    with Engine() as engine:
        yield World(engine)


def both(world: World, title: str, *input: Any) -> tuple[Any, Any]:
    """What the wrong and the right one of a pair end with."""
    _, wrong, right = PAIRS[title]
    return world.run(wrong, "wrong", *input), world.run(right, "right", *input)


# -- one for each section ------------------------------------------------------------------------------------------


def closure(world: World) -> None:
    """The value is gone after the wait."""
    assert both(world, "Results by closure") == ([], ["page a"])


def clock(world: World) -> None:
    """Another way in the evening."""
    now = SimpleNamespace(now=lambda: world.engine.now)
    world.names["datetime"] = now
    assert both(world, "The clock outside of steps") == ("NonDeterminism", None)


def random_numbers(world: World) -> None:
    """Two numbers where there should be one."""
    wrong, right = both(world, "Random numbers outside of steps")
    assert wrong[0] != wrong[1]
    assert right[0] == right[1]


def names(world: World) -> None:
    """The step of an hour ago has another name."""
    world.names["datetime"] = SimpleNamespace(now=lambda: world.engine.now)
    assert both(world, "Names that change") == ("NonDeterminism", None)


def effects(world: World) -> None:
    """The line is written at the first pass, and again after the wait."""
    _, wrong, right = PAIRS["Effects outside of steps"]
    world.run(wrong, "wrong")
    assert Path("log").read_text() == "begun\n" * 2
    Path("log").unlink()
    world.run(right, "right")
    assert Path("log").read_text() == "begun\n"


def environment(world: World) -> None:
    """The variable is another one when the run goes on."""
    values = iter(["yes", "", "", ""])
    world.names["os"] = SimpleNamespace(environ=SimpleNamespace(get=lambda name: next(values)))
    assert both(world, "The environment outside of steps") == ("NonDeterminism", None)


def nested(world: World) -> None:
    """The inner step is refused before it does anything."""
    _, wrong, right = PAIRS["Steps in steps"]
    assert world.run(wrong, "wrong") == "NestedOperation"
    assert world.calls == []
    assert world.run(right, "right") == "page a"


def except_exception(world: World) -> None:
    """Harmless: the wait waits and the failure is caught. But a mistake in the code looks like a failure."""

    def no_money(*given: Any) -> None:
        raise ValueError("no money")

    _, wrong, right = PAIRS["`except Exception` around steps"]
    assert both(world, "`except Exception` around steps", {"price": 5}) == ("done", "done")
    world.names["work"] = no_money
    assert both(world, "`except Exception` around steps", {"price": 5}) == ("not paid", "not paid")
    assert world.kinds() == ["a while", "pay"]
    assert world.run(wrong, "wrong", {"prize": 5}) == "not paid"
    assert world.run(right, "right", {"prize": 5}) == "KeyError"


def bare_except(world: World) -> None:
    """The run waits all the same, and the handler ran although nothing had failed."""
    _, wrong, right = PAIRS["A bare `except:` around operations"]
    assert world.run(wrong, "wrong") == "done"
    assert world.calls == ["send it failed", "work"]
    world.calls.clear()
    assert world.run(right, "right") == "done"
    assert world.calls == ["work"]


def no_step(world: World) -> None:
    """Legal: it completes, and nothing is recorded."""
    _, wrong, right = PAIRS["No step"]
    assert (world.run(wrong, "wrong"), world.kinds()) == ("done", [])
    assert (world.run(right, "right"), world.kinds()) == ("done", ["work"])


def branches(world: World) -> None:
    """The list holds what the last pass put into it, in the order of that pass; the values by name are the same."""
    wrong, right = both(world, "Variables shared by branches")
    assert sorted(wrong) == sorted(right)
    assert right == ["page left", "page right"]


def wrong_context(world: World) -> None:
    """The operation that the branches belong to is not over."""
    assert both(world, "The wrong context in a branch") == ("ConcurrentOperation", ["page a", "page b"])


def threads(world: World) -> None:
    """Two operations at once on one context."""
    refused = threading.Event()
    spoil = Execution.spoil

    def told(self: Execution, error: Any) -> Any:
        if isinstance(error, ConcurrentOperation):
            refused.set()
        return spoil(self, error)

    def slow(url: str) -> str:
        assert refused.wait(10)
        return url

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Execution, "spoil", told)
        world.names["fetch"] = slow
        assert both(world, "Threads", ["a", "b"]) == ("ConcurrentOperation", ["a", "b"])


def gather(world: World) -> None:
    """Two operations at once on one context."""
    assert both(world, "`asyncio.gather`") == ("ConcurrentOperation", ["page a", "page b"])


def not_awaited(world: World) -> None:
    """Nothing happens, nothing is recorded."""
    _, wrong, right = PAIRS["An operation that is not awaited"]
    with pytest.warns(RuntimeWarning, match="was never awaited"):
        world.run(wrong, "wrong")
    assert (world.kinds(), world.calls) == ([], [])
    world.run(right, "right")
    assert (world.kinds(), world.calls) == (["send"], ["send hello"])


def unordered(world: World) -> None:
    """A set whose order changes, as it does between processes."""
    passes: list[int] = []

    def shuffled(values: Any) -> Any:
        passes.append(1)
        return sorted(values, reverse=len(passes) % 2 == 0)

    world.names["set"] = shuffled
    assert both(world, "Going through a set", ["a", "b"]) == ("NonDeterminism", None)


def sleeping(world: World) -> None:
    """The process is held, and after a crash it is held again, from the beginning."""
    slept: list[int] = []
    crashed: list[int] = []

    def crashes_once(*given: Any) -> str:
        if slept and not crashed:
            crashed.append(1)
            world.engine.crash()
        return "done"

    world.names |= {"time": SimpleNamespace(sleep=slept.append), "work": crashes_once}
    _, wrong, right = PAIRS["`time.sleep`"]
    world.run(wrong, "wrong")
    assert slept == [3600, 3600]
    world.run(right, "right")
    assert slept == [3600, 3600]


def asking(world: World) -> None:
    """Asked twice; the right one once, and answered from outside."""
    asked: list[str] = []
    world.names["input"] = lambda prompt: asked.append(prompt) or "yes"
    _, wrong, right = PAIRS["`input()`"]
    assert world.run(wrong, "wrong") == "yes"
    assert asked == ["Publish? "] * 2
    run = world.engine.run(world.workflow(right, "right"))
    world.engine.provide_input(run, "Publish?", "no")
    world.engine.advance("1h")
    assert world.engine.result(run) == "no"


def global_variable(world: World) -> None:
    """Counted once for each pass."""
    assert both(world, "Global variables") == (2, 1)


SECTIONS: dict[str, Callable[[World], None]] = {
    "Results by closure": closure,
    "The clock outside of steps": clock,
    "Random numbers outside of steps": random_numbers,
    "Names that change": names,
    "Effects outside of steps": effects,
    "The environment outside of steps": environment,
    "Steps in steps": nested,
    "`except Exception` around steps": except_exception,
    "A bare `except:` around operations": bare_except,
    "No step": no_step,
    "Variables shared by branches": branches,
    "The wrong context in a branch": wrong_context,
    "Threads": threads,
    "`asyncio.gather`": gather,
    "An operation that is not awaited": not_awaited,
    "Going through a set": unordered,
    "`time.sleep`": sleeping,
    "`input()`": asking,
    "Global variables": global_variable,
}


def test_every_pair_of_the_docs_is_executed() -> None:
    """No pair without a test, no test without a pair."""
    assert sorted(SECTIONS) == sorted(PAIRS)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_pair_does_what_the_docs_say(title: str, world: World) -> None:
    """See the function of the section."""
    SECTIONS[title](world)


@pytest.mark.parametrize("title", PAIRS)
def test_check_finds_the_wrong_one_only(title: str) -> None:
    """The rule that the heading names, and nothing in the right one."""
    rule, wrong, right = PAIRS[title]
    found = check_source(PRELUDE + wrong, "wrong.py")
    assert {one.rule for one in found.findings} == {rule}
    assert check_source(PRELUDE + right, "right.py").findings == ()


RIGHT_TWICE = [title for title in PAIRS if title != "`input()`"]  # waits for an answer; tested above


@pytest.mark.parametrize("title", RIGHT_TWICE)
def test_the_right_one_bears_a_replay_after_every_step(title: str, tmp_path: Path, monkeypatch: Any) -> None:
    """What the docs recommend ends the same, however often it is replayed."""
    monkeypatch.chdir(tmp_path)
    given = {"Threads": ["a", "b"], "Going through a set": ["a", "b"], "`except Exception` around steps": {"price": 1}}
    results = []
    for forced in (False, True):
        with Engine(replay_every_step=forced) as engine:
            input = [given[title]] if title in given else []
            world = World(engine)
            results.append((world.run(PAIRS[title][2], "right", *input), world.calls))
    assert results[0] == results[1]
