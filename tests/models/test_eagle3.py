"""EAGLE-3 heads: both formats read back, every way to be wrong refused, and the pass against a slow one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError, CheckpointError, UnsupportedError
from specdec_hal.models import load_model
from specdec_hal.models.checkpoint import WEIGHTS, read_config
from specdec_hal.models.drafter import (
    Blocks,
    drafter_kind,
    eagle3_shapes,
    read_drafter_weights,
    read_eagle3,
    read_eagle3_weights,
    target_of,
)
from specdec_hal.models.eagle3 import eagle3_head
from specdec_hal.plugin.model import ForwardBatch, Segment
from tests.support.drafters import Head
from tests.support.eagle3 import make_head
from tests.support.history_model import HistoryModel
from tests.support.llama_oracle import oracle, stored
from tests.support.scripts import ROOT

TOKENS = np.random.default_rng(5).integers(0, 131, 24)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {}, "norm-before-residual": {"options": {"norm_before_residual": True}},
    "norm-before-fc": {"options": {"norm_before_fc": True}},
    "fc-norm, norm-output": {"options": {"fc_norm": True, "norm_output": True}},
    "two layers, full vocabulary": {"layers": 2, "draft_vocab_size": 131},
    "narrower than the target": {
        "hidden_size": 32, "target_hidden_size": 48, "heads": 2, "kv_heads": 1, "head_dim": 12,
    },
    "parallel": {"layers": 2}, "other rotary embeddings": {"rope_theta": 500.0, "eps": 1e-3},
    "normed queries and keys": {"head_norms": True}, "windows": {"layers": 2, "window": 4},
    "windows, parallel": {"layers": 2, "window": 4},
}  # fmt: skip


@pytest.fixture
def target(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(num_hidden_layers=6, num_nextn_predict_layers=0)


def features(target: Path, tokens: Any, taps: tuple[int, ...]) -> dict[int, Any]:
    return {tap: oracle(target, tokens, tap=tap - 1) for tap in taps}


@pytest.mark.parametrize(
    ("framework", "any_target"), [("paddle", False), pytest.param("transformers", True, marks=pytest.mark.torch)]
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_are_those_of_an_independent_head(
    variant: str, framework: str, any_target: bool, target: Path, tmp_path: Path
) -> None:
    """In chunks, over rows that are overwritten, and three times on its own states; `any_target`: by its own pass."""
    torch_alone = variant.endswith("parallel") or variant in ("normed queries and keys", "windows")
    pytest.importorskip("torch" if torch_alone else framework)
    head = make_head(**VARIANTS[variant])
    model = load_model(target, framework)
    kind: dict[str, Any] = {}
    if variant.endswith("parallel"):
        head.tensors["mask_hidden"] = np.random.default_rng(2).standard_normal((1, 1, head.features))
        kind = {"speculators_model_type": "peagle", "mask_token_id": 7}
    config = read_eagle3(head.write_speculators(tmp_path / "head", **kind), target_of(model, "eagle3"))
    assert config.taps == head.taps
    model.allocate(2, 64)
    if any_target:
        from specdec_hal.models.draft_pass import HeadPass

        weights = read_drafter_weights(tmp_path / "head", eagle3_shapes(config), config)
        module: Any = HeadPass(model, config, weights, Blocks(2, 64), 1)
    else:
        module = eagle3_head(model, config, tmp_path / "head", Blocks(2, 64))
    given = features(target, TOKENS, head.taps)
    states = module.fuse({tap: rows.astype(np.float32) for tap, rows in given.items()})
    wanted = head.states(np.concatenate([given[tap] for tap in head.taps], -1))
    np.testing.assert_allclose(states.numpy(), wanted, atol=2e-4)
    if kind:
        masked = head.states(head.tensors["mask_hidden"].reshape(1, -1))
        np.testing.assert_allclose(module.mask_state.numpy(), masked, atol=2e-4)
    module.forward(ForwardBatch(TOKENS[:20], [Segment(1, 0, 20, 0)]), states[:20])  # what others left in a slot
    logits, text, fed = [], TOKENS[1:15].tolist(), wanted[:14]
    for start, stop in ((0, 5), (5, 6), (6, 14)):
        after = module.forward(
            ForwardBatch(TOKENS[start + 1 : stop + 1], [Segment(1, 0, stop - start, start)]), states[start:stop]
        )
        logits.append(module.compute_logits(after).numpy())
    for number in range(3):
        expected, own = head.run(np.array(text), fed)
        expected = expected[:, head.ids]  # the others are -inf
        if number == 0:
            np.testing.assert_allclose(np.concatenate(logits), expected, atol=2e-3)
        else:
            np.testing.assert_allclose(module.compute_logits(after).numpy()[-1], expected[-1], atol=2e-3)
        text.append(int(TOKENS[-number - 1]))
        fed = np.concatenate([fed, own[-1:]])
        after = module.forward(ForwardBatch(np.array(text[-1:]), [Segment(1, 0, 1, 14 + number)]), after[-1:])


@pytest.mark.parametrize("pickled", ["", *(pytest.param(x, marks=pytest.mark.torch) for x in ("whole", "index"))])
def test_the_original_format_is_the_same_head(target: Path, tmp_path: Path, pickled: str) -> None:
    if pickled:
        pytest.importorskip("torch")
    head, llama = make_head(options={"norm_before_residual": True}), read_config(target)
    folders = head.write_speculators(tmp_path / "a"), head.write_original(tmp_path / "b", pickled=bool(pickled))
    if pickled == "index":
        file = folders[1] / "pytorch_model.bin"
        file.rename(file.with_name("1-of-1.bin"))
        Path(f"{file}.index.json").write_text(json.dumps({"weight_map": {"fc.weight": "1-of-1.bin"}}))
    first, second = (read_eagle3(folder, llama) for folder in folders)
    assert first.taps == second.taps == (1, 3, 6)
    assert "outputs of these layers" in second.numbering
    a, b = (read_eagle3_weights(folder, first) for folder in folders)
    for name in ("embedding", "head", "draft_ids", "fc", "hidden_norm", "final_norm"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    np.testing.assert_array_equal(a.layers[0].qkv, b.layers[0].qkv)
    np.testing.assert_array_equal(a.draft_ids, head.ids)


def test_numbering(target: Path, tmp_path: Path) -> None:
    """Each source of layer ids in its own convention; sorted, each once, as vLLM has them."""
    head, llama = make_head(taps=(2, 3)), read_config(target)
    cases: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({"eagle_config": None}, (2, 3)),  # 2, 6 // 2, 6 - 3
        ({"eagle_config": None, "eagle_aux_hidden_state_layer_ids": [6, 2, 6]}, (2, 6)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [5, 1, 3]}}, (2, 4, 6)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 6]}}, (2, 4, 6)),  # no layer has output 6
    ]
    for number, (changes, taps) in enumerate(cases):
        assert read_eagle3(head.write_original(tmp_path / str(number), **changes), llama).taps == taps


@pytest.mark.parametrize("framework", ["paddle", pytest.param("transformers", marks=pytest.mark.torch)])
@pytest.mark.parametrize("vocabulary", [131, 70])
def test_what_is_missing_is_the_targets(target: Path, tmp_path: Path, framework: str, vocabulary: int) -> None:
    """Embedding and head, of a smaller vocabulary its tokens' rows."""
    if framework == "transformers":
        pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")
    head = make_head(draft_vocab_size=vocabulary)
    folder = head.write_speculators(tmp_path / "head", ("embed_tokens.weight", "lm_head.weight"))
    config = read_eagle3(folder, read_config(target))
    weights = read_eagle3_weights(folder, config)
    assert weights.embedding is None and weights.head is None
    model = load_model(target, framework)
    model.allocate(1, 32)
    module = eagle3_head(model, config, folder, Blocks(1, 32))
    given = features(target, TOKENS[:8], head.taps)
    states = module.fuse({tap: rows.astype(np.float32) for tap, rows in given.items()})
    rows = module.forward(ForwardBatch(TOKENS[1:8], [Segment(0, 0, 7, 0)]), states[:7])
    shared = stored(target)["model.embed_tokens.weight"]
    head.tensors |= {"embed_tokens.weight": shared, "lm_head.weight": shared[head.ids]}
    expected, _ = head.run(TOKENS[1:8], head.states(np.concatenate([given[t][:7] for t in head.taps], -1)))
    expected = expected[:, head.ids]
    np.testing.assert_allclose(module.compute_logits(rows).numpy(), expected, atol=2e-3)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_a_head_of_another_width_has_its_own(target: Path, tmp_path: Path, name: str) -> None:
    head = make_head(**VARIANTS["narrower than the target"])
    folder = head.write_speculators(tmp_path / "head", (name,))
    with pytest.raises(CheckpointError, match=f"none of {name}"):
        read_eagle3_weights(folder, read_eagle3(folder, read_config(target)))


SLIDES = ["sliding_attention"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_before_everything": True}, "norm_before_everything: no such key"),
        ({"logit_scale": 0.5}, "logit_scale: 1 or no such key"),
        ({"attention_bias": True}, "attention_bias: false or no such key, got True; use a drafter of another kind"),
        ({"rope_interleaved": True}, "rope_interleaved: no such key"),
        ({"layer_types": ["chunked_attention"]}, "layer_types: full_attention or sliding_attention for each layer"),
        ({"layer_types": SLIDES * 2, "sliding_window": 8}, "layer_types: one for each of the drafter's 1"),
        ({"layer_types": SLIDES, "max_window_layers": 3}, "sliding_window: an integer >= 1, got no such"),
        ({"layer_types": SLIDES, "sliding_window": None}, "sliding_window: an integer >= 1, got null"),
        ({"layer_types": SLIDES, "sliding_window": 8, "use_sliding_window": False}, "use_sliding_window: true with a"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "kimi_k2"}, "model_type: one of qwen3, llama, qwen2, phi3"),
        ({"vocab_size": 130}, "vocab_size: the target's 131"),
        ({"target_hidden_size": 64}, "target_hidden_size: the target's hidden_size, 48"),
        ({"draft_vocab_size": 132}, "draft_vocab_size: at most"),
        ({"eagle_config": {"layer_ids": [1]}}, r"eagle_config\.layer_ids: no such key"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7]}}, "residuals after 1 to 6 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 3]}, "residuals after 1 to 6 layers"),
        ({"num_aux_hidden_states": 2}, "num_aux_hidden_states: 3"),
        ({"norm_before_fc": True, "fc_norm": True}, "fc_norm: false with norm_before_fc"),
    ],
)
def test_keys_that_cannot_be_computed_are_refused(
    target: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = make_head().write_original(tmp_path / "head", **changes)
    with pytest.raises(CheckpointError, match=message):
        read_eagle3(folder, read_config(target))


def broken(head: Head, what: str) -> tuple[str, ...]:
    """Break a head's tensors; what is left out."""
    tensors = head.tensors
    if what == "shape":
        tensors["layers.0.self_attn.k_proj.weight"] = tensors["layers.0.self_attn.k_proj.weight"][:, :48]
    elif what == "features":
        tensors["fc.weight"] = tensors["fc.weight"][:, :96]
    elif what == "more":
        tensors["layers.0.self_attn.q_norm.weight"] = np.ones(16)
    elif what == "nan":
        tensors["norm.weight"][3] = np.nan
    elif what == "outside":
        tensors["d2t"][-1] = 100
    elif what == "twice":
        tensors["d2t"][1:] -= tensors["d2t"][1] - tensors["d2t"][0] + 1
    return {"d2t": ("d2t", "t2d"), "norm": ("layers.0.hidden_norm.weight",)}.get(what, ())


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("shape", r"layers\.0\.self_attn\.k_proj\.weight of shape \[32, 96\], got shape \[32, 48\]"),
        ("features", r"fc\.weight of shape \[48, 144\], got shape \[48, 96\]"),
        ("more", r"also layers\.0\.self_attn\.q_norm\.weight"),
        ("nan", "finite numbers in norm.weight"),
        ("outside", r"d2t\[i\] \+ i in 0\.\.130"),
        ("twice", "another target token for each entry of d2t"),
        ("d2t", "none of d2t"),
        ("norm", r"none of layers\.0\.hidden_norm\.weight"),
    ],
)
def test_wrong_tensors_are_refused(target: Path, tmp_path: Path, what: str, message: str) -> None:
    head = make_head()
    folder = head.write_speculators(tmp_path / "head", broken(head, what))
    with pytest.raises(CheckpointError, match=message):
        read_eagle3_weights(folder, read_eagle3(folder, read_config(target)))


def test_the_head_of_smollm2() -> None:
    folder = ROOT / "models/smollm2-135m-eagle3"
    config = read_eagle3(folder, SimpleNamespace(vocab_size=49152, hidden_size=576, num_hidden_layers=30))
    weights = read_eagle3_weights(folder, config)
    assert weights.head is None and weights.draft_ids is not None and len(weights.draft_ids) == 8192
    assert config.taps == (10, 20, 29) and (folder / WEIGHTS).stat().st_size < 4e6


def test_kinds(tmp_path: Path, target: Path) -> None:
    told = [
        ({"speculators_model_type": "peagle"}, "peagle"),
        ({"architectures": ["DFlashDraftModel"]}, "dflash"),
        ({"architectures": ["DSparkDraftModel"], "draft_vocab_size": 100}, "dspark"),  # SpecForge adds it to all
        ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 100}, "eagle3"),
        ({"architectures": ["LlamaForCausalLM"]}, "draft_model"),
    ]
    for raw, kind in told:
        (tmp_path / "config.json").write_text(json.dumps(raw))
        assert drafter_kind(tmp_path) == kind
    with pytest.raises(CheckpointError, match="an EAGLE-3 head, got a checkpoint of the kind 'draft_model'"):
        read_eagle3(target, read_config(target))


def test_a_parallel_head_needs_its_mask(target: Path, tmp_path: Path) -> None:
    head, llama = make_head(), read_config(target)
    kind = {"speculators_model_type": "peagle", "mask_token_id": 7}
    folder = head.write_speculators(tmp_path / "without", **kind)
    with pytest.raises(CheckpointError, match="none of mask_hidden"):
        read_eagle3_weights(folder, read_eagle3(folder, llama))
    with pytest.raises(CheckpointError, match="mask_token_id"):
        read_eagle3(head.write_speculators(tmp_path / "outside", **{**kind, "mask_token_id": 131}), llama)


def test_wrong_calls(target: Path, tmp_path: Path) -> None:
    config = read_eagle3(make_head().write_speculators(tmp_path / "head"), read_config(target))
    model, blocks = load_model(target), Blocks(1, 16)
    with pytest.raises(ArgumentError, match="allocate"):
        eagle3_head(model, config, tmp_path / "head", blocks)
    model.allocate(1, 16)
    with pytest.raises(ArgumentError, match=r"expected \[3, 48\], got \[2, 48\]"):
        eagle3_head(model, config, tmp_path / "head", blocks).forward(
            ForwardBatch(TOKENS[:3], [Segment(0, 0, 3, 0)]), np.zeros((2, 48), np.float32)
        )
    with pytest.raises(UnsupportedError, match="got HistoryModel"):
        target_of(HistoryModel(), "eagle3")  # type: ignore[arg-type]
