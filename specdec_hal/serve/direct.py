"""Streams skip the middleware here: each one would cost a call per event."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

SEND = "specdec_hal.send"
"""In a scope: a way to send that skips middleware, which handles the start of a response alone."""


class Direct:
    """ASGI middleware that notes :data:`SEND`, if none has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        scope.setdefault(SEND, send)
        await self._app(scope, receive, send)
