"""The listener: one process that finishes its requests before it ends."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from specdec_hal.config.schema import ServeSettings
from specdec_hal.serve import logs
from specdec_hal.serve.gate import MAX_HEAD

_HEAD_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_LAST_EVENTS_S = 10
"""Time for clients to read the end of an aborted answer."""
_LAST_WORDS_S = 1.0
"""How long a server reports a stopped engine before it ends."""


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol with limits on the size and time of headers.

    A head may have :data:`MAX_HEAD` bytes. It must arrive within `receive_timeout_s` of the connection (later heads: of
    their first byte), and so must the rest of a body answered early. The kernel ends connections whose clients do not
    read: see :func:`listen`.
    """

    def __init__(self, *args: Any, receive_timeout_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._receive_timeout_s, self._head_bytes = receive_timeout_s, 0
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """As asyncio has it."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """As asyncio has it."""
        before = self.cycle
        of_body = before is not None and before.more_body
        super().data_received(data)
        if self.cycle is not before:  # a head is complete
            self._head_bytes = 0
            self._arrived()
            return
        if not of_body:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
                if before is None or before.response_complete:
                    self.transport.write(_HEAD_TOO_LONG)
                self.transport.close()
        if self._due is None and (before is None or before.response_complete):
            self._expect()

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio has it."""
        self._arrived()
        if isinstance(error, TimeoutError):
            logs.unread(self.client)
        super().connection_lost(error)

    def _expect(self) -> None:
        self._due = self.loop.call_later(self._receive_timeout_s, self.transport.close)

    def _arrived(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class _Server(uvicorn.Server):
    """uvicorn's server with a normal exit status after a signal.

    `expire` is called after `drain_timeout_s`.
    """

    def __init__(self, config: uvicorn.Config, drain_timeout_s: float, expire: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain_timeout_s, self._expire = drain_timeout_s, expire

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and wait for those that are open."""
        logs.ending(len(self.server_state.tasks))
        timer = asyncio.get_running_loop().call_later(self._drain_timeout_s, self._expire)
        await super().shutdown(sockets)
        timer.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """While it runs."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def uvicorn_config(app: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    """uvicorn's configuration for the application."""
    return uvicorn.Config(
        app,
        http=partial(Connection, receive_timeout_s=settings.receive_timeout_s),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.drain_timeout_s) + _LAST_EVENTS_S,
    )


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    settings: ServeSettings,
    started: Callable[[], None],
    expire: Callable[[], None],
    ended: Awaitable[None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let requests finish; `expire` must end those left after `drain_timeout_s`.

    A second SIGINT ends the server at once. It also ends when the engine has `ended`.
    """
    server = _Server(uvicorn_config(app, settings), settings.drain_timeout_s, expire)

    async def end() -> None:
        assert ended is not None
        await ended
        await asyncio.sleep(_LAST_WORDS_S)
        server.should_exit = True

    started()
    ending = None if ended is None else asyncio.ensure_future(end())
    try:
        await server.serve([listener])
    finally:
        if ending is not None:
            ending.cancel()


def run(main: Coroutine[Any, Any, None]) -> None:
    """As :func:`asyncio.run`, with uvloop if installed."""
    try:
        loop: Any = import_module("uvloop")
    except ModuleNotFoundError:
        loop = asyncio
    loop.run(main)
