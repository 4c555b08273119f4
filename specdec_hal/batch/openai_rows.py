"""OpenAI's batch lines: the server's answer to a body, as a row of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from specdec_hal.batch.rows import Answered, Line, read_json, seeded
from specdec_hal.config.schema import UnicodeText
from specdec_hal.engine import LLM
from specdec_hal.engine.async_engine import EngineInfo
from specdec_hal.engine.rendering import Renderer
from specdec_hal.errors import RequestError
from specdec_hal.models.chat import load_chat_template, missing_template
from specdec_hal.runner import Request, RequestOutput, StreamDelta
from specdec_hal.serve.answers import Answer, ChatAnswer, CompletionAnswer, check_model, error_body
from specdec_hal.serve.protocol import Body, ChatCompletionRequest, CompletionRequest, first_problem
from specdec_hal.serve.responses import ResponsesAnswer, ResponsesRequest
from specdec_hal.text import clip

BODIES: dict[str, type[CompletionRequest | ChatCompletionRequest | ResponsesRequest]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/responses": ResponsesRequest,
}
"""Allowed values of `url`."""

_Model = TypeVar("_Model", bound=Body)
_TEXT: TypeAdapter[str] = TypeAdapter(UnicodeText)


class BatchLine(Body):
    """A line of the input."""

    custom_id: UnicodeText
    method: Literal["POST"]
    url: Literal["/v1/completions", "/v1/chat/completions", "/v1/responses"]
    body: dict[str, Any]


class Endpoints:
    """Handles request bodies as the server does."""

    def __init__(self, llm: LLM) -> None:
        tokenizer = llm.runner.tokenizer
        assert tokenizer is not None  # LLM has loaded it
        self._tokenizer, self._defaults = tokenizer, llm.default_params
        self._config, self._info = llm.runner.config, EngineInfo.of(llm.runner)

    def answer(self, number: int, asked: BatchLine) -> tuple[Answer, list[Request]]:
        """The answer builder for the body of row `number`, and its engine requests.

        The result is deterministic. RequestError for an unsupported request, HTTPException for another model.
        """
        request = _checked(BODIES[asked.url], asked.body)
        check_model(request.model, self._config.served_name)
        if request.stream:
            raise RequestError("stream: expected false in a batch, got true; leave it out")
        answer = self._answer_to(request, number)
        answer.id = f"{answer.prefix}-{number}"
        tokens = [
            self._tokenizer.encode(prompt, answer.request.add_special_tokens) if isinstance(prompt, str) else prompt
            for prompt in answer.prompts
        ]
        return answer, answer.requests(seeded(self._defaults, number), self._info, tokens)

    def _answer_to(self, request: CompletionRequest | ChatCompletionRequest | ResponsesRequest, number: int) -> Answer:
        name, settings = self._config.served_name, self._config.serve
        if isinstance(request, CompletionRequest):
            return CompletionAnswer(request, name, self._tokenizer, request.prompts, created=0)
        chat = request.chat() if isinstance(request, ResponsesRequest) else request
        chat.check_calls(settings.tool_call_parser)
        prompts = [self._renderer.render_here(chat.template_arguments)]
        common: dict[str, Any] = {
            "created": 0,
            "reasoning_parser": settings.reasoning_parser,
            "tool_call_parser": settings.tool_call_parser,
            "item_ids": Random(number),
        }
        if isinstance(request, ResponsesRequest):
            return ResponsesAnswer(chat, name, self._tokenizer, prompts, asked=request, **common)
        return ChatAnswer(chat, name, self._tokenizer, prompts, **common)

    @cached_property
    def _renderer(self) -> Renderer:
        template = load_chat_template(self._config.model_path, self._config.serve.chat_template)
        if template is None:
            raise missing_template(self._config.served_name)
        return Renderer(template)


class OpenAILine(Line):
    """One of OpenAI's batch lines."""

    def __init__(self, number: int, line: bytes, endpoints: Endpoints) -> None:
        super().__init__(number)
        self._given, self._endpoints = read_json(line), endpoints
        self._status = 400
        """Of the error, if it is one."""
        self._answer: Answer | None = None
        self._deltas: dict[str, list[StreamDelta]] = {}

    def requests(self) -> list[Request]:
        """One for each choice of each prompt."""
        try:
            self._answer, requests = self._endpoints.answer(self.number, _checked(BatchLine, self._given))
        except HTTPException as error:
            self._status = error.status_code
            raise RequestError(error.detail) from error
        self._deltas = {request.request_id: [] for request in requests}
        return [replace(request, callback=self._deltas[request.request_id].append) for request in requests]

    def answered(self, outputs: Sequence[RequestOutput]) -> Answered:
        """The body of the server's answer; an error if any choice is one."""
        wrong = next((output for output in outputs if output.finish_reason in ("error", "timeout")), None)
        if wrong is not None:
            self._status = 500
            return self._row(None, wrong.error, outputs)
        assert self._answer is not None
        deltas = [StreamDelta.joined(self._deltas[output.request_id]) for output in outputs]
        body = self._answer.whole(deltas, outputs)
        return self._row({"status_code": 200, "request_id": f"req-{self.number}", "body": body}, None, outputs)

    def failed(self, error: str) -> Answered:
        """An error with the type of the server's error as its code."""
        return self._row(None, error, ())

    def _row(self, response: dict[str, Any] | None, message: str | None, outputs: Sequence[RequestOutput]) -> Answered:
        error = None
        if message is not None:
            error = {"code": error_body(self._status, message)["error"]["type"], "message": clip(message)}
        row = {"id": f"batch_req-{self.number}", "custom_id": self._custom_id, "response": response, "error": error}
        return Answered.of(self.number, row, outputs, error is not None)

    @property
    def _custom_id(self) -> str | None:
        """None if it is not text."""
        try:
            return _TEXT.validate_python(self._given["custom_id"])
        except ValidationError:
            return None


def _checked(kind: type[_Model], given: Any) -> _Model:
    """RequestError as the server words it."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise RequestError(first_problem(error.errors(), given)[0]) from error
