"""An engine behind HTTP: authentication, limits and the requests in progress."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from specdec_hal.config.schema import ServeSettings
from specdec_hal.engine.async_engine import AsyncEngine, RequestStream
from specdec_hal.engine.rendering import Renderer
from specdec_hal.errors import EngineDeadError, QueueFullError, RequestError
from specdec_hal.models import Tokenizer
from specdec_hal.models.chat import ChatTemplate, missing_template
from specdec_hal.runner import RequestOutput, StreamDelta
from specdec_hal.serve.answers import Answer, ChatAnswer, Json, check_model, encode, refusal, token_text
from specdec_hal.serve.bodies import Bodies, BodyError
from specdec_hal.serve.direct import SEND
from specdec_hal.serve.forms import WrongKeyError
from specdec_hal.serve.metrics import Observed, ServerMetrics, Timing
from specdec_hal.serve.protocol import (
    ChatCompletionRequest,
    DetokenizeRequest,
    TemplateKeys,
    TokenizeRequest,
    in_api,
)
from specdec_hal.serve.request_limit import RequestLimit
from specdec_hal.serve.responses import ResponsesAnswer, ResponsesRequest
from specdec_hal.serve.split.remote import RemoteEngine
from specdec_hal.tensors.memory import trim_heap

_log = logging.getLogger("specdec_hal")

FAILED = "the request failed inside the engine; the server's log has the cause"
_SHORT = 4096
"""Most characters or tokens processed on this thread, in some 0.5 ms, instead of another."""
_LONG = 1 << 17
"""Characters from which encoding, at some 100 bytes each, is followed by releasing memory."""
STOPPED = "the engine has stopped; the server must be started again"

_KEY = re.compile(r"(?:request '[^']*': )?(?:empty |at most \d+ )?(\w+)")
"""The parameter that an engine's message begins with. The engine may be another process, which sends only the text."""

_OWN_FAULT = re.compile(r"(structured|allowed_token_ids|bad_token_ids|bad_words)(?:\.\w+)?: ")
"""Begins the error of a request that its own parameters have ended."""

_Made = TypeVar("_Made")


class Service:
    """An engine behind HTTP: authentication, limits and the requests in progress."""

    def __init__(
        self,
        engine: AsyncEngine | RemoteEngine,
        name: str,
        settings: ServeSettings,
        template: ChatTemplate | None,
        peers: RemoteEngine | None = None,
    ) -> None:
        if engine.tokenizer is None:
            raise RequestError("serving needs a tokenizer; give the engine one")
        self.engine, self.name, self.settings = engine, name, settings
        self.renderer = None if template is None else Renderer(template)
        self.bodies = Bodies(template, settings.max_body_bytes)
        self.peers, self.mark = peers, "" if peers is None else peers.mark
        self.tokenizer: Tokenizer = engine.tokenizer
        self.metrics = ServerMetrics(name, engine.info)
        self.live: dict[str, RequestStream] = {}
        """By the id of their answers."""
        self._request_limit = RequestLimit(settings.max_concurrent_requests) if peers is None else peers.request_limit

    # ---- generation

    async def answer(self, http: Request, answer: Answer) -> Response:
        """Generate a stream of events or a whole answer."""
        check_model(answer.request.model, self.name)
        if not self._request_limit.take():
            most = f"expected at most {self._request_limit.most} requests at the same time; try again later"
            raise refusal(429, most, {"Retry-After": "1"})
        timing = Timing(self.metrics)
        try:
            stream = await self._submit(answer)
            timing.max_tokens = answer.params.max_new_tokens
        except BaseException:
            self._request_limit.give()
            raise
        self.live[answer.id] = stream
        if answer.request.stream:
            return _Events(self, answer, stream, timing)
        return await self._until_gone(http, answer, stream, timing)

    def close(self, answer: Answer, stream: RequestStream, timing: Timing) -> None:
        """Clean up after a complete or abandoned answer."""
        stream.close()
        timing.ended(list(stream.outputs.values()))
        if self.live.pop(answer.id, None) is not None:
            self._request_limit.give()

    async def _submit(self, answer: Answer) -> RequestStream:
        engine = self.engine
        token_ids = [
            await self._encode(prompt, answer.request.add_special_tokens) if isinstance(prompt, str) else prompt
            for prompt in answer.prompts
        ]
        try:
            requests = answer.requests(engine.default_params, engine.info, token_ids)
            stream = await engine.submit(requests)
        except (QueueFullError, WrongKeyError):
            raise
        except RequestError as error:
            named = _KEY.match(message := in_api(str(error)))
            raise BodyError(message, named and answer.key_of(named[1])) from error
        self.metrics.prompt_tokens += sum(len(request.prompt_token_ids) for request in requests)
        return stream

    async def chat_answer(self, request: ChatCompletionRequest) -> ChatAnswer:
        """The answer to a chat. RequestError as from :meth:`chat_prompt`, and for tools without a parser."""
        settings = self.settings
        request.check_calls(settings.tool_call_parser)
        prompt = [await self.chat_prompt(request)]
        reasoning, calls = settings.reasoning_parser, settings.tool_call_parser
        return ChatAnswer(
            request, self.name, self.tokenizer, prompt, self.mark, reasoning_parser=reasoning, tool_call_parser=calls
        )

    async def responses_answer(self, request: ResponsesRequest) -> ResponsesAnswer:
        """The answer to a Responses request. RequestError as from :meth:`chat_prompt`."""
        chat = request.chat()
        prompt, parser = [await self.chat_prompt(chat)], self.settings.reasoning_parser
        return ResponsesAnswer(
            chat, self.name, self.tokenizer, prompt, self.mark, asked=request, reasoning_parser=parser
        )

    async def chat_prompt(self, keys: TemplateKeys) -> str:
        """The prompt text of a chat. RequestError without a template, or if it refuses the messages."""
        if self.renderer is None:
            raise missing_template(self.name)
        if keys.prompt_text is not None:
            return keys.prompt_text
        return await self.renderer.render(keys.template_arguments)

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = await _off_loop(len(text), partial(self.tokenizer.encode, text, add_special_tokens))
        if len(text) >= _LONG:
            await asyncio.to_thread(trim_heap)
        return ids

    async def _until_gone(self, http: Request, answer: Answer, stream: RequestStream, timing: Timing) -> Response:
        """The whole answer; a disconnect aborts it."""
        whole = asyncio.ensure_future(self._whole(answer, stream, timing))
        gone = asyncio.ensure_future(_disconnected(http.receive))
        try:
            await asyncio.wait((whole, gone), return_when=asyncio.FIRST_COMPLETED)
            if not whole.done():
                return Response(status_code=499)
            return Response(encode(whole.result()), headers=_headers(answer), media_type="application/json")
        finally:
            whole.cancel()
            gone.cancel()
            self.close(answer, stream, timing)

    async def _whole(self, answer: Answer, stream: RequestStream, timing: Timing) -> Json:
        deltas: dict[str, list[StreamDelta]] = {}
        while gained := await stream.read():
            timing.gained(gained)
            for delta in gained:
                deltas.setdefault(delta.request_id, []).append(delta)
        outputs = in_order(stream)
        for output in outputs:
            failure = failed(output)
            if failure is not None:
                raise failure
        return answer.whole([StreamDelta.joined(deltas[output.request_id]) for output in outputs], outputs)

    # ---- everything else

    async def abort(self, request_id: str) -> Json:
        """End an answer with its output so far."""
        if not self.abort_here(request_id) and not (self.peers and await self.peers.abort_elsewhere(request_id)):
            raise refusal(404, "no such request in progress")
        return {"id": request_id, "aborted": True}

    def abort_here(self, request_id: str) -> bool:
        """End an answer of this process with its output so far; False for an unknown id."""
        stream = self.live.get(request_id)
        if stream is not None:
            stream.close()
        return stream is not None

    def observed(self) -> Observed:
        """Observations for another process."""
        return self.metrics.observed()

    async def render_metrics(self) -> bytes:
        """For Prometheus, of all processes."""
        others = [] if self.peers is None else await self.peers.observed()
        return self.metrics.render(await self.engine.counts(), others)

    def abort_all(self) -> None:
        """End every answer with its output so far."""
        for stream in self.live.values():
            stream.close()

    def models(self) -> Json:
        """The one model, in a list."""
        return {"object": "list", "data": [self.model(self.name)]}

    def model(self, name: str) -> Json:
        """The one model; 404 for the name of another."""
        check_model(name, self.name)
        card = {"id": self.name, "object": "model", "created": 0, "owned_by": "specdec_hal"}
        return {**card, "max_model_len": self.engine.info.max_model_len}

    async def tokenize(self, request: TokenizeRequest) -> bytes:
        """The prompt tokens of this prompt or these messages, as in vLLM."""
        check_model(request.model, self.name)
        text = request.prompt if request.messages is None else await self.chat_prompt(request)
        tokens = await self._encode(text or "", request.adds_special_tokens)

        def answer() -> bytes:
            names = [token_text(self.tokenizer, token) for token in tokens] if request.return_token_strs else None
            length = self.engine.info.max_model_len
            return encode({"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": names})

        return await _off_loop(len(tokens), answer)

    async def detokenize(self, request: DetokenizeRequest) -> bytes:
        """The text of tokens. WrongKeyError for one outside the tokenizer's vocabulary."""
        check_model(request.model, self.name)
        tokens, size = request.tokens, self.tokenizer.vocab_size

        def answer() -> bytes:
            if (largest := max(tokens, default=-1)) >= size:
                raise WrongKeyError("tokens", f"token {largest} is outside the vocabulary [0, {size})")
            return encode({"prompt": self.tokenizer.decode(tokens)})

        return await _off_loop(len(tokens), answer)

    def health(self) -> Json:
        """503 once the engine has stopped."""
        if not self.engine.alive:
            raise refusal(503, STOPPED)
        return {"status": "ok"}

    def ready(self) -> Json:
        """503 while new requests are refused."""
        if self._request_limit.full:
            raise refusal(503, "too many requests are in progress")
        if self.engine.unready:
            raise refusal(503, self.engine.unready)
        return self.health()


class _Events(Response):
    """Server-sent events: the choices' deltas, then the end or an error. One message per step."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, answer: Answer, stream: RequestStream, timing: Timing) -> None:
        self._service, self._answer, self._stream, self._timing = service, answer, stream, timing
        self.status_code, self.background = 200, None
        self.init_headers({**_headers(answer), "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send, scope.get(SEND, send)))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((writing, gone), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            writing.cancel()
            gone.cancel()
            self._service.close(self._answer, self._stream, self._timing)

    async def _write(self, start: Send, send: Send) -> None:
        answer, stream, gained_at = self._answer, self._stream, self._timing.gained
        await start({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        events = answer.opening()
        try:
            while not stream.ended:
                if events:
                    await send({"type": "http.response.body", "body": events, "more_body": True})
                gained = await stream.read()
                gained_at(gained)
                events = b"".join(
                    [
                        answer.chunk(index_of(delta.request_id), delta)
                        for delta in gained
                        if delta.finish_reason not in ("error", "timeout")
                    ]
                )
            outputs = in_order(stream)
            failure = next(filter(None, map(failed, outputs)), None)
        except EngineDeadError:
            failure = refusal(503, STOPPED)
        events += answer.closing(outputs) if failure is None else answer.failure(failure)
        await send({"type": "http.response.body", "body": events, "more_body": False})


def _headers(answer: Answer) -> dict[str, str]:
    return {"X-Request-Id": answer.id}


def index_of(request_id: str) -> int:
    """The choice of an engine request."""
    return int(request_id.rpartition("-")[2])


def in_order(stream: RequestStream) -> list[RequestOutput]:
    """The outputs in the order of the choices."""
    return sorted(stream.outputs.values(), key=lambda output: index_of(output.request_id))


def failed(output: RequestOutput) -> HTTPException | None:
    """The error of a request that the engine did not finish."""
    if output.finish_reason == "timeout":
        return refusal(504, output.error)
    if output.finish_reason == "error" and (named := _OWN_FAULT.match(output.error)):
        return BodyError(in_api(output.error), named[1])
    if output.finish_reason == "error":
        _log.error("request '%s' failed: %s", output.request_id, output.error)
        return refusal(500, FAILED)
    return None


async def _off_loop(size: int, work: Callable[[], _Made]) -> _Made:
    """Run long work on another thread, to keep the event loop responsive."""
    return work() if size <= _SHORT else await asyncio.to_thread(work)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
