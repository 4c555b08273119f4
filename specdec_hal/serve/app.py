"""The routes: generation, models, health. Every error is an answer in OpenAI's form, without a path or a trace."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_hal.errors import EngineDeadError, QueueFullError, RequestError
from specdec_hal.serve.answers import ERRORS, ChatAnswer, CompletionAnswer, error_body
from specdec_hal.serve.protocol import AbortRequest, ChatCompletionRequest, CompletionRequest
from specdec_hal.serve.service import FAILED, STOPPED, Service, refusal
from specdec_hal.wording import clip

OPEN = ("/", "/health", "/ready")
"""Paths that need no API key."""
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
"""What an answer is if `stream` asks for it, for the OpenAPI document."""
PAGE = Path(__file__).with_name("page.html")
_ONLY_ITSELF = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
"""What the page may load: nothing, but it may ask this server."""


class Gate:
    """In front of every route: the API key, and how long a body may be."""

    def __init__(self, app: ASGIApp, key: str | None, longest: int) -> None:
        self._app, self._key, self._longest = app, key, longest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, got = dict(scope["headers"]), 0

        async def bounded() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > self._longest:
                raise self._too_long()
            return message

        refused = None
        if not self._admits(scope["path"], headers.get(b"authorization", b"")):
            refused = refusal(401, "expected the server's API key as a bearer token", {"WWW-Authenticate": "Bearer"})
        elif int(headers.get(b"content-length", b"0")) > self._longest:  # the parser has checked that it is a number
            refused = self._too_long()
        if refused is not None:
            return await _refuse(refused)(scope, receive, send)
        return await self._app(scope, bounded, send)

    def _admits(self, path: str, authorization: bytes) -> bool:
        if self._key is None or path in OPEN:
            return True
        scheme, _, given = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given, self._key.encode())

    def _too_long(self) -> HTTPException:
        return refusal(413, f"expected a body of at most {self._longest} bytes (serve.max_body_bytes)")


def _refuse(error: HTTPException) -> JSONResponse:
    return JSONResponse(error_body(error.status_code, error.detail), error.status_code, error.headers)


def _invalid(error: RequestValidationError) -> JSONResponse:
    """The first thing that is wrong with a body."""
    detail = error.errors()[0]
    if detail["type"] == "json_invalid":
        return JSONResponse(error_body(422, f"expected JSON, got {detail['ctx']['error']}"), 422)
    param = clip(".".join(str(part) for part in detail["loc"][1:]), 150) or None
    what = "unknown key; it is not served" if detail["type"] == "extra_forbidden" else detail["msg"]
    return JSONResponse(error_body(422, what if param is None else f"{param}: {what}", param), 422)


def make_app(service: Service, api_key: str | None = None) -> FastAPI:
    """The application; `api_key` None: everybody may use it."""
    app = FastAPI(title="specdec-hal", docs_url=None, redoc_url=None, responses=ERRORS)
    app.add_middleware(Gate, key=api_key, longest=service.settings.max_body_bytes)

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        return _refuse(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _invalid(error)

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        if isinstance(error, QueueFullError):
            return _refuse(refusal(429, str(error), {"Retry-After": str(max(1, round(error.retry_after_s)))}))
        return _refuse(refusal(422, str(error)))

    @app.exception_handler(EngineDeadError)
    async def stopped(request: Request, error: EngineDeadError) -> Response:
        return _refuse(refusal(503, STOPPED))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return _refuse(refusal(500, FAILED))

    @app.post("/v1/completions", responses=STREAM)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue prompts."""
        answer = CompletionAnswer(body, service.name, service.tokenizer, body.prompts, service.mark)
        return await service.answer(request, answer)

    @app.post("/v1/chat/completions", responses=STREAM)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Continue a chat."""
        prompt = await service.chat_prompt(body)
        return await service.answer(request, ChatAnswer(body, service.name, service.tokenizer, [prompt], service.mark))

    @app.post("/abort")
    async def abort(body: AbortRequest) -> Any:
        """End an answer that is under way."""
        return await service.abort(body.request_id)

    @app.get("/v1/models")
    async def models() -> Any:
        """What is served."""
        return service.models()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE, headers={"Content-Security-Policy": _ONLY_ITSELF})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(await service.render_metrics(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/health")
    async def health() -> Any:
        """Whether the engine works."""
        return service.health()

    @app.get("/ready")
    async def ready() -> Any:
        """Whether new requests may come."""
        return service.ready()

    return app
