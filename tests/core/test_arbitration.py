"""The tables of keys, enumerated whole."""

from __future__ import annotations

from itertools import product

import pytest

from durable_cli.core import arbitration as a
from durable_cli.core.arbitration import Action, Hold, Holder
from durable_cli.model import FINISHED, UNFINISHED, Policy, Reuse, Status

LETS_GO = {
    # reuse: the finished statuses of a holder whose key a start may take
    Reuse.AFTER_CLOSE: {"completed", "failed", "cancelled", "compensated", "compensation_failed"},
    Reuse.AFTER_FAILURE: {"failed", "cancelled", "compensated", "compensation_failed"},
    Reuse.NEVER: set(),
}


@pytest.mark.parametrize(("status", "reuse"), list(product(Status, Reuse)))
def test_a_finished_holder_lets_its_key_go_exactly_as_reuse_says(status: Status, reuse: Reuse) -> None:
    if status in UNFINISHED:
        assert a.hold(status, reuse) is Hold.UNFINISHED
    else:
        assert a.hold(status, reuse) is (Hold.FREE if status in LETS_GO[reuse] else Hold.KEPT)


@pytest.mark.parametrize("reuse", Reuse)
def test_a_key_nobody_holds_is_free(reuse: Reuse) -> None:
    assert a.hold(None, reuse) is Hold.FREE


# policy: (key free, holder unfinished, holder finished and kept)
ON_DUPLICATE = {
    Policy.USE_EXISTING: (Action.CREATE, Action.EXISTING, Action.EXISTING),
    Policy.ERROR: (Action.CREATE, Action.REFUSE, Action.REFUSE),
    Policy.CANCEL_EXISTING: (Action.CREATE, Action.REPLACE, Action.REFUSE),
    Policy.RUN_AGAIN: (Action.CREATE, Action.QUEUE, Action.REFUSE),
    Policy.SEND_EVENT: (Action.CREATE, Action.SEND_EVENT, Action.REFUSE),
}


@pytest.mark.parametrize(("policy", "reuse", "status"), list(product(Policy, Reuse, [None, *Status])))
def test_a_start_that_only_records_does_what_the_policy_says(
    policy: Policy, reuse: Reuse, status: Status | None
) -> None:
    """A started holder with a live owner and nothing waiting behind it: the plain table."""
    holder = None if status is None else Holder(status, started=True, orphaned=False, has_waiting=False)
    free, unfinished, kept = ON_DUPLICATE[policy]
    expected = {Hold.FREE: free, Hold.UNFINISHED: unfinished, Hold.KEPT: kept}[a.hold(status, reuse)]
    if policy is Policy.CANCEL_EXISTING and status is Status.COMPENSATING:
        expected = Action.REFUSE
    for executing in (False, True):
        decision = a.decide_start(holder, reuse=reuse, policy=policy, executing=executing)
        assert decision == a.Decision(expected, adopt=False)


@pytest.mark.parametrize(
    ("policy", "status", "started", "waiting"), list(product(Policy, sorted(UNFINISHED), [0, 1], [0, 1]))
)
def test_an_executing_start_takes_up_a_holder_that_nobody_executes(
    policy: Policy, status: Status, started: bool, waiting: bool
) -> None:
    """The adoption table: whatever the policy, a crash never leaves a cron job answering "taken" for ever."""
    holder = Holder(status, started=bool(started), orphaned=True, has_waiting=bool(waiting))
    decision = a.decide_start(holder, reuse=Reuse.AFTER_CLOSE, policy=policy, executing=True)
    if policy is Policy.CANCEL_EXISTING:
        refused = status is Status.COMPENSATING
        assert decision == a.Decision(Action.REFUSE if refused else Action.REPLACE, adopt=False)
        return
    if policy is Policy.RUN_AGAIN:
        behind = Action.MERGE_WAITING if waiting else Action.QUEUE
        expected = behind if started else Action.MERGE_HOLDER
    else:
        expected = Action.SEND_EVENT if policy is Policy.SEND_EVENT else Action.EXISTING
    assert decision == a.Decision(expected, adopt=True)


@pytest.mark.parametrize(("status", "reuse"), list(product(sorted(FINISHED), Reuse)))
def test_the_waiting_run_takes_the_key_unless_reuse_keeps_it(status: Status, reuse: Reuse) -> None:
    lets_go = status in LETS_GO[reuse]
    assert a.decide_succession(status, reuse) is (a.Succession.PROMOTE if lets_go else a.Succession.CANCEL)


@pytest.mark.parametrize(
    ("status", "keyed", "holds", "newer", "reuse"), list(product(Status, [0, 1], [0, 1], [None, *Status], Reuse))
)
def test_a_retried_keyed_run_always_ends_up_holding(
    status: Status, keyed: bool, holds: bool, newer: Status | None, reuse: Reuse
) -> None:
    if holds and (not keyed or newer is not None):
        return  # cannot be: the schema says so
    answer = a.decide_retry(status, keyed=bool(keyed), holds_key=bool(holds), newer=newer, reuse=reuse)
    if status not in (Status.FAILED, Status.CANCELLED):
        assert answer is a.Retry.REFUSE_STATUS
    elif not keyed or holds:
        assert answer is a.Retry.KEEP
    elif newer is None:
        assert answer is a.Retry.TAKE
    else:
        takes = newer in LETS_GO[reuse]
        assert answer is (a.Retry.RETAKE if takes else a.Retry.REFUSE_KEY)


@pytest.mark.parametrize(("status", "holder", "reuse"), list(product(Status, [None, *Status], Reuse)))
def test_a_rerun_follows_the_rules_of_a_start(status: Status, holder: Status | None, reuse: Reuse) -> None:
    answer = a.decide_rerun(status, holder=holder, reuse=reuse)
    if status in UNFINISHED:
        assert answer is a.Rerun.REFUSE_UNFINISHED
    else:
        free = holder is None or holder in LETS_GO[reuse]
        assert answer is (a.Rerun.CREATE if free else a.Rerun.REFUSE_KEY)


@pytest.mark.parametrize(("status", "holds"), list(product(Status, [False, True])))
def test_only_a_finished_holder_can_be_released(status: Status, holds: bool) -> None:
    answer = a.decide_release(status, holds_key=holds)
    if status in UNFINISHED:
        assert answer is a.Release.REFUSE_UNFINISHED
    else:
        assert answer is (a.Release.RELEASE if holds else a.Release.REFUSE_NO_KEY)


@pytest.mark.parametrize("status", Status)
def test_cancel_ends_what_can_end(status: Status) -> None:
    expected = {Status.COMPENSATING: a.Cancel.REFUSE} | dict.fromkeys(FINISHED, a.Cancel.NOTHING)
    assert a.decide_cancel(status) is expected.get(status, a.Cancel.CANCEL)
