"""Starts in company: inside a transaction of the caller's, and many in one transaction."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from typing import Any

from durable_cli import starting, wake
from durable_cli.core.policies import parse_timeout
from durable_cli.core.timing import Duration, check_moment, parse_duration
from durable_cli.definition import UNSET, Definition
from durable_cli.engine import Engine
from durable_cli.errors import DurableError, KeyContended, UsageError, WorkflowNotFound
from durable_cli.foreground import landed_start
from durable_cli.model import StartResult
from durable_cli.request import MERGES, MergeFirst, Request, merging, request_for
from durable_cli.store import activity, joined, runs, workflows
from durable_cli.store import owners as owner_rows
from durable_cli.store.database import Notice, Tx

ITEM_OPTIONS = ("input", "key", "on_duplicate", "timeout", "at", "delay")


def later_moment(at: dt.datetime | None, delay: Duration | None, now: int) -> int | None:
    """The moment (ms UTC) before which a start must not begin, from `at=` or `delay=`."""
    if at is not None and delay is not None:
        raise UsageError("give at= or delay=, not both")
    if delay is not None:
        return check_moment(now + parse_duration(delay))
    if at is None:
        return None
    try:
        moment = round(at.timestamp() * 1000) if isinstance(at, dt.datetime) and at.utcoffset() is not None else None
    except Exception as error:  # a zone is the caller's code
        raise UsageError(f"at= is no moment: {type(error).__name__}: {error}") from error
    if moment is None:
        raise UsageError(f"at= takes a datetime with a zone, not {at!r}")
    return check_moment(moment)


def definition_within(engine: Engine, connection: object, name: str) -> Definition:
    """The workflow of that name, asked of the caller's connection: another thread may wait for its transaction, and
    hold what reading by our own needs. Raises WorkflowNotFound."""
    known, _ = joined.within(connection, engine.path, lambda tx: workflows.get(tx, name), create=engine.database.create)
    if known is None:
        raise WorkflowNotFound(f"{engine.path} knows no workflow {name!r}")
    from durable_cli.loading import load_workflow  # late: only starts by bare name need it

    return load_workflow(known)


def start_within(
    engine: Engine, connection: object, definition: Definition, request: Request, *, again: bool
) -> starting.Started:
    """A start inside the caller's transaction. A duplicate leaves it usable, a refusal too. `again`: the caller made
    the id, and may have started it before."""

    def write(tx: Tx, request: Request) -> tuple[starting.Started, list[int], dict[str, Any] | None]:
        there = landed_start(tx, request, engine) if again else None
        started = there or starting.start(tx, request, now=engine.now(), alive=engine.alive, owner_id=None)
        return started, owner_rows.workers(tx), activity.newest(tx)

    def attempt(
        request: Request,
    ) -> tuple[tuple[starting.Started, list[int], dict[str, Any] | None], list[Notice]]:
        return joined.within(connection, engine.path, lambda tx: write(tx, request), create=engine.database.create)

    (started, workers, newest), notices = merging(definition, request, attempt)

    def tell_if_there() -> bool:
        """Whether the caller's commit is there, by what this start wrote: its run, or the record of the duplicate."""

        def there(tx: Tx) -> bool:
            made = started.result is not None and started.result.run_id == request.run_id
            return runs.by_id(tx, request.run_id) is not None if made else activity.there(tx, newest)

        try:
            if engine.database.read(there, create=False):
                engine.listeners.tell(notices)
                wake.ring(engine.path, workers)
        except DurableError:
            pass  # a hint that is missed: workers look by themselves
        return True

    joined.after_commit(connection, tell_if_there)
    return started


def requests_of(
    engine: Engine, definition: Definition, items: list[Mapping[str, Any]], *, moved: bool
) -> list[Request | DurableError]:
    """The items of a bulk start, checked one by one; one that is wrong is its error."""
    asked: list[Request | DurableError] = []
    for item in items:
        try:
            asked.append(_request_of(engine, definition, item, moved))
        except DurableError as error:
            asked.append(error)
    return asked


def _request_of(engine: Engine, definition: Definition, item: Mapping[str, Any], moved: bool) -> Request:
    if not isinstance(item, Mapping):
        raise UsageError(f"an item is an object with {', '.join(ITEM_OPTIONS)}, not {type(item).__name__}")
    unknown = sorted(set(item) - set(ITEM_OPTIONS), key=repr)
    if unknown:
        raise UsageError(f"an item has no {unknown[0]!r}; it may have {', '.join(ITEM_OPTIONS)}")
    return request_for(
        definition,
        item.get("input", UNSET),
        run_id=engine.new_id(),
        key=item.get("key"),
        on_duplicate=item.get("on_duplicate"),
        timeout_ms=parse_timeout(item.get("timeout")),
        at=later_moment(item.get("at"), item.get("delay"), engine.now()),
        moved=moved,
        limit=engine.max_value_bytes,
    )


Items = list[Request | DurableError]
Answers = list[StartResult | DurableError]


def start_many(engine: Engine, definition: Definition, asked: Items) -> Answers:
    """All in one transaction: the answer of each, in order. One that is refused stops no other."""
    merger = _Merger(definition, asked)
    while True:
        try:
            return engine.write(lambda tx: _all(tx, engine, merger))
        except _MergeAllFirst as first:  # nothing was written
            for older, numbers in first.chains:
                merger.merge(older, numbers)


class _MergeAllFirst(Exception):
    """As `MergeFirst`, of many: the older input of a key, and the items that would replace it one after the other."""

    def __init__(self, chains: list[tuple[str, list[int]]]) -> None:
        super().__init__()
        self.chains = chains


class _Merger:
    """Merges the inputs of items, and remembers what came of it until the transaction in which all of them fit."""

    def __init__(self, definition: Definition, asked: Items) -> None:
        self.asked = list(asked)
        self.known: list[dict[str, Request | DurableError]] = [{} for _ in asked]
        """Of each item, by the older input: the request with the two merged, or why that cannot be."""
        self._definition = definition
        self._tried = Counter[int]()

    def merge(self, older: str, numbers: list[int]) -> None:
        """Merge the first of these items, which met that input, and the others as they will most likely follow."""
        self._tried[numbers[0]] += 1
        if self._tried[numbers[0]] > MERGES:
            self.asked[numbers[0]] = KeyContended()
            return
        for number in numbers:
            request, known = self.asked[number], self.known[number]
            assert isinstance(request, Request)
            try:
                merged = known[older] = request.merge(self._definition, older)
            except DurableError as error:
                known[older] = error
            else:
                assert merged.merged is not None
                older = merged.merged[1]


def _all(tx: Tx, engine: Engine, merger: _Merger) -> Answers:
    """Start all items. Raises _MergeAllFirst where that takes inputs that are not merged yet."""
    answers: Answers = []
    chains: dict[str | None, tuple[str, list[int]]] = {}
    for number, one in enumerate(merger.asked):
        if isinstance(one, DurableError):
            answers.append(one)
        elif one.key in chains:
            chains[one.key][1].append(number)
        else:
            try:
                answers.append(_each(tx, engine, one, merger.known[number]))
            except MergeFirst as first:
                chains[one.key] = first.older, [number]
    if chains:
        raise _MergeAllFirst(list(chains.values()))
    return answers


def _each(
    tx: Tx, engine: Engine, request: Request, merged: Mapping[str, Request | DurableError]
) -> StartResult | DurableError:
    try:
        with tx.savepoint():
            started = starting.start(tx, request, now=engine.now(), alive=engine.alive, owner_id=None)
    except MergeFirst as first:
        if first.older not in merged:
            raise
        known = merged[first.older]
        return known if isinstance(known, DurableError) else _each(tx, engine, known, {})
    except DurableError as error:
        tx.stand()  # an error of the file is everybody's
        return error
    if started.refusal is not None:
        return started.refusal
    assert started.result is not None
    return started.result
