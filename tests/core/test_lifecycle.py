"""What leads to what, enumerated."""

from __future__ import annotations

from itertools import product

import pytest

from durable_cli.core import lifecycle as lc
from durable_cli.model import UNFINISHED, Status


@pytest.mark.parametrize(("status", "crashes", "resting"), list(product(sorted(UNFINISHED), range(7), [False, True])))
def test_only_an_executing_orphan_counts_a_crash_and_the_fifth_in_a_row_fails_it(
    status: Status, crashes: int, resting: bool
) -> None:
    fate = lc.decide_orphan(status, crashes, resting=resting)
    if resting or status in (Status.PENDING, Status.WAITING):
        assert fate is lc.Orphan.GIVE_BACK
    else:
        assert fate is (lc.Orphan.FAIL if crashes >= 4 else lc.Orphan.COUNT_CRASH)


@pytest.mark.parametrize(
    ("status", "behind", "owned", "due"), list(product(Status, [False, True], [False, True], [None, 99, 100, 101]))
)
def test_a_run_is_claimable_when_it_is_unfinished_free_first_in_line_and_due(
    status: Status, behind: bool, owned: bool, due: int | None
) -> None:
    may = lc.decide_claim(status, behind=behind, owned=owned, due_at=due, now=100)
    due_now = due != 101 and not (due is None and status is Status.WAITING)
    assert may.yes is (status in UNFINISHED and not behind and not owned and due_now)
    assert may.yes is (may.reason == "")


@pytest.mark.parametrize(("behind", "owned", "due"), list(product([False, True], [False, True], [None, 99, 100, 101])))
def test_a_run_that_waits_for_others_is_due_with_them(behind: bool, owned: bool, due: int | None) -> None:
    """With one that could go on and that nobody executes; else only at a due time of its own."""
    for awaited in lc.Awaited:
        may = lc.decide_claim(Status.WAITING, behind=behind, owned=owned, due_at=due, now=100, awaited=awaited)
        due_now = due in (99, 100) or awaited is lc.Awaited.LEFT_ALONE
        assert may.yes is (not behind and not owned and due_now)
        assert ("another run" in may.reason) is (
            awaited is lc.Awaited.ATTENDED and not (behind or owned or due in (99, 100))
        )


@pytest.mark.parametrize(("failures", "most", "retryable"), list(product(range(1, 5), range(1, 5), [False, True])))
def test_a_step_is_tried_again_while_its_budget_lasts(failures: int, most: int, retryable: bool) -> None:
    end = lc.decide_attempt(failures=failures, max_attempts=most, retryable=retryable)
    assert end is (lc.AttemptEnd.RETRY if retryable and failures < most else lc.AttemptEnd.FAIL)
