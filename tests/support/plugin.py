"""How a pytest process of a test gets durable's plugin."""

from __future__ import annotations

from importlib import metadata


def plugin_options() -> list[str]:
    """Options for the command line: none where durable is installed, for pytest finds its entry point by itself (and
    refuses a plugin that it is given twice)."""
    installed = any(one.name == "durable" for one in metadata.entry_points(group="pytest11"))
    return [] if installed else ["-p", "durable_cli.pytest_plugin"]
