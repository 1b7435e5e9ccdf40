"""The engine for users' tests: the clock jumps, what is due executes in its order, replay is forced, owners die."""

from __future__ import annotations

import datetime as dt
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plugin import plugin_options

import durable_cli
from durable_cli import AsyncContext, Context, KeyTaken, Retry, workflow
from durable_cli.errors import ModuleNotFound, UsageError, WaitTimeout
from durable_cli.testing import Clock, Engine

HOUR = 3_600_000


@workflow(name="napper")
def napper(ctx: Context, naps: list[str]) -> list[str]:
    """Sleeps for each duration, noting when it woke."""
    woke = []
    for index, nap in enumerate(naps):
        ctx.sleep(f"nap {index}", nap)
        woke.append(f"{ctx.now():%H:%M}")
    return woke


@workflow(name="asker")
def asker(ctx: Context) -> list[Any]:
    """Waits for an event, then for a person."""
    event = ctx.wait_for_event("news", timeout="1h", default="none")
    return [event, ctx.wait_for_input("ok?", type="approval")]


# -- executing -----------------------------------------------------------------------------------------------------


def test_run_executes_until_the_run_rests(durable_engine):
    """`run` gives back the run at rest; nothing goes on before its time, and everything does at it."""
    run = durable_engine.run(napper, ["1h", "30m"])
    assert (run.status, run.due_at) == ("waiting", durable_engine.clock.now + HOUR)
    durable_engine.advance("59m")
    assert [step.name for step in durable_engine.get(run).steps] == ["nap 0"]
    durable_engine.advance("31m")
    assert durable_engine.result(run) == ["09:00", "09:30"]


def test_what_is_due_on_the_way_executes_at_its_moment_and_in_due_order(durable_engine):
    """One jump over many moments: each run goes on at its own, later starts may be due earlier."""
    order: list[tuple[str, str]] = []

    @workflow(name="noted")
    def noted(ctx: Context, job: list[str]) -> None:
        name, *naps = job
        for index, nap in enumerate(naps):
            ctx.sleep(f"nap {index}", nap)
            ctx.run(f"note {index}", lambda: order.append((name, f"{durable_engine.now:%H:%M}")))

    for job in (["a", "3h", "1h"], ["b", "1h", "2h30m"], ["c", "2h", "1h"]):
        durable_engine.run(noted, job)
    durable_engine.advance("12h")
    expected = [("b", "09:00"), ("c", "10:00"), ("a", "11:00"), ("c", "11:00"), ("b", "11:30"), ("a", "12:00")]
    assert order == expected
    assert f"{durable_engine.now:%H:%M}" == "20:00"


def test_retries_are_due_like_everything_else(durable_engine):
    """The delays of a retry pass on the clock; the attempts are counted."""
    moments: list[str] = []

    def fails() -> None:
        moments.append(f"{durable_engine.now:%H:%M}")
        raise OSError("no")

    @workflow(name="stubborn")
    def stubborn(ctx: Context) -> None:
        ctx.run("try", fails, retry=Retry(max_attempts=3, base="10m", jitter=0))

    run = durable_engine.run(stubborn)
    assert run.status == "waiting"
    durable_engine.advance("1h")
    run = durable_engine.get(run)
    assert (run.status, run.error.type, moments) == ("failed", "OSError", ["08:00", "08:10", "08:30"])
    with pytest.raises(AssertionError, match="'stubborn' is failed: OSError: no"):
        durable_engine.result(run)


def test_timeouts_of_waits_and_of_workflows_come_on_the_way(durable_engine):
    """A wait without an answer gives its default at its time; a workflow fails at its own."""

    @workflow(name="late", timeout="2h")
    def late(ctx: Context) -> None:
        try:
            ctx.wait_for_event("never", timeout="1h")
        except WaitTimeout:
            ctx.wait_for_event("never again")

    slow, waits = durable_engine.run(late), durable_engine.run(asker)
    durable_engine.advance("1h")
    assert [step.status for step in durable_engine.get(waits).steps] == ["completed", "waiting"]
    assert durable_engine.get(slow).status == "waiting"
    durable_engine.advance("1h")
    assert (durable_engine.get(slow).status, durable_engine.get(slow).error.type) == ("failed", "Timeout")
    assert durable_engine.get(slow).finished_at == durable_engine.clock.now


def test_events_and_answers_are_recorded_and_settled(durable_engine):
    """`start`, `send_event` and `provide_input` only record, as elsewhere; `settle` executes."""
    started = durable_engine.start(asker)
    assert durable_engine.get(started).status == "pending"
    durable_engine.settle()
    run = durable_engine.send_event(started, "news", {"n": 1})
    assert run.status == "waiting"
    durable_engine.settle()
    durable_engine.provide_input(run, "ok?", True)
    durable_engine.settle()
    assert durable_engine.result(run) == [{"n": 1}, True]


def test_children_and_promoted_runs_execute_too(durable_engine):
    """`run` executes all that is due: children, and the run that waits for the key."""

    @workflow(name="child")
    def child(ctx: Context, n: int) -> int:
        ctx.sleep("a while", "1m")
        return n * 2

    @workflow(name="parent", on_duplicate="run_again")
    def parent(ctx: Context, n: int) -> int:
        return ctx.call(child, n) + 1

    first = durable_engine.run(parent, 3, key="k")
    second = durable_engine.run(parent, 5, key="k")
    assert (second.status, second.runs_after_id) == ("pending", first.id)
    with pytest.raises(KeyTaken):
        durable_engine.run(parent, 5, key="k", on_duplicate="error")
    durable_engine.advance("2m")
    assert (durable_engine.result(first), durable_engine.result(second)) == (7, 11)


def test_async_workflows_too(durable_engine):
    """The same for `async def`."""

    async def add(a: int, b: int) -> int:
        return a + b

    @workflow(name="later")
    async def later(ctx: AsyncContext) -> int:
        await ctx.sleep("night", "8h")
        return await ctx.run("add", add, 2, 3)

    run = durable_engine.run(later)
    durable_engine.advance(dt.timedelta(hours=8))
    assert durable_engine.result(run) == 5


def test_schedules_fire_on_the_way(durable_engine):
    """A schedule fires at each of its moments, with the code and the rules of any start."""
    woke: list[str] = []

    @workflow(name="hourly")
    def hourly(ctx: Context) -> None:
        ctx.run("note", lambda: woke.append(f"{durable_engine.now:%H:%M}"))

    durable_engine.durable.schedule("each-hour", "0 * * * *", hourly, timezone="UTC")
    durable_engine.advance("3h30m")
    assert woke == ["09:00", "10:00", "11:00"]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_branches_go_on_in_their_order(kind):
    """One at a time: every test sees the same order, and a race the same winner."""
    order: list[str] = []

    @workflow(name="plain")
    def plain(ctx: Context) -> list[Any]:
        ctx.map("each", order.append, list("abcdef"))
        return list(ctx.race({name: lambda c, name=name: c.run("x", lambda: name) for name in "pqr"}))

    @workflow(name="async")
    async def in_loop(ctx: AsyncContext) -> list[Any]:
        await ctx.map("each", order.append, list("abcdef"))
        return list(await ctx.race({name: lambda c, name=name: c.run("x", lambda: name) for name in "pqr"}))

    with Engine() as engine:
        run = engine.run({"plain": plain, "async": in_loop}[kind])
        assert (engine.result(run), order) == (["p", "p"], list("abcdef"))


def test_random_numbers_and_jitter_come_from_the_seed():
    """The same seed, the same run."""

    @workflow(name="dicey")
    def dicey(ctx: Context) -> list[float]:
        return [ctx.random(), ctx.random()]

    def numbers(seed: int) -> Any:
        with Engine(seed=seed) as engine:
            return engine.result(engine.run(dicey))

    assert numbers(5) == numbers(5) != numbers(6)


# -- forced replay -------------------------------------------------------------------------------------------------


def test_forced_replay_replays_after_every_operation():
    """With n operations the function begins n + 1 times, each step is called once, and the result is the same."""
    begun: list[int] = []
    called: list[str] = []

    @workflow(name="counted")
    def counted(ctx: Context) -> str:
        begun.append(1)
        ctx.run("one", called.append, "one")
        ctx.uuid()
        ctx.parallel({side: lambda c, side=side: c.run("in", called.append, side) for side in ("l", "r")})
        ctx.sleep("nap", "1m")
        return ctx.run("two", lambda: "end")

    with Engine(replay_every_step=True) as engine:
        run = engine.run(counted)
        engine.advance("1m")
        assert engine.result(run) == "end"
        assert called == ["one", "l", "r"]
        # one, uuid, both branches in one pass, parallel, the sleep (it rests, then ends), two; and the last pass
        assert len(begun) == 8
        assert engine.get(run).crashes == 0


def test_forced_replay_shows_what_a_first_pass_hides():
    """A result that leaves its step by a closure: there in the first pass, gone after any replay."""

    @workflow(name="smuggler")
    def smuggler(ctx: Context) -> list[int]:
        got: list[int] = []
        ctx.run("get", lambda: got.append(1))
        ctx.run("more", lambda: None)
        return got

    with Engine() as engine:
        assert engine.result(engine.run(smuggler)) == [1]
    with Engine(replay_every_step=True) as engine:
        assert engine.result(engine.run(smuggler)) == []


def test_forced_replay_fails_code_that_is_not_deterministic():
    """A decision by something that changes is a NonDeterminism at once."""
    passes: list[int] = []

    @workflow(name="fickle")
    def fickle(ctx: Context) -> None:
        passes.append(1)
        ctx.run("odd" if len(passes) % 2 else "even", lambda: None)

    with Engine() as engine:
        assert engine.run(fickle).status == "completed"
    with Engine(replay_every_step=True) as engine:
        run = engine.run(fickle)
        assert (run.status, run.error.type) == ("failed", "NonDeterminism")


def test_forced_replay_and_compensation(durable_engine):
    """Undoing is replayed after each compensation as well; each is called once, newest first."""
    undone: list[str] = []

    @workflow(name="undoing")
    def undoing(ctx: Context) -> None:
        ctx.run("a", lambda: "a", compensate=undone.append)
        ctx.run("b", lambda: "b", compensate=undone.append)
        ctx.run("boom", lambda: 1 / 0)

    with Engine(replay_every_step=True) as engine:
        run = engine.run(undoing)
        assert (run.status, undone) == ("compensated", ["b", "a"])


# -- dying ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_crash_in_a_step_cuts_the_attempt_off_and_the_run_is_adopted(kind, durable_engine):
    """The effect of the step may have happened, its record has not: it is tried again, as attempt 2."""
    effects: list[int] = []

    def act(ctx: Any) -> int:
        effects.append(ctx.attempt)
        if len(effects) == 1:
            durable_engine.crash()
        return len(effects)

    @workflow(name="plain")
    def plain(ctx: Context) -> int:
        ctx.run("before", lambda: None)
        return ctx.run("act", act, ctx)

    @workflow(name="async")
    async def in_loop(ctx: AsyncContext) -> int:
        await ctx.run("before", lambda: None)
        return await ctx.run("act", act, ctx)

    run = durable_engine.run({"plain": plain, "async": in_loop}[kind])
    assert (durable_engine.result(run), effects) == (2, [1, 2])
    assert [step.attempts for step in run.steps] == [1, 2]


def test_a_run_of_a_dead_owner_stays_as_it_was_until_somebody_looks(durable_engine):
    """After a crash the file says `running`, with an owner that is dead, also to the rest of the process."""
    seen: list[Any] = []

    @workflow(name="victim")
    def victim(ctx: Context) -> None:
        def die() -> None:
            if not seen:
                try:
                    durable_engine.crash()
                finally:
                    found = durable_engine.durable.run("last")
                    seen.append((found.status, found.owner.alive))

        try:
            ctx.run("die", die)
        except BaseException:  # code that swallows everything
            ctx.run("nothing new begins", lambda: seen.append("it did"))
            raise

    run = durable_engine.run(victim)
    assert (run.status, seen) == ("completed", [("running", False)])


def test_five_crashes_are_a_crash_loop(durable_engine):
    """Crashes are counted as everywhere."""

    @workflow(name="deadly")
    def deadly(ctx: Context) -> None:
        ctx.run("die", durable_engine.crash)

    run = durable_engine.run(deadly)
    assert (run.status, run.error.type) == ("failed", "CrashLoop")


def test_a_crash_between_two_calls_loses_nothing(durable_engine):
    """Nothing executes, nothing is lost; the process is another owner afterwards."""
    run = durable_engine.run(napper, ["1h"])
    durable_engine.crash()
    durable_engine.advance("1h")
    assert durable_engine.result(run) == ["09:00"]


# -- the file and the clock ----------------------------------------------------------------------------------------


def test_a_private_file_is_deleted_and_leaves_no_descriptor():
    """A thousand tests with an engine each must not use up the descriptors of the process."""
    gc.collect()
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        with Engine() as engine:
            engine.run(napper, [])
            folder = engine.path.parent
            assert folder.stat().st_mode & 0o777 == 0o700
        assert not folder.exists()
    assert len(os.listdir("/dev/fd")) <= before + 1


def test_a_private_file_that_nobody_closed_is_deleted_by_its_process_only():
    """At the end of the process at the latest; a forked child that ends before leaves it alone."""
    code = (
        "import os, sys\nfrom durable_cli.testing import Engine\nengine = Engine()\nengine.durable.runs()\n"
        "print(engine.path, flush=True)\nchild = os.fork()\nif not child: sys.exit(0)\n"
        "os.waitpid(child, 0)\nprint(engine.path.exists())\n"
    )
    root = str(Path(durable_cli.__file__).parent.parent)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": root}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    path, there = ended.stdout.split()
    assert (there, Path(path).parent.exists()) == ("True", False)


def test_a_file_of_ones_own_stays(tmp_path):
    """With a path the file is kept, and another engine goes on with it."""
    with Engine(tmp_path / "mine.db") as engine:
        run = engine.run(napper, ["1h"])
    with Engine(tmp_path / "mine.db") as engine:
        engine.advance("1h")
        assert engine.result(run) == ["09:00"]
        assert engine.durable.check() == []


def test_the_clock_begins_where_it_is_told():
    """`start_at` is a moment with a zone; the library's own moments follow it."""
    start = dt.datetime(2024, 2, 28, 23, 30, tzinfo=dt.UTC)
    with Engine(start_at=start) as engine:
        assert engine.now == start
        engine.advance("1h")
        assert engine.result(engine.run(napper, ["24h", "0s"][1:])) == ["00:30"]
        assert engine.now == dt.datetime(2024, 2, 29, 0, 30, tzinfo=dt.UTC)
    with pytest.raises(UsageError, match="zone"):
        Engine(start_at=dt.datetime(2024, 1, 1))
    with Engine(clock=Clock(5000)) as engine:
        assert engine.clock.now == 5000


def test_code_that_cannot_be_loaded_is_told_to_the_test(tmp_path):
    """Not a run that is left alone for ever, but the error."""
    file = tmp_path / "gone.py"
    file.write_text(
        "from durable_cli import Context, workflow\n@workflow\ndef vanishing(ctx: Context) -> None:\n    ctx.now()\n"
    )
    from durable_cli.definition import forget
    from durable_cli.loading import load_target

    with Engine() as engine:
        definition = load_target(f"{file}:vanishing", app_dir=None, known=lambda name: None)
        run = engine.start(definition)
        forget("vanishing")
        file.unlink()
        with pytest.raises(ModuleNotFound, match="vanishing"):
            engine.settle()
        assert engine.get(run).status == "pending"


# -- pytest --------------------------------------------------------------------------------------------------------

USERS_TESTS = """
import os
from durable_cli import Context, Durable, workflow
import pytest

@workflow
def greet(ctx: Context, name: str) -> str:
    ctx.sleep("a while", "1h")
    return ctx.run("greet", "hello {}".format, name)

@workflow
def passes(ctx: Context) -> int:
    SEEN.append(1)
    ctx.run("one", lambda: None)
    return len(SEEN)

SEEN = []

def test_greeting(durable_engine):
    run = durable_engine.run(greet, "you")
    assert run.status == "waiting"
    durable_engine.advance("1h")
    assert durable_engine.result(run) == "hello you"

def test_code_that_opens_the_library_itself_meets_the_private_file(durable_engine):
    assert os.environ["DURABLE_DB"] == str(durable_engine.path)
    greet.start("me", key="k")
    durable_engine.settle()
    assert durable_engine.durable.find(key="k").status == "waiting"

@pytest.mark.durable(replay_every_step=True)
def test_with_an_option(durable_engine):
    assert durable_engine.result(durable_engine.run(passes)) == 2

def test_a_failure_in_a_step_is_the_tests(durable_engine):
    @workflow
    def asserting(ctx: Context) -> None:
        ctx.run("check", lambda: pytest.fail("seen by the step"))
    durable_engine.run(asserting)
"""


def _pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(durable_cli.__file__).parent.parent)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": root, "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-q", *options]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_the_fixture_in_a_project_of_a_user(tmp_path):
    """As an installed plugin: the fixture, the marker with options, and a private DURABLE_DB."""
    (tmp_path / "test_flows.py").write_text(USERS_TESTS)
    ended = _pytest(tmp_path, *plugin_options())
    assert "3 passed" in ended.stdout, ended.stdout
    assert "1 failed" in ended.stdout
    assert "Failed: seen by the step" in ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["test_flows.py"]


def test_the_plugin_costs_nothing_where_it_is_not_used(tmp_path):
    """It is loaded by every pytest of the environment: no module of ours but itself and the package is imported."""
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_nothing():\n"
        "    ours = {name for name in sys.modules if name.startswith('durable_cli')}\n"
        "    assert ours == {'durable_cli', 'durable_cli.pytest_plugin'}\n"
        "    assert not {'apsw', 'pydantic', 'rich', 'typer'} & set(sys.modules)\n"
    )
    ended = _pytest(tmp_path, *plugin_options())
    assert "1 passed" in ended.stdout, ended.stdout


def test_the_entry_point_is_declared():
    """pytest finds the plugin by `pytest11`."""
    import tomllib

    project = Path(durable_cli.__file__).parent.parent / "pyproject.toml"
    declared = tomllib.loads(project.read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"durable": "durable_cli.pytest_plugin"}
