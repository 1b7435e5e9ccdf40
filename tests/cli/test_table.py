"""reuse × the holder's status × on_duplicate, through `durable start` and `durable run`: the tables of the README."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import enginekit
import pytest

from durable_cli import Durable

CODE = """
from durable_cli import workflow


def work(what):
    if isinstance(what, dict) and "fail" in what:
        raise ValueError("boom")
    return what


@workflow(reuse="after_close")
def after_close(ctx, what=None):
    return ctx.run("work", work, what)


@workflow(reuse="after_failure")
def after_failure(ctx, what=None):
    return ctx.run("work", work, what)


@workflow(reuse="never")
def never(ctx, what=None):
    return ctx.run("work", work, what)
"""
UNFINISHED = ("pending", "running", "waiting", "compensating")
BADLY = ("failed", "cancelled", "compensated", "compensation_failed")
FREE = {
    "after_close": {"none", "completed", *BADLY},
    "after_failure": {"none", *BADLY},
    "never": {"none"},
}
POLICIES = ("use_existing", "error", "cancel_existing", "run_again", "send_event:changed")
STATUSES = ("none", *UNFINISHED, "completed", *BADLY)

# policy: (outcome, exit) when the holder is unfinished; when it is finished and kept
UNFINISHED_ANSWER = {
    "use_existing": ("existing", 0),
    "error": ("key_taken", 75),
    "cancel_existing": ("replaced", 0),
    "run_again": ("queued", 0),
    "send_event:changed": ("event_sent", 0),
}
KEPT_ANSWER = {policy: ("key_taken", 6) for policy in POLICIES} | {"use_existing": ("existing", 0)}


def expected(reuse: str, status: str, policy: str) -> tuple[str, int]:
    """The answer of SPEC's tables."""
    if reuse == "never" and policy == "run_again":
        return "usage_error", 2
    if status in FREE[reuse]:
        return "created", 0
    if status not in UNFINISHED:
        return KEPT_ANSWER[policy]
    if status == "compensating" and policy == "cancel_existing":
        return "key_taken", 75
    if status == "pending" and policy == "run_again":
        return "merged", 0  # never started: it takes the newer input itself
    return UNFINISHED_ANSWER[policy]


@pytest.fixture(scope="module")
def table(shared_cli: Any) -> Iterator[tuple[Any, Durable, ModuleType]]:
    path = shared_cli.dir / "table.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with Durable(Path(shared_cli.db)) as durable:
        yield shared_cli, durable, module


@pytest.mark.parametrize("reuse", FREE)
def test_start_answers_as_the_tables_say(table: tuple[Any, Durable, ModuleType], reuse: str) -> None:
    cli, durable, module = table
    owner = enginekit.live_owner(durable)
    wrong = []
    for status, policy in product(STATUSES, POLICIES):
        key = f"{reuse} {status} {policy}"
        held = status in UNFINISHED and status != "pending"
        holder = None
        if status != "none":
            holder = enginekit.put(durable, getattr(module, reuse), status, key=key, owner=owner if held else None)
        result = cli("start", f"table.py:{reuse}", "--key", key, "--input", "2", "--on-duplicate", policy, "--json")
        document = result.document
        outcome = (
            document["error"]["code"] if "error" in document and "outcome" not in document else document["outcome"]
        )
        want = expected(reuse, status, policy)
        if (outcome, result.code) != want:
            wrong.append((status, policy, outcome, result.code, want))
        if outcome == "key_taken":
            assert (document["error"]["holder_id"], document["error"]["holder_status"]) == (holder, status)
        if outcome == "existing":
            assert (document["run_id"], document["holder_id"]) == (holder, holder)
        if outcome == "replaced":
            assert document["replaced_id"] == holder
    assert wrong == []
    assert durable.check() == []


@pytest.mark.parametrize("policy", POLICIES)
def test_run_takes_up_a_holder_that_nobody_executes(table: tuple[Any, Durable, ModuleType], policy: str) -> None:
    """Adoption: after the policy, in the same transaction."""
    cli, durable, module = table
    key = f"orphan {policy}"
    holder = enginekit.put(durable, module.after_close, "running", key=key, input=1)
    result = cli("run", "table.py:after_close", "--key", key, "--input", "2", "--on-duplicate", policy, "--json")
    outcome, executed = {
        "use_existing": ("resumed", holder),
        "error": ("resumed", holder),
        "cancel_existing": ("replaced", None),
        "run_again": ("queued", None),
        "send_event:changed": ("event_sent", holder),
    }[policy]
    document = result.document
    assert (document["outcome"], document["status"], result.code) == (outcome, "completed", 0)
    if executed is not None:
        assert (document["run_id"], document["result"]) == (holder, 1)
    else:
        assert (document["run_id"] != holder, document["result"]) == (True, 2)
    ended = durable.run(holder).status
    assert ended == ("cancelled" if policy == "cancel_existing" else "completed")
    assert durable.check() == []
