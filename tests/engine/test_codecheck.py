"""`durable check`: each rule on code that breaks it and on code that does not, and no false alarm on good code."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path

import pytest

from durable_cli.codecheck import RULES, check_source
from durable_cli.codecheck.scopes import OPERATIONS
from durable_cli.codecheck.target import check_target
from durable_cli.context import AsyncContext, Context
from durable_cli.errors import ModuleFailed, ModuleNotFound, UsageError, WorkflowNotFound
from durable_cli.loading import load_target

ROOT = Path(__file__).parents[2]
HEAD = """
import asyncio, contextlib, datetime as dt, functools, os, pathlib, random, requests, secrets, subprocess
import sqlite3, sys, threading, time, uuid, httpx
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from time import sleep as nap
import durable_cli
from durable_cli import AsyncContext, Context, StepFailed, workflow

def step(*args): return 1
"""


def found(body: str, *, kind: str = "def", head: str = "", input: str = "x") -> list[tuple[str, str]]:
    """(rule, the code that is pointed at) of a workflow with this body."""
    context = "Context" if kind == "def" else "AsyncContext"
    text = (
        f"{HEAD}{textwrap.dedent(head)}\n@workflow\n{kind} flow(ctx: {context}, {input}=None):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), "    ")
        + "\n    ctx.heartbeat()\n"
    )
    lines = text.splitlines()
    findings = check_source(text, "flow.py").findings
    return [(one.rule, lines[one.line - 1][one.column - 1 :]) for one in findings if one.rule != "no-steps"]


def rules(body: str, **more: str) -> list[str]:
    """The rules that a workflow with this body breaks."""
    return [rule for rule, _ in found(body, **more)]


WRONG = [
    ("clock", "t = time.time()"),
    ("clock", "t = datetime.now(dt.UTC)"),
    ("clock", "t = dt.datetime.utcnow()"),
    ("clock", "t = date.today()"),
    ("clock", "t = time.monotonic()"),
    ("clock", "t = time.strftime('%H')"),
    ("clock", "t = time.localtime()"),
    ("clock", "ctx.run('a', step, datetime.now())"),
    ("clock", "ctx.run('a', step, at=time.time())"),
    ("clock", "for i in range(3):\n    if time.time() > 5: break"),
    ("clock", "with contextlib.nullcontext(time.time()): pass"),
    ("clock", "d = sorted(x, key=lambda one: time.time())"),
    ("clock", "import time as clock\nclock.time()"),
    ("random", "random.random()"),
    ("random", "random.shuffle(x)"),
    ("random", "uuid.uuid4()"),
    ("random", "uuid.uuid1().hex"),
    ("random", "os.urandom(8)"),
    ("random", "secrets.token_hex()"),
    ("random", "random.Random().random()"),
    ("environment", "os.environ['HOME']"),
    ("environment", "os.environ.get('HOME')"),
    ("environment", "os.getenv('HOME')"),
    ("environment", "a = sys.argv[1]"),
    ("effect", "requests.get('http://x')"),
    ("effect", "httpx.Client()"),
    ("effect", "subprocess.run(['ls'])"),
    ("effect", "sqlite3.connect('x')"),
    ("effect", "open('x').read()"),
    ("effect", "with open('x') as f: pass"),
    ("effect", "os.remove('x')"),
    ("effect", "Path('x').write_text('y')"),
    ("effect", "x.write_text('y')"),
    ("effect", "pathlib.Path('x').parent.mkdir()"),
    ("effect", "if Path('x').exists(): pass"),
    ("input", "input('? ')"),
    ("sleep", "time.sleep(1)"),
    ("sleep", "nap(1)"),
    ("step-name", "ctx.run(f'a {time.time()}', step)"),
    ("step-name", "ctx.sleep(str(uuid.uuid4()), 1)"),
    ("step-name", "ctx.wait_for_any([f'{id(x)}', 'b'])"),
    ("step-name", "ctx.parallel({str(random.random()): step})"),
    ("nested", "ctx.run('a', lambda: ctx.run('b', step))"),
    ("nested", "ctx.run('a', lambda: ctx.now())"),
    ("nested", "def f():\n    return ctx.sleep('b', 1)\nctx.run('a', f)"),
    ("nested", "def f(c):\n    c.run('b', step)\nctx.run('a', f, ctx)"),
    ("nested", "def f(c):\n    c.run('b', step)\nctx.run('a', functools.partial(f, ctx))"),
    ("nested", "def g():\n    ctx.uuid()\ndef f():\n    g()\nctx.run('a', f)"),
    ("nested", "def f():\n    return [ctx.random() for _ in x]\nctx.run('a', f)"),
    ("nested", "f = lambda: ctx.now()\nctx.run('a', f)"),
    ("nested", "ctx.map('m', lambda item: ctx.run('b', step), x)"),
    ("nested", "ctx.run('a', step, compensate=lambda r: ctx.sleep('b', 1))"),
    ("nested", "c = ctx\nctx.run('a', lambda: c.now())"),
    ("closure", "got = []\nctx.run('a', lambda: got.append(1))"),
    ("closure", "got = {}\ndef f():\n    got['a'] = 1\nctx.run('a', f)"),
    ("closure", "got = dict()\nctx.run('a', lambda: got.update(a=1))"),
    ("closure", "n = 0\ndef f():\n    nonlocal n\n    n = 1\nctx.run('a', f)"),
    ("closure", "def f():\n    x.total = 1\nctx.run('a', f)"),
    ("closure", "def f():\n    del x['a']\nctx.run('a', f)"),
    ("closure", "def f():\n    x['a'] += 1\nctx.run('a', f)"),
    ("closure", "got = []\ndef f():\n    for i in x: got.append(i)\nctx.map('a', f, x)"),
    ("closure", "got = []\ndef f():\n    def g():\n        got.append(1)\n    g()\nctx.run('a', f)"),
    ("closure", "def f():\n    global count\n    count = 1\nctx.run('a', f)"),
    ("branch-state", "got = []\ndef left(c):\n    got.append(c.run('a', step))\nctx.parallel({'l': left})"),
    ("branch-state", "n = 0\ndef left(c):\n    nonlocal n\n    n = c.run('a', step)\nctx.race({'l': left})"),
    ("global", "global count\ncount = 1"),
    ("swallow", "try:\n    ctx.sleep('a', 1)\nexcept: pass"),
    ("swallow", "try:\n    ctx.sleep('a', 1)\nexcept BaseException as e: print(e)"),
    ("swallow", "try:\n    ctx.sleep('a', 1)\nexcept (StepFailed, BaseException): pass"),
    ("swallow", "try:\n    if x: ctx.sleep('a', 1)\nfinally:\n    return 1"),
    ("swallow", "with contextlib.suppress(BaseException):\n    ctx.sleep('a', 1)"),
    ("swallow", "def f(c): c.sleep('a', 1)\ntry:\n    f(ctx)\nexcept: pass"),
    ("swallow", "def f(): ctx.sleep('a', 1)\ntry:\n    f()\nexcept: pass"),
    ("broad-except", "try:\n    ctx.run('a', step)\nexcept Exception: pass"),
    ("broad-except", "with contextlib.suppress(Exception):\n    ctx.run('a', step)"),
    ("unordered", "for a in {'p', 'q'}: ctx.run(a, step)"),
    ("unordered", "for a in set(x): ctx.run(a, step)"),
    ("unordered", "s = frozenset(x)\nfor a in s: ctx.run(a, step)"),
    ("unordered", "s = set(x)\nfor a in list(s - {1}): ctx.run(a, step)"),
    ("unordered", "for i, a in enumerate({a for a in x}): ctx.run(a, step)"),
    ("unordered", "[ctx.run(a, step) for a in set(x)]"),
    ("unordered", "ctx.map('m', step, set(x))"),
    ("unordered", "d = dict.fromkeys(set(x))\nfor a in d.keys(): ctx.run(a, step)"),
    ("unordered", "ctx.parallel({a: lambda c: c.now() for a in set(x)})"),
    ("swallow", "try:\n    ctx.sleep('a', 1)\nexcept* BaseException: pass"),
    ("concurrency", "ctx.parallel({'a': lambda c: ctx.run('a', step)})"),
    ("concurrency", "def left(c):\n    def part():\n        ctx.now()\n    part()\nctx.race({'a': left})"),
    ("nested", "ctx.parallel({'a': lambda c: c.run('a', lambda: ctx.now())})"),
    ("concurrency", "t = threading.Thread(target=step)"),
    ("concurrency", "with ThreadPoolExecutor() as pool: pool.map(step, x)"),
]


@pytest.mark.parametrize(("rule", "body"), WRONG, ids=[f"{rule}: {body}" for rule, body in WRONG])
def test_what_is_wrong_is_found_once(rule, body):
    """Exactly one finding, of that rule."""
    assert rules(body) == [rule]


RIGHT = [
    "ctx.run('a', time.time)",
    "ctx.run('a', lambda: time.time())",
    "ctx.run('a', lambda: requests.get('http://x').text)",
    "def f():\n    with open('x') as g: return g.read()\nctx.run('a', f)",
    "def f():\n    got = []\n    for i in x: got.append(i)\n    return got\nctx.run('a', f)",
    "got = []\ngot.append(ctx.run('a', step))",
    "ctx.now().hour; ctx.uuid(); ctx.random()",
    "t = time.strftime('%H', time.gmtime(0)); datetime.fromisoformat('2026-01-01')",
    "rng = random.Random(7); rng.random()",
    "def f(c):\n    c.heartbeat()\n    return c.attempt, c.idempotency_key, c.run_id, c.key\nctx.run('a', f, ctx)",
    "ctx.run('a', step, ctx.heartbeat)",
    "ctx.run('a', step, ctx.idempotency_key)",
    "try:\n    ctx.run('a', step)\nexcept StepFailed: pass",
    "try:\n    ctx.run('a', step)\nexcept BaseException:\n    x = 1\n    raise",
    "try:\n    ctx.run('a', step)\nexcept Exception as e:\n    raise ValueError from e",
    "try:\n    int(x)\nexcept Exception: pass\nctx.run('a', step)",
    "try:\n    f = lambda: ctx.now()\nexcept: pass",
    "with contextlib.suppress(StepFailed):\n    ctx.run('a', step)",
    "for a in sorted(set(x)): ctx.run(a, step)",
    "for a in {'p': 1}: ctx.run(a, step)",
    "for a in set(x): print(a)",
    "s = set(x)\ns = sorted(s)\nfor a in s: ctx.run(a, step)",
    "n = sum(1 for a in set(x))\nctx.run('a', step, n)",
    "ctx.map('m', step, sorted(set(x)))",
    "ctx.map('m', step, [1, 2])",
    "def left(c):\n    got = []\n    got.append(c.run('a', step))\n    return got\nctx.parallel({'l': left})",
    "n = 0\ndef count():\n    nonlocal n\n    n += 1\ncount()\nctx.run('a', step, n)",
    "ctx.parallel({n: (lambda c, n=n: c.run('a', step, n)) for n in x})",
    "branches = {'l': lambda c: c.now()}\nctx.parallel(branches)",
    "def f():\n    t = threading.Thread(target=step)\n    t.start()\nctx.run('a', f)",
    "time = {'time': step}\ntime.get('time')()",
    "def random(): return 1\nrandom()",
    "print('hello')",
    "ctx.run('a', step, retry=durable_cli.Retry(retry_on=requests.HTTPError))",
    "steps = [('a', lambda: requests.get('x')), ('b', lambda: time.time())]\nfor name, f in steps: ctx.run(name, f)",
    "session = step()\nctx.run('a', lambda: session.add(1))",
    "x.replace('a', 'b').rename(1)",
    "class Local:\n    at = 1\nctx.run('a', step)",
    "ctx.shell('ls', ['ls'])\nctx.http('get', 'GET', 'http://x')",
    "ctx.parallel({'a': lambda ctx: ctx.run('a', step)})",
    "ctx.parallel({'a': lambda c: c.parallel({'b': lambda d: d.now()})})",
    "operation = ctx.run\noperation('a', step)",
    "ctx.wait_for_event('e', timeout='1h', default=None)\nctx.wait_for_input('i')",
]


@pytest.mark.parametrize("body", RIGHT)
def test_what_is_right_is_left_alone(body):
    """No finding at all."""
    assert found(body) == []


ASYNC_WRONG = [
    ("await", "ctx.run('a', step)"),
    ("await", "r = ctx.run('a', step)"),
    ("await", "return ctx.sleep('a', 1)"),
    ("await", "async def f():\n    ctx.now()\nawait f()"),
    ("await", "def f():\n    ctx.now()\nf()"),
    ("concurrency", "await asyncio.gather(ctx.run('a', step), ctx.run('b', step))"),
    ("concurrency", "t = asyncio.create_task(ctx.run('a', step))"),
    ("concurrency", "async with asyncio.TaskGroup() as g: g.create_task(ctx.now())"),
    ("concurrency", "await asyncio.wait_for(ctx.run('a', step), 5)"),
    ("sleep", "await asyncio.sleep(1)"),
    ("nested", "async def f():\n    return await ctx.run('b', step)\nawait ctx.run('a', f)"),
    ("closure", "got = []\nasync def f():\n    got.append(1)\nawait ctx.run('a', f)"),
    ("unordered", "for a in set(x): await ctx.run(a, step)"),
    ("swallow", "try:\n    await ctx.sleep('a', 1)\nexcept: pass"),
]


@pytest.mark.parametrize(("rule", "body"), ASYNC_WRONG)
def test_what_is_wrong_in_async_code_is_found_once(rule, body):
    """The same rules, and those of tasks."""
    assert rules(body, kind="async def") == [rule]


ASYNC_RIGHT = [
    "r = await ctx.run('a', step)",
    "await ctx.parallel({'a': lambda c: c.run('a', step)})",
    "async def left(c): return await c.run('a', step)\nawait ctx.race({'l': left})",
    "async def f():\n    await asyncio.gather(step(), step())\nawait ctx.run('a', f)",
    "async def f():\n    await asyncio.sleep(1)\nawait ctx.run('a', f)",
    "def both(): return ctx.run('a', step)\nawait both()",
    "[await ctx.run(a, step) for a in x]",
]


@pytest.mark.parametrize("body", ASYNC_RIGHT)
def test_what_is_right_in_async_code_is_left_alone(body):
    """No finding at all."""
    assert found(body, kind="async def") == []


def test_every_rule_is_tested_here_and_told_in_the_docs():
    """The tables above, the tests below and the headings of docs/replay.md cover the rules."""
    tested = {rule for rule, _ in (*WRONG, *ASYNC_WRONG)} | {"no-steps", "suppression"}
    assert tested == set(RULES)
    told = set(re.findall(r"^## .*\[([a-z-]+)\]$", (ROOT / "docs" / "replay.md").read_text(), re.MULTILINE))
    assert told == set(RULES) - {"suppression"}
    assert {rule.severity for rule in RULES.values()} == {"error", "warning"}


def test_the_operations_are_those_of_both_contexts():
    """What counts as an operation is not written down a second time."""
    for context in (Context, AsyncContext):
        public = {name for name, _ in inspect.getmembers(context) if not name.startswith("_")}
        assert public - OPERATIONS == {"attempt", "heartbeat", "idempotency_key", "key", "run_id"}


# -- into other functions ------------------------------------------------------------------------------------------


def test_functions_that_the_workflow_calls_are_looked_into():
    """A helper of the file that is called outside of a step is replayed as well; as a step it may do what it likes."""
    head = """
    def today(): return datetime.now().date()
    def deeper(): return today()
    def part(c, n):
        c.sleep("a", 1)
        c.run("b", step, time.time())
        deeper()
    def again(n): return again(n - 1) if n else time.time()
    """
    assert found("part(ctx, 1)\nctx.run('t', today)\nagain(3)", head=head) == [
        ("clock", "datetime.now().date()"),
        ("clock", "time.time())"),
        ("clock", "time.time()"),
    ]
    assert rules("ctx.run('t', today); ctx.run('d', deeper)", head=head) == []
    text = HEAD + textwrap.dedent(head) + "\n@workflow\ndef flow(ctx):\n    ctx.now()\n    deeper()\n"
    (finding,) = check_source(text, "f.py").findings
    assert finding.message.endswith("(in deeper, which the workflow calls)")


def test_a_module_level_step_may_change_what_is_the_modules():
    """A cache or a connection of the module is no way out of a step that the check could tell from a wrong one."""
    head = """
    cache = {}
    def cached(n):
        global cache
        cache[n] = 1
        return 1
    """
    assert rules("ctx.run('t', cached, 1)", head=head) == []


def test_a_helper_with_the_context_is_replayed_and_counts_as_steps():
    """Steps in a function that is given the context are steps; what is imported is given the benefit of the doubt."""
    plain = "@workflow\ndef flow(ctx):\n    helper(ctx)\n"
    with_steps = f"{HEAD}def helper(ctx): ctx.run('a', step)\n{plain}"
    without = f"{HEAD}def helper(ctx): return 1\n{plain}"
    imported = f"{HEAD}from elsewhere import helper\n{plain}"
    assert check_source(with_steps, "f.py").findings == ()
    assert [one.rule for one in check_source(without, "f.py").findings] == ["no-steps"]
    assert check_source(imported, "f.py").findings == ()


def test_functions_used_in_a_way_that_is_not_followed():
    """With operations in them they are replayed, whoever calls them; without, they may be steps."""
    assert rules("f = step(lambda: (ctx.now(), time.time()))") == ["clock"]
    assert rules("def f():\n    ctx.now()\n    time.time()\ng = {'a': f}") == ["clock"]
    assert rules("def f():\n    time.time()\ng = {'a': f}") == []


# -- workflows and comments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        "from durable_cli import workflow\n@workflow\ndef flow(c): pass",
        "from durable_cli import workflow as wf\n@wf(name='other')\ndef flow(c): pass",
        "import durable_cli\n@durable_cli.workflow(reuse='never')\ndef flow(c): pass",
        "import durable_cli as d\n@d.workflow\nasync def flow(c): pass",
        "from durable_cli.definition import workflow\n@workflow\ndef flow(c): pass",
        "def make():\n    from durable_cli import workflow\n    @workflow\n    def flow(c): pass\n    return flow",
    ],
)
def test_workflows_are_known_by_their_decorator(head):
    """However it was imported."""
    checked = check_source(head, "f.py")
    assert [one.rule for one in checked.findings] == ["no-steps"]
    assert checked.errors == 0
    assert checked.workflows == ("other" if "other" in head else "flow",)


def test_other_decorators_are_not():
    """A `workflow` of another library is none of ours."""
    with pytest.raises(WorkflowNotFound, match="no @workflow in"):
        check_source("from prefect import workflow\n@workflow\ndef flow(c): pass\n", "f.py")


def test_one_workflow_of_several():
    """By the function's name, or the workflow's; another name is not found, and those that are there are told."""
    text = f"{HEAD}\n@workflow(name='A')\ndef a(ctx): time.time()\n@workflow\ndef b(ctx): random.random()\n"
    by_all = {one.rule for one in check_source(text, "f.py").findings}
    assert by_all == {"clock", "random", "no-steps"}
    for name in ("a", "A"):
        assert {one.rule for one in check_source(text, "f.py", name).findings} == {"clock", "no-steps"}
    with pytest.raises(WorkflowNotFound) as error:
        check_source(text, "f.py", "c")
    assert error.value.facts == ("workflows there: A, b",)


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# durable: ok", []),
        ("# durable: ok clock", []),
        ("# durable: ok clock, random", []),
        ("#durable:ok(clock)", []),
        ("# durable: ok: clock -- only told", []),
        ("# durable: ok random", ["clock"]),
        ("# durable: ok clok", ["suppression", "clock"]),
        ("# durably okay", ["clock"]),
    ],
)
def test_a_comment_silences_a_rule_on_its_line(comment, left):
    """All rules, or those that are named; a rule that does not exist silences nothing and is told."""
    assert sorted(rules(f"t = time.time()  {comment}")) == sorted(left)


def test_where_a_comment_counts():
    """On any line of the expression, on the head of a function and of a handler, nowhere else, and not in a text."""
    assert rules("t = time.time(\n)  # durable: ok clock") == []
    assert rules("# durable: ok clock\nt = time.time()") == ["clock"]
    assert rules("t = (time.time(), '# durable: ok')") == ["clock"]
    assert rules("try:\n    ctx.sleep('a', 1)\nexcept:  # durable: ok swallow\n    t = time.time()") == ["clock"]
    text = "from durable_cli import workflow\n@workflow\ndef flow(ctx):  # durable: ok no-steps\n    pass\n"
    assert check_source(text, "f.py").findings == ()


def test_findings_say_where_what_and_what_would_be_right():
    """Line and column count from 1; the order is that of the lines."""
    text = f"{HEAD}\n@workflow\ndef flow(ctx):\n    ctx.now()\n    a = random.random()\n    b = time.time()\n"
    first, second = check_source(text, "f.py").findings
    lines = text.splitlines()
    assert lines[first.line - 1][first.column - 1 :] == "random.random()"
    assert (first.file, first.rule, first.severity, first.workflow) == ("f.py", "random", "error", "flow")
    assert first.message == "random.random() outside a step: it gives something else on every replay"
    assert first.right == RULES["random"].right
    assert second.line == first.line + 1


# -- targets -------------------------------------------------------------------------------------------------------

FLOW = "raise SystemExit('executed')\nfrom durable_cli import workflow\n@workflow\ndef flow(ctx): pass\n"


def nothing(name: str) -> None:
    """A database that knows no workflow."""


def test_targets_are_found_as_for_a_run_and_never_executed(tmp_path, monkeypatch):
    """Files from here or from the app-dir, modules and packages of the app-dir; nothing is imported."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "pack" / "age"
    package.mkdir(parents=True)
    for file in (tmp_path / "flows.py", package / "__init__.py", package / "inner.py"):
        file.write_text(FLOW)
    before = set(sys.modules)
    for target, file in [
        ("flows:flow", "flows.py"),
        ("flows", "flows.py"),
        ("flows.py", "flows.py"),
        ("./flows.py:flow", "flows.py"),
        (f"{tmp_path}/flows.py", "flows.py"),
        ("pack.age", "pack/age/__init__.py"),
        ("pack.age.inner:flow", "pack/age/inner.py"),
        ("pack/age/inner.py", "pack/age/inner.py"),
    ]:
        checked = check_target(target, app_dir=None, known=nothing)
        assert (Path(checked.file), checked.workflows) == (tmp_path / file, ("flow",)), target
    monkeypatch.chdir("/")
    assert check_target("flows:flow", app_dir=tmp_path, known=nothing).workflows == ("flow",)
    assert check_target("flows.py", app_dir=tmp_path, known=nothing).workflows == ("flow",)
    assert {name for name in set(sys.modules) - before if name.startswith(("flows", "pack"))} == set()


def test_installed_modules_are_found_without_importing_their_packages(tmp_path, monkeypatch):
    """The packages around a module are not executed, as `find_spec` would."""
    folder = tmp_path / "site" / "installed"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('executed')\n")
    (folder / "flows.py").write_text(FLOW)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    checked = check_target("installed.flows:flow", app_dir=tmp_path, known=nothing)
    assert checked.workflows == ("flow",)
    for name in ("installed.nothing", "sys", "no_such_module"):
        with pytest.raises(ModuleNotFound):
            check_target(name, app_dir=tmp_path, known=nothing)


def test_a_workflow_that_the_database_knows(tmp_path, durable):
    """By its bare name, from the place in its row."""
    file = tmp_path / "stored.py"
    code = FLOW.replace("@workflow", "@workflow(name='nightly')").partition("\n")[2]
    file.write_text(code)
    durable.start(load_target(f"{file}:nightly", app_dir=None, known=nothing))
    file.write_text(f"raise SystemExit('executed')\n{code}")
    checked = check_target("nightly", app_dir=None, known=durable.workflow)
    assert (checked.file, checked.workflows) == (str(file), ("nightly",))
    file.unlink()
    with pytest.raises(ModuleNotFound, match="any more"):
        check_target("nightly", app_dir=None, known=durable.workflow)


def test_what_cannot_be_checked_is_told(tmp_path, monkeypatch):
    """No file, no Python, no text, no target: one clear error each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\n" + FLOW.encode() + "# \xe9".encode("latin-1"))
    (tmp_path / "bytes.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0\n")
    assert check_target("latin.py", app_dir=None, known=nothing).workflows == ("flow",)
    for name in ("broken.py", "bytes.py", "nul.py"):
        with pytest.raises(ModuleFailed, match=name):
            check_target(name, app_dir=None, known=nothing)
    with pytest.raises(ModuleNotFound, match="there is no file none"):
        check_target("none.py", app_dir=None, known=nothing)
    with pytest.raises(UsageError, match="no target"):
        check_target("flows:", app_dir=None, known=nothing)


# -- good code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=lambda file: file.name)
def test_the_examples_are_clean(file):
    """No false alarm on code that is known to be right."""
    text = file.read_text()
    if "@workflow" not in text:
        pytest.skip("defines no workflow")
    assert check_source(text, str(file)).findings == ()


def test_the_flows_of_our_own_tests_have_no_error():
    """Workflows that bear being killed anywhere; one swallows Exception on purpose."""
    errors = []
    for file in sorted((ROOT / "tests" / "support" / "flows").glob("*.py")):
        if "@workflow" in file.read_text():
            errors += [one for one in check_source(file.read_text(), str(file)).findings if one.severity == "error"]
    assert errors == []
