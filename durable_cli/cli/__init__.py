"""The command line: parse, one call of the client, render, exit code."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"  # a test compares it with pyproject.toml; importlib.metadata would cost 30 ms a call
