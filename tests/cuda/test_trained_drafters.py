"""Trained drafters on a GPU, captured with the step: planted ones are always right, and no draft changes a token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.config import parse
from specdec_hal.errors import ConfigError
from specdec_hal.models import load_model
from specdec_hal.runner import Request, RequestOutput, SamplingParams, build_runner
from tests.support import dflash, drafters
from tests.support.committed_drafters import acceptance_of
from tests.support.eagle3 import PROMPTS

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
DRAFTS = 4


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, drafters.Head]:
    """A target, and the head that is always right for it."""
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    folder, head = drafters.perfect(tmp_path_factory.mktemp("target"))
    return load_model(folder, "transformers", device="cuda:0", dtype="float32"), head


def decode(
    model: Any, cuda: Any, folder: Path | None, temperature: float, num_kv_blocks: int | None = None, **drafter: Any
) -> tuple[Any, Any]:
    """Outputs, and what was counted, of prompts in chunks and more requests than slots, twice."""
    speculative: dict[str, Any] = {"method": "naive"}
    if folder is not None:
        speculative = {"method": "auto", "path": str(folder), "num_speculative_tokens": DRAFTS, "adaptive": False}
        speculative |= drafter
    sizes = {
        "prefill_chunk": 4,
        "max_num_seqs": 2,
        "max_model_len": 64,
        "block_size": 4,
        "num_kv_blocks": num_kv_blocks,
    }
    one = build_runner(parse({"speculative": speculative, "runner": sizes}), cuda, model)
    for _ in range(2):  # the second time captured steps are replayed
        for number, prompt in enumerate(PROMPTS):
            params = SamplingParams(
                max_new_tokens=20, ignore_eos=True, temperature=temperature, seed=number, return_drafts=True
            )
            one.add_request(Request(str(number), prompt, params))
        outputs: dict[str, RequestOutput] = one.run()
    counted = one.summary()
    assert counted["graphs"] > 0 and not counted["graph_failures"]
    assert counted["failed_steps"] == counted["failed_proposals"] == 0
    return [outputs[str(number)] for number in range(len(PROMPTS))], counted


@pytest.mark.parametrize("blocks", [10, 64])
@pytest.mark.parametrize("kind", ["eagle3", "dflash", "dflash2"])
def test_every_draft_of_a_planted_one_is_accepted(
    planted: Any, kind: str, blocks: int, cuda: Any, tmp_path: Path
) -> None:
    model, head = planted
    make: dict[str, Any] = {"dflash": dflash.perfect, "dflash2": dflash.perfect_second}
    drafter: Any = head if kind == "eagle3" else make[kind](head, DRAFTS)
    folder, temperature = drafter.write_speculators(tmp_path), 1.0 if kind == "eagle3" else 0.0
    outputs, counted = decode(model, cuda, folder, temperature, num_kv_blocks=blocks)
    assert counted["acceptance_rate"] == 1.0 and counted["accepted_tokens"] > 80
    assert (counted["preemptions"] > 0) == (blocks == 10)
    plain, _ = decode(model, cuda, None, temperature)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]


SECOND = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 8, "selector_top_k": 4}
DOMINO = {"emb_dim": 8, "gru_hidden_dim": 8, "pure_draft_prefix_len": 1}
XPRESS = {"xpress_rank": 8, "xpress_mlp_ratio": 2, "sample_from_anchor": False}
MARKOV = {"markov_rank": 8, "enable_confidence_head": True, "sample_from_anchor": True}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "kind", ["peagle", "qwen3", "dflash", "dflash2", "windows", "vanilla", "gated", "rnn", "domino", "xpress"]
)
def test_random_drafters_change_no_token(
    planted: Any, kind: str, temperature: float, cuda: Any, tmp_path: Path
) -> None:
    model, _ = planted
    sizes: dict[str, Any] = {"vocab_size": 12, "hidden_size": 16, "taps": (1, 2, 4), "draft_vocab_size": 9}
    if kind in ("peagle", "qwen3"):
        more = {"heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 40}
        made = drafters.Head(**sizes, **more, head_norms=kind == "qwen3").randomize(1)
        keys: dict[str, Any] = {}
        if kind == "peagle":
            keys = {"speculators_model_type": "peagle", "mask_token_id": 3}
            made.tensors["mask_hidden"] = np.random.default_rng(2).standard_normal((1, 1, made.features))
        folder = made.write_speculators(tmp_path, **keys)
    else:
        own: dict[str, Any] = {
            "dflash": {}, "dflash2": {"second": SECOND, "draft_vocab_size": None}, "windows": {"window": 4},
            "domino": {"domino": DOMINO, "draft_vocab_size": None}, "xpress": {"xpress": XPRESS},
        }.get(kind, {"markov": {**MARKOV, "markov_head_type": kind}})  # fmt: skip
        drafter = dflash.Drafter(**{**sizes, "head_dim": 16, "block_size": DRAFTS + 1, **own}).randomize(1)
        if kind == "domino":
            folder = drafter.write_zlab(tmp_path, 4, architectures=["DominoDraftModel"])
        else:
            folder = drafter.write_speculators(tmp_path)
    outputs, counted = decode(model, cuda, folder, temperature)
    plain, _ = decode(model, cuda, None, temperature)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert sum(output.drafted for output in outputs) > 50 and counted["acceptance_rate"] < 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_assistant(temperature: float, cuda: Any, tmp_path: Path) -> None:
    """Greedy drafts of captured steps are those of the library's generator; no draft changes a token."""
    from tests.support import assistants

    target, folder = assistants.write_target(tmp_path / "target"), assistants.write(tmp_path / "assistant")
    model = load_model(target, "transformers", device="cuda:0", dtype="float32")
    outputs, _ = decode(model, cuda, folder, temperature)
    plain, _ = decode(model, cuda, None, temperature)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    if not temperature:
        assistants.Generator(target, folder).check(PROMPTS, outputs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_committed_head(dtype: str, temperature: float) -> None:
    """On real text: the tokens of plain decoding, with drafts that are far from what chance accepts."""
    keys = ["model.framework=transformers", f"model.dtype={dtype}"]
    first, second, third = acceptance_of(
        "tiny-py-lm-eagle3", "cuda.yaml", keys, tokens=64, temperatures=[temperature] * 4
    )
    assert first > 0.3 and first > second > third > 0.05


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_calibration_when_an_engine_starts(planted: Any, kind: str, cuda: Any, tmp_path: Path) -> None:
    """Taps one layer too high are refused, with the key to set; with it the engine decodes."""
    model, head = planted
    drafter: Any = replace(head) if kind == "eagle3" else dflash.perfect(head, DRAFTS)
    drafter.taps = (2, 3, 4)
    folder = drafter.write_speculators(tmp_path)
    with pytest.raises(ConfigError, match=rf"set speculative.{kind}.layers=\[1, 2, 3\]"):
        decode(model, cuda, folder, 0.0, calibrate=True)
    _, counted = decode(model, cuda, folder, 0.0, calibrate=True, **{kind: {"layers": [1, 2, 3]}})
    assert counted["acceptance_rate"] == 1.0
