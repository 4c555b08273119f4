"""The official client gets what the engine makes, whole and as a stream."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import openai
import pytest

from specdec_hal.runner import SamplingParams
from tests.serve.conftest import MODEL, Running
from tests.support.decoding import plain_decoding, scored_prompt
from tests.support.history_model import END, LetterTokenizer

PROMPT = [3, 5, 6, 5, 6]
text = LetterTokenizer().decode


def expected(prompt: list[int], **params: Any) -> str:
    tokens = plain_decoding(prompt, SamplingParams(**params)).tokens
    return text([token for token in tokens if token != END])


def sampled(seed: int, tokens: int = 20) -> dict[str, Any]:
    return {"temperature": 0.9, "seed": seed, "max_tokens": tokens}


def test_a_completion_is_plain_decoding(shared: Running) -> None:
    answer = shared.openai.completions.create(model=MODEL, prompt=text(PROMPT), **sampled(3))
    (choice,) = answer.choices
    assert choice.text == expected(PROMPT, temperature=0.9, seed=3, max_new_tokens=20)
    assert answer.object == "text_completion" and answer.model == MODEL and choice.finish_reason in ("length", "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.total_tokens == answer.usage.completion_tokens + len(PROMPT)


def test_a_prompt_is_scored_without_a_generation(shared: Running) -> None:
    """max_tokens 0 with echo, as those ask who compare answers by their log-probabilities."""
    prompts = [PROMPT, [7, 8, 7, 8], [1]]
    wanted: dict[str, Any] = {"model": MODEL, "prompt": prompts, "echo": True, "logprobs": 2, "n": 2}
    answer = shared.openai.completions.create(**wanted, max_tokens=0, extra_body={"min_tokens": 0})
    assert [choice.index for choice in answer.choices] == list(range(6))
    more = shared.openai.completions.create(**wanted, max_tokens=3)
    for choice, longer in zip(answer.choices, more.choices, strict=True):
        prompt = prompts[choice.index // 2]
        assert choice.text == text(prompt) and choice.finish_reason == "length"
        scores, others = choice.logprobs, longer.logprobs
        assert scores is not None and others is not None
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert getattr(scores, name) == getattr(others, name)[: len(prompt)], name
        assert scores.token_logprobs is not None and len(scores.token_logprobs) == len(prompt)
        ranks = [entry and entry.rank for entry in scored_prompt(prompt, 2)]
        assert [value is None for value in scores.token_logprobs] == [rank is None for rank in ranks]
    usage = answer.usage
    assert usage is not None and usage.completion_tokens == 0
    assert usage.prompt_tokens == usage.total_tokens == sum(map(len, prompts))
    chunks = list(
        shared.openai.completions.create(
            **wanted,
            max_tokens=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"prompt_logprobs": 0},
        )
    )
    assert chunks.pop().usage == usage
    assert {chunk.choices[0].index: chunk.choices[0].text for chunk in chunks} == {
        choice.index: choice.text for choice in answer.choices
    }
    assert len(chunks) == len(answer.choices)
    alone = shared.openai.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=0, extra_body={"prompt_logprobs": 1}
    )
    assert alone.choices[0].text == "" and alone.choices[0].logprobs is None
    found = alone.choices[0].prompt_logprobs  # type: ignore[attr-defined]
    assert [entry and entry[str(token)]["rank"] for token, entry in zip(PROMPT, found, strict=True)] == [
        entry and entry.rank for entry in scored_prompt(PROMPT, 1)
    ]


def test_several_prompts_with_several_choices_each(shared: Running) -> None:
    prompts = [PROMPT, [7, 8, 7, 8], [1]]
    answer = shared.openai.completions.create(model=MODEL, prompt=prompts, n=2, echo=True, **sampled(5, 9))
    assert [choice.index for choice in answer.choices] == list(range(6))
    for choice in answer.choices:
        prompt, seed = prompts[choice.index // 2], 5 + choice.index % 2
        assert choice.text == text(prompt) + expected(prompt, temperature=0.9, seed=seed, max_new_tokens=9)
    assert answer.usage is not None and answer.usage.prompt_tokens == sum(map(len, prompts))


def test_a_stream_has_the_same_text_and_a_log_probability_for_each_token(shared: Running) -> None:
    wanted = {"model": MODEL, "prompt": PROMPT, "logprobs": 2, "max_tokens": 40, "logit_bias": {str(END): -100}}
    whole = shared.openai.completions.create(**wanted)
    options = {"include_usage": True}
    chunks = list(shared.openai.completions.create(**wanted, stream=True, stream_options=options))
    *parts, last = chunks
    assert last.choices == [] and last.usage == whole.usage and all(part.usage is None for part in parts)
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert [part.choices[0].finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
    pieces, scores = [part.choices[0].logprobs for part in parts], whole.choices[0].logprobs
    assert scores is not None and None not in pieces
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for piece in pieces for entry in getattr(piece, name)] == getattr(scores, name), name
    assert "".join(scores.tokens or []) == whole.choices[0].text
    assert len(scores.token_logprobs or []) == 40 and len(parts) < 40, "accepted drafts come together"
    for chosen, value, top in zip(scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True):
        assert top[chosen] == value == max(top.values()) and len(top) == 2


def test_the_prompt_has_log_probabilities_too(shared: Running) -> None:
    """vLLM's prompt_logprobs, and OpenAI's echo with logprobs, which say the same; in the first chunk of a stream."""
    wanted = {"model": MODEL, "prompt": [PROMPT, [1]], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 5, "seed": 1}
    asked = {**wanted, "extra_body": {"prompt_logprobs": 3}}
    whole = shared.openai.completions.create(**asked)
    for choice in whole.choices:
        prompt, scores = ([PROMPT, [1]][choice.index // 2], choice.logprobs)
        expected = scored_prompt(prompt, 3)
        found = choice.prompt_logprobs  # type: ignore[attr-defined]
        assert found[0] is None and len(found) == len(prompt)
        for token, entry, told in zip(prompt[1:], expected[1:], found[1:], strict=True):
            assert entry is not None
            mine = told[str(token)]
            assert mine == {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": text([token])}
            alternatives = [(other, {"logprob": value, "rank": at}) for at, (other, value) in enumerate(entry.top, 1)]
            for other, scored in alternatives:
                assert other == token or told[str(other)] == {**scored, "decoded_token": text([other])}
            assert told.keys() == {str(token), *(str(other) for other, _ in alternatives)}
        assert scores is not None and scores.tokens is not None and scores.token_logprobs is not None
        assert "".join(scores.tokens).startswith(text(prompt)) and choice.text.startswith(text(prompt))
        assert scores.token_logprobs[: len(prompt)] == [entry and entry.logprob for entry in expected]
        assert scores.top_logprobs is not None and scores.top_logprobs[0] is None
        assert all(len(top) <= 2 for top in scores.top_logprobs[1:])
        assert scores.text_offset == list(range(len(scores.tokens)))
    chunks = list(shared.openai.completions.create(**asked, stream=True))
    for choice in whole.choices:
        parts = [part.choices[0] for part in chunks if part.choices[0].index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert parts[0].prompt_logprobs == choice.prompt_logprobs  # type: ignore[attr-defined]
        assert not any(hasattr(part, "prompt_logprobs") for part in parts[1:])
        pieces = [part.logprobs for part in parts if part.logprobs is not None]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [entry for piece in pieces for entry in getattr(piece, name)] == getattr(choice.logprobs, name), name


def test_a_chats_prompt_has_log_probabilities_too(shared: Running) -> None:
    chat: Any = {"model": MODEL, "messages": [{"role": "user", "content": "cde"}], "max_tokens": 4, "n": 2}
    create = shared.openai.chat.completions.create
    whole, chunks = (create(**chat, extra_body={"prompt_logprobs": 0}, stream=stream) for stream in (False, True))
    expected = [
        entry and {str(token): {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": text([token])}}
        for token, entry in zip([2, 3, 4], scored_prompt([2, 3, 4], 0), strict=True)
    ]
    assert whole.prompt_logprobs == expected
    assert [part.prompt_logprobs for part in chunks if hasattr(part, "prompt_logprobs")] == [expected]
    assert not hasattr(create(**chat), "prompt_logprobs")


def test_chat(shared: Running) -> None:
    messages: Any = [
        {"role": "system", "content": "ab"},
        {"role": "user", "content": [{"type": "text", "text": "cd"}]},
    ]
    with pytest.raises(openai.BadRequestError, match="token -87 is outside"):  # a line break, which is no letter
        shared.openai.chat.completions.create(model=MODEL, messages=messages)
    chat = {"model": MODEL, "messages": messages[1:], "logprobs": True, "top_logprobs": 3, "max_completion_tokens": 7}
    whole = shared.openai.chat.completions.create(**chat, seed=1, temperature=0.7)
    (choice,) = whole.choices
    assert choice.message.role == "assistant" and whole.object == "chat.completion"
    assert choice.message.content == expected([2, 3], seed=1, temperature=0.7, max_new_tokens=7)
    parts = list(shared.openai.chat.completions.create(**chat, seed=1, temperature=0.7, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == choice.message.content
    assert [part.choices[0].delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
    entries = [entry for part in parts for entry in part.choices[0].logprobs.content]
    assert choice.logprobs is not None and entries == choice.logprobs.content
    assert [entry.token for entry in entries][: len(choice.message.content)] == list(choice.message.content)
    for entry in entries:
        assert bytes(entry.bytes) == entry.token.encode() and len(entry.top_logprobs) == 3
        assert [other.logprob for other in entry.top_logprobs] == sorted(
            (other.logprob for other in entry.top_logprobs), reverse=True
        )


def test_same_seed_and_prompt_same_text_whatever_else_runs(shared: Running) -> None:
    async def ask(seed: int, prompt: list[int]) -> str:
        async with shared.async_openai() as client:
            if seed % 2:
                answer = await client.completions.create(model=MODEL, prompt=prompt, **sampled(seed))
                return answer.choices[0].text
            chunks = await client.completions.create(model=MODEL, prompt=prompt, stream=True, **sampled(seed))
            return "".join([chunk.choices[0].text async for chunk in chunks])

    async def body() -> list[str]:
        return await asyncio.gather(*(ask(seed, PROMPT) for seed in (3, 4, 3, 4)), *(ask(n, [n]) for n in range(8)))

    found = asyncio.run(body())
    alone = [expected(PROMPT, temperature=0.9, seed=seed, max_new_tokens=20) for seed in (3, 4)]
    assert found[:4] == alone * 2
    assert found[4:] == [expected([n], temperature=0.9, seed=n, max_new_tokens=20) for n in range(8)]


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_reports_the_seed_that_repeats_it(shared: Running, stream: bool) -> None:
    wanted: dict[str, Any] = {"model": MODEL, "prompt": [PROMPT, PROMPT], "n": 2, "temperature": 1.5, "max_tokens": 12}
    texts, drawn = {index: "" for index in range(4)}, dict[int, int]()
    answer = shared.openai.completions.create(**wanted, stream=stream)
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
            if hasattr(choice, "seed"):
                assert choice.index not in drawn, "once, with the first chunk of a choice"
                drawn[choice.index] = choice.seed
    assert drawn[1] == drawn[0] + 1 and drawn[3] == drawn[2] + 1 and len(set(drawn.values())) == 4
    for index, seed in drawn.items():
        assert texts[index] == expected(PROMPT, temperature=1.5, seed=seed, max_new_tokens=12)
        again = shared.openai.completions.create(**{**wanted, "prompt": PROMPT, "n": 1}, seed=seed)
        assert again.choices[0].text == texts[index]


def test_a_greedy_choice_has_no_seed(shared: Running) -> None:
    assert shared.post({"prompt": PROMPT, "max_tokens": 2}).json()["choices"][0]["seed"] is None
    chat = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2, "seed": 3}
    assert shared.post(chat, "/v1/chat/completions").json()["choices"][0]["seed"] == 3


@pytest.mark.parametrize(
    ("body", "params"),
    [
        ({"repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.2}, {}),
        ({"top_k": 3, "top_p": 0.8, "min_p": 0.1, "temperature": 1.2, "seed": -7}, {}),
        ({"top_k": -1, "temperature": 0.5, "seed": 1}, {"top_k": 0}),
        ({"min_tokens": 9, "temperature": 1.0, "seed": 2}, {"min_new_tokens": 9}),
        ({"logit_bias": {"4": -100, "9": -100.0, "2": 0, "7": 3.5}}, {"logit_bias": {4: -100, 9: -100, 2: 0, 7: 3.5}}),
        ({"logit_bias": {"11": 100}, "temperature": 1.0, "seed": 4}, {"bad_token_ids": [*range(11), *range(12, 24)]}),
        ({"allowed_token_ids": [2, 3, 5], "temperature": 1.0, "seed": 4}, {}),
        (
            {"bad_words": ["f", "jc", "rs"], "temperature": 1.0, "seed": 5},
            {"bad_words": [], "bad_sequences": [[5], [9, 2], [17, 18]]},
        ),
        ({"ignore_eos": True, "temperature": 1.5, "seed": 3}, {}),
        ({"temperature": None, "seed": None, "stop": None}, {}),
    ],
)
def test_parameters_reach_the_engine(shared: Running, body: dict[str, Any], params: dict[str, Any]) -> None:
    answer = shared.post({"prompt": PROMPT, "max_tokens": 25, **body}).json()
    translated = {
        name: value for name, value in body.items() if name in SamplingParams.model_fields and value is not None
    }
    assert answer["choices"][0]["text"] == expected(PROMPT, max_new_tokens=25, **{**translated, **params})


def test_stop_strings_and_tokens(shared: Running) -> None:
    full = expected(PROMPT, max_new_tokens=30)
    for stop in (full[6:8], [full[6:8], "zz"]):
        answer = shared.post({"prompt": PROMPT, "max_tokens": 30, "stop": stop}).json()
        assert answer["choices"][0]["text"] == full[: full.index(full[6:8])]
        assert answer["choices"][0]["finish_reason"] == "stop"
    token = LetterTokenizer().encode(full[6])[0]
    answer = shared.post({"prompt": PROMPT, "max_tokens": 30, "stop_token_ids": [token]}).json()
    assert answer["choices"][0]["text"] == full[: full.index(full[6]) + 1]


def test_drafts_of_a_request_and_what_the_usage_says_of_them(running: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
    fast, slow = (running.post({**body, "num_speculative_tokens": k}).json() for k in (3, 0))
    assert fast["choices"][0]["text"] == slow["choices"][0]["text"]
    usage, (choice,) = fast["usage"], fast["choices"]
    assert 0 < usage["accepted_tokens"] == sum(choice["accepted_draft"]) <= usage["drafted_tokens"]
    assert text(choice["token_ids"]) == choice["text"]
    assert usage["mean_acceptance_length"] == 1 + usage["accepted_tokens"] / usage["num_drafts"]
    metrics = running.http.get("/metrics").text
    (drafts,) = re.findall(r"vllm:spec_decode_num_drafts_total{.*} (\S+)", metrics)
    assert float(drafts) == usage["num_drafts"], "the same word in /metrics"
    assert slow["usage"]["num_drafts"] == slow["usage"]["drafted_tokens"] == 0
    assert slow["usage"]["mean_acceptance_length"] is None


def test_drafts_are_returned_with_those_that_were_rejected(shared: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "return_drafts": True, "return_token_ids": True}
    answer = shared.post({**body, "n": 2, "temperature": 0.5, "seed": 1}).json()
    drafts = [one for choice in answer["choices"] for one in choice["drafts"]]
    usage = answer["usage"]
    assert sum(one["accepted"] for one in drafts) == usage["accepted_tokens"] > 0
    assert sum(len(one["token_ids"]) for one in drafts) == usage["drafted_tokens"] > usage["accepted_tokens"]
    for choice in answer["choices"]:
        for one in choice["drafts"]:
            end = one["start"] + one["accepted"]
            assert choice["token_ids"][one["start"] : end] == one["token_ids"][: one["accepted"]]
            rejected = one["token_ids"][one["accepted"] :]
            assert not rejected or choice["token_ids"][end : end + 1] != rejected[:1]


def test_spans_are_the_text(shared: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "return_spans": True, "return_token_ids": True}
    (choice,) = shared.post(body).json()["choices"]
    assert "".join(piece for piece, _ in choice["spans"]) == choice["text"]
    assert [accepted for _, accepted in choice["spans"]] == choice["accepted_draft"] != [False] * 40


def test_defaults_are_the_configurations(shared: Running) -> None:
    answer = shared.post({"prompt": [1], "ignore_eos": True}).json()
    assert answer["usage"]["completion_tokens"] == 63, "sampling.max_new_tokens is 128, the context 64"


def test_a_request_chooses_whether_it_gets_drafts(shared: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "logit_bias": {str(END): -100}}
    answers = {method: shared.post({**body, "method": method}).json() for method in (None, "ngram", "none", "naive")}
    assert len({answer["choices"][0]["text"] for answer in answers.values()}) == 1
    drafted = {method: answer["usage"]["drafted_tokens"] for method, answer in answers.items()}
    assert drafted[None] == drafted["ngram"] > 0 == drafted["none"] == drafted["naive"]
