"""Workflows that wait, for the benches and the tests of workers: what they give is the moment (ms UTC) they went on."""

from __future__ import annotations

import datetime as dt
import os
import time

from durable_cli import Context, workflow


def moment() -> int:
    """Now, in ms UTC."""
    return time.time_ns() // 1_000_000


def append(path: str, text: str) -> None:
    """One line, in one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


@workflow
def sleeper(ctx: Context, until: int) -> int:
    """Sleeps until a moment."""
    ctx.sleep_until("rest", dt.datetime.fromtimestamp(until / 1000, dt.UTC))
    return ctx.run("woke", moment)


@workflow
def listener(ctx: Context) -> list[int]:
    """Waits for an event whose payload is the moment it was sent."""
    sent = ctx.wait_for_event("go")
    return [sent, ctx.run("woke", moment)]


@workflow
def stamp(ctx: Context) -> int:
    """Tells when it began, in microseconds."""
    return ctx.run("began", lambda: time.time_ns() // 1_000)


@workflow
def appender(ctx: Context, log: str) -> str:
    """Two steps that append the run's key to a file, with a rest between them."""
    key = str(ctx.key)
    ctx.run("first", append, log, f"{key} first")
    ctx.sleep("rest", 0.05)
    ctx.run("second", append, log, f"{key} second")
    return key
