"""The server's log on stderr: start, a line per request, and end, as text or JSON lines."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_hal.config.schema import Config, ServeSettings
from specdec_hal.serve import relay
from specdec_hal.serve.direct import SEND

if TYPE_CHECKING:
    from specdec_hal.runner import ModelRunner

_log = logging.getLogger("specdec_hal.serve")
_access = logging.getLogger("specdec_hal.serve.access")


def configure(settings: ServeSettings) -> None:
    """Log this package to stderr according to `serve.log_format` and `serve.access_log`.

    As JSON, also other loggers, warnings, and exceptions that nobody catches; :mod:`.relay` has the rest.
    """
    handler = logging.StreamHandler(sys.stderr)
    if settings.log_format == "json":
        handler.setFormatter(_Json())
        logging.getLogger().addHandler(handler)
        logging.captureWarnings(True)
        sys.excepthook, sys.unraisablehook, threading.excepthook = _uncaught, _unraisable, _uncaught_in_thread
    else:
        handler.setFormatter(_Text())
    package = logging.getLogger("specdec_hal")
    package.handlers[:] = [handler]
    package.setLevel(logging.INFO)
    package.propagate = False
    _access.setLevel(logging.INFO if settings.access_log else logging.WARNING)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log.critical("an uncaught exception", exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if not issubclass(args.exc_type, SystemExit):  # ends a thread silently
        name = "" if args.thread is None else args.thread.name
        error = args.exc_value or args.exc_type()
        _log.error("thread '%s' has ended", name, exc_info=(args.exc_type, error, args.exc_traceback))


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    error = args.exc_value or args.exc_type()
    message = args.err_msg or "Exception ignored in"
    _log.error("%s: %r", message, args.object, exc_info=(args.exc_type, error, args.exc_traceback))


def loading(config: Config) -> None:
    """Log that the model is loaded now, which can take minutes."""
    _event("loading", {"model": config.model_path})


def started(config: Config, runner: ModelRunner, load_s: float) -> None:
    """Log the served model. `load_s`: seconds of loading."""
    fields: dict[str, Any] = {
        "model": config.served_name,
        "backend": runner.backend.name,
        "method": config.speculative.method,
        "max_model_len": runner.max_model_len,
        "max_num_seqs": config.runner.max_num_seqs,
        "http_workers": config.serve.num_http_workers,
        "end_tokens": sorted(runner.end_tokens),
        "load_s": round(load_s, 1),
    }
    if runner.kv_cache_bytes:  # else it grows with the contexts
        fields["kv_cache_mib"] = round(runner.kv_cache_bytes / 2**20, 1)
    if runner.state_bytes:
        fields["states_mib"] = round(runner.state_bytes / 2**20, 1)
    _event("serving", fields)


def unread(client: tuple[str, int] | None) -> None:
    """Log that a client's connection has ended because the client did not read."""
    _log.warning("a client does not read (serve.send_timeout_s)", extra={"fields": {"client": _address(client)}})


def _address(client: tuple[str, int] | None) -> str:
    return "" if client is None else f"{client[0]}:{client[1]}"


def ending(running: int) -> None:
    """Log the start of the shutdown."""
    _event("shutting down", {"requests": running})


def ended() -> None:
    """Log that it has ended."""
    _event("ended", {})


class AccessLog:
    """ASGI middleware that logs each request after its answer or its client's disconnect."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, answer = time.perf_counter(), 0, b""
        scope.setdefault(SEND, send)

        async def watch(message: Message) -> None:
            nonlocal status, answer
            if message["type"] == "http.response.start":
                status = message["status"]
                answer = dict(message.get("headers", ())).get(b"x-request-id", b"")
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            fields = {
                "client": _address(scope.get("client")),
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round((time.perf_counter() - began) * 1e3, 1),
            }
            if answer:
                fields["request_id"] = answer.decode("latin-1")
            _access.info("request", extra={"fields": fields})


def _event(message: str, fields: Mapping[str, Any]) -> None:
    _log.info(message, extra={"fields": fields})


class _Text(logging.Formatter):
    """``2026-11-25 07:00:00 INFO serving model=tiny backend=cuda``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with the record's fields after its message."""
        fields = getattr(record, "fields", {})
        pairs = (f"{key}={json.dumps(value) if _quoted(value) else value}" for key, value in fields.items())
        return " ".join((super().formatMessage(record), *pairs))


def _quoted(value: Any) -> bool:
    return isinstance(value, str) and (not value.isprintable() or not value or " " in value or '"' in value)


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """As logging has it."""
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            fields["exception"] = record.exc_text
        return relay.entry(record.created, record.levelname, record.name, record.getMessage(), **fields)
