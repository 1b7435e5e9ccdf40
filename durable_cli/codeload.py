"""The code of workflows, loaded beside a worker's loop: each file in a thread of its own.

A run is claimed only when its code is loaded, so that one whose module is missing, raises or never ends is left as it
is, with the reason in its note, and is in nobody's way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from durable_cli.definition import Definition, loaded_definition
from durable_cli.engine import Engine
from durable_cli.errors import DurableError, TooManyThreads
from durable_cli.loading import load_workflow
from durable_cli.model import Workflow
from durable_cli.patience import Patience
from durable_cli.store import transitions, workflows

_LEAVE_ALONE_S = 30.0
"""How long code that cannot be loaded is left alone."""


def begin(name: str, target: Callable[..., None], *args: object) -> None:
    """Call that in a thread of its own. Raises TooManyThreads: it was not called."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise TooManyThreads(f"no more threads can be started in this process: {error}") from error


class CodeLoader:
    """`changed` is called when something was loaded or could not be, `complain` with the reason, in any thread."""

    def __init__(
        self, engine: Engine, *, changed: Callable[[], None], complain: Callable[[str, BaseException], None]
    ) -> None:
        self._engine = engine
        self._changed = changed
        self._complain = complain
        self._failures = Patience(_LEAVE_ALONE_S, _LEAVE_ALONE_S)
        self._lock = threading.Lock()  # guards what follows
        self._loading: set[str] = set()
        self._loaded: set[str] = set()
        self._reasons: dict[str, BaseException] = {}
        self._file_locks: dict[str, threading.Lock] = {}

    @property
    def busy(self) -> bool:
        """Is anything being loaded?"""
        with self._lock:
            return bool(self._loading)

    def not_now(self) -> list[str]:
        """The workflows whose runs cannot be executed at this moment."""
        with self._lock:
            loading = list(self._loading)
        return [*loading, *self._failures.left_alone()]

    def ready(self, names: set[str]) -> set[str]:
        """Those of these workflows whose code is here; the others begin to be loaded. Raises TooManyThreads."""
        with self._lock:
            here = names & self._loaded
            missing = names - self._loaded - self._loading
            self._loading |= missing
        try:
            for name in sorted(missing):
                begin(f"durable-load-{name}", self._load, name)
                missing.discard(name)
        finally:
            with self._lock:
                self._loading -= missing
        return here

    def get(self, known: Workflow) -> Definition | None:
        """The code of a workflow; None while it is being loaded. Raises why it could not be, a while ago."""
        here = loaded_definition(known)
        if here is not None:
            return here
        if known.name in self._failures.left_alone():
            with self._lock:
                raise self._reasons[known.name]
        return load_workflow(known) if self.ready({known.name}) else None

    def failed(self, name: str, error: DurableError) -> None:
        """The code of a workflow that was loaded is here no longer: it has moved."""
        with self._lock:
            self._loaded.discard(name)
            self._reasons[name] = error
        self._failures.failed(name)
        self._complain(f"workflow {name}", error)

    def _load(self, name: str) -> None:
        try:
            known = self._engine.database.read(lambda tx: workflows.get(tx, name))
            assert known is not None
            with self._file_lock(known):
                load_workflow(known)
            with self._lock:
                self._loaded.add(name)
        except BaseException as error:
            with self._lock:
                self._reasons[name] = error
            self._failures.failed(name)
            self._complain(f"workflow {name}", error)
            self._note(name, error)
        finally:
            with self._lock:
                self._loading.discard(name)
            self._changed()

    def _file_lock(self, known: Workflow) -> threading.Lock:
        with self._lock:  # a file is loaded once, also for two workflows in it
            return self._file_locks.setdefault(known.location.file, threading.Lock())

    def _note(self, name: str, error: BaseException) -> None:
        text = error.message if isinstance(error, DurableError) else f"{type(error).__name__}: {error}"
        try:
            self._engine.database.write(lambda tx: transitions.note_due(tx, name, text, self._engine.now()))
        except DurableError as problem:
            self._complain("a note", problem)
