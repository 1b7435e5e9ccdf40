"""The options that people set, checked when they are set: how steps are retried, what a taken key means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn

from durable_cli.core.keys import brief, check_step_name
from durable_cli.core.timing import Duration, parse_duration
from durable_cli.errors import InvalidDefinition, InvalidDuration, InvalidName, UsageError
from durable_cli.model import OnDuplicate, Policies, Policy, Reuse

_BACKOFFS: Final = ("exponential", "linear", "constant")


@dataclass(frozen=True)
class Retry:
    """How often and when a failed step is tried again.

    `max_attempts` counts the first one too. The delay after attempt n is base·2^(n-1), base·n or base, then capped at
    `max_delay`, then spread by ± `jitter` (a fraction). Only exceptions of the `retry_on` types are retried. Durations
    are timedeltas, seconds, or text such as "1h30m". A bad option raises `InvalidDefinition`.
    """

    max_attempts: int = 1
    backoff: Literal["exponential", "linear", "constant"] = "exponential"
    base: Duration = "1s"
    max_delay: Duration = "1h"
    jitter: float = 0.25
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    base_ms: int = field(init=False, repr=False, compare=False)
    max_delay_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            _bad_retry("max_attempts", self.max_attempts, "an integer of 1 or more (1: no retry)")
        if self.backoff not in _BACKOFFS:
            _bad_retry("backoff", self.backoff, f"one of {listed(_BACKOFFS)}")
        number = isinstance(self.jitter, int | float) and not isinstance(self.jitter, bool)
        if not number or not 0 <= self.jitter <= 1:
            _bad_retry("jitter", self.jitter, "a number from 0 to 1 (0.25 spreads a delay by a quarter)")
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            _bad_retry("retry_on", self.retry_on, "a subclass of Exception, or a tuple of them")
        for option in ("base", "max_delay"):
            try:
                object.__setattr__(self, f"{option}_ms", parse_duration(getattr(self, option)))
            except InvalidDuration as problem:
                raise InvalidDefinition(f"Retry({option}=...): {problem.message}") from None


@dataclass(frozen=True)
class Debounce:
    """A keyed start waits `period` for a newer one, whose input then runs instead; at most `timeout` from the first.

    Durations are timedeltas, seconds, or text such as "30s". A bad option raises `InvalidDefinition`.
    """

    period: Duration
    timeout: Duration | None = None
    period_ms: int = field(init=False, repr=False, compare=False)
    timeout_ms: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            period = parse_duration(self.period)
            timeout = None if self.timeout is None else parse_duration(self.timeout)
        except InvalidDuration as problem:
            raise InvalidDefinition(f"Debounce(...): {problem.message}") from None
        if period == 0:
            raise InvalidDefinition("Debounce(period=0): a period is longer than nothing")
        if timeout is not None and timeout < period:
            raise InvalidDefinition(f"Debounce(timeout={brief(self.timeout)}): it is shorter than the period")
        object.__setattr__(self, "period_ms", period)
        object.__setattr__(self, "timeout_ms", timeout)


def _bad_retry(option: str, value: object, wanted: str) -> NoReturn:
    raise InvalidDefinition(f"Retry({option}={brief(value)}): {option} is {wanted}")


def parse_on_duplicate(value: object) -> OnDuplicate:
    """`use_existing`, `error`, `cancel_existing`, `run_again` or `send_event:NAME`, else `UsageError`."""
    if isinstance(value, OnDuplicate):
        return value
    kinds = [f"{kind}:NAME" if kind is Policy.SEND_EVENT else str(kind) for kind in Policy]
    name, colon, event = str(value).partition(":") if isinstance(value, str) else ("", "", "")
    if name not in set(Policy) or bool(colon) != (name == Policy.SEND_EVENT):
        raise UsageError(f"on_duplicate is one of {listed(kinds)}, not {brief(value)}")
    if not colon:
        return OnDuplicate(Policy(name))
    try:
        return OnDuplicate(Policy(name), check_step_name(event))
    except InvalidName as problem:
        raise UsageError(
            f"on_duplicate={brief(value)}: {problem.message.replace('of a step', 'of an event')}"
        ) from None


def check_policies(reuse: Reuse, on_duplicate: OnDuplicate) -> None:
    """`UsageError` for the one combination that cannot be: `run_again` where a key is used once for ever."""
    if reuse is Reuse.NEVER and on_duplicate.policy is Policy.RUN_AGAIN:
        raise UsageError(
            'on_duplicate="run_again" does not fit reuse="never": the run that waits could never take the key'
        )


def parse_reuse(value: object) -> Reuse:
    """`after_close`, `after_failure` or `never`, else `UsageError`."""
    if isinstance(value, str) and value in set(Reuse):
        return Reuse(value)
    raise UsageError(f"reuse is one of {listed(Reuse)}, not {brief(value)}")


def listed(words: Iterable[object]) -> str:
    """Words for a message: `a, b, c`."""
    return ", ".join(str(word) for word in words)


def parse_timeout(value: Duration | None) -> int | None:
    """A timeout in ms; None: there is none. Zero is refused (`UsageError`): nothing could ever be in time."""
    if value is None:
        return None
    milliseconds = parse_duration(value)
    if milliseconds == 0:
        raise UsageError("a timeout is longer than nothing; leave it out for none")
    return milliseconds


def parse_policies(
    reuse: object, on_duplicate: object, options: Mapping[str, Any], *, key_rule: str | None
) -> Policies:
    """The policies of a definition, each checked with the valid values named (`UsageError`)."""
    parsed = parse_reuse(reuse), parse_on_duplicate(on_duplicate)
    check_policies(*parsed)
    debounce = options.get("debounce")
    if debounce is not None and not isinstance(debounce, Debounce):
        raise UsageError(f'debounce={brief(debounce)}: write Debounce("30s") or Debounce("30s", timeout="5m")')
    return Policies(
        reuse=parsed[0],
        on_duplicate=parsed[1],
        timeout_ms=parse_timeout(options.get("timeout")),
        debounce_ms=debounce.period_ms if debounce else None,
        debounce_timeout_ms=debounce.timeout_ms if debounce else None,
        max_hold_ms=parse_timeout(options.get("max_hold")),
        on_max_hold=_one_of("on_max_hold", options.get("on_max_hold", "report"), ("report", "cancel")),
        on_mismatch=_one_of("on_mismatch", options.get("on_mismatch", "record"), ("record", "error")),
        key_rule=key_rule,
    )


def _one_of(option: str, value: object, valid: tuple[str, ...]) -> str:
    if value not in valid:
        raise UsageError(f"{option}={brief(value)}: it is one of {listed(valid)}")
    return str(value)
