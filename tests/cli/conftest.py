"""How the tests call the command line: in a forked child (fast), or as a real process (`process`)."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import durable_cli
import durable_cli.__main__
import durable_cli.cli.app
import durable_cli.client
import durable_cli.loading

ROOT = str(Path(durable_cli.__file__).parent.parent)

FLOWS = """
import os
import signal
import time

from durable_cli import Context, Retry, workflow


@workflow
def sync(ctx: Context, n: int = 1) -> int:
    return ctx.run("fetch", lambda: n + 1)


@workflow
def echo(ctx: Context, value: object = None) -> object:
    return ctx.run("echo", lambda: value)


@workflow
def quiet(ctx: Context) -> None:
    ctx.run("nothing", lambda: None)


@workflow(reuse="never")
def once(ctx: Context) -> str:
    return ctx.run("only", lambda: "the one")


@workflow(reuse="after_failure")
def article(ctx: Context, n: int = 1) -> int:
    return ctx.run("process", lambda: n)


def _boom(text: str) -> None:
    password = "local-secret"
    raise ValueError(text)


@workflow
def bad(ctx: Context, text: str = "it broke") -> None:
    print("noise of the step")
    ctx.run("fetch", _boom, text)


@workflow(reuse="never")
def bad_once(ctx: Context) -> None:
    ctx.run("fetch", _boom, "never again")


@workflow
def noisy(ctx: Context) -> str:
    def shout() -> str:
        print("a print")
        os.write(1, b"a write to descriptor 1\\n")
        os.system("echo a child")
        import ctypes

        ctypes.CDLL(None).puts(b"a line of C")
        ctypes.CDLL(None).fflush(None)
        return "quiet"

    return ctx.run("shout", shout)


@workflow
def slow(ctx: Context, seconds: float = 60.0) -> str:
    def wait() -> None:
        open("began", "w").close()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not os.path.exists("go"):
            time.sleep(0.02)

    ctx.run("one", wait)
    ctx.run("two", lambda: None)
    return "over"


@workflow
def flaky(ctx: Context, delay: str = "1h") -> None:
    ctx.run("try", _boom, "again later", retry=Retry(max_attempts=3, base=delay, jitter=0))
"""


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        return self.code, self.out, self.err

    @property
    def document(self) -> Any:
        """Stdout as the one JSON document that it has to be."""
        assert self.out, f"nothing on stdout, exit {self.code}: {self.err}"
        return json.loads(self.out)


class Cli:
    """Calls `durable` in a directory of its own, with its own home and database."""

    def __init__(self, tmp_path: Path) -> None:
        self.dir = tmp_path / "work"
        self.dir.mkdir()
        (tmp_path / "home").mkdir()
        (self.dir / "flows.py").write_text(FLOWS)
        self.db = tmp_path / "test.db"
        self.env = {
            "HOME": str(tmp_path / "home"),
            "PATH": os.environ["PATH"],
            "LANG": "en_US.UTF-8",
            "DURABLE_DB": str(self.db),
            "COLUMNS": "130",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def __call__(self, *argv: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Result:
        """In a forked child: everything is imported already."""
        with tempfile.TemporaryFile() as fed, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            fed.write(stdin)
            fed.seek(0)
            pid = os.fork()
            if pid == 0:
                self._child(argv, (fed.fileno(), out.fileno(), err.fileno()), self.env | (env or {}))
            _, status = os.waitpid(pid, 0)
            out.seek(0)
            err.seek(0)
            return Result(os.waitstatus_to_exitcode(status), out.read().decode(), err.read().decode())

    def _child(self, argv: tuple[str, ...], descriptors: tuple[int, int, int], env: dict[str, str]) -> None:
        code = 99
        signal.alarm(20)  # a test that hangs is killed
        try:
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            os.chdir(self.dir)
            os.environ.clear()
            os.environ.update(env)
            sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", write_through=True)
            sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", write_through=True)
            sys.argv = ["durable", *argv]
            code = durable_cli.__main__.main()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def argv(self, *argv: str) -> list[str]:
        """The command of a real process."""
        return [sys.executable, "-m", "durable_cli", *argv]

    def full_env(self, env: dict[str, str] | None = None) -> dict[str, str]:
        """The environment of a real process."""
        return self.env | {"PYTHONPATH": ROOT} | (env or {})

    def process(self, *argv: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        """A real process."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(self.argv(*argv), cwd=self.dir, env=self.full_env(env), **options)

    def process_of(self, code: str) -> subprocess.Popen[bytes]:
        """A real process of this Python code, whose one argument is the database."""
        argv = [sys.executable, "-c", "import sys\n" + textwrap.dedent(code), str(self.db)]
        return subprocess.Popen(argv, cwd=self.dir, env=self.full_env(), stdout=subprocess.PIPE)

    def real(self, *argv: str, env: dict[str, str] | None = None, **options: Any) -> Result:
        """A real process, to its end."""
        process = self.process(*argv, env=env, **options)
        out, err = process.communicate(timeout=30)
        return Result(process.returncode, (out or b"").decode(), (err or b"").decode())


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def crowded(cli: Cli) -> Callable[..., subprocess.Popen[bytes]]:
    """Real processes that begin with more open files than `select` can count."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < 2048:
        pytest.skip("this system allows too few open files")
    code = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, {most}))
for _ in range(1100):
    os.set_inheritable(os.dup(0), True)
os.execv(sys.argv[1], sys.argv[1:])
"""

    def begin(*argv: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", code, *cli.argv(*argv)],
            cwd=cli.dir,
            env=cli.full_env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return begin


@pytest.fixture(scope="module")
def shared_cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """One directory and database for a module whose tests do not disturb each other."""
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Look often until something is so; fails after 15 s."""
    import time

    def wait(is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + 15
        while not is_so():
            assert time.monotonic() < end, "it did not happen within 15 s"
            time.sleep(0.01)

    return wait
