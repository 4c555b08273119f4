"""Decoders of `transformers` over two GPUs: captured steps with NCCL give one GPU's tokens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import specdec_hal as sd
from specdec_hal.runner import Request, SamplingParams
from tests.support.hf_models import Case, write_model

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
ROOT = Path(__file__).parents[2]


def decode(case: Case, devices: list[int]) -> list[tuple[list[tuple[int, ...]], dict[str, Any]]]:
    """Greedy tokens, the second time by replayed steps, and what was counted: plain and with n-gram drafts."""
    keys = [f"model.path={case.folder}", "model.framework=transformers", "runner.max_model_len=128"]
    keys += [f"engine.tensor_parallel={len(devices)}", f"engine.rank_devices={devices}"]
    keys += ["speculative.adaptive=false", "speculative.num_speculative_tokens=4"]
    runtime = sd.load(ROOT / "configs/cuda.yaml", keys)
    try:
        model, found = runtime.load_model(), []
        for one in (runtime.naive(), runtime):
            runner = one.runner(model=model)
            for _ in range(2):
                for i, prompt in enumerate(case.prompts):
                    runner.add_request(Request(str(i), prompt, SamplingParams(max_new_tokens=32)))
                outputs = runner.run()
            found.append(([outputs[str(i)].token_ids for i in range(len(case.prompts))], runner.summary()))
        return found
    finally:
        runtime.close()


@pytest.mark.parametrize("kind", ["Qwen3", "Llama"])
def test_two_gpus_give_the_tokens_of_one(kind: str, tmp_path: Path) -> None:
    """In float32, plain and with drafts."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, has {torch.cuda.device_count()}")
    case = Case(write_model(tmp_path, kind, vocab_size=4096, eos_token_id=0))
    shutil.copy(ROOT / "models/tiny-py-lm/tokenizer.json", case.folder)
    (whole, _), _ = decode(case, [0])
    for split, counted in decode(case, [0, 1]):
        assert split == whole
        assert counted["graphs"] > 0 and not counted["graph_failures"]
