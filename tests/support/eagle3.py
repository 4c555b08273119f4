"""Runners with the EAGLE-3 head of the embedded model, and random heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.models import load_model
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams, build_runner
from tests.support.drafters import Head

PROMPTS = [[3, 5, 1], [7, 7, 2, 9, 0, 4, 8], [1, 2], [11, 6, 3, 3, 0, 1, 10, 5, 4, 2, 9]]


def load(target: Path, framework: str) -> Any:
    """A target; "device": the model over device tensors and blocks, on a CPU."""
    if framework != "device":
        return load_model(target, framework)
    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.models.transformers.load import load_decoder

    return DeviceTransformers(load_decoder(target, "cpu", "float32"))


def make_runner(target: Path, speculative: dict[str, Any], framework: str = "auto", **runner: Any) -> ModelRunner:
    if framework not in ("auto", "device"):
        pytest.importorskip(framework)
    speculative = {"num_speculative_tokens": 4, **speculative}
    config = parse({"speculative": speculative, "runner": {"prefill_chunk": 4, "max_num_seqs": 2, **runner}})
    return build_runner(config, ReferenceBackend(), load(target, framework))


def decode(runner: ModelRunner, temperature: float = 0.0, tokens: int = 20) -> list[RequestOutput]:
    for number, prompt in enumerate(PROMPTS):
        params = SamplingParams(max_new_tokens=tokens, temperature=temperature, seed=number, return_drafts=True)
        runner.add_request(Request(str(number), prompt, params))
    return finish(runner)


def finish(runner: ModelRunner) -> list[RequestOutput]:
    outputs = runner.run()
    assert runner.summary()["failed_proposals"] == runner.summary()["failed_steps"] == 0
    return [outputs[str(number)] for number in range(len(PROMPTS))]


def make_head(seed: int = 1, **changes: Any) -> Head:
    sizes: dict[str, Any] = {
        "vocab_size": 131, "hidden_size": 48, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 40,
        "taps": (1, 3, 6), "draft_vocab_size": 70,
    }  # fmt: skip
    return Head(**{**sizes, **changes}).randomize(seed)
