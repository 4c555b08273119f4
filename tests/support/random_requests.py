"""Requests of every kind, and what each must get."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from specdec_hal.runner import Request, RequestOutput, SamplingParams
from tests.support.decoding import Expected, plain_decoding
from tests.support.history_model import VOCABULARY


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
