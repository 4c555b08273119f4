"""FastDeploy's ops that the layer does not serve, with reasons. `ADAPTORS` has the served ones."""

from __future__ import annotations

_SCHEDULER = "KV blocks and their scheduler are the engine's"
_PLAIN = "part of non-speculative decoding"
_OLD = "replaced in FastDeploy itself in 2026"
_UNKNOWN = "an op of speculative decoding whose arguments this layer does not know"
_IMAGES = "part of models that see images"

FAMILIES = ("speculate_", "spec_", "mtp_", "eagle_", "draft_model_", "ngram_", "hybrid_mtp_", "suffix_", "verify_")
"""Prefixes of FastDeploy's speculative decoding ops."""

_BOTH = {
    "update_inputs": _PLAIN,
    "update_inputs_v1": _PLAIN,
    "set_stop_value_multi_ends": _PLAIN,
    "limit_thinking_content_length": _PLAIN,
    "save_output": _PLAIN,
    "recover_decode_task": _SCHEDULER,
    "mtp_step_paddle": _SCHEDULER,
    "speculate_step_paddle": _SCHEDULER,
    "speculate_schedule_cache": _SCHEDULER,
    "speculate_update": _OLD,
    "speculate_verify": _OLD,
    "speculate_get_output_padding_offset": _OLD,
    "speculate_rebuild_append_padding": _OLD,
    "speculate_get_output": _UNKNOWN,
    "update_attn_mask_offsets": _IMAGES,
}

WITHOUT_COMPILED: dict[str, dict[str, str]] = {
    "gpu": {},
    "xpu": {"get_infer_param": "FastDeploy's own also describes what its attention reads"},
}
"""By op package: served only where FastDeploy has no compiled ops; name -> reason."""

LEFT: dict[str, dict[str, str]] = {
    "gpu": {
        **_BOTH,
        "set_value_by_flags_and_idx": _PLAIN,
    },
    "xpu": {
        **_BOTH,
        "save_output_dynamic": _PLAIN,
        "speculate_step_reschedule": _SCHEDULER,
        "speculate_update_v3": _OLD,
        "mtp_save_first_token_with_topk": _UNKNOWN,
    },
}
"""By op package: name -> reason."""
