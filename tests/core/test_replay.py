"""Recorded history against the next operation, enumerated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from durable_cli.core import replay
from durable_cli.model import Step, StepStatus


def step(seq: int, name: str = "a", kind: str = "run", status: StepStatus = StepStatus.COMPLETED) -> Step:
    return Step("", seq, kind, name, status, 1, 0, 0, 0, None, "1", None)


@pytest.mark.parametrize("status", [StepStatus.COMPLETED, StepStatus.FAILED])
def test_an_ended_operation_is_given_back(status: StepStatus) -> None:
    recorded = step(1, status=status)
    assert replay.match({("", 1): recorded}, ("", 1), "run", "a") == replay.Recorded(recorded)


def test_a_retrying_operation_is_executed_again_knowing_its_past() -> None:
    before = step(1, status=StepStatus.RETRYING)
    assert replay.match({("", 1): before}, ("", 1), "run", "a") == replay.Fresh(before)


def test_an_operation_without_a_record_is_fresh() -> None:
    assert replay.match({("", 1): step(1)}, ("", 2), "run", "a") == replay.Fresh(None)
    assert replay.match({("", 1): step(1)}, ("left", 1), "run", "a") == replay.Fresh(None)


@pytest.mark.parametrize(("kind", "name"), [("run", "b"), ("now", "a"), ("now", "now")])
def test_another_operation_than_recorded_is_a_mismatch(kind: str, name: str) -> None:
    found = replay.match({("", 1): step(1)}, ("", 1), kind, name)
    assert found == replay.Mismatch("operation 1", "run 'a'", f"{kind} {name!r}")


def test_ending_before_the_record_does_is_a_mismatch() -> None:
    history = {("", 1): step(1), ("", 2): step(2, "b"), ("x", 1): step(1)}
    assert replay.left_over(history, "", 1) == replay.Mismatch("operation 2", "run 'b'", None)
    assert replay.left_over(history, "", 2) is None
    assert replay.left_over(history, "x", 0) == replay.Mismatch("operation 1 of branch 'x'", "run 'a'", None)


def test_the_names_of_operations() -> None:
    """By their branches; an undo step by what it undoes, and by its own name where the record fits no longer."""

    def at(branch: str, seq: int, name: str, kind: str = "run", undo_order: int | None = None) -> Step:
        return replace(step(seq, name, kind), branch=branch, undo_order=undo_order)

    steps = [
        at("", 1, "push", undo_order=1),
        at("", 2, "parallel", "parallel"),
        at("/2:a%2Fb", 1, "push", undo_order=3),
        at("/2:a%2Fb", 2, "resize", "map"),
        at("/2:a%2Fb/2:1", 1, "resize", undo_order=2),
        at("~undo", 1, "push", "compensate"),
        at("~undo", 2, "resize", "compensate"),
        at("~undo", 3, "push", "compensate"),
        at("~undo", 4, "gone", "compensate"),
    ]
    history = {(one.branch, one.seq): one for one in steps}
    deep = ("a/b", "resize[1]")
    names = [
        ("push",),
        ("parallel",),
        ("a/b", "push"),
        ("a/b", "resize"),
        deep,
        ("a/b", "push"),
        deep,
        ("push",),
        ("gone",),
    ]
    assert [replay.names(one, history) for one in steps] == names
