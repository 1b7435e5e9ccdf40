"""A number that no table has rows for is a limit like any other, not a bug of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from enginekit import define_job

from durable_cli import Durable
from durable_cli.cli.app import main


@pytest.mark.parametrize("limit", [2**63 - 1, 2**63, 10**30])
@pytest.mark.parametrize(
    "words",
    [
        ["runs", "list"],
        ["keys", "list"],
        ["keys", "log", "k"],
        ["activity"],
        ["schedules", "list"],
        ["workflows", "list"],
        ["workflows", "show", "job"],
    ],
    ids=" ".join,
)
def test_any_limit_will_do(durable: Durable, capfd: Any, words: list[str], limit: int) -> None:
    durable.start(define_job(), 1, key="k")
    assert main([*words, "--limit", str(limit), "--json", "--db", str(durable.path)], env={}) == 0
    json.loads(capfd.readouterr().out)
