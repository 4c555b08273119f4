"""Time tiles of products of experts on an idle GPU, in the shapes of Qwen3-30B-A3B, in bfloat16 and in FP8.

usage: python3 benchmarks/fp8_trials.py OUT.json

Times are of one product with the quantisation of its rows; each of a graph has other experts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpu_model import captured, microseconds  # noqa: E402
from record import write  # noqa: E402

from specdec_hal.models.fp8 import Fp8Weight, quantised  # noqa: E402
from specdec_hal.models.triton_kernels import launcher as launches  # noqa: E402
from specdec_hal.models.triton_kernels.compiling import compiling  # noqa: E402
from specdec_hal.models.triton_kernels.launcher import Launcher  # noqa: E402
from specdec_hal.models.triton_kernels.tiles import ProductTile  # noqa: E402

EXPERTS, CHOSEN, GRAPH = 128, 8, 8
SHAPES = {"gate_up": (1536, 2048, CHOSEN), "down": (2048, 768, 1)}
ROWS = (1, 8, 48, 64, 2048)
PLAIN = [(32, 128, 4, 4), (64, 128, 4, 4), (32, 128, 4, 6), (32, 128, 2, 4), (16, 256, 4, 3)]
IN_FP8 = [(64, 128, 4, 4), (64, 128, 4, 6), (64, 256, 4, 3), (128, 128, 4, 4), (128, 128, 8, 4)]


class Shape:
    """A weight of all experts, and rows for it."""

    def __init__(self, columns: int, depth: int, share: int) -> None:
        self.launcher, self.share, self.columns = Launcher(torch.device("cuda"), torch.bfloat16), share, columns
        self.weight = torch.randn((EXPERTS, columns, depth), device="cuda", dtype=torch.bfloat16)
        self.in_fp8 = quantised(self.weight)
        groups = self.in_fp8[1][:, None].expand(-1, depth // 128, -1).contiguous()
        self.groups = self.in_fp8[0], groups
        self.x = torch.randn((2048 * CHOSEN // share, depth), device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty((2048 * CHOSEN, columns), device="cuda", dtype=torch.bfloat16)

    def runs(self, rows: int, kind: str, sizes: tuple[int, int, int, int]) -> list[Callable[[], None]]:
        """Products of so many rows; `kind`: plain, two or row, and of groups."""
        weight: Any = self.weight
        if kind != "plain":
            weight = Fp8Weight(*(self.groups if kind.endswith("groups") else self.in_fp8), kind.startswith("row"))
        pairs, made = rows * CHOSEN, []
        n, k, warps, stages = sizes
        tile = ProductTile(16 if pairs <= 16 * EXPERTS else 64, n, k, warps, stages)
        for _ in range(GRAPH):
            chosen = torch.rand((rows, EXPERTS), device="cuda").topk(CHOSEN).indices.flatten()
            order = chosen.argsort(stable=True)
            bounds = torch.arange(EXPERTS + 1, device="cuda")
            starts = torch.searchsorted(chosen[order], bounds, out_int32=True)

            def run(order: Any = order, starts: Any = starts) -> None:
                launches.expert_tile = lambda *args: tile
                x, out = self.x[: pairs // self.share], self.out[:pairs]
                self.launcher.experts(x, weight, None, out, order, starts)

            made.append(run)
        return made


def main() -> None:
    """Compile everything, then time it."""
    kinds = {"plain": PLAIN, "two": IN_FP8, "row": IN_FP8, "two groups": IN_FP8[:2], "row groups": IN_FP8[:2]}
    shapes, found = {name: Shape(*size) for name, size in SHAPES.items()}, []
    cases = [(rows, kind, sizes) for rows in ROWS for kind, tiles in kinds.items() for sizes in tiles]
    with compiling():
        for shape in shapes.values():
            for case in cases:
                shape.runs(*case)[0]()
    print("compiled", flush=True)
    for name, shape in shapes.items():
        for rows, kind, sizes in cases:
            try:
                runs = shape.runs(rows, kind, sizes)
                us = microseconds(captured(lambda runs=runs: [run() for run in runs] and None).replay, 5) / GRAPH
            except Exception as failure:
                print(f"  {name} {rows} {kind} {sizes}: {str(failure)[:90]!r}", flush=True)
                continue
            found.append({"shape": name, "rows": rows, "kind": kind, "tile": sizes, "us": us})
            print(f"  {name} {rows} {kind} {sizes} {us:.1f} us", flush=True)
    write({"experts": found}, Path(sys.argv[1]))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
