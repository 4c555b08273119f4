"""What trainers write into a drafter's config.json: taken where it changes nothing, else refused with the reason.

Keys and values are those of SpecForge 0.2, ModelOpt 0.47 and speculators 0.9, with tiny sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import CheckpointError
from specdec_hal.models.checkpoint import LlamaConfig, read_config
from specdec_hal.models.dflash import dflash_shapes, read_dflash
from specdec_hal.models.drafter import (
    Mask,
    drafter_kind,
    eagle3_shapes,
    read_drafter_weights,
    read_eagle3,
    read_eagle3_weights,
)
from specdec_hal.models.drafter_keys import NEUTRAL
from tests.support.dflash import Drafter
from tests.support.eagle3 import make_head


@pytest.fixture
def target(make_checkpoint: Callable[..., Path]) -> LlamaConfig:
    return read_config(make_checkpoint(num_hidden_layers=8, num_nextn_predict_layers=0))


# SpecForge's heads, by the family of their target, whose keys they keep. Its class LlamaForCausalLMEagle3 reads
# Llama's keys.
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SPECFORGE: dict[str, dict[str, Any]] = {
    "llama 3": {
        "bos_token_id": 128000, "eos_token_id": [128001, 128009], "pad_token_id": 0, "pretraining_tp": 1,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32},
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    },
    "llama 4": {"bos_token_id": 200000, "eos_token_id": 200001, "num_experts_per_tok": 1, "router_aux_loss_coef": 0.001,
                "no_rope_layers": [], "use_qk_norm": False},
    "qwen 2": {"model_type": "qwen2", "sliding_window": 131072, "max_window_layers": 28, "tie_word_embeddings": True,
               "attention_dropout": 0.0, "use_mrope": False},
    "qwen 2.5": {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 21},
    "qwen 2.5 vl": {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "image_token_id": 151655},
    "qwen 3": {"sliding_window": None, "use_sliding_window": False, "max_window_layers": 36, "head_dim": 16},
    "qwen 3, its model_type": {"model_type": "qwen3", "sliding_window": None, "use_sliding_window": False},
    "qwen 3 moe": {"decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 24, "norm_topk_prob": True,
                   "num_experts": 128, "num_experts_per_tok": 8, "router_aux_loss_coef": 0.001,
                   "output_router_logits": False, "use_sliding_window": False, "max_window_layers": 48},
    "phi 4": {"model_type": "phi3", "embd_pdrop": 0.0, "resid_pdrop": 0.0, "partial_rotary_factor": 1.0,
              "original_max_position_embeddings": 64, "sliding_window": 262144, "interpolate_factor": 1},
    "gemma 3": {"sliding_window": 512, "sliding_window_pattern": 6, "rope_local_base_freq": 10000,
                "query_pre_attn_scalar": 16, "attn_logit_softcapping": None, "final_logit_softcapping": None,
                "hidden_activation": "gelu_pytorch_tanh"},
    "granite": {"logits_scaling": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logit_scale": 1.0,
                "bias": False},
    "gpt-oss": {"rope_scaling": {**_YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}, "swiglu_limit": 7.0,
                "num_local_experts": 128, "layer_types": ["full_attention"] * 36},
    "deepseek": {"rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, "aux_loss_alpha": 0.001,
                 "n_routed_experts": 256, "norm_topk_prob": True, "first_k_dense_replace": 3},
    "norm_output": {"norm_output": True, "fc_norm": True},
}  # fmt: skip


@pytest.mark.parametrize("family", SPECFORGE)
def test_heads_of_specforge_are_read(target: LlamaConfig, tmp_path: Path, family: str) -> None:
    """Each with its own weights and rotary embeddings; special tokens and the target's windows change nothing."""
    changes = {"eagle_config": None, "transformers_version": "4.57.1", "use_cache": True, **SPECFORGE[family]}
    head = make_head(taps=(2, 4, 5), options={"fc_norm": True} if changes.get("fc_norm") else {})
    folder = head.write_original(tmp_path, **changes)
    config = read_eagle3(folder, target)
    assert config.taps == (2, 4, 5) and config.is_llama
    kind = (changes.get("rope_scaling") or {}).get("rope_type")
    assert (config.rope_scaling and config.rope_scaling.rope_type) == kind
    weights = read_eagle3_weights(folder, config)
    np.testing.assert_allclose(weights.head, head.tensors["lm_head.weight"].T)


# What ModelOpt's exporters write.
MODELOPT = {
    "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
    "use_mtp_layernorm": False, "next_layer_regular": True, "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 1, "eagle_aux_hidden_state_layer_ids": [0, 2, 5],
}  # fmt: skip


@pytest.mark.parametrize("step", [1, None])
def test_a_head_of_modelopt_is_read(target: LlamaConfig, tmp_path: Path, step: int | None) -> None:
    """Layers by speculators' names, no embedding, and descriptions of the head that is computed anyway."""
    head = make_head()
    folder = head.write_speculators(tmp_path, ("embed_tokens.weight",))
    raw = {
        **head.layer_config(), "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 70, "mlp_bias": False,
        "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0, "pretraining_tp": 1,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008], "rope_theta": 10000, "torch_dtype": "bfloat16",
        "rope_scaling": {"rope_type": "default", "rope_theta": 10000},
        "eagle_config": {**MODELOPT, "parallel_draft_step": step},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    config = read_eagle3(folder, target)
    assert config.taps == head.taps and config.is_llama
    assert read_eagle3_weights(folder, config).embedding is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_input_layernorm_in_first_layer", False), ("use_last_layernorm", False), ("use_mtp_layernorm", True),
        ("next_layer_regular", False), ("parallel_draft_step", 4), ("use_aux_hidden_state", False),
    ],
)  # fmt: skip
def test_other_heads_of_modelopt_are_refused_by_the_key(
    target: LlamaConfig, tmp_path: Path, key: str, value: Any
) -> None:
    folder = make_head().write_original(tmp_path, eagle_config={**MODELOPT, key: value})
    with pytest.raises(CheckpointError, match=rf"eagle_config\.{key}: {json.dumps(NEUTRAL[key][0])} or no such key"):
        read_eagle3(folder, target)


def make_drafter(**changes: Any) -> Drafter:
    return Drafter(**{"vocab_size": 131, "hidden_size": 48, "taps": (1, 3, 5), "head_dim": 12, **changes}).randomize(4)


def test_dspark_of_specforge(target: LlamaConfig, tmp_path: Path) -> None:
    """Every checkpoint has `attention_mode`; the loss's weight tells whether there is a confidence head."""
    markov = {"markov_rank": 6, "markov_head_type": "gated", "enable_confidence_head": True}
    nested = {
        "projector_type": "dspark",
        "attention_mode": "gqa",
        "confidence_head_alpha": 1.0,
        "block_size": 5,
    } | markov
    del nested["enable_confidence_head"]
    drafter = make_drafter(markov=markov)
    folder = drafter.write_zlab(tmp_path, 8, nested, architectures=["DSparkDraftModel"])
    config = read_dflash(folder, target)
    assert (config.markov_rank, config.markov_head_type, config.confidence) == (6, "gated", True)
    assert config.sample_from_anchor and config.drafts == 5 and not config.confidence_with_markov
    assert "confidence_head.proj.weight" in read_drafter_weights(folder, dflash_shapes(config), config).tensors
    nested["attention_mode"] = "mla"
    with pytest.raises(CheckpointError, match=r'attention_mode: "gqa" or "mha" or no such key'):
        read_dflash(drafter.write_zlab(tmp_path, 8, nested), target)


def test_dspark_of_modelopt(target: LlamaConfig, tmp_path: Path) -> None:
    """Its head's tensors have no prefix, and the confidence head reads the token too."""
    markov = {"markov_rank": 6, "markov_head_type": "rnn", "enable_confidence_head": True}
    drafter = make_drafter(markov={**markov, "confidence_head_with_markov": True})
    renamed = {"markov_head.": "", "confidence_head.proj": "confidence_proj"}
    for name in list(drafter.tensors):
        for old, new in renamed.items():
            if name.startswith(old):
                drafter.tensors[name.replace(old, new)] = drafter.tensors.pop(name)
    nested = {"projector_type": "dspark", "shift_label": True, "use_confidence_head": True, "causal": False}
    nested |= {key: markov[key] for key in ("markov_rank", "markov_head_type")}
    folder = drafter.write_zlab(tmp_path, 8, nested)
    config = read_dflash(folder, target)
    assert config.confidence and config.confidence_with_markov and config.sample_from_anchor
    read = read_drafter_weights(folder, dflash_shapes(config), config).tensors
    np.testing.assert_allclose(read["markov_head.joint_proj.weight"], drafter.tensors["joint_proj.weight"])
    np.testing.assert_allclose(read["confidence_head.proj.weight"], drafter.tensors["confidence_proj.weight"])


W = Mask(8, causal=True)


@pytest.mark.parametrize(
    ("nested", "changes", "masks"),
    [
        ({}, {}, [Mask(0, causal=False), Mask(0, causal=False)]),
        ({"causal": True}, {}, [Mask(0), Mask(0)]),
        ({}, {"layer_types": ["sliding_attention", "full_attention"]}, [W, Mask(0, causal=False)]),
        ({}, {"layer_types": ["sliding_attention"] * 2, "is_causal": False}, [Mask(8, causal=False)] * 2),
        ({"use_swa": True, "swa_window_size": 8, "causal": False}, {}, [Mask(8, causal=False)] * 2),
        ({"use_swa": False, "swa_window_size": 8}, {}, [Mask(0, causal=False)] * 2),
        ({}, {"use_sliding_window": True, "layer_types": None, "max_window_layers": 1}, [Mask(0, causal=False), W]),
        ({}, {"use_sliding_window": True, "layer_types": None}, [Mask(0, causal=False)] * 2),
    ],
)
def test_windows_of_dflash(
    target: LlamaConfig, tmp_path: Path, nested: dict[str, Any], changes: dict[str, Any], masks: list[Mask]
) -> None:
    """By z-lab's and SpecForge's keys, ModelOpt's, and Qwen3's, whose layers slide from the 28th on by default."""
    keys = {"sliding_window": 8, "use_sliding_window": None, **changes}
    assert read_dflash(make_drafter().write_zlab(tmp_path, 8, nested, **keys), target).masks == tuple(masks)


@pytest.mark.parametrize("both_sides", [False, True])
def test_windows_of_speculators_begin_at_the_block(target: LlamaConfig, tmp_path: Path, both_sides: bool) -> None:
    folder = make_drafter().write_speculators(tmp_path, sliding_window_non_causal=both_sides)
    raw = json.loads((folder / "config.json").read_text())
    raw["transformer_layer_config"] |= {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "use_sliding_window": True
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw))
    assert read_dflash(folder, target).masks == (Mask(8, not both_sides, anchored=True), Mask(0, causal=False))


def test_a_mask_token_may_be_missing_in_heads_of_specforge(target: LlamaConfig, tmp_path: Path) -> None:
    head = make_head(layers=2)
    head.tensors["mask_hidden"] = np.ones((1, 1, head.features))
    folder = head.write_original(tmp_path, architectures=["PEagleDraftModel"], norm_before_residual=True)
    config = read_eagle3(folder, target)
    assert config.parallel and config.mask_token_id is None and not config.is_llama
    assert read_drafter_weights(folder, eagle3_shapes(config), config).tensors["mask_hidden"].shape[-1] == 144


def test_an_embedding_that_is_the_head_too(target: LlamaConfig, tmp_path: Path) -> None:
    head = make_head(draft_vocab_size=131)
    folder = head.write_original(tmp_path, ("lm_head.weight",), tie_word_embeddings=True)
    weights = read_eagle3_weights(folder, read_eagle3(folder, target))
    assert weights.head is not None
    np.testing.assert_allclose(weights.head, head.tensors["embed_tokens.weight"].T)


@pytest.mark.parametrize(
    ("raw", "got"),
    [
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {"projector_type": "new"}}, "DFlashDraftModel with"),
        ({"architectures": ["DFlash3DraftModel"], "dflash_config": {}, "draft_vocab_size": 99}, "DFlash3DraftModel"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "MLPSpeculatorPreTrainedModel"),
        ({"speculators_model_type": "medusa"}, "speculators_model_type 'medusa'"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "LlamaForCausalLMEagle"),
        ({"architectures": ["Gemma5AssistantForCausalLM"]}, "Gemma5AssistantForCausalLM"),
        ({"eagle_config": {}}, "no name in architectures"),
    ],
)
def test_a_drafter_of_an_unknown_kind_is_no_draft_model(tmp_path: Path, raw: dict[str, Any], got: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=r"EAGLE-3, P-EAGLE, DFlash, DSpark") as caught:
        drafter_kind(tmp_path)
    assert f"got {got}" in str(caught.value)
