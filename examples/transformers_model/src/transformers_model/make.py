"""Writes a checkpoint with random weights: ``python -m transformers_model.make FOLDER TOKENIZER_JSON``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from transformers_model.modeling import SideBySideConfig, SideBySideForCausalLM


def main(folder: str, tokenizer: str) -> None:
    """`tokenizer`: a tokenizer.json of up to 4,096 tokens."""
    torch.manual_seed(0)
    model = SideBySideForCausalLM(SideBySideConfig(bos_token_id=1, eos_token_id=2))
    with torch.no_grad():
        for parameter in model.parameters():  # far from zero, so that tokens are chosen clearly
            parameter.mul_(4)
        for layer in model.model.layers:
            layer.attention.sinks.normal_()
    model.save_pretrained(folder)
    shutil.copy(tokenizer, Path(folder) / "tokenizer.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
