"""What `Durable` does for the file itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from durable_cli.errors import DatabaseLocked
from durable_cli.store import owners as owner_rows
from durable_cli.store.database import Tx
from durable_cli.timetable import Timetable

if TYPE_CHECKING:
    from durable_cli.doctor import Diagnosis
    from durable_cli.store.compacting import Vacuumed
    from durable_cli.store.console import Answer

# What is needed here is imported by the methods: a `durable run` from cron needs none of it.

QUICK_BYTES: Final = 256 << 20
"""So much content is vacuumed long before those who wait for it give up."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """What became of the schema. `backup`: the copy that was taken before, if it changed."""

    before: int
    after: int
    backup: Path | None


class Care(Timetable):
    """A durable file, looked after."""

    def doctor(self) -> Diagnosis:
        """What is wrong, or soon will be, with the file and what it needs. Loads no code and writes nothing.

        Raises DatabaseNotFound; every other error of the file is a finding.
        """
        from durable_cli.doctor import examine

        return examine(self._engine)

    def info(self) -> dict[str, Any]:
        """What the file is and what is in it, by name: sizes, versions, counts, live processes."""
        from durable_cli.store import facts, failures, filesystem, library

        def look(tx: Tx) -> dict[str, Any]:
            return {**facts.of_file(tx), "alive": self._alive(tx)}

        found, path = self._read(look), self.path
        alive = found.pop("alive")
        return {
            "path": str(path),
            "bytes": _bytes(path),
            "log_bytes": _bytes(Path(f"{path}-wal")),
            **found,
            **library.versions(),
            "workers": sum(one["kind"] == "worker" for one in alive),
            "executing": sum(one["kind"] == "run" for one in alive),
            "file_system": filesystem.kind_of(path)[0] or None,
            "free_bytes": failures.free_bytes(path),
        }

    def vacuum(self) -> Vacuumed:
        """Rewrite the file without the space that pruned runs left. Others may read meanwhile; who writes, waits.

        Raises DatabaseLocked where processes execute runs and the file is so large that they would wait too long;
        DiskFull, also where there is not space enough to begin.
        """
        from durable_cli.store import compacting

        size = compacting.content_bytes(self._engine.database)
        alive = self._read(self._alive) if size > QUICK_BYTES else []
        if alive:
            raise DatabaseLocked(
                f"{len(alive)} {'process executes' if len(alive) == 1 else 'processes execute'} runs in {self.path},"
                f" and could not write while its {size >> 20} MiB are rewritten",
                facts=tuple(f"process {one['pid']} ({one['kind']})" for one in alive[:3]),
                hint="stop them first; a worker gives its runs back on SIGTERM, and whoever starts next goes on",
            )
        return compacting.vacuum(self._engine.database)

    def migrate(self) -> Migrated:
        """Bring the schema of the file up to date, which every opening does. Raises DatabaseTooNew."""
        from durable_cli.store import facts

        after = self._read(facts.schema_version)
        before, backup = self._engine.database.migrated or (after, None)
        return Migrated(before, after, backup)

    def ask(self, sql: str) -> list[Answer]:
        """What statements of yours find, read only: the rows of each that gives some. Raises UsageError."""
        from durable_cli.store import console

        return console.ask(self._engine.database, sql)

    def converse(self, *, intro: str, shown: Callable[[str], str]) -> int:
        """An SQL shell on the terminal, read only, until it is left; the exit code that was asked for. `shown` makes a
        text safe for a terminal."""
        from durable_cli.store import console

        return console.converse(self._engine.database, intro=intro, shown=shown)

    def _alive(self, tx: Tx) -> list[dict[str, Any]]:
        """The live processes that execute runs or are workers."""
        is_alive: Callable[[int], bool] = self._engine.alive
        return [one for one in owner_rows.every(tx) if is_alive(one["id"])]


def _bytes(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
