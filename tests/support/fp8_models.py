"""Tiny random checkpoints in FP8, in the formats that are in use, beside their widened weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.support.hf_models import write_model

SIZES = {"hidden_size": 160, "intermediate_size": 288, "num_attention_heads": 4, "num_key_value_heads": 2}
"""Several blocks of 128, the last of them not whole."""
LINEAR = re.compile(r"(_proj|\.w[123])\.weight$")
"""Names of what is in FP8."""


def _compressed(strategy: str) -> dict[str, Any]:
    """What llm-compressor writes, by the scales that it has."""
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False}
    rows = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": rows}
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": group},
    }  # fmt: skip


def write_fp8(folder: Path, kind: str, scales: str, **changes: Any) -> tuple[Path, Path]:
    """A checkpoint with linear layers in FP8, and one with the same weights in float32.

    `scales`: "blocks" of 128 x 128, "channel" or "tensor".
    """
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import FineGrainedFP8Config

    wide = write_model(folder / "wide", kind, **{**SIZES, **changes})
    packed = folder / "fp8"
    packed.mkdir()
    weights, stored = load_file(wide / "model.safetensors"), dict[str, Any]()
    name_of_scale = "weight_scale_inv" if scales == "blocks" else "weight_scale"
    for name, weight in weights.items():
        if not LINEAR.search(name):
            stored[name] = weight
            continue
        rows, columns = weight.shape
        height, width = {"blocks": (128, 128), "channel": (1, columns), "tensor": (rows, columns)}[scales]
        down, across = -(-rows // height), -(-columns // width)
        scale = torch.empty((down, across))
        values = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        for i in range(down):
            for j in range(across):
                block = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
                scale[i, j] = weight[block].abs().max() / 448
                values[block] = (weight[block] / scale[i, j]).to(torch.float8_e4m3fn)
                weight[block] = values[block].float() * scale[i, j]
        stored[name] = values
        stored[name.removesuffix("weight") + name_of_scale] = scale.flatten() if scales == "tensor" else scale
    save_file(weights, wide / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, packed / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((wide / "config.json").read_text())
    blocks = FineGrainedFP8Config(weight_block_size=(128, 128)).to_dict()
    method = blocks if scales == "blocks" else _compressed(scales)
    (packed / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    return packed, wide
