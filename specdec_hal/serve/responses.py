"""OpenAI's Responses API for text, mapped to a chat. Nothing is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr
from starlette.exceptions import HTTPException

from specdec_hal.config.schema import UnicodeText
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.runner import RequestOutput, StreamDelta
from specdec_hal.serve.answers import ChatAnswer, Json, encode
from specdec_hal.serve.bodies import validated
from specdec_hal.serve.forms import TextFormat
from specdec_hal.serve.protocol import (
    INT64_MAX,
    MAX_ITEMS,
    MAX_LOGPROBS,
    Body,
    ChatCompletionRequest,
    Message,
    SamplingKeys,
    Verbosity,
)
from specdec_hal.text import short

if TYPE_CHECKING:
    from typing_extensions import Self

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` for log-probabilities."""


class InputMessage(Message):
    """A message in an input; `status` and `phase`, which clients send back, are ignored."""

    status: str | None = None
    phase: str | None = None


class TextSettings(Body):
    """`text`: the format; verbosity is ignored."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningSettings(Body):
    """`reasoning`: `effort` is a variable of the chat template; there are no summaries of thoughts."""

    effort: UnicodeText | None = None
    summary: Literal["auto"] | None = None


class ResponseStreamOptions(Body):
    """Ignored: chunks are not padded."""

    include_obfuscation: bool = False


def _messages(value: Any) -> Any:
    """The messages of an input, without thoughts sent back by the client, as in chat templates."""
    if not isinstance(value, list):
        return value
    if len(value) >= MAX_ITEMS:
        raise ValueError(f"expected at most {MAX_ITEMS - 1} items, got {len(value)}")
    for at, item in enumerate(value):
        kind = item.get("type", "message") if isinstance(item, dict) else "message"
        if kind not in ("message", "reasoning"):
            raise ValueError(f"expected items of type 'message', got {short(kind)} in item {at}; text alone is served")
    return [item for item in value if not (isinstance(item, dict) and item.get("type") == "reasoning")]


class ResponsesRequest(SamplingKeys):
    """POST /v1/responses. `input`: text, or messages. `store` is ignored."""

    input: Annotated[
        UnicodeText | Annotated[list[InputMessage], Field(min_length=1), Field(fail_fast=True)],
        BeforeValidator(_messages),
    ]
    instructions: UnicodeText | None = Field(None, description="a system message before the input")
    max_output_tokens: Annotated[int | None, Field(ge=1, le=INT64_MAX)] = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    truncation: Literal["disabled", "auto"] | None = Field(None, description="ignored: no item is dropped")
    background: Literal[False] | None = None
    # vLLM's
    include_reasoning: bool = Field(True, description="false: omit thoughts")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="variables of the chat template, such as enable_thinking"
    )
    enable_response_messages: Literal[False] | None = None

    _prompt: str | None = PrivateAttr(None)

    @property
    def text_format(self) -> Json:
        """`text.format`, or its default."""
        found = None if self.text is None or self.text.format is None else self.text.format
        return {"type": "text"} if found is None else found.model_dump(by_alias=True, exclude_none=True)

    def chat(self) -> ChatCompletionRequest:
        """The equivalent chat. BodyError for keys that do not fit together."""
        given: list[Any] = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else [*self.input]
        if self.instructions is not None:
            given.insert(0, {"role": "system", "content": self.instructions})
        same = {*SamplingKeys.model_fields, "top_logprobs", "chat_template_kwargs", "include_reasoning"}
        values: dict[str, Any] = {name: getattr(self, name) for name in same & self.model_fields_set}
        values["messages"] = given
        if self.text is not None and self.text.format is not None:
            values["response_format"] = self.text.format.response_format
        values["max_completion_tokens"] = self.max_output_tokens
        values["logprobs"] = self.top_logprobs > 0 or LOGPROBS in (self.include or ())
        values["reasoning_effort"] = self.reasoning.effort if self.reasoning else None
        found = validated(ChatCompletionRequest, values)
        found._prompt = self._prompt
        return found

    def settled(self, template: ChatTemplate | None) -> Self:
        """See :class:`Body`."""
        found = super().settled(template).model_copy(update={"input": ""})
        found._prompt = self.chat().settled(template).prompt_text
        return found


_PART = {"message": "output_text", "reasoning": "reasoning_text"}
"""The type of an item's single part, used in event names."""


@dataclass
class ResponsesAnswer(ChatAnswer):
    """Of /v1/responses: a message, after a thought if there is one."""

    asked: ResponsesRequest = field(kw_only=True)
    _output: list[Json] = field(default_factory=list)
    """Items; the last one grows until the answer ends."""
    _events_sent: int = 0
    _ended_by: str | None = None
    """The reason, once it has ended."""

    prefix = "resp"

    def key_of(self, parameter: str) -> str | None:
        """See :class:`Answer`."""
        key = super().key_of(parameter)
        return {"messages": "input", "response_format": "text"}.get(key or "", key)

    def whole(self, deltas: Sequence[StreamDelta], outputs: Iterable[RequestOutput]) -> Json:
        """The answer in one piece."""
        for delta in deltas:
            self.chunk(0, delta)
        list(self._last_item())
        return self._response(self._status, outputs)

    def opening(self) -> bytes:
        """The first events of a stream."""
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=self._response("in_progress")) for kind in kinds)

    def chunk(self, index: int, delta: StreamDelta) -> bytes:
        """The events of one more piece."""
        said = self._said(index, delta, "delta")
        self._ended_by = delta.finish_reason or self._ended_by
        events = list[bytes]()
        if thought := said.get("reasoning_content"):
            events += self._grow("reasoning", thought, [])
        if said["content"] or delta.logprobs:
            events += self._grow("message", said["content"], self._scores(delta))
        return b"".join(events)

    def closing(self, outputs: Iterable[RequestOutput]) -> bytes:
        """The last events of a stream."""
        ends = b"".join(self._last_item())
        return ends + self._event(f"response.{self._status}", response=self._response(self._status, outputs))

    def failure(self, error: HTTPException) -> bytes:
        """The event of a failed stream."""
        what = {"code": "server_error", "message": error.detail}
        return self._event("response.failed", response={**self._response("failed"), "error": what})

    @property
    def _status(self) -> str:
        return "completed" if self._ended_by == "stop" else "incomplete"

    def _event(self, kind: str, **parts: Any) -> bytes:
        data = encode({"type": kind, "sequence_number": self._events_sent, **parts})
        self._events_sent += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)

    def _grow(self, kind: str, text: str, scores: list[Json]) -> Iterator[bytes]:
        if not self._output or self._output[-1]["type"] != kind:
            yield from self._end_item("completed")
            yield from self._begin_item(kind)
        (part,) = self._output[-1]["content"]
        part["text"] += text
        if kind == "message":
            part["logprobs"] += scores
        more = {"logprobs": scores} if kind == "message" else {}
        yield self._event(f"response.{_PART[kind]}.delta", **self._place(), content_index=0, delta=text, **more)

    def _begin_item(self, kind: str) -> Iterator[bytes]:
        own: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
        name = f"{'msg' if kind == 'message' else 'rs'}_{self.item_ids.getrandbits(128):032x}"
        item = {"id": name, "type": kind, "status": "in_progress", "content": [], **own}
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
        more: Json = {"annotations": [], "logprobs": []} if kind == "message" else {}
        item["content"] = [part := {"type": _PART[kind], "text": "", **more}]
        yield self._event("response.content_part.added", **self._place(), content_index=0, part=part)

    def _last_item(self) -> Iterator[bytes]:
        """End the answer; without text it still has a message."""
        if not self._output:
            yield from self._begin_item("message")
        yield from self._end_item(self._status)

    def _end_item(self, status: str) -> Iterator[bytes]:
        """Complete the current item, if any."""
        if not self._output:
            return
        item = self._output[-1]
        item["status"] = status
        (part,), place = item["content"], {**self._place(), "content_index": 0}
        more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        yield self._event(f"response.{part['type']}.done", **place, text=part["text"], **more)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._event("response.output_item.done", output_index=place["output_index"], item=item)

    def _place(self) -> Json:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _response(self, status: str, outputs: Iterable[RequestOutput] | None = None) -> Json:
        asked = self.asked
        reasons = {"length": "max_output_tokens", "cancelled": "abort"}
        cut = {"reason": reasons.get(self._ended_by or "", self._ended_by)} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self.model,
            "output": self._output,
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": asked.reasoning.effort if asked.reasoning else None, "summary": None},
            "store": False,
            "temperature": self.params.temperature,
            "text": {"format": asked.text_format, "verbosity": asked.text.verbosity if asked.text else None},
            "tool_choice": asked.tool_choice or "auto",
            "tools": [],
            "top_logprobs": asked.top_logprobs,
            "top_p": self.params.top_p,
            "truncation": asked.truncation or "disabled",
            "seed": self.seeds[0] if self.seeds else None,
            "user": asked.user,
            "usage": None if outputs is None else self._counts(outputs),
        }

    def _counts(self, outputs: Iterable[RequestOutput]) -> Json:
        """`reasoning_tokens`: tokens of the thought's text."""
        counts = self._usage(outputs)
        prompt, completion, total = (counts.pop(f"{name}_tokens") for name in ("prompt", "completion", "total"))
        cached = counts.pop("prompt_tokens_details")["cached_tokens"]
        thoughts = [item["content"][0]["text"] for item in self._output if item["type"] == "reasoning"]
        thought = sum(len(self.tokenizer.encode(text, add_special_tokens=False)) for text in thoughts)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": min(thought, completion)},
            "total_tokens": total,
            **counts,
        }
