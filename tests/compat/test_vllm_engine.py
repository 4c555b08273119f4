"""vLLM itself with this project's proposer, on the embedded model. Run by `make engine-test`, which installs vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.conftest import MODEL, ROOT

pytestmark = pytest.mark.engine
OURS = {"method": "custom_class", "model": "specdec_hal.compat.vllm.NgramProposer", "num_speculative_tokens": 8}


def generate(
    model: Path, speculative: dict[str, Any] | None, prompts: list[list[int]]
) -> tuple[list[list[int]], dict[str, int]]:
    """Greedy tokens, all prompts together, and vLLM's counters of drafts."""
    from vllm import LLM, SamplingParams

    # Of the CPU build, `gpu_memory_utilization` is a share of the machine's memory.
    engine = LLM(
        str(model), dtype="float32", max_model_len=1024, max_num_seqs=8, speculative_config=speculative,
        gpu_memory_utilization=0.2, enforce_eager=True, disable_log_stats=False,
    )  # fmt: skip
    how = SamplingParams(temperature=0, max_tokens=96, ignore_eos=True, detokenize=False)
    outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], how, use_tqdm=False)
    counters = {
        metric.name.removeprefix("vllm:spec_decode_"): metric.value
        for metric in engine.get_metrics()
        if metric.name.startswith("vllm:spec_decode_") and hasattr(metric, "value")
    }
    engine.llm_engine.engine_core.shutdown()
    return [list(output.outputs[0].token_ids) for output in outputs], counters


@pytest.mark.parametrize(("proposer", "adaptive"), [("NgramProposer", False), ("SuffixProposer", True)])
def test_tokens_are_those_of_plain_vllm(
    proposer: str, adaptive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    subprocess.run([sys.executable, str(ROOT / "tools/drop_mtp.py"), str(MODEL), str(tmp_path)], check=True)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))
    files = sorted((ROOT / "examples/prompts").glob("*.txt"))
    prompts = [tokenizer(Path(file).read_text().removesuffix("\n"))["input_ids"] for file in files]
    plain, nothing = generate(tmp_path, None, prompts)
    assert not nothing
    monkeypatch.setenv("SPECDEC_HAL_VLLM", json.dumps({"adaptive": adaptive}))
    ours, counters = generate(tmp_path, {**OURS, "model": f"specdec_hal.compat.vllm.{proposer}"}, prompts)
    print(json.dumps(counters))
    assert ours == plain
    assert counters["num_accepted_tokens"] > 0.3 * counters["num_draft_tokens"] > 0
