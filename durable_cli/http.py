"""`ctx.http`: an HTTP request as a step. httpx (the extra `http`) is imported when the first one is made."""

from __future__ import annotations

import base64
import json as json_module
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from durable_cli.core.policies import Retry, parse_timeout
from durable_cli.core.timing import Duration
from durable_cli.errors import HttpFailed, MissingExtra, Unstorable, UsageError
from durable_cli.operations import Operations, StepOptions

if TYPE_CHECKING:
    import httpx

DEFAULT_RETRY: Final = Retry(max_attempts=5, base="1s", max_delay="1m")
MAX_BODY: Final = 1024 * 1024
"""Bytes of the longest answer that a step can record."""
_MOST_ASKED_MS: Final = 24 * 3600 * 1000
"""A Retry-After of more than a day is taken for a day."""
_SAFE: Final = ("GET", "HEAD", "OPTIONS", "TRACE")
_OK: Final = range(200, 400)


@dataclass(frozen=True, slots=True)
class HttpResult:
    """An answer: `status`, `headers` (names in lower case) and the body, as text where it is text."""

    status: int
    headers: dict[str, str]
    body: str
    encoding: str
    """Of the text; "base64" where the body is no text."""

    @property
    def text(self) -> str:
        """The body as text. ValueError where it is none."""
        if self.encoding == "base64":
            raise ValueError("the body is no text; use .content")
        return self.body

    @property
    def content(self) -> bytes:
        """The body as bytes."""
        return base64.b64decode(self.body) if self.encoding == "base64" else self.body.encode(self.encoding)

    def json(self) -> Any:
        """The body, read as JSON. ValueError where it is none."""
        return json_module.loads(self.content)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of `ctx.http`, checked. `expect`: the statuses that are a success."""

    name: str
    method: str
    url: str
    headers: dict[str, str]
    arguments: dict[str, Any]
    timeout_ms: int
    retry: Retry
    expect: Collection[int]


def checked(
    name: str,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None,
    params: Any,
    json: Any,
    content: str | bytes | None,
    timeout: Duration,
    retry: Retry | None,
    expect: int | Collection[int] | None,
) -> Call:
    """The arguments of `ctx.http`. Raises UsageError for what cannot be meant."""
    if not isinstance(method, str) or not method.isalpha():
        raise UsageError(f'ctx.http {name!r}: the method is a word such as "GET", not {method!r}')
    if not isinstance(url, str) or not url.lower().startswith(("http://", "https://")):
        raise UsageError(f"ctx.http {name!r}: the URL begins with http:// or https://, not {url!r}")
    if json is not None and content is not None:
        raise UsageError(f"ctx.http {name!r}: json= and content= say two things; give one of them")
    if retry is not None and not isinstance(retry, Retry):
        raise UsageError(f"retry= takes a Retry(...), not {type(retry).__name__}")
    statuses = _OK if expect is None else (expect,) if isinstance(expect, int) else tuple(expect)
    if not all(isinstance(status, int) and 100 <= status <= 599 for status in statuses):
        raise UsageError(f"ctx.http {name!r}: expect= is a status, or several; not {expect!r}")
    timeout_ms = parse_timeout(timeout)
    if timeout_ms is None:
        raise UsageError(f"ctx.http {name!r}: a request has a timeout")
    given = {"params": params, "json": json, "content": content}
    return Call(
        name=name,
        method=method.upper(),
        url=url,
        headers=dict(headers or {}),
        arguments={name: value for name, value in given.items() if value is not None},
        timeout_ms=timeout_ms,
        retry=retry or DEFAULT_RETRY,
        expect=statuses,
    )


async def http(operations: Operations, call: Call) -> HttpResult:
    """Make a request as a step. Raises HttpFailed where it fails for good."""

    def attempt() -> dict[str, Any]:
        return _request(operations, call)

    options = StepOptions(kind="http", retry=call.retry, timeout_ms=call.timeout_ms)
    return HttpResult(**await operations.step(call.name, attempt, (), {}, options))


def _request(operations: Operations, call: Call) -> dict[str, Any]:
    """One attempt; the answer as JSON."""
    client = _httpx()
    headers = call.headers
    if call.method not in _SAFE and not any(name.lower() == "idempotency-key" for name in headers):
        headers = {**headers, "Idempotency-Key": operations.idempotency_key()}
    end = time.monotonic() + call.timeout_ms / 1000
    try:
        with client.stream(
            call.method,
            call.url,
            headers=headers,
            timeout=call.timeout_ms / 1000,
            follow_redirects=call.method in _SAFE,
            **call.arguments,
        ) as answer:
            body = _body(call, answer, end)
    except client.TransportError as error:
        final = isinstance(error, client.UnsupportedProtocol)
        raise _failed(operations, call, f"{type(error).__name__}: {error}", final=final) from None
    except (client.InvalidURL, client.TooManyRedirects, client.DecodingError) as error:
        raise _failed(operations, call, f"{type(error).__name__}: {error}", final=True) from None
    if answer.status_code not in call.expect:
        raise _refused(operations, call, answer, body)
    return {"status": answer.status_code, "headers": dict(answer.headers), **_text_of(body, answer)}


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingExtra(
            f"ctx.http needs httpx, which is not installed ({error}): pip install 'durable-cli[http]'"
        ) from None
    return httpx


def _body(call: Call, answer: httpx.Response, end: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in answer.iter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY:
            raise Unstorable(
                f"the answer of {call.method} {call.url} is longer than {MAX_BODY} bytes and cannot be recorded; "
                "fetch it in a step of your own (ctx.run) that writes it to a file and gives back the file's name",
                value_type="bytes",
            )
        if time.monotonic() > end:
            break  # nobody waits for us any more
    return b"".join(parts)


def _text_of(body: bytes, answer: httpx.Response) -> dict[str, str]:
    for encoding in dict.fromkeys((answer.charset_encoding or "utf-8", "utf-8")):
        try:
            text = body.decode(encoding)
            if text.encode(encoding) == body:
                return {"body": text, "encoding": encoding}
        except (LookupError, UnicodeError):
            continue
    return {"body": base64.b64encode(body).decode("ascii"), "encoding": "base64"}


def _refused(operations: Operations, call: Call, answer: httpx.Response, body: bytes) -> HttpFailed:
    status = answer.status_code
    again = status == 429 or status >= 500
    said = " ".join(body[:2000].decode("utf-8", "replace").split())[:200]
    message = f"{status} {answer.reason_phrase}".strip() + (f": {said}" if said else "")
    error = _failed(operations, call, message, status=status, final=not again)
    if again:
        error.retry_after_ms = asked_to_wait_ms(answer.headers.get("retry-after"), operations.execution.now())
    return error


def _failed(
    operations: Operations, call: Call, message: str, *, status: int | None = None, final: bool = False
) -> HttpFailed:
    text = f"{call.method} {call.url}: {message}"
    error = HttpFailed(call.name, error_type="HttpFailed", error_message=text, attempts=operations.attempt())
    error.status, error.final = status, final
    return error


def asked_to_wait_ms(header: str | None, now: int) -> int:
    """What a Retry-After says (seconds, or a date), in ms from `now`; 0 where it says nothing that can be read."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        asked = int(text[:12]) * 1000
    else:
        import email.utils  # late: it brings much with it

        try:
            asked = round(email.utils.parsedate_to_datetime(text).timestamp() * 1000) - now
        except (ValueError, TypeError, OverflowError, IndexError):
            return 0
    return min(max(asked, 0), _MOST_ASKED_MS)
