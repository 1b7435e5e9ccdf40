"""What a name in the code means, as far as that can be told without executing it: imports, and who shadows them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_CLOCK: Final = """
time.time time.time_ns time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns time.process_time
time.process_time_ns time.thread_time time.clock_gettime time.clock_gettime_ns datetime.datetime.now
datetime.datetime.utcnow datetime.datetime.today datetime.date.today django.utils.timezone.now arrow.now arrow.utcnow
pendulum.now pandas.Timestamp.now
"""
_CLOCK_WITHOUT_ARGUMENT: Final = {
    "time.localtime": 1,
    "time.gmtime": 1,
    "time.ctime": 1,
    "time.asctime": 1,
    "time.strftime": 2,
}
_RANDOM: Final = "uuid.uuid1 uuid.uuid4 uuid.uuid7 os.urandom os.getrandom"
_RANDOM_MODULES: Final = ("random.", "secrets.", "numpy.random.")
_SEEDED: Final = ("random.Random", "numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator")
_ENVIRONMENT_CALLS: Final = "os.getenv os.getcwd os.getpid os.getppid socket.gethostname platform.node pathlib.Path.cwd"
_ENVIRONMENT_VALUES: Final = ("os.environ", "os.environb", "sys.argv")
_SLEEP: Final = "time.sleep asyncio.sleep anyio.sleep trio.sleep gevent.sleep"
_EFFECTS: Final = """
open io.open os.open os.fdopen os.read os.write os.remove os.unlink os.rename os.replace os.renames os.mkdir os.makedirs
os.rmdir os.removedirs os.system os.popen os.kill os.killpg os.listdir os.scandir os.walk os.stat os.lstat os.chmod
os.chown os.link os.symlink os.readlink os.truncate os.utime os.spawnl os.spawnv os.posix_spawn os.fork os.path.exists
os.path.isfile os.path.isdir os.path.islink os.path.getsize os.path.getmtime os.path.getctime glob.glob glob.iglob
shutil.copy shutil.copy2 shutil.copyfile shutil.copytree shutil.copyfileobj shutil.move shutil.rmtree
shutil.make_archive shutil.unpack_archive shutil.disk_usage shutil.which tempfile.mkstemp tempfile.mkdtemp
tempfile.NamedTemporaryFile tempfile.TemporaryFile tempfile.TemporaryDirectory subprocess.run subprocess.call
subprocess.check_call subprocess.check_output subprocess.Popen subprocess.getoutput subprocess.getstatusoutput
asyncio.create_subprocess_exec asyncio.create_subprocess_shell asyncio.open_connection sqlite3.connect apsw.Connection
psycopg.connect psycopg2.connect pymysql.connect mysql.connector.connect asyncpg.connect pymongo.MongoClient
redis.Redis redis.from_url redis.StrictRedis boto3.client boto3.resource smtplib.SMTP smtplib.SMTP_SSL ftplib.FTP
imaplib.IMAP4 imaplib.IMAP4_SSL socket.socket socket.create_connection socket.gethostbyname socket.getaddrinfo
urllib.request.urlopen urllib.request.urlretrieve http.client.HTTPConnection http.client.HTTPSConnection
aiohttp.ClientSession aiohttp.request webbrowser.open paramiko.SSHClient
"""
_HTTP_MODULES: Final = ("requests", "httpx")
_HTTP: Final = "get post put patch delete head options request stream Client AsyncClient Session"
_METHODS: Final = """
write_text write_bytes read_text read_bytes unlink rmdir mkdir touch symlink_to hardlink_to iterdir rglob
"""
"""Methods that only files have, on whatever object."""
_PATHS: Final = "exists is_file is_dir is_symlink stat lstat open glob rename replace chmod samefile"
_CONCURRENCY: Final = """
asyncio.gather asyncio.create_task asyncio.ensure_future asyncio.wait asyncio.wait_for asyncio.as_completed
asyncio.shield asyncio.TaskGroup asyncio.to_thread asyncio.run asyncio.run_coroutine_threadsafe threading.Thread
threading.Timer _thread.start_new_thread concurrent.futures.ThreadPoolExecutor concurrent.futures.ProcessPoolExecutor
concurrent.futures.wait concurrent.futures.as_completed multiprocessing.Process multiprocessing.Pool
multiprocessing.pool.ThreadPool anyio.create_task_group trio.open_nursery
"""

_RULE_OF_CALL: Final = {
    **dict.fromkeys(_CLOCK.split(), "clock"),
    **dict.fromkeys(_RANDOM.split(), "random"),
    **dict.fromkeys(_ENVIRONMENT_CALLS.split(), "environment"),
    **dict.fromkeys(_SLEEP.split(), "sleep"),
    **dict.fromkeys(_EFFECTS.split(), "effect"),
    **{f"{module}.{name}": "effect" for module in _HTTP_MODULES for name in _HTTP.split()},
    **dict.fromkeys(_CONCURRENCY.split(), "concurrency"),
    "input": "input",
}
_FILE_METHODS: Final = frozenset(_METHODS.split())
_PATH_METHODS: Final = frozenset(_PATHS.split())
BUILTINS: Final = frozenset(("open", "input", "set", "frozenset", "sorted", "id", "hash"))


def rule_of_call(name: str, call: ast.Call) -> str | None:
    """The rule that a call of `name` (dotted, as imported) breaks outside a step."""
    if name in _CLOCK_WITHOUT_ARGUMENT:
        return "clock" if len(call.args) < _CLOCK_WITHOUT_ARGUMENT[name] else None
    if name in _SEEDED:
        return None if call.args or call.keywords else "random"
    if name.startswith(_RANDOM_MODULES):
        return "random"
    return _RULE_OF_CALL.get(name)


def file_method(name: str | None, method: str) -> str | None:
    """How a call of `method` is told, if it is about files. `name`: dotted; None: of an object that we do not know."""
    if name is not None and name.startswith("pathlib.Path()."):
        return f"Path(…).{method}" if method in _FILE_METHODS | _PATH_METHODS else None
    return f"….{method}" if name is None and method in _FILE_METHODS else None


def is_environment(name: str) -> bool:
    """Is this a value of the process's surroundings?"""
    return name in _ENVIRONMENT_VALUES


class Names:
    """The names of one file: what its imports mean, and its functions."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self.imports[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.functions = functions_in(tree.body)
        self.own = set(bindings(tree.body))

    def dotted(self, node: ast.expr) -> str | None:
        """`a.b.c` with `a` as imported; a builtin as itself. None where that is not known."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Call) and self.dotted(node.func) == "pathlib.Path":
            parts.append("pathlib.Path()")
        elif not isinstance(node, ast.Name):
            return None
        elif node.id in self.imports:
            parts.append(self.imports[node.id])
        elif node.id in BUILTINS and node.id not in self.own:
            parts.append(node.id)
        else:
            return None
        return ".".join(reversed(parts))


def own_nodes(body: list[ast.stmt] | list[ast.expr]) -> Iterator[ast.AST]:
    """All nodes of a body that belong to its own function: what is inside functions in it is left out (they
    themselves are not)."""
    stack: list[ast.AST] = list(reversed(body))
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Function):
            arguments = node.args
            outer = [*arguments.defaults, *[one for one in arguments.kw_defaults if one is not None]]
            stack.extend([*outer, *getattr(node, "decorator_list", ())])
        elif isinstance(node, ast.ClassDef):
            continue
        else:
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def body_of(function: Function) -> list[ast.stmt]:
    """The body of a function; a lambda's expression as a statement."""
    if isinstance(function, ast.Lambda):
        return [ast.copy_location(ast.Expr(function.body), function.body)]
    return function.body


def bindings(body: list[ast.stmt]) -> Iterator[str]:
    """The names that a body binds itself, not counting imports."""
    for node in own_nodes(body):
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ExceptHandler):
            yield node.name or ""


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters, positional ones first."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [one.arg for one in (*every, arguments.vararg, arguments.kwarg) if one is not None]


def locals_of(function: Function) -> set[str]:
    """The names that are a function's own."""
    body = body_of(function)
    outer = {name for node in own_nodes(body) if isinstance(node, ast.Nonlocal | ast.Global) for name in node.names}
    return {*parameters(function), *bindings(body)} - outer


def functions_in(body: list[ast.stmt]) -> dict[str, Function]:
    """The functions that a body defines, by name: `def`, and `name = lambda ...`."""
    found: dict[str, Function] = {}
    for node in own_nodes(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            found.update({one.id: node.value for one in node.targets if isinstance(one, ast.Name)})
    return found
