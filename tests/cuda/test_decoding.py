"""Requests decoded on a GPU get the tokens that the reference gives them, and speculative tokens equal plain ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.plugin.backend import Backend
from specdec_hal.runner import Request, SamplingParams, build_runner
from tests.proposers.conftest import registry_with_draft_model, settings_of
from tests.support.history_model import HistoryModel, LetterTokenizer
from tests.support.torch_history_model import TorchHistoryModel, UploadingHistoryModel

pytestmark = pytest.mark.gpu

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
    "penalised": {"temperature": 0.7, "repetition_penalty": 1.2, "frequency_penalty": 0.2, "min_new_tokens": 5},
    "biased": {"temperature": 0.7, "logit_bias": {5: 1.5, 8: -2.0, 3: -100.0}, "logprobs": 0},
    "logprobs": {
        "temperature": 0.5, "logprobs": 3, "presence_penalty": 0.1, "bad_token_ids": [3], "prompt_logprobs": 2,
    },
}  # fmt: skip


def decode(backend: Backend, model: Any, strategy: str, sampling: dict[str, Any], **ngram: Any) -> dict[str, Any]:
    speculative = {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "adaptive": False,
        "verify_strategy": strategy,
        "ngram": ngram,
    }
    config = parse({"speculative": speculative, "runner": {"max_num_seqs": 3, "prefill_chunk": 5, "debug": True}})
    runner = build_runner(config, backend, model, LetterTokenizer())  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for i in range(7):
        prompt = rng.integers(4, 10, int(rng.integers(1, 20))).tolist()
        runner.add_request(Request(str(i), prompt, SamplingParams(max_new_tokens=24, seed=i, **sampling)))
    return {name: (list(o.token_ids), (o.logprobs, o.prompt_logprobs), o.accepted) for name, o in runner.run().items()}


@pytest.mark.parametrize("use_index", [False, True])
@pytest.mark.parametrize("strategy", ["target_match", "topp", "rejection"])
@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_the_same_tokens_as_the_reference(strategy, sampling, use_index, cuda):
    expected = decode(ReferenceBackend(), HistoryModel(), strategy, sampling, use_index=use_index)
    actual = decode(cuda, UploadingHistoryModel(), strategy, sampling, use_index=use_index)
    assert actual == expected and sum(len(tokens) for tokens, _, _ in actual.values()) > 50


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_a_captured_model_gives_the_same_tokens(sampling, cuda):
    """How many drafts are accepted differs: the host is a step behind, and chunks of prompts meet other steps."""
    expected = decode(ReferenceBackend(), HistoryModel(), "target_match", sampling)
    actual = decode(cuda, TorchHistoryModel("cuda:0"), "target_match", sampling)
    assert {name: output[:2] for name, output in actual.items()} == {
        name: output[:2] for name, output in expected.items()
    }


@pytest.mark.parametrize("strategy", ["target_match", "rejection"])
@pytest.mark.parametrize("blocks", [21, 64])
@pytest.mark.parametrize("chunk", [2, 9])
def test_a_captured_draft_model_has_read_what_the_target_has(chunk, blocks, strategy, cuda):
    """One that is always right is always accepted, whatever was chunked, rejected or preempted."""
    registry = registry_with_draft_model(lambda: TorchHistoryModel("cuda:0"))
    speculative = {"method": "imitation", "num_speculative_tokens": 4, "adaptive": False, "verify_strategy": strategy}
    sizes = {"max_num_seqs": 3, "prefill_chunk": chunk, "block_size": 3, "num_kv_blocks": blocks}
    config = parse(
        {"speculative": {**speculative, "imitation": settings_of("imitation")}, "runner": sizes}, registry=registry
    )
    runner = build_runner(config, cuda, TorchHistoryModel("cuda:0"), LetterTokenizer(), registry=registry)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    asked = []
    for i in range(9):
        params = SamplingParams(
            max_new_tokens=24, seed=i, temperature=0.9 * (i % 2), num_speculative_tokens=(None, 1, 0)[i % 3]
        )
        asked.append(Request(str(i), rng.integers(4, 10, int(rng.integers(1, 20))).tolist(), params))
        runner.add_request(asked[-1])
    outputs, summary = runner.run(), runner.summary()
    assert runner.overlap and summary["graphs"] > 1 and not summary["graph_failures"]
    assert summary["failed_steps"] == summary["failed_proposals"] == 0
    assert (summary["preemptions"] > 0) == (blocks == 21)
    naive = parse({"speculative": {"method": "naive"}, "runner": {"max_num_seqs": 1}})
    plain = build_runner(naive, ReferenceBackend(), HistoryModel(), LetterTokenizer())  # type: ignore[arg-type]
    for request in asked:
        output = outputs[request.request_id]
        assert (output.drafted == 0) == (request.params.num_speculative_tokens == 0)
        # Preemption drops unverified drafts, and an end token those after it.
        assert summary["preemptions"] or output.finish_reason == "stop" or output.accepted == output.drafted
        params = request.params.model_copy(update={"num_speculative_tokens": None})
        plain.add_request(Request(request.request_id, request.prompt_token_ids, params))
        expected = plain.run()[request.request_id].token_ids
        assert strategy == "rejection" or output.token_ids == expected
