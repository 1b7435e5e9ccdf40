"""A retry takes a failure back; what the function did because of that failure must not stand in its way."""

from __future__ import annotations

from durable_cli import Context, Durable, NonDeterminism, StepFailed, workflow


def test_a_handler_that_recorded_steps_does_not_block_the_retry(durable: Durable) -> None:
    """`except StepFailed: ctx.run("alert", ...); raise`: after the mended step, the next operation is another one."""
    broken, done = [True], []

    @workflow
    def job(ctx: Context) -> str:
        try:
            ctx.run("fetch", lambda: 1 / 0 if broken[0] else 5)
        except StepFailed:
            ctx.run("alert", lambda: done.append("alert"))
            ctx.parallel({"a": lambda c: c.run("tell a", lambda: done.append("a"))})
            raise
        ctx.run("store", lambda: done.append("store"))
        ctx.run("tell", lambda: done.append("tell"))
        return "stored"

    run = durable.execute(job).run
    assert (run.status, done) == ("failed", ["alert", "a"])
    broken[0] = False
    durable.retry(run.id)
    again = durable.resume(run.id).run
    assert (again.status, again.result, done) == ("completed", '"stored"', ["alert", "a", "store", "tell"])
    assert [step.name for step in again.steps or ()] == ["fetch", "store", "tell"]
    assert durable.check() == []


def test_a_handler_is_not_repeated_when_the_retry_fails_again(durable: Durable) -> None:
    """What is recorded is given back as long as the function goes the same way."""
    done: list[str] = []

    @workflow
    def job(ctx: Context) -> None:
        try:
            ctx.run("fetch", lambda: 1 / 0)
        except StepFailed:
            ctx.run("alert", lambda: done.append("alert"))
            raise

    run = durable.execute(job).run
    durable.retry(run.id)
    assert durable.resume(run.id).run.status == "failed"
    assert done == ["alert"]


def test_a_function_that_ends_earlier_after_the_retry_is_no_error(durable: Durable) -> None:
    broken = [True]

    @workflow
    def job(ctx: Context) -> str:
        try:
            return ctx.run("fetch", lambda: str(1 // 0) if broken[0] else "fine")
        except StepFailed:
            ctx.run("alert", lambda: None)
            raise

    run = durable.execute(job).run
    broken[0] = False
    durable.retry(run.id)
    assert durable.resume(run.id).run.result == '"fine"'


def test_other_code_is_still_caught_before_the_retried_operation(durable: Durable) -> None:
    first = ["a"]

    @workflow
    def job(ctx: Context) -> None:
        ctx.run(first[0], lambda: 1)
        ctx.run("fails", lambda: 1 / 0)

    run = durable.execute(job).run
    durable.retry(run.id)
    first[0] = "b"
    ended = durable.resume(run.id).run
    assert ended.error is not None
    assert ended.error.type == NonDeterminism.__name__
