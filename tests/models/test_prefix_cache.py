"""Turns of a chat with a real decoder: the tokens of a request that shares KV blocks are those of one that does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.runner import SamplingParams, build_runner
from specdec_hal.runner import build as build_module
from tests.models.conftest import Shape, write_checkpoint
from tests.support.decoding import outputs_of

pytestmark = pytest.mark.torch
SHAPE = Shape(num_hidden_layers=1, num_nextn_predict_layers=0, bos_token_id=0, eos_token_id=0)
BLOCK = 4


@pytest.mark.parametrize("k", [0, 3])
def test_turns_of_a_chat(tmp_path: Path, triton_device: str, monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    from specdec_hal.tensors.on_torch import TorchDevice
    from tests.support.device_models import device_model

    on_host = triton_device == "cpu"
    if on_host:
        monkeypatch.setattr(build_module, "get_device", lambda place, framework: TorchDevice("cpu"))
    folder = write_checkpoint(tmp_path / "checkpoint", SHAPE)
    model = device_model(folder, triton_device)
    rng = np.random.default_rng(1)
    said = [rng.integers(1, SHAPE.vocab_size, 7).tolist() for _ in range(3)]

    def chat(cached: bool) -> tuple[list[int], list[float], list[int]]:
        """The text, the log-probabilities of what was generated, and how many tokens each turn found."""
        settings = parse({
            "runner": {
                "max_num_seqs": 2, "max_model_len": 64, "prefill_chunk": 8, "block_size": BLOCK,
                "enable_prefix_caching": cached,
            },
            "speculative": {"method": "ngram" if k else "naive", "num_speculative_tokens": k, "adaptive": False},
        })  # fmt: skip
        runner = build_runner(settings, sd.get_backend("reference" if on_host else "cuda"), model)
        for layer in model.pool_layers():
            layer.fill_(3.0)  # uncomputed rows would change tokens
        text, scores, found = list[int](), list[float](), []
        for number, words in enumerate(said):
            text += words
            other = [number + 1] * 30  # writes to blocks that are free, in which the same text may have been
            outputs_of(runner, (other, SamplingParams(max_new_tokens=1)))
            (output,) = outputs_of(runner, (list(text), SamplingParams(max_new_tokens=5, logprobs=0)))
            text += output.token_ids
            scores += [one.logprob for one in output.logprobs]
            found.append(output.num_cached_tokens)
        return text, scores, found

    whole, expected, none = chat(False)
    shared, scores, found = chat(True)
    assert shared == whole
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)  # interpreted, sums depend on shapes
    assert none == [0, 0, 0] and found[0] == 0 and found[1] >= 2 * BLOCK and found[2] >= 5 * BLOCK
