"""Telling listeners what was committed: callbacks in this process, and `logging` records.

Only after the commit, and never while a lock of durable's is held: a callback may use the library.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from durable_cli.store.database import Notice

Callback = Callable[[str, dict[str, Any]], object]

EVENTS = (
    "key.duplicate",
    "key.handoff",
    "key.release",
    "key.retake",
    "key.prune",
    "key.held_long",
    "key.replay",
    "run.started",
    "run.compensating",
    "run.completed",
    "run.failed",
    "run.cancelled",
    "run.compensated",
    "run.compensation_failed",
    "schedule.missed",
    "schedule.failed",
    "schedule.paused",
    "workflow.moved",
)


class Listeners:
    """Who is told what. Thread-safe; each thread tells what it committed."""

    def __init__(self) -> None:
        self._callbacks: dict[str, dict[object, Callback]] = {}  # by registration: one function may have several
        self._kept = threading.local()

    def on(self, event: str, callback: Callback) -> Callable[[], None]:
        """Call `callback(event, fields)` for each such event ("*": all); what is returned ends that."""
        registered, registration = self._callbacks.setdefault(event, {}), object()
        registered[registration] = callback

        def end() -> None:
            registered.pop(registration, None)

        return end

    def tell(self, notices: list[Notice]) -> None:
        """Tell what was committed, now or at the end of `later`."""
        kept = getattr(self._kept, "notices", None)
        if kept is not None:
            kept.extend(notices)
            return
        for notice in notices:
            _log(notice)
            for event in (notice.event, "*"):
                for callback in tuple(self._callbacks.get(event, {}).values()):
                    _call(callback, notice)

    @contextmanager
    def later(self) -> Iterator[None]:
        """Keep what this thread commits meanwhile, and tell it at the end."""
        if getattr(self._kept, "notices", None) is not None:
            yield
            return
        self._kept.notices = []
        try:
            yield
        finally:
            kept, self._kept.notices = self._kept.notices, None
            self.tell(kept)


def _call(callback: Callback, notice: Notice) -> None:
    try:
        callback(notice.event, dict(notice.fields))
    except Exception as error:
        # What is committed cannot be taken back for a listener's sake; it is not silent either.
        import logging

        logging.getLogger("durable.events").warning(
            "a listener of %s raised %s: %s", notice.event, type(error).__name__, error
        )


def _log(notice: Notice) -> None:
    """A record of `durable.events` at INFO. Who has not imported logging has nobody to read it."""
    logging = sys.modules.get("logging")
    if logging is None:
        return
    log = logging.getLogger("durable.events")
    if log.isEnabledFor(logging.INFO):
        text = " ".join(f"{name}={value!r}" for name, value in notice.fields.items())
        log.info("%s %s", notice.event, text, extra={"durable": {"event": notice.event, **notice.fields}})
