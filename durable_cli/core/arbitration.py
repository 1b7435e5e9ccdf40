"""Who may hold a key: the tables, as data.

Pure. A start, a retry, a rerun and the end of a holder each ask one question here and get a frozen answer; applying
it is `starting` and `settling`. Two words carry everything: what the holder's status and `reuse` make of the key
(`Hold`), and what the policy makes of that (`Action`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from durable_cli.model import FINISHED, Policy, Reuse, Status


class Hold(StrEnum):
    """What a start finds at the key."""

    FREE = "free"
    """Nobody holds it, or a finished holder lets it go."""
    UNFINISHED = "unfinished"
    KEPT = "kept"
    """The holder is finished and `reuse` keeps the key for it."""


_LETS_GO: Final[dict[Reuse, frozenset[Status]]] = {
    Reuse.AFTER_CLOSE: FINISHED,
    Reuse.AFTER_FAILURE: FINISHED - {Status.COMPLETED},
    Reuse.NEVER: frozenset(),
}


def hold(status: Status | None, reuse: Reuse) -> Hold:
    """What a key is to a new start whose workflow has `reuse`, when its holder has `status` (None: no holder)."""
    if status is None or status in _LETS_GO[reuse]:
        return Hold.FREE
    return Hold.KEPT if status.finished else Hold.UNFINISHED


class Action(StrEnum):
    """What a start does."""

    CREATE = "create"
    EXISTING = "existing"
    REFUSE = "refuse"
    REPLACE = "replace"
    QUEUE = "queue"
    MERGE_HOLDER = "merge_holder"
    """The holder was never started: it takes the newer input itself."""
    MERGE_WAITING = "merge_waiting"
    """A run waits behind the holder already: it takes the newer input."""
    SEND_EVENT = "send_event"


_DUPLICATE: Final[dict[tuple[Hold, Policy], Action]] = {
    (Hold.FREE, Policy.USE_EXISTING): Action.CREATE,
    (Hold.FREE, Policy.ERROR): Action.CREATE,
    (Hold.FREE, Policy.CANCEL_EXISTING): Action.CREATE,
    (Hold.FREE, Policy.RUN_AGAIN): Action.CREATE,
    (Hold.FREE, Policy.SEND_EVENT): Action.CREATE,
    (Hold.UNFINISHED, Policy.USE_EXISTING): Action.EXISTING,
    (Hold.UNFINISHED, Policy.ERROR): Action.REFUSE,
    (Hold.UNFINISHED, Policy.CANCEL_EXISTING): Action.REPLACE,
    (Hold.UNFINISHED, Policy.RUN_AGAIN): Action.QUEUE,
    (Hold.UNFINISHED, Policy.SEND_EVENT): Action.SEND_EVENT,
    (Hold.KEPT, Policy.USE_EXISTING): Action.EXISTING,
    (Hold.KEPT, Policy.ERROR): Action.REFUSE,
    (Hold.KEPT, Policy.CANCEL_EXISTING): Action.REFUSE,
    (Hold.KEPT, Policy.RUN_AGAIN): Action.REFUSE,
    (Hold.KEPT, Policy.SEND_EVENT): Action.REFUSE,
}


@dataclass(frozen=True, slots=True)
class Holder:
    """What matters of the run that holds a key.

    `started`: it was claimed once. `orphaned`: it has no live owner. `has_waiting`: a run waits behind it.
    """

    status: Status
    started: bool
    orphaned: bool
    has_waiting: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What a start does, and whether the caller, when it executes runs itself, takes up the holder."""

    action: Action
    adopt: bool = False


def decide_start(holder: Holder | None, *, reuse: Reuse, policy: Policy, executing: bool) -> Decision:
    """What a start with `policy` does about the key's `holder`.

    `executing`: the caller runs what it starts in the foreground, so an orphaned unfinished holder is its to take up
    after the policy was applied (`adopt`; whether it is due is judged then). A crash can thus never leave a cron job
    answering "taken" for ever, under `error` either.
    """
    held = hold(holder.status if holder else None, reuse)
    action = _DUPLICATE[held, policy]
    if holder is None or held is not Hold.UNFINISHED:
        return Decision(action)
    adopt = executing and holder.orphaned
    if action is Action.REPLACE and holder.status is Status.COMPENSATING:
        return Decision(Action.REFUSE)  # what is being undone must be undone to its end
    if action is Action.REFUSE and adopt:
        return Decision(Action.EXISTING, adopt=True)
    if action is Action.QUEUE and not holder.started:
        return Decision(Action.MERGE_HOLDER, adopt=adopt)
    if action is Action.QUEUE and holder.has_waiting:
        return Decision(Action.MERGE_WAITING, adopt=adopt)
    return Decision(action, adopt=adopt and action is not Action.REPLACE)


class Succession(StrEnum):
    """What becomes of the run waiting behind a holder that ended."""

    PROMOTE = "promote"
    CANCEL = "cancel"


def decide_succession(ended: Status, reuse: Reuse) -> Succession:
    """Whether the run waiting behind takes the key now that the holder ended as `ended`."""
    return Succession.PROMOTE if hold(ended, reuse) is Hold.FREE else Succession.CANCEL


class Retry(StrEnum):
    """What a retry does about the run's key."""

    KEEP = "keep"
    """It has no key, or still holds it."""
    TAKE = "take"
    """Nobody holds it: take it."""
    RETAKE = "retake"
    """A newer, finished run holds it and lets go."""
    REFUSE_STATUS = "refuse_status"
    REFUSE_KEY = "refuse_key"


REFUSED_RETRY: Final = frozenset({Retry.REFUSE_STATUS, Retry.REFUSE_KEY})
RETRYABLE: Final = frozenset({Status.FAILED, Status.CANCELLED})


def decide_retry(status: Status, *, keyed: bool, holds_key: bool, newer: Status | None, reuse: Reuse) -> Retry:
    """May the run be retried, and what happens to its key? `newer`: status of another run that holds the key."""
    if status not in RETRYABLE:
        return Retry.REFUSE_STATUS
    if not keyed or holds_key:
        return Retry.KEEP
    if newer is None:
        return Retry.TAKE
    return Retry.RETAKE if hold(newer, reuse) is Hold.FREE else Retry.REFUSE_KEY


class Rerun(StrEnum):
    """What a rerun does."""

    CREATE = "create"
    REFUSE_UNFINISHED = "refuse_unfinished"
    REFUSE_KEY = "refuse_key"


def decide_rerun(status: Status, *, holder: Status | None, reuse: Reuse) -> Rerun:
    """May a fresh copy of a run with `status` start? `holder`: status of whoever holds its key (it may itself)."""
    if not status.finished:
        return Rerun.REFUSE_UNFINISHED
    return Rerun.CREATE if hold(holder, reuse) is Hold.FREE else Rerun.REFUSE_KEY


class Release(StrEnum):
    """What a release does."""

    RELEASE = "release"
    REFUSE_UNFINISHED = "refuse_unfinished"
    REFUSE_NO_KEY = "refuse_no_key"


def decide_release(status: Status, *, holds_key: bool) -> Release:
    """May the run's key be let go by hand? Only a finished holder's; there is no force."""
    if not status.finished:
        return Release.REFUSE_UNFINISHED
    return Release.RELEASE if holds_key else Release.REFUSE_NO_KEY


class Cancel(StrEnum):
    """What a cancel does."""

    CANCEL = "cancel"
    NOTHING = "nothing"
    """Finished already: nothing to cancel."""
    REFUSE = "refuse"
    """Compensating: what is being undone must be undone to its end."""


def decide_cancel(status: Status) -> Cancel:
    """May the run be cancelled?"""
    if status is Status.COMPENSATING:
        return Cancel.REFUSE
    return Cancel.NOTHING if status.finished else Cancel.CANCEL
