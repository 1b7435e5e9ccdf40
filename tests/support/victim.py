"""Uses the library once in every way that writes, noting what was acknowledged: the victim of crash/syscalls.py.

    python victim.py DATABASE TRACE ACKS

Lines of ACKS: `run ID`, `step ID NAME`, `done ID`. The log is checkpointed every few pages, so that the kills also fall
into checkpoints.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "flows"))
import jobs

from durable_cli import Durable


def main(db: str, trace: str, acks: str) -> None:
    descriptor = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(*words: object) -> None:
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())

    with Durable(db) as it:
        first = it.start(jobs.job, trace, key="k")
        note("run", first.run_id)
        connection = it._engine.database._connection
        assert connection is not None
        connection.wal_autocheckpoint(6)
        execution = it.execute(
            jobs.job,
            trace,
            key="k",
            progress=lambda it: note("step", it.run_id, it.step) if it.kind == "step_completed" else None,
        )
        note("done", execution.run.id)
        for _ in range(2):
            note("run", it.start(jobs.again, trace, key="k2", on_duplicate="cancel_existing").run_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
