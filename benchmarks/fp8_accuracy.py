"""Logits of models in FP8 beside bfloat16: mean KL divergence and agreement of the most likely tokens.

usage: python3 benchmarks/fp8_accuracy.py FOLDER... [--out FILE]

Texts are pages and sources of this repository, up to 512 tokens of each. On a GPU the engine's kernels compute; without
one PyTorch does, with weights and rows rounded to FP8 in the same way.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from record import write  # noqa: E402

from specdec_hal.models import load_model, load_tokenizer  # noqa: E402
from specdec_hal.models.fp8 import quantised, widened  # noqa: E402
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment  # noqa: E402

TEXTS = (
    "README.md", "docs/use/models.md", "docs/use/serving.md", "docs/learn/architecture.md",
    "specdec_hal/errors.py", "specdec_hal/models/rows.py", "tools/lines.py", "specdec_hal/models/checkpoint.py",
)  # fmt: skip
LENGTH = 512
KINDS = ("float32", "bfloat16", "fp8", "fp8_dynamic")


def on_gpu(folder: str, kind: str, texts: list[Any]) -> list[Any]:
    """Logits of the engine's model."""
    wide = kind == "float32"
    options = {} if kind in ("float32", "bfloat16") else {"quantization": kind}
    dtype = kind if wide else "bfloat16"
    model: Any = load_model(folder, "transformers", device="cuda:0", dtype=dtype, **options)
    model.allocate(1, LENGTH)
    found = []
    for ids in texts:
        hidden = model.forward(ForwardBatch(ids, [Segment(0, 0, len(ids), 0)], ()))[FINAL_NORM]
        found.append(torch.as_tensor(model.compute_logits(hidden)).float().cpu())
    return found


def emulated(folder: str, kind: str, texts: list[Any]) -> list[Any]:
    """Logits of the library's model."""
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    for name, layer in model.named_modules():
        if kind.startswith("fp8") and type(layer) is torch.nn.Linear and "lm_head" not in name:
            weight = widened(*quantised(layer.weight.detach()))

            def forward(x: Any, weight: Any = weight, bias: Any = layer.bias) -> Any:
                rows = x[0].float()
                if kind == "fp8_dynamic":
                    rows = widened(*quantised(rows))
                return F.linear(rows, weight, None if bias is None else bias.float()).to(x.dtype)[None]

            layer.forward = forward
    return [model(input_ids=torch.from_numpy(ids)[None]).logits[0].float() for ids in texts]


def main() -> None:
    """Print a table, and write the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "PyTorch on a CPU"
    rows = []
    for folder in chosen.folders:
        tokenizer = load_tokenizer(folder)
        texts = [np.asarray(tokenizer.encode((ROOT / name).read_text())[:LENGTH], np.int64) for name in TEXTS]
        run = on_gpu if torch.cuda.is_available() else emulated
        with torch.inference_mode():
            logits = {kind: torch.cat(run(folder, kind, texts)).double() for kind in KINDS}
        known = logits["bfloat16"].log_softmax(-1)
        for kind in KINDS:
            other = logits[kind].log_softmax(-1)
            kl = (known.exp() * (known - other)).sum(-1)
            same = (known.argmax(-1) == other.argmax(-1)).double().mean()
            row = {"model": Path(folder).name, "device": device, "kind": kind, "tokens": len(known),
                   "mean_kl": float(kl.mean()), "p99_kl": float(kl.quantile(0.99)), "top1": float(same)}  # fmt: skip
            rows.append(row)
            print(row, flush=True)
    if chosen.out is not None:
        write({"accuracy": rows}, chosen.out)


if __name__ == "__main__":
    main()
