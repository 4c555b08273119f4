"""Requests as the clients of other engines send them, and what they get for what is not served."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

from specdec_hal.serve.protocol import ChatCompletionRequest, CompletionRequest
from specdec_hal.serve.responses import ResponsesRequest
from tests.serve.conftest import MODEL, ROOT, Running
from tests.support.history_model import CONTEXT

PROMPT = [3, 5, 6, 5, 6]
CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "seed": 1}

BOTH: dict[str, Any] = {
    "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "x",
    "prompt_cache_key": "x", "prompt_cache_retention": "24h", "prediction": {"type": "content", "content": "abc"},
    "response_format": {"type": "text"}, "stop": None, "logit_bias": {}, "cache_salt": "x", "priority": 0,
    "use_beam_search": False, "length_penalty": 1.0, "return_tokens_as_token_ids": False, "request_id": "x",
    "session_id": "x", "stream_interval": 9, "truncation_side": "left", "thinking_token_budget": -1,
    "watermarking": False, "mm_payload": "none", "bad_words": [], "guided_json": None,
    "early_stopping": False, "stream_options": {"include_usage": True},
}  # fmt: skip
COMPLETIONS: dict[str, Any] = {**BOTH, "best_of": 1, "suffix": ""}
CHATS: dict[str, Any] = {
    **BOTH, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "functions": [], "function_call": "none",
    "modalities": ["text"], "audio": None, "reasoning_effort": "high", "verbosity": "low",
    "messages": [{"role": "user", "content": "abc", "id": "msg_1"}],
}  # fmt: skip


def choices(running: Running, path: str, body: dict[str, Any]) -> Any:
    answer = running.post(body, path)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


@pytest.mark.parametrize(
    ("path", "body", "keys"),
    [("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}, COMPLETIONS), (CHAT, ASKED, CHATS)],
    ids=["completions", "chat"],
)
def test_keys_that_change_nothing_are_taken(
    shared: Running, path: str, body: dict[str, Any], keys: dict[str, Any]
) -> None:
    plain = choices(shared, path, body)
    for name, value in keys.items():
        assert choices(shared, path, {**body, name: value}) == plain, name
    assert choices(shared, path, {**body, **keys}) == plain


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize(
    ("path", "key", "value", "message"),
    [
        (None, "response_format", {"type": "xml"}, "response_format.type: expected 'text', 'json_object'"),
        (None, "guided_json", {}, "guided_json: unknown key; it is not served"),
        (None, "structured_outputs", {"json": {}, "regex": "a"}, "structured_outputs: regex: expected one of"),
        (None, "bad_words", ["a", ""], "bad_words.1: String should have at least 1 character"),
        (None, "allowed_token_ids", [], "allowed_token_ids: List should have at least 1 item"),
        (None, "use_beam_search", True, "use_beam_search: expected False, got True; nothing else is served"),
        (None, "length_penalty", 2, "length_penalty: "),
        (None, "truncation_side", "right", "truncation_side: expected 'left', got 'right'; nothing else is served"),
        (None, "priority", 1, "priority: Input should be less than or equal to 0"),
        ("/v1/completions", "best_of", 2, "best_of: expected 1, as n, got 2"),
        ("/v1/completions", "suffix", "b", "suffix: expected '', got 'b'; nothing else is served"),
        ("/v1/completions", "prompt", 5, "prompt: Input should be a valid string, or Input should be a valid list"),
        ("/v1/completions", "prompt", ["a", 5], "prompt.1: Input should be a valid string"),
        (CHAT, "functions", [{"name": "f"}], "functions: List should have at most 0 items"),
        (CHAT, "modalities", ["text", "audio"], "modalities.1: expected 'text', got 'audio'"),
        (CHAT, "audio", {"voice": "x"}, "audio: unknown key; it is not served"),
        (CHAT, "web_search_options", {}, "web_search_options: unknown key; it is not served"),
        (CHAT, "chat_template", "x", "chat_template: unknown key; it is not served"),
        (CHAT, "verbosity", "much", "verbosity: expected 'low', 'medium' or 'high', got 'much'"),
        (None, "early_stopping", True, "early_stopping: expected False, got True; nothing else is served"),
        (None, "max_tokens", 1 << 63, "max_tokens: Input should be less than or equal to 9223372036854775807"),
        (CHAT, "tool_choice", "required", "tool_choice: expected 'none' or 'auto' without tools, got 'required'"),
        *(
            (CHAT, "tools", [tool(parameters)], "tools: expected an object as parameters of tool 0, got ")
            for parameters in ([1], [], "x", False)
        ),
    ],
)
def test_keys_that_would_change_the_answer_are_refused_by_name(
    shared: Running, path: str | None, key: str, value: Any, message: str
) -> None:
    bodies = {"/v1/completions": {"prompt": PROMPT}, CHAT: ASKED}
    for where, body in bodies.items() if path is None else [(path, bodies[path])]:
        for stream in (False, True):
            answer = shared.post({**body, key: value, "stream": stream}, where)
            error = answer.json()["error"]
            assert answer.status_code == error["code"] == 400 and error["type"] == "invalid_request_error"
            assert error["message"].startswith(message) and error["param"].startswith(key), error


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "file", "video_url"])
def test_a_part_of_another_type_is_refused_by_its_type(shared: Running, kind: str) -> None:
    part = {"type": kind, kind: {"url": "data:image/png;base64,AAAA"}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    with pytest.raises(openai.BadRequestError, match=f"expected a part of type 'text', got type '{kind}'") as refused:
        shared.openai.chat.completions.create(model=MODEL, messages=messages)
    assert refused.value.param == "messages.0.content.1"


def test_parts_by_every_name_of_text(shared: Running) -> None:
    for kind in ("text", "input_text", "output_text"):
        body = {**ASKED, "messages": [{"role": "user", "content": [{"type": kind, "text": "abc"}]}]}
        assert choices(shared, CHAT, body) == choices(shared, CHAT, ASKED)
    refusal = [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "c"}]},
    ]
    assert shared.post({**ASKED, "messages": [refusal[1]]}, CHAT).status_code == 200
    answer = shared.post({**ASKED, "messages": [{"role": "user", "content": [{"type": "text"}]}]}, CHAT)
    assert "expected text in a part of type 'text', got none" in answer.json()["error"]["message"]


def test_reasoning_effort_is_a_variable_of_the_template(running: Running) -> None:
    from specdec_hal.engine.rendering import Renderer
    from specdec_hal.models.chat import ChatTemplate

    running.service.renderer = Renderer(ChatTemplate("{{ {'low': 'a', 'high': 'bb'}[reasoning_effort] }}"))
    counts = [running.post({**ASKED, "reasoning_effort": effort}, CHAT).json()["usage"] for effort in ("low", "high")]
    assert [usage["prompt_tokens"] for usage in counts] == [1, 2]


@pytest.mark.parametrize("most", [(1 << 20) + 1, 1 << 31, (1 << 63) - 1])
@pytest.mark.parametrize(
    ("path", "body", "keys"),
    [
        ("/v1/completions", {"prompt": PROMPT}, ["max_tokens"]),
        (CHAT, {"messages": ASKED["messages"]}, ["max_tokens", "max_completion_tokens"]),
        ("/v1/responses", {"input": "abc"}, ["max_output_tokens"]),
    ],
    ids=["completions", "chat", "responses"],
)
def test_an_answer_ends_where_the_context_does_whatever_the_limit(
    shared: Running, path: str, body: dict[str, Any], keys: list[str], most: int
) -> None:
    """Limits above 1,048,576 were refused."""
    for key in keys:
        usage = shared.post({**body, key: most, "ignore_eos": True}, path).json()["usage"]
        assert usage["total_tokens"] == CONTEXT


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_every_chunk_has_the_usage_so_far(shared: Running, chat: bool, n: int) -> None:
    """As guidellm and vLLM's own benchmark ask; the key was refused."""
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 20, "n": n, "stream": True, "stream_options": options}
    asked["extra_body"] = {"ignore_eos": True, "return_token_ids": True}
    if chat:
        chunks = list(shared.openai.chat.completions.create(messages=[{"role": "user", "content": "abc"}], **asked))
    else:
        chunks = list(shared.openai.completions.create(prompt=[0, 1, 2], **asked))
    *parts, last = chunks
    seen = dict.fromkeys(range(n), 0)
    for part in parts:
        (choice,) = part.choices
        seen[choice.index] += len(choice.token_ids)
        counts = part.usage
        assert counts.completion_tokens == seen[choice.index] and counts.prompt_tokens == 3
        assert counts.total_tokens == 3 + seen[choice.index]
    assert last.usage.completion_tokens == sum(seen.values()) == 20 * n and last.choices == []


def test_continuous_usage_goes_with_the_usage(shared: Running) -> None:
    chunks = shared.openai.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=3, stream=True,
        extra_body={"stream_options": {"continuous_usage_stats": True}},
    )  # fmt: skip
    assert all(chunk.usage is None for chunk in chunks)


def test_the_requests_of_guidellm(shared: Running) -> None:
    """Version 0.8, which version 0.3's are like: 6 of 6 were refused."""
    common: dict[str, Any] = {"model": MODEL, "stream": True, "ignore_eos": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    old = {**common, "stop": None, "stream_options": options, "max_tokens": 8}
    text = {"role": "user", "content": [{"type": "text", "text": "abc"}]}
    item = {"role": "user", "content": [{"type": "input_text", "text": "abc"}]}
    for path, body, count in (
        ("/v1/completions", {**old, "prompt": "abc"}, "completion_tokens"),
        (CHAT, {**old, "messages": [text], "max_completion_tokens": 8}, "completion_tokens"),
        ("/v1/responses", {**common, "input": [item], "max_output_tokens": 8}, "output_tokens"),
    ):
        answer = shared.post(body, path)
        assert answer.status_code == 200
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert events[-1].get("response", events[-1])["usage"][count] == 8


def test_the_requests_of_lm_eval(shared: Running) -> None:
    """Version 0.4: log-likelihoods from echoed prompts of token ids, generations, and chats."""
    scored = {
        "model": MODEL, "prompt": [PROMPT, [1, 2]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
    }  # fmt: skip
    for choice, prompt in zip(
        choices(shared, "/v1/completions", {**scored, "echo": True}), scored["prompt"], strict=True
    ):
        # Its parser drops the generated token, and compares the chosen with the most likely.
        assert len(choice["logprobs"]["token_logprobs"][:-1]) == len(prompt)
        for value, top in zip(
            choice["logprobs"]["token_logprobs"][1:-1], choice["logprobs"]["top_logprobs"][1:-1], strict=True
        ):
            assert value <= max(top.values()) <= 0
    until = {"model": MODEL, "prompt": [PROMPT], "max_tokens": 9, "temperature": 0, "stop": ["zz", "\n"], "seed": 1234}
    assert choices(shared, "/v1/completions", until)[0]["text"]
    message = {"role": "user", "content": "abc", "type": "text"}
    chat = {"messages": [message], "model": MODEL, "max_tokens": 9, "temperature": 0, "stop": ["zz"], "seed": 1234}
    assert choices(shared, CHAT, chat)[0]["message"]["content"]


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_a_body_that_does_not_say_that_it_is_json(shared: Running, kind: str | None) -> None:
    """curl -d without a header: it got a message on dictionaries."""
    content = json.dumps({"prompt": [1], "max_tokens": 1}).encode()
    for path in ("/v1/completions", CHAT, "/abort"):
        request = shared.http.build_request("POST", path, content=content)
        del request.headers["Content-Type"]
        if kind is not None:
            request.headers["Content-Type"] = kind
        answer = shared.http.send(request)
        expected = f"Content-Type: expected application/json, got {'nothing' if kind is None else kind}"
        assert answer.status_code == 400 and answer.json()["error"]["message"].replace("'", "") == expected
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"):
        answer = shared.http.post("/v1/completions", content=content, headers={"Content-Type": kind})
        assert answer.status_code == 200


def test_no_route_says_422(shared: Running) -> None:
    document = shared.http.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path
    assert "HTTPValidationError" not in json.dumps(document)


REFUSED_OF_VLLM = (
    "chat_template", "ec_transfer_params", "kv_transfer_params", "logits_processors", "logprob_token_ids",
    "media_io_kwargs", "mm_processor_kwargs", "previous_input_messages", "prompt_embeds", "repetition_detection",
    "vllm_xargs",
)  # fmt: skip
"""Keys of vLLM 0.32 that are not ours, see tests/compat/test_vllm_protocol.py."""


def test_the_document_has_a_row_for_every_key() -> None:
    """Of the official client, of vLLM, and of our own."""
    document = (ROOT / "docs/use/serving.md").read_text()
    official = (completion_create_params.CompletionCreateParamsBase, chat_params.CompletionCreateParamsBase)
    keys = {*REFUSED_OF_VLLM, *response_create_params.ResponseCreateParamsBase.__annotations__}
    keys.update(*(params.__annotations__ for params in official))
    keys.update(*(made.model_fields for made in (CompletionRequest, ChatCompletionRequest, ResponsesRequest)))
    assert [key for key in sorted(keys) if f"`{key}`" not in document] == []
