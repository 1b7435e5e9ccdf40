"""One scheduler of several on a file, whose clock is a file too: races/test_schedulers.py.

    python scheduler.py DATABASE FOLDER NAME

Sweeps as a worker does. `FOLDER/NAME.clock` says what time it is (ms UTC), `FOLDER/NAME.swept` the time of its last
sweep. Where `FOLDER/NAME.stop` lies, it stops itself (SIGSTOP) when it has seen a schedule due and is about to fire it,
outside of any transaction. Without a clock file it ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from durable_cli import Context, Durable, workflow


@workflow
def tell(ctx: Context) -> None:
    ctx.run("tell", lambda: None)


def main(db: str, folder: str, name: str) -> None:
    clock, swept, stop = (Path(folder, f"{name}.{suffix}") for suffix in ("clock", "swept", "stop"))
    known = [int(clock.read_text())]

    def now() -> int:
        known[0] = read(clock) or known[0]
        return known[0]

    with Durable(db, clock=now) as durable:
        worker = durable.worker()
        load = worker._code.get

        def load_or_stop(row: Any) -> Any:
            if stop.exists():
                stop.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)
            return load(row)

        worker._code.get = load_or_stop  # type: ignore[method-assign]
        while clock.exists():
            at = now()
            worker.sweep()
            if not worker.busy:
                write(swept, at)
            time.sleep(0.002)
        worker._drain()


def read(path: Path) -> int | None:
    """The moment in a file; None where it is being taken away."""
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return None


def write(path: Path, at: int) -> None:
    """Replace the file, so that nobody reads half of it."""
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(str(at))
    beside.replace(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
