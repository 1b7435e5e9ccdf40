"""The examples of docs/workflows.md and docs/keys.md, executed: each block is a whole program, which asserts what it claims."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin import plugin_options

from durable_cli.definition import definitions, forget, register

ROOT = Path(__file__).resolve().parents[2]
PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("workflows", "keys")]


def _blocks() -> Iterator[tuple[str, str]]:
    """(heading, code) of every block."""
    heading = ""
    for page in PAGES:
        for found in re.finditer(r"^#+ ([^\n]*)$|^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            if found[2] is None:
                heading = found[1]
            else:
                yield heading, found[2]


BLOCKS = list(_blocks())


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file of its own, no proxy, and no workflow but the example's: others may have imported examples/backup.py."""
    monkeypatch.setenv("DURABLE_DB", str(tmp_path / "durable.db"))
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    others = definitions()
    for definition in others:
        forget(definition.name)
    yield
    for definition in definitions():
        forget(definition.name)
    for definition in others:
        register(definition)


def test_every_block_is_found() -> None:
    """A block that the pattern misses would never be executed."""
    assert len(BLOCKS) == sum(page.count("```python") for page in PAGES)
    assert len(BLOCKS) >= 20


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=f"{number:02}-{re.sub('[^a-z]+', '-', heading.lower()).strip('-')}")
        for number, (heading, code) in enumerate(BLOCKS)
    ],
)
def test_an_example_does_what_it_says(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a module of its own; one that has tests is given to pytest."""
    if "ctx.http(" in code:
        pytest.importorskip("httpx")
    if "key=cel(" in code:
        pytest.importorskip("cel_expr_python")
    compile(code, "<block>", "exec")
    if "\ndef test_" in code:
        (tmp_path / "test_page.py").write_text(code)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin_options()]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 passed" in done.stdout
        return
    path = tmp_path / "page.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("workflows_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
