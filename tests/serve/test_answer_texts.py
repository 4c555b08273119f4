"""Texts in log-probabilities: tokens that join to the text, offsets into it, and bytes that are the tokens' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.models import Tokenizer
from specdec_hal.output.processor import TextProcessor
from specdec_hal.request import TokenLogprobs
from specdec_hal.runner import Request, SamplingParams, StreamDelta
from specdec_hal.runner.sequence import Sequence
from specdec_hal.serve.answers import Answer, ChatAnswer, CompletionAnswer
from specdec_hal.serve.protocol import ChatCompletionRequest, CompletionRequest
from tests.support.byte_level import FIRST_BYTE, SIZE, byte_level_library, decoder_of, make

END = 1
PROMPT = [0, FIRST_BYTE + ord("q")]
SCORES = TokenLogprobs(-1.0, 2, ((FIRST_BYTE + 0xC3, -0.5), (FIRST_BYTE + 0xC4, -0.75), (END, -2.0)))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    from tokenizers import AddedToken, models
    from tokenizers import Tokenizer as Library

    from tests.support.byte_level import BYTES, SPECIAL, WORDS

    folder: Path = tmp_path_factory.mktemp("tokenizers")
    vocabulary = [(token, 0.0) for token in (*SPECIAL, "<unk>", *WORDS, *BYTES)]
    sentences = Library(models.Unigram(vocabulary, 2, byte_fallback=True))
    sentences.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    sentences.decoder = decoder_of("llama")
    return {"bytes": make(folder / "bytes", byte_level_library()), "sentences": make(folder / "sentences", sentences)}


def answered(
    answer: Answer, tokens: list[int], sizes: list[int], scores: TokenLogprobs = SCORES, **params: Any
) -> tuple[list[StreamDelta], str]:
    """The deltas of a request that gained its tokens in steps of these sizes, and its text."""
    answer.prompt_ids, answer.seeds = [PROMPT], [None]
    answer.end_tokens = [END]
    answer.params = SamplingParams(logprobs=3, max_new_tokens=len(tokens), **params)
    sequence, texts = (
        Sequence(Request("r-0", PROMPT, answer.params), len(tokens)),
        TextProcessor(answer.tokenizer.detokenizer, {END}),
    )
    texts.begin("r-0", answer.params, PROMPT)
    deltas, at = list[StreamDelta](), 0
    for size in (*sizes, len(tokens)):
        step = tokens[at : at + size]
        kept = sequence.until_end(step, {END})
        sequence.extend(step[:kept], [False] * kept)
        sequence.logprobs += [scores] * kept
        at += size
        found = sequence.delta()
        deltas += texts.take([] if found is None else [found])
        if deltas[-1].finish_reason is not None:
            break
    sequence.finish("stop")
    return deltas, texts.output(sequence.output()).text


def top_logprobs(answer: CompletionAnswer, token: int, scores: TokenLogprobs) -> Any:
    """Of its only token."""
    (delta,), _ = answered(answer, [token], [1], scores)
    return answer.choice(0, delta, "message")["logprobs"]["top_logprobs"][0]


def completion(tokenizer: Tokenizer) -> CompletionAnswer:
    return CompletionAnswer(CompletionRequest(prompt=PROMPT, logprobs=3), "m", tokenizer, [PROMPT])


@pytest.mark.parametrize("kind", ["bytes", "sentences"])
@given(
    tokens=st.lists(st.integers(2, SIZE - 1) | st.sampled_from([0, END]), min_size=1, max_size=16),
    sizes=st.lists(st.integers(1, 4), max_size=8),
    skip=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_tokens_join_to_the_text(
    tokenizers: dict[str, Tokenizer], kind: str, tokens: list[int], sizes: list[int], skip: bool
) -> None:
    answer = completion(tokenizers[kind])
    deltas, text = answered(answer, tokens, sizes, skip_special_tokens=skip)
    choices = [answer.choice(0, delta, "delta") for delta in deltas]
    assert "".join(choice["text"] for choice in choices) == text
    scores = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    shown = [one for score in scores for one in score["tokens"]]
    offsets = [one for score in scores for one in score["text_offset"]]
    assert "".join(shown) == text  # an end token is no text, whether special tokens are or not
    assert all(text[at : at + len(token)] == token for token, at in zip(shown, offsets, strict=True))
    assert all(0 <= at <= len(text) for at in offsets)

    whole = completion(tokenizers[kind])
    whole.prompt_ids, whole.params, whole.seeds = answer.prompt_ids, answer.params, answer.seeds
    whole.end_tokens = answer.end_tokens
    assert whole.choice(0, StreamDelta.joined(deltas), "message")["logprobs"]["tokens"] == shown


def test_no_offset_lies_beyond_a_stop_string(tokenizers: dict[str, Tokenizer]) -> None:
    answer = completion(tokenizers["bytes"])
    tokens = [2 + byte for byte in b"abcdef"]
    deltas, text = answered(answer, tokens, [6], stop=["bcde"])
    (choice,) = [answer.choice(0, delta, "message") for delta in deltas]
    assert text == choice["text"] == "a"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 1]


def test_equal_texts_do_not_collapse(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["bytes"]
    same = [token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == "é".encode()]
    answer = completion(tokenizer)
    top = TokenLogprobs(-3.0, 4, ((same[0], -0.5), (2 + 0xE2, -1.0), (2 + 0x82, -1.5)))
    assert top_logprobs(answer, 2 + ord("x"), top) == {"é": -0.5, r"bytes:\xe2": -1.0, r"bytes:\x82": -1.5, "x": -3.0}
    tokenizer = tokenizers["sentences"]
    same = [token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"a"]
    assert len(same) == 2  # the word, and its byte
    answer = completion(tokenizer)
    top = TokenLogprobs(-2.0, 2, ((same[0], -1.0),))
    assert top_logprobs(answer, same[1], top) == {"a": -1.0, f"token_id:{same[1]}": -2.0}


def test_bytes_of_a_chats_tokens_are_their_own(tokenizers: dict[str, Tokenizer]) -> None:
    request = ChatCompletionRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 3}
    )
    tokenizer = tokenizers["sentences"]
    answer = ChatAnswer(request, "m", tokenizer, [PROMPT])
    tokens = [FIRST_BYTE + byte for byte in "é".encode()] + [tokenizer.encode("a", False)[0], END]
    deltas, text = answered(answer, tokens, [1, 1, 1, 1])
    scored = [one for delta in deltas for one in answer.choice(0, delta, "delta")["logprobs"]["content"]]
    assert [one["token"] for one in scored[:2]] == [r"bytes:\xc3", r"bytes:\xa9"]
    assert scored[-1]["bytes"] is None and scored[-1]["token"] == "</s>"
    assert bytes(byte for one in scored[:-1] for byte in one["bytes"]).decode() == text
    assert [one["bytes"] for one in scored[0]["top_logprobs"]] == [[0xC3], [0xC4], None]


@pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
@pytest.mark.parametrize(
    "keys",
    [
        {}, {"return_token_ids": True}, {"n": 2}, {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, {"return_spans": True},
        {"return_drafts": True},
    ],
    ids=str,
)  # fmt: skip
@given(texts=st.lists(st.sampled_from(['"\\', "é\n", "\0text", "\0ids", "", "a"]), min_size=2, max_size=5))
@settings(max_examples=20)
def test_chunks_of_cached_bytes(
    tokenizers: dict[str, Tokenizer], chat: bool, keys: dict[str, Any], texts: list[str]
) -> None:
    """They have the bytes of chunks that are built from scratch, whatever is in the text."""
    made = list[Answer]()
    for _ in range(2):
        one: Answer
        if chat:
            body = ChatCompletionRequest(messages=[{"role": "user", "content": "a"}], **keys)
            one = ChatAnswer(body, '"m', tokenizers["bytes"], ["a"])
        else:
            one = CompletionAnswer(CompletionRequest(prompt="a", **keys), '"m', tokenizers["bytes"], ["a"])
        one.id, one.created, one.prompt_ids, one.seeds = "x", 1, [PROMPT], [None, 3]
        made.append(one)
    for at, text in enumerate(texts):
        reason = "stop" if at + 1 == len(texts) else None
        delta = StreamDelta("x-1", (at, 7), (False, True), ((text, False), (text, True)), reason)
        for index in range(keys.get("n", 1)):
            assert made[0].chunk(index, delta) == made[1].any_chunk(index, delta)
    assert bool(made[0].frames) == (len(texts) > 2 and not {"return_spans", "return_drafts"} & keys.keys() and (
        "continuous_usage_stats" not in keys.get("stream_options", {})
    ))  # fmt: skip
