"""LLM and AsyncEngine over the history model: the tokens of plain decoding, and every stream ends."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pytest

from specdec_hal.config import parse
from specdec_hal.engine import LLM, AsyncEngine, rendering
from specdec_hal.engine.llm import requests_of
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import ConfigError, EngineDeadError, RequestError
from specdec_hal.plugin.model import ForwardBatch
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams, StreamDelta
from tests.support.decoding import plain_decoding, scored_prompt
from tests.support.history_model import DeviceHistoryModel, HistoryModel, LetterTokenizer
from tests.support.random_requests import check_drafts, random_request

pytestmark = pytest.mark.anyio
CONFIG = {
    "backend": {"name": "reference"},
    "runner": {"max_num_seqs": 3},
    "speculative": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False},
}
PROMPTS = [[n + 1, 5, 6, 5, 6] for n in range(7)]
PARAMS = [
    SamplingParams(temperature=0.7, seed=n, max_new_tokens=10 + n, logprobs=1, prompt_logprobs=n % 3) for n in range(7)
]

NO_PROMPTS = (
    np.array(5), np.zeros((1, 1, 1), int), np.array("a"), {1, 2}, iter([[1]]), 5, None, b"a",
)  # fmt: skip


def llm(**more: Any) -> LLM:
    return LLM(HistoryModel(), parse({**CONFIG, **more}), tokenizer=LetterTokenizer())  # type: ignore[arg-type]


def engine(model: HistoryModel | None = None) -> AsyncEngine:
    return AsyncEngine(model or HistoryModel(), parse(CONFIG), tokenizer=LetterTokenizer())  # type: ignore[arg-type]


class HeldModel(HistoryModel):
    """Computes three steps; each further one waits for a permit, so that no request ends before the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(3)
        self.waiting = threading.Event()

    def forward(self, batch: ForwardBatch) -> dict[int, Any]:
        if not self.permits.acquire(blocking=False):
            self.waiting.set()
            assert self.permits.acquire(timeout=60)
        return super().forward(batch)

    def let_go(self) -> None:
        self.permits.release(1000)


class TestLLM:
    def test_outputs_stand_in_the_order_of_the_prompts(self) -> None:
        outputs = llm().generate(PROMPTS, PARAMS, progress=False)
        assert [list(o.token_ids) for o in outputs] == [
            plain_decoding(p, q).tokens for p, q in zip(PROMPTS, PARAMS, strict=True)
        ]
        for output, prompt, params in zip(outputs, PROMPTS, PARAMS, strict=True):
            assert output.prompt_logprobs == scored_prompt(prompt, params.prompt_logprobs)

    def test_a_chat_is_the_prompt_of_its_template(self, tmp_path: Path) -> None:
        (tmp_path / "chat_template.jinja").write_text("{{ messages | map(attribute='content') | join }}{{ more }}")
        decoder = llm(model={"path": str(tmp_path)})
        decoder_without = llm()
        first, second = [{"role": "user", "content": "cd"}], [{"role": "user", "content": "ab"}] * 2
        expected = decoder.generate(["cd", "abab"], PARAMS[0])
        assert [o.text for o in decoder.chat([first, second], PARAMS[0])] == [o.text for o in expected]
        assert decoder.chat(first, PARAMS[0])[0].text == expected[0].text
        assert decoder.chat(first, PARAMS[0], more="x")[0].prompt_tokens == 3
        assert decoder_without.chat(first, PARAMS[0], chat_template="cd")[0].text == expected[0].text
        with pytest.raises(ConfigError, match="no model is configured"):
            decoder_without.chat(first)

    def test_a_stop_string_waits_for_min_new_tokens(self) -> None:
        free = llm().generate(["cdcd"], SamplingParams(max_new_tokens=30, bad_token_ids=[0]))[0]
        stop = free.text[1]
        ends = [at for at, letter in enumerate(free.text, 1) if letter == stop and at >= 10]
        params = SamplingParams(max_new_tokens=30, bad_token_ids=[0], stop=[stop])
        for method in ("ngram", "naive"):
            decoder = llm(speculative={"method": method, "num_speculative_tokens": 3 * (method == "ngram")})
            early, late, whole = decoder.generate(
                ["cdcd"] * 3,
                [
                    params,
                    params.model_copy(update={"min_new_tokens": 10}),
                    params.model_copy(update={"min_new_tokens": 10, "include_stop_str_in_output": True}),
                ],
            )
            assert early.text == free.text[0] and early.finish_reason == "stop"
            assert late.text == free.text[: ends[0] - 1] and whole.text == free.text[: ends[0]]
            assert late.token_ids == whole.token_ids == free.token_ids[: ends[0]]

    def test_a_prompt_is_cut_on_its_left(self) -> None:
        decoder, params = llm(runner={"max_num_seqs": 3, "max_model_len": 32}), SamplingParams(max_new_tokens=5)
        expected = decoder.generate(["bcd"], params)[0]
        cut = decoder.generate(["aabcd"], params.model_copy(update={"truncate_prompt_tokens": 3}))[0]
        assert (cut.token_ids, cut.prompt_tokens) == (expected.token_ids, 3)
        long = decoder.generate(["ab" * 40], params.model_copy(update={"truncate_prompt_tokens": -1}))[0]
        assert (long.prompt_tokens, len(long.token_ids)) == (27, 5)
        with pytest.raises(RequestError, match="truncate_prompt_tokens: expected at least 1, or -1, got 0"):
            SamplingParams(truncate_prompt_tokens=0)

    def test_one_prompt_and_the_sampling_of_the_configuration(self) -> None:
        model = llm(sampling={"max_new_tokens": 4, "bad_token_ids": [0]})
        (output,) = model.generate([3, 4, 5])
        assert len(output.token_ids) == 4
        assert model.generate([3, 4, 5]) == [type(output)(**{**vars(output), "request_id": "llm-1"})]

    def test_the_configured_seed_is_that_of_every_request(self) -> None:
        model = llm(sampling={"seed": 4, "temperature": 1.0, "max_new_tokens": 9})
        outputs = model.generate(PROMPTS[:1] * 2)
        assert [output.seed for output in outputs] == [4, 4] and outputs[0].token_ids == outputs[1].token_ids

    def test_n_choices_follow_each_other_and_are_seeded_in_turn(self) -> None:
        wanted = [SamplingParams(temperature=0.9, max_new_tokens=12, n=n, seed=seed) for n, seed in ((2, 5), (3, None))]
        outputs = llm().generate(PROMPTS[:2], wanted)
        assert [output.request_id for output in outputs] == ["llm-0-0", "llm-0-1", "llm-1-0", "llm-1-1", "llm-1-2"]
        drawn = outputs[2].seed
        assert drawn is not None
        assert [output.seed for output in outputs] == [5, 6, drawn, drawn + 1, drawn + 2]
        for output, prompt in zip(outputs, [PROMPTS[0]] * 2 + [PROMPTS[1]] * 3, strict=True):
            own = SamplingParams(temperature=0.9, max_new_tokens=12, seed=output.seed)
            assert list(output.token_ids) == plain_decoding(prompt, own).tokens

    @pytest.mark.parametrize(
        "prompts",
        [
            np.array([[1, 5, 6], [2, 5, 6]]),
            [np.array([1, 5, 6]), np.array([2, 5, 6], np.uint8)],
            [np.array([1, 5, 6]), (2, 5, 6)],
            ([np.int64(1), 5, 6], range(2, 3)),
            [np.ma.array([1, 5, 6]), "ab"],
        ],
        ids=["array", "arrays", "array and tuple", "range", "array and text"],
    )
    def test_prompts_of_any_sequence(self, prompts: Any) -> None:
        params = SamplingParams(max_new_tokens=5)
        lists = [
            LetterTokenizer().encode(one) if isinstance(one, str) else [int(token) for token in one] for one in prompts
        ]
        found = [output.token_ids for output in llm().generate(prompts, params, progress=False)]
        assert found == [output.token_ids for output in llm().generate(lists, params, progress=False)]
        for one, tokens in zip(prompts, found, strict=True):
            assert llm().generate(one, params, progress=False)[0].token_ids == tokens

    @pytest.mark.parametrize(
        ("prompts", "message"),
        [
            *((value, "prompts: expected a text, token ids, or a list of these, got ") for value in NO_PROMPTS),
            ([np.array(5)], r"a flat list of integers, got \[array\(5\)\]; pass token ids"),
            ([[1, np.array(5)]], r"a flat list of integers, got \[1, array\(5\)\]; pass token ids"),
            ({}, r"prompt: expected a dictionary with the key prompt or prompt_token_ids, got \{\}"),
            ([{"prompt": "a", "prompt_token_ids": [1]}], "prompt: expected a dictionary with the key prompt or "),
            ({"text": "a"}, "prompt: expected a dictionary with the key prompt or prompt_token_ids, got {'text': 'a'}"),
            ({"prompt": [1]}, r"prompt: expected text, got \[1\]"),
            ([{"prompt_token_ids": "a"}], "prompt_token_ids: expected token ids, got 'a'"),
            ({"prompt_token_ids": [1.5]}, r"a flat list of integers, got \[1.5\]"),
            ([None], "a flat list of integers, got None"),
            ([b"a"], "a flat list of integers, got b'a'"),
            ([1, [2]], r"a flat list of integers, got \[1, \[2\]\];"),
            ([[1], 2], "a flat list of integers, got 2"),
            ([np.array(5), "a"], r"a flat list of integers, got \[array\(5\), 'a'\]"),
            (np.ma.array([1, 5], mask=[False, True]), r"got a masked array; its compressed\(\)"),
            ([np.ma.array([1, 5], mask=[False, True])], r"got a masked array; its compressed\(\)"),
            ([np.array([1.0])], r"a flat list of integers, got float64 \[1\]"),
            ([np.array([[1]])], r"a flat list of integers, got int64 \[1, 1\]"),
        ],
    )
    def test_what_is_no_prompt_is_refused_by_name(self, prompts: Any, message: str) -> None:
        model = llm()
        with pytest.raises(RequestError, match=message):
            model.generate(prompts, progress=False)
        assert not model.runner.has_requests

    @pytest.mark.parametrize("params", [{"temperature": 1}, iter(PARAMS), [{"temperature": 1}], "x"])
    def test_what_is_no_sampling_params(self, params: Any) -> None:
        with pytest.raises(RequestError, match="expected one SamplingParams, or one for each of 1 prompts, got "):
            llm().generate([[1]], params, progress=False)

    @pytest.mark.parametrize("messages", [{"role": "user", "content": "a"}, "a"])
    def test_what_is_no_chat(self, messages: Any) -> None:
        with pytest.raises(RequestError, match="messages: expected a list of messages, or of such lists, got "):
            llm().chat(messages)

    def test_a_prompt_that_cannot_be_served_leaves_nothing_behind(self) -> None:
        model = llm()
        with pytest.raises(RequestError, match="empty prompt"):
            model.generate([[1, 2], []])
        with pytest.raises(RequestError, match="one for each of 2 prompts, got 7"):
            model.generate([[1, 2], [3]], PARAMS)
        assert not model.runner.has_requests
        assert len(model.generate([[1, 2]])) == 1


class TestNamesOfVllm:
    """What a user of vLLM types works with the same meaning, or the error names ours."""

    def test_sampling_of_one_call(self) -> None:
        """Keywords replace values of the parameters, or of the defaults."""
        decoder = llm(sampling={"max_new_tokens": 4, "bad_token_ids": [0]})
        given = SamplingParams(temperature=0.7, seed=1, bad_token_ids=[0])
        (short,) = decoder.generate([1, 2], max_tokens=7, use_tqdm=False)
        assert short.token_ids == decoder.generate([1, 2], SamplingParams(max_tokens=7, bad_token_ids=[0]))[0].token_ids
        outputs = decoder.generate([[1, 2], [3]], [given, given.updated(seed=2)], max_new_tokens=9, top_k=-1)
        assert [(len(output.token_ids), output.seed) for output in outputs] == [(9, 1), (9, 2)]
        assert given.max_new_tokens == 128, "unchanged"

    def test_outputs(self) -> None:
        """vLLM's own example reads these."""
        first, second, tokens = llm().generate(["ab", {"prompt": "cd"}, [1, 2]], max_tokens=3)
        assert (first.prompt, second.prompt, tokens.prompt) == ("ab", "cd", None)
        assert first.outputs[0].text == first.text and first.outputs[0].finish_reason == "length"

    def test_dictionaries_are_prompts(self) -> None:
        decoder, params = llm(), SamplingParams(max_tokens=5)
        ids = LetterTokenizer().encode("ab")
        expected = decoder.generate("ab", params)[0].token_ids
        one: list[Any] = [{"prompt": "ab"}, {"prompt_token_ids": ids}, {"prompt_token_ids": np.array(ids)}]
        assert [output.token_ids for output in decoder.generate(one, params)] == [expected] * 3
        assert [decoder.generate(prompt, params)[0].token_ids for prompt in one] == [expected] * 3
        assert decoder.get_tokenizer().encode("ab") == ids

    async def test_dictionaries_and_sampling_of_a_stream(self) -> None:
        async with engine() as streaming:
            deltas = [delta async for delta in streaming.generate({"prompt_token_ids": [1, 2]}, max_tokens=3)]
            given = SamplingParams(max_tokens=2)
            more = [delta async for delta in streaming.generate("ab", sampling_params=given)]
            with pytest.raises(RequestError, match="sampling_params: another name of 'params'"):
                await anext(streaming.generate("ab", given, sampling_params=given))
        assert [sum(len(delta.token_ids) for delta in one) for one in (deltas, more)] == [3, 2]

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            ({"max_tokens": 3, "max_new_tokens": 3}, "max_tokens: another name of 'max_new_tokens', which is given"),
            ({"max_tokens": 0}, "max_new_tokens: expected an integer in 1.."),
            ({"max_token": 3}, "max_token: unknown key; did you mean 'max_new_tokens'?"),
            ({"progress": True, "use_tqdm": False}, "use_tqdm: another name of 'progress', expected True as there"),
        ],
    )
    def test_conflicts(self, call: dict[str, Any], message: str) -> None:
        decoder = llm()
        with pytest.raises(RequestError, match=re.escape(message)):
            decoder.generate([1, 2], **call)
        assert not decoder.runner.has_requests
        assert decoder.generate([1, 2], progress=False, use_tqdm=False, max_tokens=1)

    def test_arguments_of_the_engine(self) -> None:
        decoder = llm()
        given: dict[str, Any] = {
            "num_gpu_blocks_override": 9, "tensor_parallel_size": 1,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "model": "x"},
        }  # fmt: skip
        config = LLM(HistoryModel(), parse(CONFIG), tokenizer=LetterTokenizer(), **given).runner.config  # type: ignore[arg-type]
        assert (config.runner.num_kv_blocks, config.engine.tensor_parallel) == (9, 1)
        assert config.speculative.num_speculative_tokens == 2 and config.speculative.path == str(Path("x").absolute())
        assert decoder.runner.config.speculative.path is None

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"tensor_parallel_size": 1, "tensor_parallel": 1}, "argument:tensor_parallel_size: another name of 'ten"),
            ({"speculative": {"model": "a", "path": "b"}}, "argument:speculative.model: another name of 'path'"),
            ({"enforce_eager": True}, "argument:enforce_eager: unknown; did you mean 'graph'?"),
            (
                {"gpu_memory_utilization": 0.9},
                "argument:gpu_memory_utilization: unknown; did you mean 'num_kv_blocks'?",
            ),
            ({"tensor_parallel_size": 0}, "argument:engine.tensor_parallel: expected an integer in 1..64, got 0"),
        ],
    )
    def test_arguments_that_conflict_or_mean_something_else(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=re.escape(message)):
            LLM(HistoryModel(), parse(CONFIG), tokenizer=LetterTokenizer(), **given)  # type: ignore[arg-type]

    def test_a_tokenizer_is_a_folder_or_an_object(self) -> None:
        folder = Path(__file__).parents[2] / "models/tiny-py-lm"
        for path in (folder, str(folder)):
            decoder = LLM(HistoryModel(), parse(CONFIG), tokenizer=path)  # type: ignore[arg-type]
            assert decoder.get_tokenizer().decode(decoder.get_tokenizer().encode("def f")) == "def f"
        for other in (5, object()):
            with pytest.raises(ConfigError, match=r"^argument:tokenizer: expected a folder, or a loaded tokenizer"):
                LLM(HistoryModel(), parse(CONFIG), tokenizer=other)  # type: ignore[arg-type]

    def test_what_is_no_model(self) -> None:
        with pytest.raises(ConfigError, match=r"^argument:model: expected a checkpoint folder .* got 5; pass LLM\("):
            LLM(5, parse(CONFIG))  # type: ignore[arg-type]

    def test_no_model(self) -> None:
        """The remedy is Python's."""
        with pytest.raises(
            ConfigError,
            match=r"no model is configured; pass a checkpoint's folder, or its name on a hub: LLM\(MODEL\)$",
        ):
            LLM(backend={"name": "reference"})


class TestStream:
    def test_the_deltas_of_a_request(self) -> None:
        params = SamplingParams(temperature=0.7, seed=3, max_new_tokens=20)
        decoder = llm()
        expected = decoder.generate([1, 5, 6], params)[0]
        deltas = list(decoder.stream([1, 5, 6], params))
        assert tuple(token for delta in deltas for token in delta.token_ids) == expected.token_ids
        assert "".join(delta.text for delta in deltas) == expected.text
        assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [expected.finish_reason]
        assert len(deltas) > 3 and not decoder.runner.has_requests and not decoder.runner.take_finished()

    def test_decoded_in_the_thread_of_the_caller(self) -> None:
        model = HeldModel()  # a fourth step would wait for ever
        decoder = LLM(model, parse(CONFIG), tokenizer=LetterTokenizer())  # type: ignore[arg-type]
        before = threading.active_count()
        deltas = decoder.stream("ab", max_tokens=9, bad_token_ids=[0], num_speculative_tokens=0)
        next(deltas)
        assert threading.active_count() == before and not model.waiting.is_set()
        deltas.close()

    @pytest.mark.parametrize("leave", ["close", "forget"])
    def test_closing_early_frees_the_slot(self, leave: str) -> None:
        decoder = llm(runner={"max_num_seqs": 1})
        deltas: Any = decoder.stream([1, 2], max_tokens=40, bad_token_ids=[0])
        next(deltas)
        assert decoder.runner.load().running == 1
        if leave == "close":
            deltas.close()
        del deltas
        assert not decoder.runner.has_requests and decoder.runner.load().running == 0
        assert decoder.runner.metrics.requests["cancelled"] == 1 and not decoder.runner.take_finished()
        assert len(decoder.generate([3, 4], max_tokens=5, bad_token_ids=[0])[0].token_ids) == 5

    def test_others_meanwhile(self) -> None:
        """Two streams and a batch share steps; each gets its own tokens, and none waits for another's end."""
        decoder, params = llm(), SamplingParams(max_new_tokens=30, bad_token_ids=[0])
        expected = [plain_decoding(prompt, params).tokens for prompt in ([1, 2], [3, 4], [5, 6])]
        first, second = decoder.stream([1, 2], params), decoder.stream([3, 4], params)
        tokens = [[*next(first).token_ids], [*next(second).token_ids]]
        assert list(decoder.generate([5, 6], params, max_tokens=4)[0].token_ids) == expected[2][:4]
        assert decoder.runner.has_requests, "the streams are not over"
        for found, stream in zip(tokens, (first, second), strict=True):
            found += [token for delta in stream for token in delta.token_ids]
        assert tokens == expected[:2]

    def test_choices_are_interleaved(self) -> None:
        deltas = list(llm().stream([1, 2], max_tokens=6, n=2, temperature=0.9, seed=1, bad_token_ids=[0]))
        assert {delta.request_id for delta in deltas} == {"llm-0-0", "llm-0-1"}
        assert [delta.finish_reason for delta in deltas].count("length") == 2

    def test_refusals_and_an_llm_that_is_closed(self) -> None:
        decoder = llm()
        with pytest.raises(RequestError, match="empty prompt"):
            next(decoder.stream([]))
        with pytest.raises(RequestError, match="expected one SamplingParams"):
            next(decoder.stream([1], 5))  # type: ignore[arg-type]
        deltas = decoder.stream([1], max_tokens=40, bad_token_ids=[0])
        next(deltas)
        decoder.close()
        with pytest.raises(EngineDeadError, match="the LLM was closed"):
            list(deltas)


class TestChatTemplates:
    CHAT = [{"role": "user", "content": "ab"}]  # noqa: RUF012

    def test_one_that_never_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its process is killed; the next chat works."""
        monkeypatch.setattr(rendering, "Renderer", partial(rendering.Renderer, render_s=1.0))
        loop = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
        decoder = llm()
        with pytest.raises(RequestError, match="rendering the chat template has taken more than 1 s"):
            decoder.chat(self.CHAT, chat_template=loop)
        assert decoder.chat(self.CHAT, chat_template="{{ messages[0].content }}", max_tokens=2)[0].prompt == "ab"

    def test_one_that_is_too_large(self) -> None:
        with pytest.raises(RequestError, match=r"the chat template fails on them: MemoryError|at most 16777216"):
            llm().chat(self.CHAT, chat_template="{{ messages[0].content | center(10 ** 9) }}")

    def test_sampling_and_variables(self) -> None:
        """A name of both is sampling's; `chat_template_kwargs` are the template's."""
        template = "{{ messages[0].content }}{{ more }}{{ max_tokens }}{{ stop }}"
        (output,) = llm().chat(
            [MappingProxyType(self.CHAT[0])], chat_template=template, more="c", max_tokens=2,
            chat_template_kwargs={"stop": "d"},
        )  # fmt: skip
        assert (output.prompt, len(output.token_ids)) == ("abcd", 2)
        with pytest.raises(RequestError, match="chat_template_kwargs: expected a dictionary, got 5"):
            llm().chat(self.CHAT, chat_template=template, chat_template_kwargs=5)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="chat_template: expected the text of a Jinja template, got 5"):
            llm().chat(self.CHAT, chat_template=5)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="messages: expected values that JSON can hold"):
            llm().chat(self.CHAT, chat_template=template, more=object())

    def test_none(self, tmp_path: Path) -> None:
        """The remedy is Python's."""
        with pytest.raises(RequestError, match=r"has no chat template; pass chat_template=, a Jinja template$"):
            llm(model={"path": str(tmp_path)}).chat(self.CHAT)


class TestOverrides:
    """Keyword arguments of LLM and AsyncEngine."""

    GIVEN: dict[str, Any] = {"max_num_seqs": 2, "speculative": {"num_speculative_tokens": 4}}  # noqa: RUF012

    def check(self, runner: ModelRunner) -> None:
        config = runner.config
        assert (config.runner.max_num_seqs, config.speculative.num_speculative_tokens) == (2, 4)
        assert config.speculative.method == "ngram" and runner.backend.name == "reference", "the rest stays"

    @pytest.mark.parametrize("kind", ["file", "mapping", "config", "runtime"])
    async def test_over_every_kind_of_configuration(self, kind: str, tmp_path: Path) -> None:
        file = tmp_path / "c.yaml"
        file.write_text(json.dumps(CONFIG))
        checked = parse(CONFIG)
        config: Any = {"file": file, "mapping": CONFIG, "config": checked, "runtime": Runtime(checked)}[kind]
        model, tokenizer = cast(Any, HistoryModel), cast(Any, LetterTokenizer())
        self.check(LLM(model(), config, tokenizer=tokenizer, **self.GIVEN).runner)
        async with AsyncEngine(model(), config, tokenizer=tokenizer, **self.GIVEN) as streaming:
            self.check(streaming.runner)

    def test_without_a_configuration(self) -> None:
        model: Any = HistoryModel()
        one = LLM(model, tokenizer=cast(Any, LetterTokenizer()), backend={"name": "reference"}, max_model_len=32)
        assert (one.runner.max_model_len, one.runner.backend.name) == (32, "reference")
        assert one.runner.config.speculative.method == "mtp", "the default of a model with a module"

    def test_of_no_kind_of_configuration(self) -> None:
        for config, message in (
            (5, "configuration: expected a mapping"),
            ({"modle": {}}, "configuration:modle: unknown"),
        ):
            with pytest.raises(ConfigError, match=message):
                LLM(config=cast(Any, config))

    def test_in_the_place_of_the_model(self) -> None:
        for config in (CONFIG, parse(CONFIG), Runtime(parse(CONFIG))):
            with pytest.raises(ConfigError, match=r"^argument:model: expected .* got a configuration; pass config="):
                LLM(cast(Any, config))

    def test_a_folder_takes_the_place_of_the_configured_one(self, tmp_path: Path) -> None:
        """Whatever characters it has, and of a Runtime's too."""
        folder = tmp_path / "a: [b"
        for config in (parse(CONFIG), Runtime(parse(CONFIG)), None):
            with pytest.raises(ConfigError, match=r"^argument:model.path: no such folder: .*a: \[b;"):
                LLM(folder, config, backend={"name": "reference"})


class TestClosing:
    def test_a_closed_one_decodes_nothing_and_has_let_go_of_its_model(self) -> None:
        with llm() as model:
            assert len(model.generate(PROMPTS[:2])) == 2
            held = weakref.ref(model.runner.model)
        assert held() is None
        model.close()
        with pytest.raises(EngineDeadError, match="the LLM was closed; create another"):
            model.generate(PROMPTS[:1])

    def test_after_an_error_too(self) -> None:
        with pytest.raises(RequestError, match="empty prompt"), llm() as model:
            model.generate([[]])
        with pytest.raises(EngineDeadError):
            model.default_params  # noqa: B018


async def collect(streaming: AsyncEngine, prompt: list[int], params: SamplingParams) -> list[StreamDelta]:
    return [delta async for delta in streaming.generate(prompt, params)]


async def collect_rest(stream: AsyncIterator[StreamDelta]) -> list[StreamDelta]:
    return [delta async for delta in stream]


class TestAsyncEngine:
    async def test_streams_of_many_tasks(self) -> None:
        async with engine() as streaming:
            streams = await asyncio.gather(*(collect(streaming, p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)))
        for deltas, prompt, params in zip(streams, PROMPTS, PARAMS, strict=True):
            tokens = [token for delta in deltas for token in delta.token_ids]
            assert tokens == plain_decoding(prompt, params).tokens
            assert len([entry for delta in deltas for entry in delta.logprobs]) == len(tokens)
            assert deltas[0].prompt_logprobs == scored_prompt(prompt, params.prompt_logprobs)
            assert [delta.finish_reason is None for delta in deltas] == [True] * (len(deltas) - 1) + [False]

    async def test_a_stream_that_is_left_early_cancels_its_request(self) -> None:
        model = HeldModel()
        async with engine(model) as streaming:
            params = SamplingParams(max_new_tokens=40, bad_token_ids=[0])
            stream = streaming.generate([1, 2], params, "left")
            await anext(stream)
            await stream.aclose()
            model.let_go()
            await collect(streaming, [1, 2], SamplingParams(max_new_tokens=2))
            again = streaming.generate([1, 2], SamplingParams(max_new_tokens=2), "left")  # its id is free
            assert [delta.finish_reason async for delta in again][-1] == "length"
            assert streaming.runner.metrics.requests["cancelled"] == 1
        assert not streaming.runner.has_requests

    async def test_refusals_and_duplicates(self) -> None:
        model = HeldModel()
        async with engine(model) as streaming:
            with pytest.raises(RequestError, match="empty prompt"):
                await collect(streaming, [], SamplingParams())
            first = streaming.generate([1], SamplingParams(max_new_tokens=60, bad_token_ids=[0]), "same")
            await anext(first)
            await asyncio.to_thread(model.waiting.wait)
            second = asyncio.ensure_future(anext(streaming.generate([1], None, "same")))
            await asyncio.sleep(0)
            model.permits.release()  # requests are queued between steps
            with pytest.raises(RequestError, match="the id is in use"):
                await second
            streaming.abort("same")
            streaming.abort("nobody")
            model.let_go()
            assert [delta.finish_reason async for delta in first][-1] == "cancelled"

    async def test_deadlines(self) -> None:
        async with engine() as streaming:
            for late in ({"timeout_s": 1e-9}, {"ttft_timeout_s": 1e-9}):
                deltas = [delta async for delta in streaming.generate([1], SamplingParams(), **late)]
                assert [delta.finish_reason for delta in deltas] == ["timeout"]

    async def test_closing_ends_every_stream(self, joined: threading.Event) -> None:
        model = HeldModel()
        streaming = engine(model)
        stream = streaming.generate([1], SamplingParams(max_new_tokens=60, bad_token_ids=[0]))
        await anext(stream)
        await asyncio.to_thread(model.waiting.wait)
        closing = asyncio.ensure_future(asyncio.to_thread(streaming.close))
        await asyncio.to_thread(joined.wait)
        model.let_go()
        await closing
        assert [delta.finish_reason async for delta in stream][-1] == "cancelled"
        with pytest.raises(EngineDeadError, match="has stopped: it was closed"):
            await collect(streaming, [1], SamplingParams())

    async def test_an_engine_that_dies_says_so_on_every_stream(self, caplog: pytest.LogCaptureFixture) -> None:
        model = HeldModel()
        streaming = engine(model)
        stream = streaming.generate([1], SamplingParams(max_new_tokens=60, bad_token_ids=[0]))
        await anext(stream)
        streaming.runner.step = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        model.let_go()
        with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
            async for _ in stream:
                pass
        streaming.close()

    async def test_a_step_that_never_returns_after_what_it_needs_is_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Streams, pending commands and close() do not wait for it."""
        monkeypatch.setattr("specdec_hal.engine.async_engine.LAST_STEP_S", 0.1)
        lost = list[Any]()
        monkeypatch.setattr(ModelRunner, "when_lost", lambda runner, ended: lost.append(ended))
        model = HeldModel()
        streaming = engine(model)
        stream = streaming.generate([1], SamplingParams(max_new_tokens=60, bad_token_ids=[0]))
        await anext(stream)
        await asyncio.to_thread(model.waiting.wait)
        late = asyncio.ensure_future(collect(streaming, [2], SamplingParams()))
        await asyncio.sleep(0)
        ended = asyncio.ensure_future(streaming.until_ended())
        assert streaming.alive and streaming.failure == ""
        threading.Thread(target=lost[0], args=(EngineDeadError("rank 1 has ended"),)).start()
        await ended
        assert not streaming.alive and "rank 1 has ended" in streaming.failure
        for waiting in (collect(streaming, [2], SamplingParams()), late, collect_rest(stream)):
            with pytest.raises(EngineDeadError, match="rank 1 has ended"):
                await waiting
        await streaming.until_ended()
        await asyncio.to_thread(streaming.close)
        (held,) = [thread for thread in threading.enumerate() if thread.name == "specdec-engine"]
        model.let_go()
        await asyncio.to_thread(held.join)

    async def test_requests_that_are_submitted_together(self) -> None:
        requests = [Request(f"r{n}", PROMPTS[n], PARAMS[n]) for n in range(4)]
        async with engine() as streaming:
            with pytest.raises(RequestError, match="request 'bad': empty prompt"):
                await streaming.submit([*requests, Request("bad", [])])
            await collect(streaming, [1], SamplingParams(max_new_tokens=1))  # a step, after which the ids are free
            assert streaming.runner.metrics.requests["cancelled"] == 0  # none of them was queued
            stream = await streaming.submit(requests)
            tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
            while deltas := await stream.read():
                assert len({delta.request_id for delta in deltas}) == len(deltas)
                for delta in deltas:
                    tokens[delta.request_id] += delta.token_ids
            plain = [plain_decoding(PROMPTS[n], PARAMS[n]).tokens for n in range(4)]
            assert list(tokens.values()) == plain
            assert [list(stream.outputs[f"r{n}"].token_ids) for n in range(4)] == plain
            assert await stream.read() == []

    async def test_a_slow_reader_gets_several_steps_at_once(self) -> None:
        async with engine() as streaming:
            stream = await streaming.submit([Request("slow", [1, 2], SamplingParams(max_new_tokens=40))])
            while streaming.runner.has_requests:
                await asyncio.sleep(0.01)
            await collect(streaming, [1], SamplingParams(max_new_tokens=1))  # arrives after all of the first
            (delta,) = await stream.read()
            assert list(delta.token_ids) == plain_decoding([1, 2], SamplingParams(max_new_tokens=40)).tokens
            assert delta.finish_reason is not None and await stream.read() == []


class WatchedTokenizer(LetterTokenizer):
    """Notes the threads on which text is made."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def detokenizer(self, prompt: Any = (), **options: bool) -> Any:
        made = super().detokenizer(prompt, **options)
        push = made.push

        def watched(token: int) -> str:
            self.threads.add(threading.current_thread().name)
            return push(token)

        made.push = watched  # type: ignore[method-assign]
        return made


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stop_token_ids": [9, 19]},
        {"include_stop_str_in_output": True, "stop_token_ids": [9]},
        {"n": 2},
        {"stop": ["jt"]},
    ],
)
async def test_text_is_made_where_it_is_read(more: dict[str, Any]) -> None:
    """Off the engine's thread, stop strings too; the same text."""
    params = SamplingParams(max_new_tokens=20, temperature=0.9, seed=5, **more)
    tokenizer = WatchedTokenizer()
    with llm() as offline:
        wanted = {output.text for prompt in ([1, 2], [7, 8, 9]) for output in offline.generate([prompt], params)}

    async with AsyncEngine(HistoryModel(), parse(CONFIG), tokenizer=tokenizer) as streaming:  # type: ignore[arg-type]
        texts: dict[str, str] = {}
        for name, prompt in (("a", [1, 2]), ("b", [7, 8, 9])):
            requests = requests_of(name, prompt, params)
            stream = await streaming.submit(requests)
            while deltas := await stream.read():
                for delta in deltas:
                    texts[delta.request_id] = texts.get(delta.request_id, "") + delta.text
            assert {one: output.text for one, output in stream.outputs.items()} == {
                one: text for one, text in texts.items() if one.startswith(name)
            }
        assert set(texts.values()) == wanted and any(texts.values())
    assert tokenizer.threads == {threading.current_thread().name}


@pytest.mark.parametrize("late", [False, True])
async def test_what_an_engine_adds_after_a_stop_string_is_cut(late: bool) -> None:
    """To the last count. `late`: the reader finds them when the engine is through with all requests."""
    config = {**CONFIG, "runner": {"max_num_seqs": 3, "overlap": True}}
    tokenizer: Any = LetterTokenizer()
    requests = [random_request(number) for number in range(40)]
    runner = Runtime(parse(config)).runner(model=DeviceHistoryModel(), tokenizer=tokenizer)
    runner.add_requests(requests)
    texts = {name: output.text for name, output in runner.run().items()}
    stops = {name: [text[len(text) // 3 :][:2]] if len(text) > 5 else [] for name, text in texts.items()}
    requests = [replace(one, params=one.params.updated(stop=stops[one.request_id])) for one in requests]
    runner.add_requests(requests)
    wanted, unstopped = runner.run(), dict[str, RequestOutput]()
    async with AsyncEngine(DeviceHistoryModel(), parse(config), tokenizer=tokenizer) as streaming:
        hand_out = streaming.runner.take_finished

        def watched(*names: Any) -> dict[str, RequestOutput]:
            unstopped.update(found := hand_out(*names))
            return found

        streaming.runner.take_finished = watched  # type: ignore[method-assign]
        stream, deltas = await streaming.submit(requests), list[StreamDelta]()
        while late and len(unstopped) < len(requests):
            time.sleep(0.01)  # holds this event loop
        while found := await stream.read():
            deltas += found
        for request in requests:
            name = request.request_id
            output, whole = stream.outputs[name], StreamDelta.joined([one for one in deltas if one.request_id == name])
            assert output == wanted[name]
            assert (whole.token_ids, whole.text, whole.finish_reason) == (
                output.token_ids, output.text, output.finish_reason,
            )  # fmt: skip
            assert (whole.logprobs, whole.drafts) == (output.logprobs, output.drafts)
            check_drafts(output, request)
    longer = [name for name, output in unstopped.items() if len(output.token_ids) > len(wanted[name].token_ids)]
    assert len(longer) > 5 or not late
