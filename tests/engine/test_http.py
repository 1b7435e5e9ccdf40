"""`ctx.http`: a request as a step, against a server of the test on 127.0.0.1."""

from __future__ import annotations

import email.utils
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from bothways import KINDS, define

from durable_cli import Durable, Retry, Status
from durable_cli.errors import HttpFailed, UsageError
from durable_cli.http import asked_to_wait_ms

pytest.importorskip("httpx")


@dataclass
class Server:
    """Gives one answer after the other: (status, headers, body); the last one again and again."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, body))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    told = Server()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            told.asked.append((self.command, self.path, headers, body))
            status, more, answer = told.answers.pop(0) if len(told.answers) > 1 else told.answers[0]
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_DELETE = _any

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{http.server_port}"
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    yield told
    http.shutdown()
    http.server_close()


def run(durable: Durable, kind: str, method: str, url: str, **options: Any) -> tuple[Any, Any]:
    """Execute a workflow of one request: the run, and the result or the exception of `ctx.http`."""
    seen: list[Any] = []

    async def body(ctx: Any) -> None:
        try:
            seen.append(await ctx.http("request", method, url, **options))
        except Exception as error:
            seen.append(error)
            raise

    return durable.execute(define(kind, body)).run, seen[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_recorded(durable: Durable, server: Server, kind: str) -> None:
    """Status, headers and body; params, headers and JSON are sent; the record is one step of kind `http`."""
    server.answer(200, b'{"a": [1, 2]}', Content_Type="application/json")
    done, answer = run(
        durable, kind, "post", f"{server.url}/x", params={"q": "a b"}, json={"n": 1}, headers={"X-Me": "y"}
    )
    assert (answer.status, answer.json(), answer.headers["content-type"]) == (200, {"a": [1, 2]}, "application/json")
    [(method, path, headers, body)] = server.asked
    assert (method, path, headers["x-me"], body) == ("POST", "/x?q=a+b", "y", b'{"n":1}')
    assert [(step.kind, step.name) for step in done.steps] == [("http", "request")]


@pytest.mark.parametrize("kind", KINDS)
def test_server_errors_are_tried_again(durable: Durable, server: Server, kind: str) -> None:
    """5xx and 429 are; every attempt of a POST has the same Idempotency-Key."""
    server.answer(503)
    server.answer(429)
    server.answer(200, b"ok")
    done, answer = run(durable, kind, "POST", server.url)
    assert (done.status, answer.text, len(server.asked)) == (Status.COMPLETED, "ok", 3)
    assert {headers["idempotency-key"] for _, _, headers, _ in server.asked} == {f"{done.id}:1"}


def test_a_given_idempotency_key_wins_and_reading_sends_none(durable: Durable, server: Server) -> None:
    """The caller's own header is sent as it is; a GET is idempotent by itself."""
    server.answer(200)
    run(durable, "plain", "DELETE", server.url, headers={"idempotency-KEY": "mine"})
    run(durable, "plain", "GET", server.url)
    assert [headers.get("idempotency-key") for _, _, headers, _ in server.asked] == ["mine", None]


@pytest.mark.parametrize("kind", KINDS)
def test_other_refusals_fail_at_once(durable: Durable, server: Server, kind: str) -> None:
    """4xx is not tried again, whatever `retry` says; the error has the status and what the server said."""
    server.answer(404, b"no such\n thing")
    done, error = run(durable, kind, "GET", server.url, retry=Retry(max_attempts=5))
    assert isinstance(error, HttpFailed)
    assert (error.status, len(server.asked)) == (404, 1)
    assert done.error.message == f"GET {server.url}: 404 Not Found: no such thing"


def test_expected_statuses(durable: Durable, server: Server) -> None:
    """`expect` says what is a success, and then nothing else is."""
    server.answer(404)
    assert run(durable, "plain", "GET", server.url, expect=(200, 404))[1].status == 404
    assert run(durable, "plain", "GET", server.url, expect=200)[1].status == 404
    server.answers = [(201, {}, b"")]
    assert isinstance(run(durable, "plain", "GET", server.url, expect=200)[1], HttpFailed)


def test_retry_after_is_heeded(durable: Durable, server: Server, clock: Any) -> None:
    """The next attempt is not due before the server said."""
    server.answer(429, Retry_After="120")
    server.answer(200)
    before = clock.now
    assert run(durable, "plain", "GET", server.url)[0].status is Status.COMPLETED
    assert clock.now - before >= 120_000


@pytest.mark.parametrize(
    ("header", "expected"),
    [("7", 7000), (" 7 ", 7000), ("0", 0), ("-5", 0), ("soon", 0), ("", 0), (None, 0), ("99999999999999", 86_400_000)],
)
def test_reading_retry_after(header: str | None, expected: int) -> None:
    """Seconds, at most a day; what cannot be read is nothing."""
    assert asked_to_wait_ms(header, 0) == expected


def test_reading_retry_after_as_a_date() -> None:
    """A date counts from now; one of the past is nothing."""
    now = 1_800_000_000_000
    assert asked_to_wait_ms(email.utils.formatdate(now / 1000 + 90, usegmt=True), now) == 90_000
    assert asked_to_wait_ms(email.utils.formatdate(now / 1000 - 90, usegmt=True), now) == 0


def test_nobody_there_is_tried_again(durable: Durable) -> None:
    """A refused connection costs attempts; the error has no status."""
    done, error = run(durable, "plain", "GET", "http://127.0.0.1:1/", retry=Retry(max_attempts=3))
    assert (error.status, done.steps[0].attempts) == (None, 3)
    assert "ConnectError" in done.error.message


def test_redirects_are_followed_for_reading_only(durable: Durable, server: Server) -> None:
    """A GET arrives; a POST is answered with the redirect."""
    server.answer(302, Location="/there")
    server.answer(200, b"there")
    assert run(durable, "plain", "GET", server.url)[1].text == "there"
    server.answers = [(303, {"Location": "/there"}, b"")]
    assert run(durable, "plain", "POST", server.url)[1].status == 303


def test_bytes_and_long_answers(durable: Durable, server: Server) -> None:
    """What is no text is kept as base64; more than 1 MiB fails at once and says what to do."""
    server.answer(200, b"\xff\x00\xfe")
    answer = run(durable, "plain", "GET", server.url)[1]
    assert (answer.content, answer.encoding) == (b"\xff\x00\xfe", "base64")
    with pytest.raises(ValueError, match="no text"):
        answer.text  # noqa: B018
    server.answers = [(200, {}, b"x" * 1_100_000)]
    done, _ = run(durable, "plain", "GET", server.url)
    assert done.error.type == "Unstorable"
    assert "ctx.run" in done.error.message


def test_other_encodings(durable: Durable, server: Server) -> None:
    """The charset of the answer counts."""
    server.answer(200, "grün".encode("latin-1"), Content_Type="text/plain; charset=latin-1")
    answer = run(durable, "plain", "GET", server.url)[1]
    assert (answer.text, answer.content) == ("grün", "grün".encode("latin-1"))


@pytest.mark.parametrize(
    ("method", "url", "options"),
    [
        ("", "http://x", {}),
        ("GET", "ftp://x", {}),
        ("GET", "x", {}),
        ("POST", "http://x", {"json": {}, "content": b""}),
        ("GET", "http://x", {"expect": 1000}),
        ("GET", "http://x", {"retry": 3}),
        ("GET", "http://x", {"timeout": None}),
    ],
)
def test_what_cannot_be_meant_is_refused(durable: Durable, method: str, url: str, options: dict[str, Any]) -> None:
    """Before anything is sent or recorded."""
    done, error = run(durable, "plain", method, url, **options)
    assert isinstance(error, UsageError)
    assert done.steps == ()


def test_without_httpx(durable: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra, and no attempt is repeated for it."""
    monkeypatch.setitem(sys.modules, "httpx", None)
    done, _ = run(durable, "plain", "GET", "http://127.0.0.1:1/")
    assert (done.error.type, done.steps[0].attempts) == ("MissingExtra", 1)
    assert "pip install 'durable-cli[http]'" in done.error.message


@pytest.mark.parametrize("kind", KINDS)
def test_attempts_are_counted_across_retries_of_the_run(durable: Durable, server: Server, kind: str) -> None:
    """As for ctx.run; the idempotency key is one for all of them."""
    server.answer(503)
    options = {"retry": Retry(max_attempts=2, base="1ms", jitter=0)}
    first, _ = run(durable, kind, "POST", server.url, **options)
    assert (first.status, first.steps[0].attempts) == (Status.FAILED, 2)
    durable.retry(first.id)
    again = durable.resume(first.id).run
    assert (again.status, again.steps[0].attempts) == (Status.FAILED, 4)
    assert len({headers["idempotency-key"] for _, _, headers, _ in server.asked}) == 1
    assert len(server.asked) == 4
