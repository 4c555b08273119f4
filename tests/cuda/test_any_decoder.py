"""Decoders of `transformers` on a GPU: captured steps deliver the tokens of `generate`, with and without drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.models import load_model
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from specdec_hal.runner import Request, SamplingParams, build_runner
from tests.support.fp8_models import write_fp8
from tests.support.hf_models import ARCHITECTURES, VOCABULARY, Case, write_model
from tests.support.history_model import LetterTokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
ROOT = Path(__file__).parents[2]


def generate(case: Case, model: Any, method: str, k: int, *more: str) -> tuple[list[list[int]], dict[str, Any]]:
    """A GPU runner's outputs for the prompts, each twice: the second time captured steps are replayed."""
    runtime = sd.load(
        ROOT / "configs/cuda.yaml",
        [
            f"model.path={case.folder}", "model.framework=transformers", f"speculative.method={method}",
            f"speculative.num_speculative_tokens={k}", "runner.max_num_seqs=3", "runner.prefill_chunk=5",
            "runner.max_model_len=64", "runner.block_size=16", "speculative.adaptive=false", *more,
        ],
    )  # fmt: skip
    runner = build_runner(runtime.config, runtime.backend, model, LetterTokenizer())  # type: ignore[arg-type]
    found: list[list[list[int]]] = []
    for _ in range(2):
        for i, prompt in enumerate(case.prompts):
            runner.add_request(Request(str(i), prompt, SamplingParams(max_new_tokens=case.new_tokens)))
        outputs = runner.run()
        found.append([list(outputs[str(i)].token_ids) for i in range(len(case.prompts))])
    assert found[0] == found[1]
    return found[0], runner.summary()


@pytest.fixture
def case(kind: str, tmp_path: Path) -> Case:
    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    return Case(write_model(tmp_path, kind))


# Windows, soft caps, sinks, experts, values narrower than keys, learned positions; recurrent layers of each op.
@pytest.mark.parametrize(
    "kind",
    ["Qwen3", "Gemma2", "GptOss", "DeepseekV3", "Mixtral", "GPT2", "Qwen3_5Text", "KimiLinear", "NemotronH", "Lfm2"],
)
def test_tokens(case: Case) -> None:
    model = load_model(case.folder, "transformers", device="cuda:0", dtype="float32")
    assert model.capabilities.static_shapes
    for k in (0, 3):
        tokens, counted = generate(case, model, "ngram", k)
        assert tokens == case.generated, k
        assert counted["graphs"] > 0 and not counted["graph_failures"]


@pytest.mark.parametrize("storage", ["states", "replay"])
@pytest.mark.parametrize("kind", ["Qwen3_5Text", "KimiLinear", "NemotronH", "Lfm2"])
def test_states_of_known_prefixes(case: Case, storage: str) -> None:
    """The second time each prompt continues from the state of a prefix."""
    model = load_model(case.folder, "transformers", device="cuda:0", dtype="float32")
    keys = ["runner.enable_prefix_caching=true", "runner.block_size=4", "runner.prefill_chunk=16"]
    tokens, counted = generate(case, model, "ngram", 3, *keys, f"runner.recurrent_storage={storage}")
    assert tokens == case.generated
    assert counted["prefix_cache_hits"] > 0 and counted["graphs"] > 0 and not counted["graph_failures"]


@pytest.mark.parametrize("kind", list(ARCHITECTURES))
def test_bfloat16(case: Case) -> None:
    model = load_model(case.folder, "transformers", device="cuda:0", dtype="bfloat16", batch_invariant=True)
    check_bits(case, model)


@pytest.mark.parametrize("quantization", ["fp8", "fp8_dynamic"])
@pytest.mark.parametrize("kind", ["Qwen3", "Gemma2", "GPT2", "Phi3", "Qwen3_5Text", "Qwen3Moe", "GptOss"])
def test_quantised_at_loading(case: Case, quantization: str) -> None:
    model = load_model(
        case.folder, "transformers", device="cuda:0", dtype="bfloat16", batch_invariant=True, quantization=quantization
    )
    check_bits(case, model)


@pytest.mark.parametrize("quantization", ["auto", "fp8_dynamic"])
@pytest.mark.parametrize("scales", ["blocks", "channel"])
@pytest.mark.parametrize("kind", ["Qwen3", "Qwen3Moe"])
def test_checkpoints_in_fp8(kind: str, scales: str, quantization: str, tmp_path: Path) -> None:
    import torch

    from specdec_hal.models.fp8 import Fp8Weight
    from specdec_hal.models.paged import launchers
    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.models.transformers.load import load_decoder

    packed, _ = write_fp8(tmp_path, kind, scales, moe_intermediate_size=144)
    decoder = load_decoder(packed, "cuda:0", "bfloat16", None, quantization)
    model = DeviceTransformers(decoder, make_launcher=launchers(torch.device("cuda:0")), batch_invariant=True)
    weights = 2 * (3 if kind == "Qwen3" else 4)  # gated MLPs hold theirs
    assert sum(isinstance(part, Fp8Weight) for part in decoder.model.modules()) == weights
    check_bits(Case(packed), model)


def check_bits(case: Case, model: Any) -> None:
    """A text has the same bits at once, in chunks and beside another one; drafts change no token."""
    import torch

    assert model.capabilities.stable_row_counts is None
    texts = np.random.default_rng(0).integers(3, VOCABULARY, (2, 40))
    model.allocate(3, 64)

    def logits(*parts: tuple[int, int, int]) -> Any:
        """Of the first part's tokens, each part from one position of a text up to another."""
        segments, start = [], 0
        for slot, first, last in parts:
            segments.append(Segment(slot, start, last - first, first))
            start += last - first
        ids = np.concatenate([texts[slot][first:last] for slot, first, last in parts])
        hidden = model.forward(ForwardBatch(ids, segments, ()))[FINAL_NORM]
        return model.compute_logits(hidden)[: segments[0].length]

    whole = logits((0, 0, 40))
    for length in (1, 6):
        steps = range(0, 40, length)
        assert torch.equal(whole, torch.cat([logits((0, at, min(at + length, 40))) for at in steps])), length
    beside = [logits((0, 8 * i, 8 * i + 8), (1, 7 * i, 7 * i + 7)) for i in range(5)]
    assert torch.equal(whole, torch.cat(beside))
    plain, _ = generate(case, model, "ngram", 0)
    for method in ("ngram", "suffix"):
        assert generate(case, model, method, 3)[0] == plain, method
