"""Tiny configurations of any architecture of `transformers`, from the class of its configuration.

A field gets a small value by its name, in nested configurations too. So an architecture of a new version needs nothing
here, unless its fields depend on each other in a way of its own: see `CHANGES`.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCABULARY = 96
POSITIONS = 256
HIDDEN, HEADS, KV_HEADS, WIDTH = 64, 4, 2, 16

_SMALL: list[tuple[int, str]] = [
    (HIDDEN, "hidden_size d_model n_embd embed_dim emb_dim embedding_dim attention_hidden_size lru_width "
    "word_embed_proj_dim embedding_size input_embedding_size output_embedding_size hidden_size_global "
    "backbone_hidden_size mamba_d_ssm intermediate_size dense_intermediate_size intermediate_size_mlp ffn_dim "
    "encoder_ffn_dim decoder_ffn_dim n_inner dff dim_ff ffn_hidden_size d_inner feed_forward_size "
    "shared_intermediate_size encoder_hash_byte_group_vocab"),
    (32, "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size "
    "expert_ffn_hidden_size attention_head_dim index_topk rope_head_dim"),
    (HEADS, "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads "
    "attention_heads num_encoder_attention_heads num_decoder_attention_heads mamba_n_heads mamba_num_heads "
    "linear_num_value_heads linear_num_heads swa_num_attention_heads"),
    (KV_HEADS, "linear_num_key_heads mamba_n_groups n_groups mamba_ngroups swa_num_key_value_heads n_mamba_heads"),
    (WIDTH, "head_dim dim_head d_head kv_channels q_lora_rank kv_lora_rank qk_nope_head_dim v_head_dim swa_head_dim "
    "mamba_d_head mamba_head_dim mamba_headdim linear_key_head_dim linear_value_head_dim linear_head_dim "
    "attention_chunk_size index_head_dim hidden_size_per_layer_input attention_head_size mamba_dt_rank time_step_rank "
    "router_hidden_size gated_norm_rank laurel_rank o_lora_rank adapter_rank query_pre_attn_scalar d_rel"),
    (8, "qk_rope_head_dim sliding_window attention_window_size window_size mamba_d_state state_size ssm_state_size "
    "rotary_dim hc_lowrank sliding_window_size chunk_size mamba_chunk_size"),
    (2, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_encoder_layers "
    "num_decoder_layers num_blocks num_layers_per_stack max_window_layers index_n_heads"),
    (1, "first_k_dense_replace num_dense_layers n_shared_experts num_shared_experts moe_num_shared_experts n_group "
    "topk_group"),
    (4, "num_experts n_routed_experts num_local_experts moe_num_experts num_filters"),
    (POSITIONS, "max_position_embeddings n_positions n_ctx max_seq_len context_length model_max_length "
    "max_target_positions max_source_positions original_max_position_embeddings"),
    (VOCABULARY, "vocab_size vocab_size_per_layer_input decoder_vocab_size"),
]  # fmt: skip
SMALL = {name: value for value, names in _SMALL for name in names.split()}
_CHOSEN = ["num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k"]
_KV = ["num_key_value_heads", "num_kv_heads", "kv_n_heads", "num_query_groups"]
_WHERE_NONE = {
    "head_dim": WIDTH, "num_key_value_heads": KV_HEADS, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
_STATE_WIDTHS = "mamba_d_head", "mamba_head_dim", "mamba_headdim"
_BY_LAYER = ["layer_types", "mlp_layer_types", "no_rope_layers", "indexer_types", "moe_layers", "layer_rope_theta"]

_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
_FEW = {"num_hidden_layers": 3}
_PATTERN = {**_FEW, "attn_layer_period": 2, "attn_layer_offset": 1}
_HYBRID = {
    **_FEW, "layers_block_type": ["linear_attention", "hybrid", "hybrid"], "attention_hidden_size": 2 * HIDDEN,
    "attention_head_dim": 2 * HIDDEN // HEADS,
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "bamba": {**_FEW, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": dict.fromkeys(
            ("sliding_attention", "full_attention"), _SECTIONS["rope_parameters"]
        ),
    },
    "dbrx": {
        "ffn_config": {"hidden_size": HIDDEN, "ffn_hidden_size": HIDDEN},
        "attn_config": {"kv_n_heads": KV_HEADS, "rope_theta": 1e4, "clip_qkv": 8.0},
    },
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "cosmos3_edge_text": _SECTIONS,
    "emu3": {"vocabulary_map": {"<image>": 4}},
    "ernie4_5_vl_moe_text": {"rope_parameters": {**_SECTIONS["rope_parameters"], "mrope_section": [3, 3, 2]}},
    "falcon": {"new_decoder_architecture": True},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
        "global_head_dim": 32,
    },
    "glm4v_moe_text": {"rope_parameters": {**_SECTIONS["rope_parameters"], "partial_rotary_factor": 1.0}},
    "glm4v_text": _SECTIONS,
    "glm5_next_text": {
        "qk_rope_head_dim": 0, "num_key_value_heads": HEADS, "index_topk": 16, "index_kpool": 4,
        "layer_types": ["linear_attention", "deepseek_sparse_attention"], "num_hidden_layers": 2,
        "mlp_layer_types": ["dense", "sparse"], "indexer_types": ["full", "full"],
    },
    "glm_ocr_text": _SECTIONS,
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**_FEW, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "hrm_text": {"num_layers_per_stack": 2, "L_cycles": 2, "num_hidden_layers": 2 * 2 * 3},
    "hunyuan_vl_text": _SECTIONS,
    "jamba": {**_PATTERN, "use_mamba_kernels": False},
    "lfm2_moe": {**_FEW, "layer_types": ["conv", "full_attention", "conv"]},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"], "num_hidden_layers": 2, "index_n_heads": KV_HEADS,
        "index_block_size": 4, "index_topk_blocks": 2,
    },
    "moshi": {"sliding_window": POSITIONS},  # of the cache alone, which the trained positions do not exceed
    "paddleocr_vl_text": _SECTIONS,
    "qwen2_5_omni_text": _SECTIONS,
    "qwen2_5_omni_thinker": {"vision_start_token_id": VOCABULARY},
    "qwen2_5_vl_text": _SECTIONS,
    "qwen2_vl_text": _SECTIONS,
    "qwen3_omni_moe_thinker": {"vision_start_token_id": VOCABULARY},
    "qwen4_exp_text": {
        **_FEW, "layer_types": ["linear_attention", "qwen_sparse_attention", "linear_attention"], "indexer_n_heads": 2,
        "indexer_kv_heads": 1, "indexer_head_dim": WIDTH, "indexer_budget": WIDTH, "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": _FEW,
    "reformer": {"axial_pos_shape": [16, 16], "axial_pos_embds_dim": [32, 32], "attn_layers": ["local", "lsh"]},
    "roc_bert": {"pronunciation_vocab_size": VOCABULARY, "shape_vocab_size": VOCABULARY},
    "step3p5": {"sliding_window": 8},
    "xlstm": {"qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "falcon_h1": {"mamba_d_ssm": 2 * HIDDEN},
    "zamba": {**_HYBRID, "n_mamba_heads": 2},
    "zamba2": {**_HYBRID, "n_mamba_heads": HEADS},
}  # fmt: skip
"""By the type of a model or of a nested configuration: fields that depend on each other."""


def types_of_models() -> list[str]:
    """Types of models with a causal language model, and after them those that only see or hear too."""
    causal = _names("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    return list(dict.fromkeys([*causal, *multimodal_types()]))


def multimodal_types() -> list[str]:
    """Types of models that see or hear and write text."""
    return list(_names("MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"))


def _names(mapping: str) -> dict[str, str]:
    """One of the library's tables, read without importing it."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return {}
    tree = ast.parse((Path(spec.origin).parent / "models/auto/modeling_auto.py").read_text())
    tables = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]

    def entries(name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for element in tables[name].args[0].elts:  # type: ignore[attr-defined]
            if isinstance(element, ast.Starred):  # *list(OTHER.items())
                found |= entries(element.value.args[0].func.value.id)  # type: ignore[attr-defined]
            else:
                found |= [ast.literal_eval(element)]
        return found

    return entries(mapping)


def tiny_config(kind: str, **changes: Any) -> Any:
    """The configuration of a type of models."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[kind](**{**_small(CONFIG_MAPPING[kind]), **changes})


def _small(kind: Any) -> dict[str, Any]:
    """Arguments for the class of a configuration."""
    own = CHANGES.get(kind.model_type, {})
    default = kind()
    fields: Mapping[str, Any] = default.to_dict()
    nested = {name: part for name in kind.sub_configs or () if (part := getattr(default, name, None)) is not None}
    absent = {name: value for name, value in _WHERE_NONE.items() if name in fields and fields[name] is None}
    small = {name: value for name, value in SMALL.items() if type(fields.get(name)) is int and name in fields}
    small |= {name: min(2, fields[name]) for name in _CHOSEN if fields.get(name)}
    small |= {name: min(KV_HEADS, fields[name]) for name in _KV if fields.get(name)}
    if fields.get("kv_lora_rank"):  # latent attention: a head has keys of its own, whose rotated part is the head_dim
        small |= {name: value for name, value in (("head_dim", 8), ("num_key_value_heads", HEADS)) if name in small}
    if expand := fields.get("mamba_expand", fields.get("expand")):  # the heads of Mamba-2
        widths = {*_STATE_WIDTHS, *(["head_dim"] if kind.model_type == "mamba2" else [])}
        small |= {name: int(expand) * HIDDEN // HEADS for name in widths if name in small}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    small |= {name: value for name, value in tokens.items() if name in fields}
    small |= {"is_decoder": True} if fields.get("is_decoder") is False else {}
    small |= _layers(fields, own)
    return {**absent, **small, **{name: _small(type(part)) for name, part in nested.items() if name not in own}, **own}


def _layers(fields: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """So few layers that each kind of them is there."""
    lists = {name: list(fields[name]) for name in _BY_LAYER if fields.get(name) and name not in own}
    if not lists:
        return {}
    length = len(next(iter(lists.values())))
    rows = list(zip(*(one for one in lists.values() if len(one) == length), strict=True))
    kept: list[int] = [i for i in range(length) if rows[i] not in rows[:i]]
    if len(kept) < 2:
        kept = [0, 1]
    counts = {name: len(kept) for name in ("num_hidden_layers", "num_layers", "n_layer") if name in fields}
    return {**counts, **{name: [one[i] for i in kept] for name, one in lists.items() if len(one) == length}}
