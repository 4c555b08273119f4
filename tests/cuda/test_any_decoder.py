"""Decoders of `transformers` on a GPU: captured steps deliver the tokens of `generate`, with and without drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

import specdec_hal as sd
from specdec_hal.models import load_model
from specdec_hal.runner import ModelRunner, Request, SamplingParams
from tests.support.hf_models import Case, write_model
from tests.support.history_model import LetterTokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
ROOT = Path(__file__).parents[2]


# Windows, soft caps, sinks, experts, values narrower than keys, learned positions.
@pytest.mark.parametrize("kind", ["Qwen3", "Gemma2", "GptOss", "DeepseekV3", "Mixtral", "GPT2"])
def test_tokens(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    case = Case(write_model(tmp_path, kind))
    model = load_model(case.folder, "transformers", device="cuda:0", dtype="float32")
    assert model.capabilities.static_shapes
    for k in (0, 3):
        runtime = sd.load(
            ROOT / "configs/cuda.yaml",
            [
                f"model.path={case.folder}", "model.framework=transformers", "speculative.method=ngram",
                f"speculative.num_speculative_tokens={k}", "runner.max_num_seqs=3", "runner.prefill_chunk=5",
                "runner.max_model_len=64", "runner.block_size=16",
            ],
        )  # fmt: skip
        runner = ModelRunner(runtime.config, runtime.backend, model, LetterTokenizer())  # type: ignore[arg-type]
        for _ in range(2):  # the second time captured steps are replayed
            for i, prompt in enumerate(case.prompts):
                runner.add_request(Request(str(i), prompt, SamplingParams(max_new_tokens=case.new_tokens)))
            outputs = runner.run()
            tokens = [list(outputs[str(i)].token_ids) for i in range(len(case.prompts))]
            assert tokens == case.generated, k
        counted = runner.summary()
        assert counted["graphs"] > 0 and not counted["graph_failures"]
