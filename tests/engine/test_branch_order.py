"""What branches give does not depend on the order in which they end."""

from __future__ import annotations

import threading
from pathlib import Path

from durable_cli import BranchesFailed, Context, Durable, workflow


def test_results_and_errors_are_in_the_order_of_the_names(db: Path) -> None:
    last_is_over = threading.Event()

    @workflow
    def job(ctx: Context, fail: bool) -> dict[str, object]:
        def first(_: Context) -> str:
            last_is_over.wait(10)
            if fail:
                raise ValueError("first")
            return "first"

        def last(_: Context) -> str:
            last_is_over.set()
            if fail:
                raise ValueError("last")
            return "last"

        try:
            return ctx.parallel({"first": first, "last": last}, on_error="complete_all")
        except BranchesFailed as error:
            return {"order": list(error.errors)}

    with Durable(db) as durable:
        assert durable.execute(job, False).run.result == '{"first":"first","last":"last"}'
        last_is_over.clear()
        assert durable.execute(job, True).run.result == '{"order":["first","last"]}'
