"""MiMo-7B, which `transformers` lacks: Qwen2's decoder under another model type, as its config.json says."""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from specdec_hal.models.mtp import MIMO


class MiMoConfig(Qwen2Config):  # type: ignore[misc]
    """The fields of Qwen2."""

    model_type = MIMO


class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2's decoder and head; :mod:`specdec_hal.models.mtp` names the MTP modules."""

    config_class = MiMoConfig


AutoConfig.register(MIMO, MiMoConfig, exist_ok=True)
AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM, exist_ok=True)
