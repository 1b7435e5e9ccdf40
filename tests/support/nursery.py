"""Processes of `durable` without the price of starting Python: one that has imported everything, and forks.

    python nursery.py          (a JSON order a line on stdin; the pid, then the exit code, a line each on stdout)

A child is a process like any other: it has a pid, locks and connections of its own, and dies of a kill -9. Only what
every `durable` imports is there already. An order is {"argv": [...], "env": {...}, "out": path, "err": path,
"strikes": [[signal, phase, n], ...]}; see striker.py for the last.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import apsw  # noqa: F401
from striker import strike_at

import durable_cli.cli.app
import durable_cli.client
import durable_cli.loading  # noqa: F401
from durable_cli.__main__ import main


def become(order: dict[str, Any]) -> int:
    """In the child: what `durable` in this environment with this command line would be."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, (path, how) in enumerate(((os.devnull, os.O_RDONLY), (order["out"], flags), (order["err"], flags))):
        descriptor = os.open(path, how, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["durable", *order["argv"]]
    for strike in order["strikes"]:
        strike_at(*strike)
    return main()


def serve() -> None:
    """Until stdin ends."""
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", 1)
    while line := orders.readline():
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            sys.exit(become(order))
        print(pid, file=answers)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers)


if __name__ == "__main__":
    serve()
