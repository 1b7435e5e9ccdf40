"""Which SQLite this is, and whether it can be trusted with a file that several processes use."""

from __future__ import annotations

import apsw

from durable_cli.errors import DatabaseUnusable


def check(found: str) -> None:
    """Refuse an SQLite with the WAL-reset bug, which corrupts files: before 3.51.3, save where it was mended."""
    number = tuple(int(part) for part in found.split("."))
    mended = (
        (number >= (3, 51, 3) and number != (3, 52, 0))
        or (3, 50, 7) <= number < (3, 51)
        or (3, 44, 6) <= number < (3, 45)
    )
    if not mended:
        raise DatabaseUnusable(
            f"SQLite {found} can corrupt a database that several processes use (mended in 3.51.3)",
            hint="pip install --upgrade apsw",
        )


def versions() -> dict[str, str]:
    """The versions of SQLite and of apsw, which brings it along, and SQLite's source id (date and commit)."""
    return {
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
        "sqlite_source": apsw.sqlite3_sourceid(),
    }
