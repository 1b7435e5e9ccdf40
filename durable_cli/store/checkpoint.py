"""Keeping the write-ahead log small.

A damaged log loses transactions without a word (RELIABILITY 1.5), so a small one is a small exposure; and one that
grew in a burst stays as large as it was until somebody writes again.
"""

from __future__ import annotations

import os
from typing import Final

import apsw

from durable_cli.store.database import Database

LARGE: Final = 8 << 20
"""Bytes; in steady state the log has half of that."""


def shrink_log(database: Database, *, larger_than: int = LARGE) -> bool:
    """Move a large log's content into the file and empty it, if nobody is in the way just now. True: it was done."""
    try:
        if os.stat(f"{database.path}-wal").st_size <= larger_than:
            return False
    except OSError:
        return False
    with database._alone():
        connection = database._ready()
        database._at_once = True  # whoever is in the way may be so for long: there is a next time
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:
            return False
        finally:
            database._at_once = False
    return True
