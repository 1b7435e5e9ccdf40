"""The fixture `durable_engine` for pytest: a `durable_cli.testing.Engine` on a private file, for one test.

    def test_an_order_is_shipped(durable_engine):
        run = durable_engine.run(order, {"id": 7})
        assert run.status == "completed"

The marker `durable` passes options: `@pytest.mark.durable(replay_every_step=True)`, on a test, a class or (as
`pytestmark`) a module. During the test `DURABLE_DB` names the private file, so that code which opens `Durable()` by
itself never meets your own database.

pytest loads this module in every project where durable is installed; it imports nothing until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from durable_cli.testing import Engine


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "durable(**options): options of the fixture durable_engine")


@pytest.fixture
def durable_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine for tests of workflows: the clock jumps, what is due executes here and now."""
    from durable_cli.testing import Engine

    options: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers("durable"))):  # the nearest counts
        options.update(marker.kwargs)
    with Engine(**options) as engine:  # type: ignore[arg-type]
        monkeypatch.setenv("DURABLE_DB", str(engine.path))
        yield engine
