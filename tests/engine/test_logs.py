"""What runs print and log is kept, told apart, bounded, fenced, and still goes where it went."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from bothways import KINDS, define, step_of

from durable_cli import Durable, workflow
from durable_cli.logs import KEEP_FIRST, KEEP_LAST, Line, RunLog, Source, lines_of


def lines(durable: Durable, run_id: str) -> list[Line]:
    return lines_of(durable.logs(run_id))


def texts(durable: Durable, run_id: str) -> list[str]:
    return [line.text for line in lines(durable, run_id)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_steps_and_the_code_around_them_print(
    durable: Durable, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line belongs to its step and attempt, or to none; both streams; and it still goes where it went."""

    def noise() -> None:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        sys.stdout.buffer.write(b"bytes\n")

    async def body(ctx: Any) -> None:
        print("before")
        await ctx.run("noise", step_of(kind, noise))
        print("after")

    run = durable.execute(define(kind, body)).run
    told = {(line.step, line.seq, line.attempt, line.stream, line.text) for line in lines(durable, run.id)}
    assert told == {
        (None, None, None, "stdout", "before"),
        ("noise", 1, 1, "stdout", "to stdout"),
        ("noise", 1, 1, "stderr", "to stderr"),
        ("noise", 1, 1, "stdout", "bytes"),
        (None, None, None, "stdout", "after"),
    }
    out, err = capsys.readouterr()
    assert (out, err) == ("before\nto stdout\nbytes\nafter\n", "to stderr\n")


def test_a_replay_does_not_keep_things_twice(durable: Durable) -> None:
    """The code around steps prints at every replay; what comes before a recorded operation was kept before."""

    async def body(ctx: Any) -> None:
        print("one")
        await ctx.run("a", lambda: None)
        print("two")
        await ctx.sleep("nap", "2s")
        print("three")
        await ctx.run("b", lambda: None)
        print("four")

    run = durable.execute(define("plain", body)).run
    assert texts(durable, run.id) == ["one", "two", "three", "four"]


def test_attempts_are_told_apart(durable: Durable) -> None:
    """Each attempt has its own output."""
    from durable_cli import Retry

    def flaky() -> None:
        print("trying")
        if len(tried) < 2:
            tried.append(1)
            raise ValueError

    tried: list[int] = []

    async def body(ctx: Any) -> None:
        await ctx.run("flaky", flaky, retry=Retry(max_attempts=3))

    run = durable.execute(define("plain", body)).run
    assert [(line.attempt, line.text) for line in lines(durable, run.id)] == [(n, "trying") for n in (1, 2, 3)]


def test_branches_are_told_apart(durable: Durable) -> None:
    """At once in several threads, each line belongs to its branch."""

    @workflow(name="branching")
    def branching(ctx: Any) -> None:
        def branch(name: str) -> Any:
            def body(inner: Any) -> None:
                print(f"around {name}")
                inner.run("say", lambda: print(f"step {name}"))

            return body

        ctx.parallel({name: branch(name) for name in "abc"})

    run = durable.execute(branching).run
    assert {(line.branch, line.step, line.text) for line in lines(durable, run.id)} == {
        (branch, step, f"{'around' if step is None else 'step'} {name}")
        for name in "abc"
        for branch in {line.branch for line in lines(durable, run.id) if line.text.endswith(f" {name}")}
        for step in (None, "say")
    }
    assert len({line.branch for line in lines(durable, run.id)}) == 3


def test_logging_is_kept_once(durable: Durable, capsys: pytest.CaptureFixture[str]) -> None:
    """A record is kept as `log`, and not once more as the line that a handler prints of it. `basicConfig` and the last
    resort work as without us."""
    logger = logging.getLogger("my.app")
    root_handlers = logging.getLogger().handlers[:]

    async def body(ctx: Any) -> None:
        def step() -> None:
            handler = logging.StreamHandler()
            logger.addHandler(handler)
            logger.propagate = False
            logger.warning("careful %d", 1)
            logger.debug("not enabled")
            try:
                raise ValueError("boom")
            except ValueError:
                logger.exception("it broke")
            logger.removeHandler(handler)
            logger.propagate = True
            assert logging.getLogger().handlers == root_handlers

        await ctx.run("log", step)

    run = durable.execute(define("plain", body)).run
    found = lines(durable, run.id)
    assert {line.stream for line in found} == {"log"}
    assert [found[0].text, found[1].text, found[-1].text] == [
        "WARNING my.app: careful 1",
        "ERROR my.app: it broke",
        "ValueError: boom",
    ]
    assert capsys.readouterr().err.startswith("careful 1\nit broke\nTraceback")


def test_nothing_is_touched_while_nothing_executes(durable: Durable) -> None:
    """sys.stdout, sys.stderr and logging are as before, also after a failure."""
    before = sys.stdout, sys.stderr, logging.Logger.callHandlers

    async def body(ctx: Any) -> None:
        assert sys.stdout is not before[0]
        raise ValueError

    durable.execute(define("plain", body))
    assert (sys.stdout, sys.stderr, logging.Logger.callHandlers) == before


def test_code_may_replace_the_streams(durable: Durable) -> None:
    """redirect_stdout in a step works; a stream that was kept goes on working when nothing executes any more."""
    kept: list[Any] = []
    mine = io.StringIO()

    async def body(ctx: Any) -> None:
        def step() -> None:
            kept.append(sys.stdout)
            with contextlib.redirect_stdout(mine):
                print("mine")
            print("kept")

        await ctx.run("step", step)
        sys.stderr = io.StringIO()

    before = sys.stderr
    run = durable.execute(define("plain", body)).run
    sys.stderr, replaced = before, sys.stderr
    assert isinstance(replaced, io.StringIO)  # ours was not put over it
    assert (mine.getvalue(), texts(durable, run.id)) == ("mine\n", ["kept"])
    print("later", file=kept[0])


def test_odd_text_is_kept(durable: Durable) -> None:
    """NUL, lone surrogates, no newline at the end, progress bars."""

    async def body(ctx: Any) -> None:
        def step() -> None:
            with contextlib.redirect_stdout(sys.stdout):
                for text in ("a\0b\n", "\r10%\r20%\n", "ü"):
                    sys.stdout.write(text)

        await ctx.run("step", step)

    run = durable.execute(define("plain", body)).run
    assert texts(durable, run.id) == ["a\0b", "20%", "ü"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())

        async def surrogate(ctx: Any) -> None:
            await ctx.run("step", lambda: print("\udc80"))

        run = durable.execute(define("plain", surrogate, name="surrogate")).run
    assert texts(durable, run.id) == ["?"]


def test_a_forked_child_adds_nothing(durable: Durable) -> None:
    """What a child process of a step prints is not ours to write."""

    async def body(ctx: Any) -> None:
        def step() -> None:
            print("parent")
            pid = os.fork()
            if pid == 0:
                print("child")
                os._exit(0)
            os.waitpid(pid, 0)

        await ctx.run("step", step)

    run = durable.execute(define("plain", body)).run
    assert texts(durable, run.id) == ["parent"]


def test_the_middle_of_a_long_output_is_left_out(durable: Durable) -> None:
    """The first and the last 256 KiB stay, the mark between says how much was left out, and memory stays small."""
    line = "x" * 99

    async def body(ctx: Any) -> None:
        def step() -> None:
            for number in range(20_000):
                print(f"{number:06d}{line[6:]}")

        await ctx.run("step", step)

    run = durable.execute(define("plain", body)).run
    found = lines(durable, run.id)
    kept = [one.text for one in found if one.stream == "stdout"]
    assert (int(kept[0][:6]), int(kept[-1][:6])) == (0, 19_999)
    [mark] = [one.text for one in found if one.stream == "dropped"]
    dropped = int(mark.split()[1])
    assert KEEP_FIRST + KEEP_LAST <= 2_000_000 - dropped <= KEEP_FIRST + KEEP_LAST + 64 * 1024
    entries = durable.logs(run.id)
    assert entries[-1].end == 2_000_000
    assert sum(entry.skipped + entry.end - entry.position for entry in entries) == 2_000_000


def test_an_output_that_grows_over_many_batches_is_bounded_too(durable: Durable) -> None:
    """The middle is also left out of what was written before."""

    async def body(ctx: Any) -> None:
        for number in range(30):
            await ctx.run("step", lambda number=number: print(f"{number:02d}" + "x" * 50_000))

    run = durable.execute(define("plain", body)).run
    entries = durable.logs(run.id)
    size = sum(entry.end - entry.position for entry in entries)
    assert KEEP_FIRST + KEEP_LAST <= size <= KEEP_FIRST + KEEP_LAST + 16 * 1024
    assert entries[-1].end == 30 * 50_003


def test_following(durable: Durable) -> None:
    """`after=` gives what came since the last look, and nothing twice."""
    seen: list[str] = []
    after = 0

    async def body(ctx: Any) -> None:
        def look() -> None:
            nonlocal after
            found = durable.logs(durable.runs()[0].id, after=after)
            seen.extend(entry.text for entry in found)
            after = found[-1].end if found else after

        for number in range(3):
            await ctx.run("print", lambda number=number: print(number))
            look()

    durable.execute(define("plain", body))
    assert seen == ["0\n", "1\n", "2\n"]


def test_a_batch_is_written_while_a_step_executes(tmp_path: Path) -> None:
    """About once a second, so that somebody can follow a step that takes long."""
    with Durable(tmp_path / "real.db") as real:

        async def body(ctx: Any) -> None:
            def step() -> None:
                print("begun")
                end = time.monotonic() + 15
                while not real.logs(real.runs()[0].id):
                    assert time.monotonic() < end, "nothing was written within 15 s"
                    time.sleep(0.02)

            await ctx.run("step", step)

        run = real.execute(define("plain", body)).run
        assert (run.status, texts(real, run.id)) == ("completed", ["begun"])


def test_what_a_lost_run_prints_is_not_kept(durable: Durable) -> None:
    """Fenced like every write of an owner."""

    async def body(ctx: Any) -> None:
        def step() -> None:
            print("ours")
            ctx._operations.execution.log.flush()
            durable.cancel(durable.runs()[0].id)
            print("not ours any more")

        await ctx.run("step", step)

    run = durable.execute(define("plain", body)).run
    assert (run.status, texts(durable, run.id)) == ("cancelled", ["ours"])


def test_a_log_that_cannot_be_written_fails_nothing(durable: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's own record says what is wrong with the file, if something is."""
    from durable_cli.errors import DiskFull

    def full(*_: object, **__: object) -> int:
        raise DiskFull()

    monkeypatch.setattr("durable_cli.store.logs.append", full)

    async def body(ctx: Any) -> None:
        await ctx.run("step", lambda: print("lost"))

    run = durable.execute(define("plain", body)).run
    assert (run.status, texts(durable, run.id)) == ("completed", [])


def test_threads_add_to_one_log(durable: Durable) -> None:
    """No piece is lost or doubled when many threads print and another one writes."""

    async def body(ctx: Any) -> None:
        log: RunLog = ctx._operations.execution.log

        def add(name: str) -> None:
            for number in range(200):
                log.add(Source("", 1, 1, "step"), "stdout", f"{name}{number}\n")
                if number % 50 == 0:
                    log.flush()

        def step() -> None:
            threads = [threading.Thread(target=add, args=(name,)) for name in "abcd"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        await ctx.run("step", step)

    run = durable.execute(define("plain", body)).run
    found = texts(durable, run.id)
    assert sorted(found) == sorted(f"{name}{number}" for name in "abcd" for number in range(200))
    for name in "abcd":
        own = [text for text in found if text.startswith(name)]
        assert own == [f"{name}{number}" for number in range(200)]
