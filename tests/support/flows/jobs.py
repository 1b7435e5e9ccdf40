"""Jobs that leave a trace of every step and do what the environment of their process says.

The input is the path of the trace. `JOBS_ACT` says what happens in a step of this process: `hold:STEP:GATE` waits at
a gate (crashkit.Gate), `die:STEP:before` and `die:STEP:after` kill the process before or after the step left its
trace, `fail:STEP:MESSAGE` raises, `compute:STEP:FILE` computes in C until FILE.enough is there, `fork:STEP:HOW` forks
a child. Several are separated by blanks. The environment and not the input, so that the next process, which finishes
the same run, finds the same input and does none of it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from durable_cli import AsyncContext, Context, Durable, Retry, workflow

NAMES = ("one", "two", "three")


def trace(path: str, *words: object) -> None:
    """One line, in one write: whatever processes write here, lines stay whole and in order."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    os.close(descriptor)


def step(ctx: Context, log: str, name: str) -> str:
    """The body of every step."""
    acts = [act.split(":", 2) for act in os.environ.get("JOBS_ACT", "").split()]
    mine = {act[0]: act[2] for act in acts if act[1] == name}
    if mine.get("die") == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    trace(log, ctx.run_id, name, ctx.attempt, os.getpid())
    if mine.get("die") == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    if "hold" in mine:
        hold(mine["hold"])
    if "compute" in mine:
        compute(mine["compute"])
    if "fork" in mine:
        fork(mine["fork"], log)
    if "fail" in mine:
        raise RuntimeError(mine["fail"])
    return name


def hold(gate: str) -> None:
    """Tell that we are here, then wait until the gate is opened."""
    Path(f"{gate}.arrived").touch()
    reader = os.open(gate, os.O_RDONLY)
    os.read(reader, 1)
    os.close(reader)


def compute(busy: str) -> None:
    """Tell that we are here, then hold Python's lock in C, a second or so at a time: nothing else of us moves."""
    Path(busy).touch()
    while not Path(f"{busy}.enough").exists():
        re.match("(a+)+$", "a" * 24 + "b")


def fork(how: str, log: str) -> None:
    """Fork, and wait for the child, which leaves in one of several ways."""
    if how == "process":
        import multiprocessing

        process = multiprocessing.get_context("fork").Process(target=start_another, args=(log,))
        process.start()
        process.join()
        trace(log, "-", f"child:{how}:{process.exitcode}", 0, process.pid)
        return
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        trace(log, "-", f"child:{how}:{os.waitstatus_to_exitcode(status)}", 0, child)
        return
    if how == "start":
        start_another(log)
        os._exit(0)
    if how == "exit":
        sys.exit(0)
    if how == "raise":
        raise RuntimeError("in the forked child")
    # "return": the child comes back into the engine as if it were its parent


def start_another(log: str) -> None:
    """What a forked child may do: use the library as if it were any other process."""
    with Durable(os.environ["JOBS_DB"]) as it:
        trace(log, it.start(job, log, key="of-the-child").run_id, "started-by-child", 0, os.getpid())


@workflow(reuse="after_failure")
def job(ctx: Context, log: str) -> list[str]:
    """Three steps. A completed run keeps its key, so that each call is about one and the same run."""
    return [ctx.run(name, step, ctx, log, name) for name in NAMES]


@workflow
def again(ctx: Context, log: str) -> list[str]:
    """As `job`, with a key that is free again as soon as the run is over."""
    return [ctx.run(name, step, ctx, log, name) for name in NAMES]


@workflow
async def job_async(ctx: AsyncContext, log: str) -> list[str]:
    """As `again`, async; its steps run in threads."""
    return [await ctx.run(name, step, ctx, log, name) for name in NAMES]


@workflow
def stubborn(ctx: Context, log: str) -> str:
    """Swallows every Exception, as user code does."""
    done = []
    for name in NAMES:
        try:
            done.append(ctx.run(name, step, ctx, log, name))
        except Exception:
            done.append("swallowed")
    return ",".join(done)


@workflow
def patient(ctx: Context, log: str) -> str:
    """One step that is tried again only after an hour."""
    return ctx.run("one", step, ctx, log, "one", retry=Retry(max_attempts=3, base="1h", jitter=0))


@workflow
def last_attempt(ctx: Context, log: str) -> str:
    """One step without a second attempt."""
    return ctx.run("one", step, ctx, log, "one")


@workflow
def number(ctx: Context, n: int) -> int:
    """A number, for starts that differ."""
    return ctx.run("one", abs, n)


@workflow
def deadly(ctx: Context, kill: bool = True) -> str:
    """Kills the process that executes it, if asked to."""
    return ctx.run("kill", die_if, kill)


def die_if(kill: bool) -> str:
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


if __name__ == "__main__":
    with Durable(os.environ["JOBS_DB"]) as durable:
        execution = durable.execute(job, sys.argv[2], key=sys.argv[1])
        print(execution.run.id, execution.start.outcome if execution.start else None, execution.run.status)
