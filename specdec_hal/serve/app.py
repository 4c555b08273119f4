"""The routes: generation, models, health. Every error is an answer in OpenAI's form, without a path or a trace."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

import specdec_hal
from specdec_hal.errors import EngineDeadError, QueueFullError, RequestError, WorkerError
from specdec_hal.serve.answers import ERRORS, CompletionAnswer, Json, error_body, refusal, refuse
from specdec_hal.serve.bodies import BodyError
from specdec_hal.serve.direct import Direct
from specdec_hal.serve.forms import WrongKeyError
from specdec_hal.serve.gate import METRICS, Gate
from specdec_hal.serve.protocol import (
    AbortRequest,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from specdec_hal.serve.responses import ResponsesRequest
from specdec_hal.serve.service import FAILED, STOPPED, Service
from specdec_hal.text import short

STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
"""The streamed response in the OpenAPI document."""
PAGE = Path(__file__).with_name("page.html")
_ONLY_ITSELF = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page may only call this server, and must not be framed."""


class Route(APIRoute):
    """Calls an endpoint with a `body` directly: FastAPI's way takes a quarter of the time of a request."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI has it."""
        parameters = get_type_hints(self.endpoint)
        kind, endpoint = parameters.get("body"), self.endpoint
        if kind is None:
            return super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            _expect_json(request)
            if not (raw := await request.body()):
                raise BodyError("expected JSON, got an empty body")
            try:
                body = await request.app.state.bodies.read(kind, raw)
            except WorkerError as error:
                raise BodyError(str(error), status=503) from error
            given = {"request": request} if "request" in parameters else {}
            answer = await endpoint(body, **given)
            return answer if isinstance(answer, Response) else JSONResponse(answer)

        return handle_json


def _application() -> FastAPI:
    """With Swagger's page at /docs, if its files are installed locally."""
    values: Json = {"title": "specdec-hal", "version": specdec_hal.__version__, "redoc_url": None, "responses": ERRORS}
    try:
        offline: Any = import_module("fastapi_offline")
    except ModuleNotFoundError:
        return FastAPI(docs_url=None, **values)
    app: FastAPI = offline.FastAPIOffline(docs_url="/docs", static_url="/docs/static", **values)
    return app


def _document(app: FastAPI, with_key: bool, open_metrics: bool) -> Json:
    """The OpenAPI document without FastAPI's status 422."""
    document = FastAPI.openapi(app)
    if with_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        if open_metrics:
            document["paths"][METRICS]["get"]["security"] = []
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    return document


def _expect_json(request: Request) -> None:
    """Require JSON as content type, which cross-site forms cannot send."""
    given = request.headers.get("content-type", "nothing")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise refusal(400, f"Content-Type: expected application/json, got {short(given)}")


def make_app(service: Service, api_key: str | None = None) -> FastAPI:
    """The application; `api_key` None: no authentication."""
    app = _application()
    app.state.bodies, app.router.route_class = service.bodies, Route
    app.openapi = partial(_document, app, api_key is not None, service.settings.open_metrics)  # type: ignore[method-assign]
    app.add_middleware(Gate, key=api_key, settings=service.settings)
    if origins := service.settings.allowed_origins:  # outermost: CORS preflights have no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )

    @app.exception_handler(HTTPException)
    async def refused_here(request: Request, error: HTTPException) -> Response:
        return refuse(error)

    @app.exception_handler(BodyError)
    async def invalid(request: Request, error: BodyError) -> Response:
        headers = {"Retry-After": "1"} if error.status_code == 503 else None
        return JSONResponse(error_body(error.status_code, error.detail, error.param), error.status_code, headers)

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        if isinstance(error, QueueFullError):
            return refuse(refusal(429, str(error), {"Retry-After": str(max(1, round(error.retry_after_s)))}))
        param = error.param if isinstance(error, WrongKeyError) else None
        return JSONResponse(error_body(400, str(error), param), 400)

    @app.exception_handler(WorkerError)
    async def lost(request: Request, error: WorkerError) -> Response:
        return refuse(refusal(503, str(error), {"Retry-After": "1"}))

    @app.exception_handler(EngineDeadError)
    async def stopped(request: Request, error: EngineDeadError) -> Response:
        return refuse(refusal(503, STOPPED))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return refuse(refusal(500, FAILED))

    @app.post("/v1/completions", responses=STREAM)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue prompts."""
        answer = CompletionAnswer(body, service.name, service.tokenizer, body.prompts, service.mark)
        return await service.answer(request, answer)

    @app.post("/v1/chat/completions", responses=STREAM)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Continue a chat."""
        return await service.answer(request, await service.chat_answer(body))

    @app.post("/v1/responses", responses=STREAM)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        """Continue a chat, in the form of OpenAI's Responses API."""
        return await service.answer(request, await service.responses_answer(body))

    @app.post("/abort")
    async def abort(body: AbortRequest) -> Any:
        """End a running answer."""
        return await service.abort(body.request_id)

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Any:
        """The tokens of a text, or of a chat's prompt."""
        return Response(await service.tokenize(body), media_type="application/json")

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Any:
        """The text of tokens, special tokens included."""
        return Response(await service.detokenize(body), media_type="application/json")

    @app.get("/v1/models")
    async def models() -> Any:
        """The served models."""
        return service.models()

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> Any:
        """The model, if it has this name."""
        return service.model(model)

    @app.get("/version")
    async def version() -> Any:
        """Of specdec_hal."""
        return {"version": specdec_hal.__version__}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE, headers={"Content-Security-Policy": _ONLY_ITSELF})

    @app.get(METRICS, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(await service.render_metrics(), media_type=CONTENT_TYPE_LATEST)

    @app.head("/health", include_in_schema=False)
    @app.head("/ping", include_in_schema=False)
    @app.post("/ping", include_in_schema=False)
    @app.get("/ping")
    @app.get("/health")
    async def health() -> Any:
        """Whether the engine is running."""
        return service.health()

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready")
    async def ready() -> Any:
        """Whether new requests are accepted."""
        return service.ready()

    app.middleware_stack = Direct(app.build_middleware_stack())
    return app
