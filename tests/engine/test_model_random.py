"""Random workflows, interrupted at random moments, give what they give uninterrupted.

A workflow is a tree of operations that one function interprets. It is executed once undisturbed, then again by
processes that die, are asked to stop, or lose the run at some write or in some step, in any order of finishing: the
result is the same, and nothing on record was executed twice.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from bothways import KINDS, define, step_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from modelkit import HOSTS, QUICK, Boom, Crash, Process, Steps, World, first_of_each, undone

from durable_cli import Durable, Retry, StepFailed
from durable_cli.errors import BranchesFailed

ALL: Final = os.environ.get("DURABLE_MODEL") == "all"
Tree = tuple[Any, ...]

LEAVES: Final = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 2)),
    st.tuples(st.sampled_from(("caught", "retried", "undone", "now", "uuid", "sleep", "event", "late", "all"))),
)
FAILING: Final = st.tuples(st.just("raise"))


def nodes(trees: st.SearchStrategy[list[Tree]]) -> st.SearchStrategy[Tree]:
    """Operations that have others in them. At most one branch of a fail_fast fails, and one of a race wins: which is
    first would depend on the weather."""
    many = st.lists(trees, min_size=1, max_size=3)
    ends_badly = trees.flatmap(lambda tree: FAILING.map(lambda end: [*tree, end]))
    return st.one_of(
        st.tuples(st.just("parallel"), many, st.sampled_from((None, 1, 2))),
        st.tuples(st.just("fail_fast"), many, ends_badly),
        st.tuples(st.just("complete_all"), many, st.lists(ends_badly, min_size=1, max_size=2)),
        st.tuples(st.just("race"), many, trees),
        st.tuples(st.just("map"), st.integers(0, 4), st.sampled_from((None, 1, 2))),
        st.tuples(st.just("call"), trees),
        st.tuples(st.just("failing call"), ends_badly),
    )


TREES: Final = st.recursive(
    st.lists(LEAVES, min_size=1, max_size=3),
    lambda trees: st.lists(st.one_of(LEAVES, nodes(trees)), min_size=1, max_size=3),
    max_leaves=10,
)
INTERRUPTIONS: Final = st.lists(
    st.tuples(
        st.sampled_from(("crash", "crash", "stop", "lost")),
        st.sampled_from(("write", "write", "effect")),
        st.integers(1, 25),
        st.sampled_from(("before", "after")),
    ),
    min_size=1,
    max_size=3,
)


class Interpreter:
    """Executes a tree. Each operation has a name by its path, which its side effects have too."""

    def __init__(self, world: World, kind: str) -> None:
        self.world = world
        self.kind = kind
        self.it = Steps(world, kind)
        self.child: Any = None

    async def all(self, ctx: Any, tree: list[Tree], path: str) -> list[Any]:
        return [await self.one(ctx, operation, f"{path}.{number}") for number, operation in enumerate(tree)]

    async def one(self, ctx: Any, operation: Tree, name: str) -> Any:
        kind, *rest = operation
        return await getattr(self, f"_{kind.replace(' ', '_')}")(ctx, name, *rest)

    async def _step(self, ctx: Any, name: str, delay: int) -> Any:
        def step() -> str:
            time.sleep(delay / 1000)
            self.world.effect(name)
            return name

        return await ctx.run(name, step_of(self.kind, step))

    async def _caught(self, ctx: Any, name: str) -> Any:
        try:
            await ctx.run(name, self.it.fail(name))
        except StepFailed as error:
            return str(error)

    async def _raise(self, ctx: Any, name: str) -> Any:
        await ctx.run(name, self.it.fail(name))

    async def _retried(self, ctx: Any, name: str) -> Any:
        return await ctx.run(name, self.it.fail(name, times=2, then=name), retry=Retry(9, base="1s", jitter=0))

    async def _undone(self, ctx: Any, name: str) -> Any:
        return await ctx.run(name, self.it.do(name, 1), compensate=self.it.do(f"undo {name}"))

    async def _now(self, ctx: Any, name: str) -> Any:
        kept = str(await ctx.now())
        return await ctx.run(name, self.it.do(name, kept)) == kept

    async def _uuid(self, ctx: Any, name: str) -> Any:
        kept = str(await ctx.uuid())
        return await ctx.run(name, self.it.do(name, kept)) == kept

    async def _sleep(self, ctx: Any, name: str) -> Any:
        return await ctx.sleep(name, "2s")

    async def _event(self, ctx: Any, name: str) -> Any:
        return await ctx.wait_for_event(name)

    async def _late(self, ctx: Any, name: str) -> Any:
        return await ctx.wait_for_event(f"late {name}", timeout="3s", default="late")

    async def _all(self, ctx: Any, name: str) -> Any:
        return await ctx.wait_for_all([f"{name} x", f"{name} y"])

    def _branch(self, tree: list[Tree], name: str) -> Callable[[Any], Any]:
        async def branch(ctx: Any) -> Any:
            return await self.all(ctx, tree, name)

        return branch

    def _branches(self, trees: list[list[Tree]], name: str) -> dict[str, Callable[[Any], Any]]:
        return {f"b{number}": self._branch(tree, f"{name}b{number}") for number, tree in enumerate(trees)}

    async def _parallel(self, ctx: Any, name: str, trees: list[list[Tree]], concurrency: int | None) -> Any:
        return await ctx.parallel(self._branches(trees, name), concurrency=concurrency)

    async def _fail_fast(self, ctx: Any, name: str, trees: list[list[Tree]], bad: list[Tree]) -> Any:
        try:
            await ctx.parallel(self._branches([*trees, bad], name))
        except StepFailed as error:
            return str(error)

    async def _complete_all(self, ctx: Any, name: str, trees: list[list[Tree]], bad: list[list[Tree]]) -> Any:
        try:
            await ctx.parallel(self._branches([*bad, *trees], name), on_error="complete_all")
        except BranchesFailed as error:
            return [str(error), error.results, {branch: str(one) for branch, one in error.errors.items()}]

    async def _race(self, ctx: Any, name: str, slow: list[list[Tree]], quick: list[Tree]) -> Any:
        losers = [[("long",), *tree, ("never",)] for tree in slow]
        return list(await ctx.race(self._branches([*losers, quick], name)))

    async def _long(self, ctx: Any, name: str) -> Any:
        await ctx.run(f"begun {name}", self.it.do(f"begun {name}"), compensate=self.it.do(f"undo begun {name}"))
        await ctx.sleep(name, "30d")

    async def _never(self, ctx: Any, name: str) -> Any:
        await ctx.run("never", self.it.do("never"))

    async def _map(self, ctx: Any, name: str, many: int, concurrency: int | None) -> Any:
        return await ctx.map(name, self.it.item(name), range(many), concurrency=concurrency)

    async def _call(self, ctx: Any, name: str, tree: list[Tree]) -> Any:
        return await ctx.call(self.child, [tree, f"{name}c"])

    async def _failing_call(self, ctx: Any, name: str, tree: list[Tree]) -> Any:
        try:
            return await ctx.call(self.child, [tree, f"{name}c"])
        except StepFailed as error:
            return error.error_message.partition(" (run ")[0]


def events_in(tree: list[Tree], path: str) -> dict[str, Any]:
    """The events that the operations of a tree wait for, with what they get."""
    found: dict[str, Any] = {}
    for number, (kind, *rest) in enumerate(tree):
        name = f"{path}.{number}"
        if kind == "event":
            found[name] = name
        elif kind == "all":
            found |= {f"{name} x": 1, f"{name} y": None}
        elif kind in ("call", "failing call"):
            found |= events_in(rest[0], f"{name}c")
        trees = {
            "parallel": lambda: rest[0],
            "fail_fast": lambda: [*rest[0], rest[1]],
            "complete_all": lambda: [*rest[1], *rest[0]],
            "race": lambda: [*([("long",), *tree] for tree in rest[0]), rest[1]],
        }.get(kind, list)()
        for branch, inner in enumerate(trees):
            found |= events_in(list(inner), f"{name}b{branch}")
    return found


class Playground:
    """A folder of files, one a world."""

    def __init__(self, folder: Path, kind: str, host: str) -> None:
        self.folder, self.kind, self.host = folder, kind, host
        self._numbers = itertools.count()
        self._empty = folder / "empty.db"
        with Durable(self._empty) as durable:
            durable.check()

    def world(self, tree: list[Tree], fails: bool) -> World:
        path = self.folder / f"{next(self._numbers)}.db"
        shutil.copyfile(self._empty, path)
        path.chmod(0o600)
        world = World(path, events=events_in(tree, "o"))
        interpreter = Interpreter(world, self.kind)

        async def body(ctx: Any, what: Any) -> Any:
            if what == QUICK:
                return QUICK
            result = await interpreter.all(ctx, tree, "o")
            if fails:
                raise Boom("at the end")
            return result

        async def child(ctx: Any, what: Any) -> Any:
            return await interpreter.all(ctx, *what)

        world.flow = define(self.kind, body)
        interpreter.child = define(self.kind, child, name="child")
        return world

    def ends(self, world: World) -> Any:
        """The end of the run: status, result, error, and what was undone in which order."""
        run = world.run()
        assert run is not None
        top = [name for name in world.effects if name.startswith("undo") and "c." not in name]
        assert first_of_each(top) == (undone(run) if run.error is not None else [])
        assert world.client.check() == []
        assert "never" not in world.effects
        return run.status, run.result, run.error and (run.error.type, run.error.message)

    def interrupt(self, world: World, how: str, what: str, n: int, phase: str) -> None:
        process, stop = Process(world), threading.Event()
        strike: dict[str, Callable[[], None]] = {
            "crash": process.kill,
            "stop": stop.set,
            "lost": lambda: world.take_over(self.host, process) if world.run() is not None else None,
        }
        process.strike_at(what, n, "before" if what == "effect" else phase, strike[how])
        try:
            world.go(self.host, process, stop=stop)
        except Crash:
            pass
        process.end()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", HOSTS)
def test_an_interrupted_workflow_gives_what_it_gives_uninterrupted(kind: str, host: str) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="durable-test-", dir=memory) as folder:
        ground = Playground(Path(folder), kind, host)

        @settings(
            max_examples=1000 if ALL else 10,
            derandomize=not ALL,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(TREES, st.booleans(), INTERRUPTIONS)
        def play(tree: list[Tree], fails: bool, interruptions: list[tuple[str, str, int, str]]) -> None:
            world = ground.world(tree, fails)
            world.recover(host)
            expected = ground.ends(world)
            world.close()
            world = ground.world(tree, fails)
            for how, what, n, phase in interruptions:
                if world.run() is None or world.client.runs(unfinished=True):
                    ground.interrupt(world, how, what, n, phase)
            recorded = world.recorded()
            world.recover(host)
            assert ground.ends(world) == expected
            assert {name: world.effects.count(name) for name in recorded} == dict(recorded)
            world.close()

        play()
