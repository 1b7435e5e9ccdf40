"""Eight threads that execute a run each, at once, on one `Durable` that nobody has used before.

python threads.py DATABASE TRACE
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

THREADS = 8


def main(db: str, log: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent / "flows"))
    import jobs

    from durable_cli import Durable
    from durable_cli.store.database import Database

    original = Database.write

    def write(self: Database, fn: Any, **more: Any) -> Any:
        result = original(self, fn, **more)
        time.sleep(0.005)  # lets another thread in between a commit and what its caller does with it, if it may
        return result

    Database.write = write  # type: ignore[method-assign]
    begin = threading.Barrier(THREADS)
    with Durable(db) as it:

        def execute(n: int) -> str:
            begin.wait()
            return str(it.execute(jobs.again, log, key=f"k{n}").run.status)

        with ThreadPoolExecutor(THREADS) as pool:
            statuses = list(pool.map(execute, range(THREADS)))
        owners = it._engine.database.read(lambda tx: tx.value("SELECT count(*) FROM durable_owners"))
    print(json.dumps({"completed": statuses.count("completed"), "owners": owners}))


if __name__ == "__main__":
    main(*sys.argv[1:])
