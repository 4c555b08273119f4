"""Tiny random checkpoints of many architectures of `transformers`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

VOCABULARY = 96
POSITIONS = 256

_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": POSITIONS,
}  # fmt: skip
_UNGROUPED = {**_SIZES, "num_key_value_heads": 4}
_NEOX = {name: _SIZES[name] for name in _SIZES if name not in ("num_key_value_heads", "head_dim")}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}
_MIXTURE = {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    **_UNGROUPED, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "head_dim": 8,
}  # fmt: skip
WINDOW = 8
SWITCH = 25  # of three prompts of 18, 21 and 2 tokens, two get longer
_LONG = {
    "max_position_embeddings": POSITIONS, "original_max_position_embeddings": SWITCH,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": SWITCH,
        "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [4.0, 3.0, 2.0, 8.0],
    },
}  # fmt: skip

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": _SIZES,
    "Mistral": {**_SIZES, "sliding_window": WINDOW},
    "Qwen2": _SIZES,
    "Qwen2Moe": {**_MIXTURE, "shared_expert_intermediate_size": 32},
    "Qwen3": {**_SIZES, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "Qwen3Moe": _MIXTURE,
    "Gemma": _SIZES,
    "Gemma2": {**_SIZES, "sliding_window": WINDOW, "query_pre_attn_scalar": 20},
    "Gemma3": {**_SIZES, "sliding_window": WINDOW, "query_pre_attn_scalar": 20, "num_hidden_layers": 3,
               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "Phi": _NEOX,
    "Phi3": {**_SIZES, "pad_token_id": 0},
    "Phi3 LongRoPE": {**_NEOX, **_LONG, "pad_token_id": 0},
    "Phimoe LongRoPE": {
        **_NEOX, **_LONG, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
        "rope_parameters": {**_LONG["rope_parameters"], "short_mscale": 1.0, "long_mscale": 1.3},
    },
    "GPT2": _GPT2,
    "GPTNeoX": _NEOX,
    "GptOss": {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "Olmo2": _SIZES,
    "Olmo3": {**_SIZES, "sliding_window": WINDOW, "num_hidden_layers": 4},
    "Granite": {**_SIZES, "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "logits_scaling": 2.0,
                "residual_multiplier": 0.5},
    "Cohere": {**_SIZES, "logit_scale": 0.3},
    "Cohere2": {**_SIZES, "sliding_window": WINDOW, "logit_scale": 0.3, "num_hidden_layers": 4},
    "StableLm": {**_NEOX, "num_key_value_heads": 2},
    "Starcoder2": {**_SIZES, "sliding_window": WINDOW},
    "SmolLM3": {**_SIZES, "no_rope_layers": [1, 0], "pad_token_id": 0},
    "Glm": {**_SIZES, "pad_token_id": 0},
    "Glm4": {**_SIZES, "pad_token_id": 0},
    "Ernie4_5": _SIZES,
    "Mixtral": {**_SIZES, "num_local_experts": 4},
    "DeepseekV3": {**_LATENT, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
                   "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "OPT": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "word_embed_proj_dim": 32, "max_position_embeddings": POSITIONS},
    "Exaone4": {**_SIZES, "sliding_window": WINDOW, "num_hidden_layers": 4},
    "SeedOss": _SIZES,
    "Nemotron": _SIZES,
    "Olmoe": {**_NEOX, "num_experts": 4, "num_experts_per_tok": 2},
    "Olmo": {**_NEOX, "clip_qkv": 1.5},  # few values reach it
    "Gemma4Text": {**_SIZES, "sliding_window": WINDOW, "num_hidden_layers": 3, "global_head_dim": 32,
                   "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
                   "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 16,
                   "vocab_size_per_layer_input": VOCABULARY},
    "Gemma4Text shared": {
        **_SIZES, "sliding_window": WINDOW, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "global_head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCABULARY,
    },
    "Llama4Text": {
        **_SIZES, "num_local_experts": 2, "intermediate_size_mlp": 32, "attention_chunk_size": 6, "pad_token_id": 0,
        "layer_types": ["chunked_attention", "full_attention"],
    },
    "GraniteMoeHybrid attention": {**_SIZES, "layer_types": ["attention"] * 2, "num_local_experts": 0,
                         "shared_intermediate_size": 48, "mamba_n_heads": 4, "mamba_d_head": 16},
    "Laguna": {**_MIXTURE, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": WINDOW,
               "mlp_layer_types": ["dense", "dense"]},  # rotates heads in part, and whole
    "HunYuanMoEV1": {**_SIZES, "num_experts": 4, "moe_topk": 2},
    "Bloom": {"hidden_size": 36, "n_layer": 2, "n_head": 3},
    "Mpt": {"d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": POSITIONS},
    "Falcon": {**_NEOX, "ffn_hidden_size": 48, "new_decoder_architecture": True, "num_kv_heads": 2},
    "Falcon ALiBi": {**_NEOX, "ffn_hidden_size": 48, "alibi": True, "multi_query": False, "parallel_attn": False,
                     "bias": True},
    "GPTJ": {**_GPT2, "rotary_dim": 4},
    "CodeGen": {**_GPT2, "n_embd": 64, "rotary_dim": 8, "n_ctx": POSITIONS},
    "GPTNeo": {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
               "window_size": WINDOW, "max_position_embeddings": POSITIONS},
    "XGLM": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4, "pad_token_id": 0,
             "max_position_embeddings": POSITIONS},
    "ModernBertDecoder": {**_NEOX, "sliding_window": 2 * WINDOW, "num_hidden_layers": 3, "pad_token_id": 0},
}  # fmt: skip


_DELTA = {
    **_SIZES, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
_DELTA_MIXTURE = {
    **_DELTA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
_MAMBA = {
    **_SIZES,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "num_hidden_layers": 3,
}
RECURRENT: dict[str, dict[str, Any]] = {
    "Qwen3_5Text": _DELTA,
    "Qwen3_5MoeText": _DELTA_MIXTURE,
    "Qwen3Next": _DELTA_MIXTURE,
    "OlmoHybrid": {**_DELTA, "layer_types": ["linear_attention", "linear_attention", "full_attention"],
                   "pad_token_id": 0},
    "Lfm2": {**_SIZES, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "Lfm2Moe": {**_MIXTURE, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
                "num_dense_layers": 1},
    "NemotronH": {**_SIZES, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8,
                  "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
                  "num_hidden_layers": 4},
    "GraniteMoeHybrid": {**_MAMBA, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
                         "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48,
                         "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "FalconH1": {**_MAMBA, "mamba_d_ssm": 64, "num_hidden_layers": 2},
    "Bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "Zamba2": {**_UNGROUPED, "num_hidden_layers": 3, "n_mamba_heads": 4, "mamba_ngroups": 2, "mamba_d_state": 8,
               "layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_mem_blocks": 1},
    "KimiLinear": {**_LATENT, "q_lora_rank": None, "num_hidden_layers": 3, "linear_head_dim": 8, "linear_num_heads": 4,
                   "layer_types": ["linear_attention", "full_attention", "linear_attention"], "pad_token_id": 0,
                   "moe_intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip
"""Those with recurrent layers."""
_CHOSEN = {
    **_LATENT, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
    "num_experts_per_tok": 2, "index_head_dim": 16, "index_topk": 6,
    "index_n_heads": 16,  # with few, several keys have the score 0, and the library's choice depends on its cache
}  # fmt: skip
SPARSE: dict[str, dict[str, Any]] = {
    "DeepseekV32": {**_CHOSEN, "first_k_dense_replace": 1},
    "GlmMoeDsa": {**_CHOSEN, "num_hidden_layers": 3, "indexer_types": ["full", "shared", "full"], "pad_token_id": 0,
                  "mlp_layer_types": ["dense", "dense", "sparse"]},
}  # fmt: skip
"""Those whose indexers choose keys."""
ARCHITECTURES |= RECURRENT | SPARSE

_STATE = (
    r"it keeps a state besides keys and values \(the selective scan of Mamba-1\), which cannot forget rejected drafts"
)
_INTERFACE = "its attention does not go through the attention interface of transformers"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Mamba": ({"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, f"^MambaForCausalLM: {_STATE}"),
    "MiniMax": (
        {**_SIZES, "num_local_experts": 2, "layer_types": ["linear_attention", "full_attention"]},
        "^MiniMaxForCausalLM: it has layers of type linear_attention",
    ),
    "Qwen4ExpText": (
        {**_DELTA_MIXTURE, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
         "hc_lowrank": 8, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16,
         "indexer_compress_ratio": 4},
        "^Qwen4ExpForCausalLM: it has layers of type qwen_sparse_attention",
    ),
    "T5": ({"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}, "encoder-decoder"),
    "Doge": (_SIZES, r"^DogeForCausalLM: it masks its attention \(DogeAttention\) itself"),
    "Roberta": (
        {**_NEOX, "is_decoder": True}, r"^RobertaForCausalLM: its own positions do not begin at 0",
    ),
    "DeepseekV3": ({**_LATENT, "v_head_dim": 40}, "values wider than its keys"),
}  # fmt: skip


def config_of(kind: str, **changes: Any) -> Any:
    """The configuration of an architecture, by the name of its class."""
    import transformers

    name = "Gemma3TextConfig" if kind == "Gemma3" else f"{kind.split()[0]}Config"
    options = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, **ARCHITECTURES.get(kind, {}), **changes}
    return getattr(transformers, name)(**options)


def write_model(folder: Path, kind: str, **changes: Any) -> Path:
    """A checkpoint with random weights, which are large enough that tokens are chosen clearly."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    torch.manual_seed(3)
    config = config_of(kind, **changes)
    model = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config)
    enlarge(model, 2 if kind in RECURRENT else 4)
    model.save_pretrained(folder)
    return folder


def enlarge(model: Any, factor: float) -> None:
    """Multiply random weights by `factor`, so that tokens are chosen clearly."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and name.endswith("norm.weight"):
                weight.add_(torch.randn_like(weight) * 0.1)
            elif "sinks" in name:
                weight.normal_()
            elif name.endswith("A_log"):
                weight.uniform_(-3, 0)  # states that are remembered
            elif name.endswith(("dt_bias", ".D")):
                continue
            else:
                weight.mul_(factor)


@dataclass
class Case:
    """A checkpoint, the library's model of it, and what that generates."""

    folder: Path
    prompts: list[list[int]] = field(default_factory=list)
    new_tokens: int = 12
    auto: str = "CausalLM"
    unscaled: bool = False

    def __post_init__(self) -> None:
        generator = np.random.default_rng(5)
        beginning = generator.integers(3, VOCABULARY, 9)
        self.prompts = [np.tile(beginning, 2).tolist(), generator.integers(3, VOCABULARY, 21).tolist(), [7, 8]]

    @cached_property
    def reference(self) -> Any:
        import torch
        import transformers

        auto = getattr(transformers, f"AutoModelFor{self.auto}")
        model = auto.from_pretrained(self.folder, dtype=torch.float32).eval()
        if model.config.model_type != "falcon":  # whose eager attention adds ALiBi's biases twice
            model.set_attn_implementation("eager")
        return model

    def logits(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        import torch

        with torch.inference_mode():
            text = torch.as_tensor(ids)[None]
            # Without a mask some classes (Moshi) attend to later tokens too.
            found = self.reference(text, attention_mask=torch.ones_like(text)).logits[0].numpy()
        factor = self.reference.config.get_text_config().logit_scale if self.unscaled else 1.0
        logits: npt.NDArray[np.float32] = found * np.float32(factor)
        return logits

    @cached_property
    def generated(self) -> list[list[int]]:
        """Greedy continuations of the prompts, alone."""
        import torch

        texts = []
        rope = getattr(self.reference.config, "rope_parameters", None) or {}
        cached = rope.get("rope_type") != "longrope"  # beyond the switch 5.17 drops the cache, and feeds one token
        for prompt in self.prompts:
            ids, options = torch.tensor([prompt]), {"do_sample": False, "pad_token_id": 0}
            mask = torch.ones_like(ids)
            out = self.reference.generate(
                ids, attention_mask=mask, max_new_tokens=self.new_tokens, use_cache=cached, **options
            )
            texts.append(out[0, len(prompt) :].tolist())
        return texts
