"""Checks before every route: size, time to arrive, host, origin and API key."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Iterable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_hal.config.schema import ServeSettings
from specdec_hal.serve.answers import refusal, refuse
from specdec_hal.serve.listeners import is_address, is_loopback

OPEN = ("/", "/health", "/ready", "/ping", "/version", "/openapi.json", "/docs")
"""Paths without an API key: static pages and health checks."""
METRICS = "/metrics"
OPEN_FILES = "/docs/"
MAX_HEAD = 1 << 16
"""Most bytes of a request's target and headers."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]]+)(?::\d*)?", re.IGNORECASE)


class Hosts:
    """Allowed host names, against DNS rebinding by web pages.

    `patterns` are as those of starlette's TrustedHostMiddleware: names, `*.example.com`, or `*`. None: any name if
    there is a `key`, which pages do not know; else those of the loopback interface and `address` and, if that is not a
    loopback address, any IP address, which is safe against rebinding.
    """

    def __init__(self, patterns: Iterable[str] | None, address: str, key: str | None) -> None:
        self._any_address = patterns is None and not is_loopback(address)
        if patterns is None:
            patterns = ["*"] if key is not None else ["localhost", "*.localhost", address]
            self._loopback = True
        else:
            self._loopback = False
        self._patterns = [pattern.lower().removesuffix(".").strip("[]") for pattern in patterns]

    def admit(self, header: bytes) -> bool:
        """Whether the host name is allowed."""
        if "*" in self._patterns:
            return True
        found = _HOST.fullmatch(header.decode("latin-1"))
        if found is None:
            return False
        name = found[1].lower().removesuffix(".").strip("[]")
        if any(name == pattern or (pattern[:2] == "*." and name.endswith(pattern[1:])) for pattern in self._patterns):
            return True
        return (self._loopback and is_loopback(name)) or (self._any_address and is_address(name))


class Gate:
    """In front of every route. Refuses with 400 (host), 401 (key), 403 (origin), 408 (too slow), 413, 431 (size)."""

    def __init__(self, app: ASGIApp, key: str | None, settings: ServeSettings) -> None:
        self._app, self._key = app, key
        self._open = {*OPEN, METRICS} if settings.open_metrics else {*OPEN}
        self._hosts = Hosts(settings.allowed_hosts, settings.host, key)
        self._origins = {origin.lower() for origin in settings.allowed_origins}
        self._longest, self._receive_s = settings.max_body_bytes, settings.receive_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        refused = self._refusal(scope)
        if refused is not None:
            return await refuse(refused)(scope, receive, send)
        got, more, due = 0, True, asyncio.get_running_loop().time() + self._receive_s

        async def bounded() -> Message:
            nonlocal got, more
            if not more:
                return await receive()
            try:
                async with asyncio.timeout_at(due):
                    message = await receive()
            except TimeoutError as error:
                what = f"expected all of the request within {self._receive_s:g} s (serve.receive_timeout_s)"
                raise refusal(408, what, {"Connection": "close"}) from error
            more = message.get("more_body", False)
            got += len(message.get("body", b""))
            if got > self._longest:
                raise self._too_long()
            return message

        return await self._app(scope, bounded, send)

    def _refusal(self, scope: Scope) -> HTTPException | None:
        headers = dict(scope["headers"])
        head = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if head + sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD:
            return refusal(431, f"expected a target and headers of at most {MAX_HEAD} bytes", {"Connection": "close"})
        if b"host" in headers and not self._hosts.admit(headers[b"host"]):  # sent by every browser
            return refusal(400, "Host: expected a name of this server, got another; --allowed-hosts adds names")
        if not self._admits(scope["path"], headers.get(b"authorization", b"")):
            return refusal(401, "expected the server's API key as a bearer token", {"WWW-Authenticate": "Bearer"})
        if self._key is None and scope["method"] not in ("GET", "HEAD") and not self._is_own_page(headers):
            return refusal(403, "Origin: expected a page of this server, got another; --allowed-origins adds origins")
        if int(headers.get(b"content-length", b"0")) > self._longest:  # a number, as checked by the parser
            return self._too_long()
        return None

    def _admits(self, path: str, authorization: bytes) -> bool:
        if self._key is None or path in self._open or path.startswith(OPEN_FILES):
            return True
        scheme, _, given = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given, self._key.encode())

    def _is_own_page(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a request may come from a web page, which could use a visitor's server without a key."""
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if not origin or "*" in self._origins or origin in self._origins:
            return True
        host = headers.get(b"host", b"").decode("latin-1").lower()
        return headers.get(b"sec-fetch-site") == b"same-origin" or origin.partition("://")[2] == host

    def _too_long(self) -> HTTPException:
        return refusal(413, f"expected a body of at most {self._longest} bytes (serve.max_body_bytes)")
