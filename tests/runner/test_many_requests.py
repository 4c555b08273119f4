"""Five hundred requests of every kind through one engine: each is delivered what plain decoding gives it alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from specdec_hal.runner import Request, RequestOutput, SamplingParams, StreamDelta
from tests.runner.conftest import make_runner
from tests.runner.test_equality import Expected, plain_decoding
from tests.support.history_model import VOCABULARY, DeviceHistoryModel, HistoryModel

COUNT = 250


def random_request(number: int) -> Request:
    """Any length, sampling, penalties, stop rules and log-probabilities."""
    rng = np.random.default_rng([3, number])
    unit = rng.integers(1, VOCABULARY, rng.integers(1, 7)).tolist()
    some = lambda value, default, share=0.3: value if rng.random() < share else default  # noqa: E731
    params: dict[str, Any] = {
        "temperature": some(float(rng.uniform(0.3, 1.3)), 0.0, 0.6), "top_p": some(0.8, 1.0), "top_k": some(5, 0),
        "seed": int(rng.integers(-(2**63), 2**63 - 1)), "repetition_penalty": some(1.25, 1.0),
        "frequency_penalty": some(0.3, 0.0), "presence_penalty": some(0.2, 0.0),
        "max_new_tokens": int(rng.integers(1, 20)), "min_new_tokens": some(1, 0),
        "stop": some(["".join(map(chr, rng.integers(98, 110, 2)))], [], 0.4),
        "stop_sequences": some([rng.integers(1, VOCABULARY, rng.integers(1, 3)).tolist()], [], 0.4),
        "stop_token_ids": some([int(rng.integers(1, VOCABULARY))], []),
        "bad_token_ids": some([int(rng.integers(1, VOCABULARY))], []), "logprobs": some(int(rng.integers(0, 4)), None),
    }  # fmt: skip
    prompt = (unit * 12)[: rng.integers(1, 40)]
    bias = {int(rng.integers(1, VOCABULARY)): float(rng.integers(-3, 3)) for _ in range(3)}
    params |= {"logit_bias": some(bias, {}), "return_drafts": some(True, False)}
    return Request(
        f"request-{number}", prompt, SamplingParams(**params, prompt_logprobs=some(int(rng.integers(0, 3)), None))
    )


def check_drafts(output: RequestOutput, request: Request) -> None:
    """Requests with return_drafts get all drafts, of which the accepted ones are the tokens."""
    if not request.params.return_drafts:
        assert output.drafts == ()
        return
    assert sum(len(one.token_ids) for one in output.drafts) == output.drafted
    assert sum(one.accepted for one in output.drafts) == output.accepted
    starts = [one.start for one in output.drafts]
    assert starts == sorted(set(starts)) and all(one.token_ids for one in output.drafts)
    flags = [False] * len(output.token_ids)
    for one in output.drafts:
        end = min(one.start + one.accepted, len(flags))  # a stop string may have cut it
        assert output.token_ids[one.start : end] == one.token_ids[: end - one.start]
        flags[one.start : end] = [True] * (end - one.start)
    assert tuple(flags) == output.accepted_draft


@cache
def expected(number: int) -> Expected:
    request = random_request(number)
    return plain_decoding(list(request.prompt_token_ids), request.params)


@pytest.mark.parametrize("slots", [1, 3, 64])
@pytest.mark.parametrize("device", [False, True], ids=["listed", "device"])
def test_every_request_is_delivered_what_it_gets_alone(slots: int, device: bool) -> None:
    rng = np.random.default_rng(slots)
    runner = make_runner(
        model=DeviceHistoryModel() if device else HistoryModel(),
        runner={
            "max_num_seqs": slots, "prefill_chunk": 16, "max_num_batched_tokens": slots * 5 + 24, "block_size": 4,
            "num_kv_blocks": max(16, slots * 2), "overlap": True,
        },
        speculative={"method": "ngram", "num_speculative_tokens": 4, "ngram": {"use_index": bool(slots % 2)}},
    )  # fmt: skip
    count = COUNT if slots > 1 else COUNT // 5
    deltas: dict[str, list[StreamDelta]] = {f"request-{n}": [] for n in range(count)}
    arriving, cancelled = list(range(count)), set[int]()
    while arriving or runner.has_requests:
        for number in arriving[: rng.integers(0, slots + 2)]:
            arriving.remove(number)
            request = random_request(number)
            callback = deltas[request.request_id].append
            runner.add_request(Request(request.request_id, request.prompt_token_ids, request.params, callback))
        runner.step()
        if rng.random() < 0.1:
            number = int(rng.integers(count))
            if runner.cancel(f"request-{number}"):
                cancelled.add(number)
    outputs = runner.take_finished()
    assert len(outputs) == count and 0 < len(cancelled) < count / 2
    for number in range(count):
        output, wanted = outputs[f"request-{number}"], expected(number)
        tokens = list(output.token_ids)
        if number in cancelled:
            assert output.finish_reason == "cancelled" and tokens == wanted.tokens[: len(tokens)]
        else:
            assert (tokens, output.finish_reason) == (wanted.tokens, wanted.finish_reason), number
        streamed = deltas[output.request_id]
        assert [token for delta in streamed for token in delta.token_ids] == tokens
        assert "".join(delta.text for delta in streamed) == output.text
        assert sum((delta.logprobs for delta in streamed), ()) == output.logprobs
        assert sum((delta.prompt_logprobs for delta in streamed), ()) == output.prompt_logprobs
        assert sum((delta.drafts for delta in streamed), ()) == output.drafts
        check_drafts(output, random_request(number))
        wants_logprobs = random_request(number).params.logprobs is not None
        assert len(output.logprobs) == (len(tokens) if wants_logprobs else 0)
        endings = [delta.finish_reason for delta in streamed if delta.finish_reason is not None]
        assert endings == [output.finish_reason]
    if device and slots == 64:
        assert runner.summary()["preemptions"] > 0
