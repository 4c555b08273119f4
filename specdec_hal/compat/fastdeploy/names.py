"""FastDeploy's op names that the layer leaves alone, and why. Those that it serves say so themselves: `ADAPTORS`."""

from __future__ import annotations

_SCHEDULER = "KV blocks and their scheduler are the engine's"
_PLAIN = "part of non-speculative decoding"
_OLD = "replaced in FastDeploy itself in 2026"

_BOTH = {
    "update_inputs": _PLAIN,
    "update_inputs_v1": _PLAIN,
    "set_stop_value_multi_ends": _PLAIN,
    "limit_thinking_content_length": _PLAIN,
    "save_output": _PLAIN,
    "recover_decode_task": _SCHEDULER,
    "mtp_step_paddle": _SCHEDULER,
    "speculate_step_paddle": _SCHEDULER,
    "speculate_update": _OLD,
    "speculate_verify": _OLD,
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
        "speculate_schedule_cache": _SCHEDULER,
    },
    "xpu": {
        **_BOTH,
        "save_output_dynamic": _PLAIN,
        "speculate_step_reschedule": _SCHEDULER,
        "speculate_update_v3": _OLD,
        "speculate_get_output_padding_offset": _OLD,
    },
}
"""By op package: name -> reason."""
