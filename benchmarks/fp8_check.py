"""Compare products of experts in FP8 with those of each expert by itself, and with float64."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from specdec_hal.models.fp8 import Fp8Weight, quantised, widened  # noqa: E402
from specdec_hal.models.triton_kernels.launcher import Launcher  # noqa: E402
from tests.models.test_triton_kernels import by_expert, experts_in_fp8, random  # noqa: E402


def main() -> None:
    """Print the largest differences, relative to the sum of absolute products."""
    launcher: Any = Launcher(torch.device("cuda"), torch.bfloat16)
    for depth in (256, 320, 384):
        for by_row in (False, True):
            for by_group in (False, True):
                weight = experts_in_fp8(launcher, 72, depth, by_group=by_group, by_row=by_row, count=5)
                x = random(launcher, 90, depth)
                chosen = torch.from_numpy(np.random.default_rng(90).choice([0, 1, 3, 4], (90, 2))).cuda()
                out = torch.full((180, 72), float("nan"), device="cuda")
                launcher.experts(x, weight, None, out, *by_expert(chosen, 5))
                wide, pairs = widened(weight.values, weight.scales).double(), chosen.flatten()
                rows = (widened(*quantised(x)) if by_row else x).double().repeat_interleave(2, 0)
                want = torch.einsum("pk,pnk->pn", rows, wide[pairs])
                size = torch.einsum("pk,pnk->pn", rows.abs(), wide[pairs].abs())
                alone = torch.empty_like(out)
                for i, expert in enumerate(pairs.tolist()):
                    one = Fp8Weight(weight.values[expert].clone(), weight.scales[expert].clone(), by_row)
                    launcher.linear(x[i // 2 : i // 2 + 1], one, alone[i : i + 1], None)
                error, other = (out - want).abs() / size, (alone - want).abs() / size
                at = error.argmax().item()
                bias = ((out - want) / size).mean().item(), ((alone - want) / size).mean().item()
                print(
                    f"{depth} {'row' if by_row else 'two'} {'group' if by_group else '     '} experts {error.max():.1e}"
                    f" alone {other.max():.1e} equal {float((out == alone).float().mean()):.3f} over 2e-4:"
                    f" {float((error > 2e-4).float().mean()):.4f}, {float((other > 2e-4).float().mean()):.4f}"
                    f" bias {bias[0]:.0e} {bias[1]:.0e} at {divmod(at, 72)} {out.flatten()[at]:.4f}"
                    f" {want.flatten()[at]:.4f} {alone.flatten()[at]:.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
