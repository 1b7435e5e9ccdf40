"""The schema: which one a file has, how it is made, and how an older one becomes ours.

`schema.sql` at the top of the repository is the truth; the wheel has it beside the package. The version is a row of
`durable_meta`: `user_version` and `application_id` belong to the application whose file this may also be.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from durable_cli.errors import DatabaseTooNew, DatabaseUnusable, InternalError
from durable_cli.store.transaction import Tx

SCHEMA_VERSION = 1

# (version, SQL that makes it out of the one before), in order. All that a file lacks is run in one transaction.
MIGRATIONS: tuple[tuple[int, str], ...] = ()

_OBJECT = re.compile(r"^CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW|TRIGGER) (\w+)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Schema:
    """A version of the schema: its SQL, whole, and the steps that lead to it from older versions."""

    version: int
    sql: str
    migrations: tuple[tuple[int, str], ...] = ()

    def objects(self) -> dict[str, str]:
        """Every object it consists of: name -> table, index, view or trigger."""
        return {name.lower(): kind.lower() for kind, name in _OBJECT.findall(self.sql)}


def current() -> Schema:
    """The schema of this program."""
    return Schema(SCHEMA_VERSION, schema_sql(), MIGRATIONS)


class _Loader(Protocol):
    def get_data(self, path: str) -> bytes: ...


def schema_sql() -> str:
    """The text of schema.sql: beside the package where it was installed, else at the top of the checkout.

    Through the package's loader, so that it is also found inside a zip file; `importlib.resources` would do the same
    and take 20 ms to import.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    loader = cast(_Loader, __spec__.loader)
    for folder in (package, os.path.dirname(package)):
        try:
            return loader.get_data(os.path.join(folder, "schema.sql")).decode("utf-8")
        except OSError:
            continue
    raise InternalError(f"schema.sql is missing beside {package}; install durable again")


def version(tx: Tx, wanted: Schema, path: Path) -> int:
    """The version of the schema in the file, 0 if it has none of ours. Reads only.

    Raises `DatabaseTooNew`, and `DatabaseUnusable` for a file with objects in our namespace that are not ours, with
    a trigger on one of our tables, or with one of our objects missing.
    """
    rows = tx.rows(
        "SELECT type, lower(name) AS name FROM sqlite_schema"
        r" WHERE name LIKE 'durable\_%' ESCAPE '\'"
        r" OR (type = 'trigger' AND tbl_name LIKE 'durable\_%' ESCAPE '\')"
    )
    found = {str(row["name"]): str(row["type"]) for row in rows}
    ours = wanted.objects()
    if not found:
        return 0
    if found.get("durable_meta") != "table":
        raise _foreign(path, found)
    stored = _stored_version(tx, path)
    if stored > wanted.version:
        raise DatabaseTooNew(
            f"the database {path} has schema {stored}; this durable knows schema {wanted.version}",
            hint="upgrade durable",
        )
    foreign = {name: kind for name, kind in found.items() if ours.get(name) != kind}
    if stored < wanted.version:  # what an older schema had is not known here, save that it had no other triggers
        foreign = {name: kind for name, kind in foreign.items() if kind == "trigger"}
    elif missing := sorted(set(ours) - set(found)):
        raise DatabaseUnusable(
            f"the database {path} lacks {ours[missing[0]]} {missing[0]}", hint="restore a backup of it"
        )
    if foreign:
        raise _foreign(path, foreign)
    return stored


def create(tx: Tx, wanted: Schema) -> None:
    """Make the whole schema, in the transaction that is open."""
    tx.change(wanted.sql)
    tx.change("INSERT INTO durable_meta (name, value) VALUES ('schema_version', :version)", version=str(wanted.version))


def migrate(tx: Tx, wanted: Schema, path: Path) -> None:
    """Bring an older file to `wanted`, in the transaction that is open; foreign keys must be off, and are checked."""
    stored = _stored_version(tx, path)
    steps = [(number, sql) for number, sql in wanted.migrations if stored < number <= wanted.version]
    if [number for number, _ in steps] != list(range(stored + 1, wanted.version + 1)):
        raise DatabaseUnusable(f"the database {path} has schema {stored}, from which no way leads to {wanted.version}")
    for number, sql in steps:
        tx.change(sql)
        tx.change("UPDATE durable_meta SET value = :version WHERE name = 'schema_version'", version=str(number))
    broken = tx.rows("PRAGMA foreign_key_check")
    if broken:
        raise DatabaseUnusable(f"the database {path} cannot be migrated: {broken[0]['table']} has rows without parent")
    version(tx, wanted, path)


def _stored_version(tx: Tx, path: Path) -> int:
    value = tx.value("SELECT value FROM durable_meta WHERE name = 'schema_version'")
    if not isinstance(value, str) or not re.fullmatch(r"[1-9][0-9]{0,8}", value):
        raise DatabaseUnusable(f"the database {path} has tables of durable but no readable schema version ({value!r})")
    return int(value)


def _foreign(path: Path, found: dict[str, str]) -> DatabaseUnusable:
    listed = ", ".join(f"{kind} {name}" for name, kind in sorted(found.items())[:3])
    return DatabaseUnusable(
        f"the database {path} has objects in durable's namespace that durable did not make: {listed}",
        facts=("names that begin with durable_, and triggers on such tables, are durable's own",),
        hint="rename or drop them, or give another database with --db",
    )
