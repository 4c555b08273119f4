"""Streams skip middleware after the start of a response; what the client gets is the same."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from specdec_hal.serve.app import make_app
from specdec_hal.serve.direct import SEND, Direct
from tests.serve.conftest import Running


class Counting:
    """Middleware that counts messages by type."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.seen = app, list[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Any) -> None:
            self.seen.append(message["type"])
            await send(message)

        await self.app(scope, receive, counted)


def asked(app: ASGIApp, body: bytes, *, leaves: bool = False, first: threading.Event | None = None) -> list[Any]:
    """The messages of an answer; `leaves`: the client disconnects after the first event. `first`: set by that."""
    sent, event = list[Any](), asyncio.Event()

    async def run() -> None:
        waiting: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            await event.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if first and message["type"] == "http.response.body":
                first.set()
            if leaves and message["type"] == "http.response.body":
                event.set()

        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions"}
        await app({**scope, "query_string": b"", "headers": headers, "http_version": "1.1"}, receive, send)

    asyncio.run(run())
    return sent


def test_bodies_of_a_stream_skip_middleware(running: Running) -> None:
    model, forward = running.model, running.model.forward

    def held(batch: Any) -> Any:
        """The first step alone, until its event was sent."""
        model.forward, hidden = forward, forward(batch)
        model.gate.clear()
        return hidden

    inner = Counting(make_app(running.service))
    outer = Counting(Direct(inner))
    for app in (inner, outer):
        model.forward = held
        asks = b'{"prompt": [3, 5], "max_tokens": 9, "ignore_eos": true, "stream": true}'
        sent = asked(app, asks, first=model.gate)
        assert [message["type"] for message in sent[:2]] == ["http.response.start", "http.response.body"]
        assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
        assert sent[1]["body"].startswith(b"data: {")
        assert sent[-1]["body"].endswith(b"}\n\ndata: [DONE]\n\n"), "the last event and the end are one message"
    assert inner.seen[-1] == "http.response.start" and "http.response.body" in inner.seen, "the first alone sent bodies"
    assert outer.seen[0] == "http.response.start" and outer.seen.count("http.response.body") > 1
    whole = asked(outer, b'{"prompt": [3, 5], "max_tokens": 9}')
    assert [message["type"] for message in whole] == ["http.response.start", "http.response.body"]


def test_the_outermost_way_is_kept() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await scope[SEND]({"type": "way"})

    taken = list[str]()

    async def way(message: Any) -> None:
        taken.append(message["type"])

    async def receive() -> Any:
        raise AssertionError

    async def none(message: Any) -> None:
        raise AssertionError

    asyncio.run(Direct(app)({SEND: way}, receive, none))
    asyncio.run(Direct(app)({}, receive, way))
    assert taken == ["way", "way"]


def test_a_client_that_leaves_ends_its_stream(running: Running) -> None:
    sent = asked(
        make_app(running.service),
        b'{"prompt": [3, 5], "max_tokens": 60, "ignore_eos": true, "stream": true}',
        leaves=True,
    )
    assert not any(b"[DONE]" in message.get("body", b"") for message in sent)
    running.until(lambda: not running.service.live and not running.engine.runner.has_requests)
