"""Time tiles of products with weights in FP8 on an idle GPU, in the shapes of a Llama of 8 B parameters.

usage: python3 benchmarks/fp8_tiles.py OUT.json

Each product reads another copy of its weight, so that none is in the cache. Times have the quantisation of the rows in
them. The first lines of a shape are the products in bfloat16, with the tiles that the launcher chooses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpu_model import captured, microseconds  # noqa: E402
from record import write  # noqa: E402

from specdec_hal.models.fp8 import Fp8Weight, quantised, widened  # noqa: E402
from specdec_hal.models.triton_kernels import launcher as launches  # noqa: E402
from specdec_hal.models.triton_kernels.compiling import compiling  # noqa: E402
from specdec_hal.models.triton_kernels.launcher import Launcher  # noqa: E402
from specdec_hal.models.triton_kernels.tiles import ProductTile, tiles_of  # noqa: E402

SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ROWS = (1, 48)


def tile(m: int, n: int, k: int, warps: int, stages: int, swap: bool = True) -> ProductTile:
    """A tile by descriptors."""
    return ProductTile(m, n, k, warps, stages, described=True, swap=swap)


WIDE = [
    (128, 128, 4, 5), (256, 128, 8, 5), (256, 128, 4, 5), (256, 128, 8, 3), (256, 64, 8, 8), (128, 128, 4, 6),
    (128, 128, 8, 5), (128, 256, 4, 2), (64, 256, 4, 3), (64, 128, 4, 6),
]  # fmt: skip
NARROW = [
    (64, 256, 4, 4), (64, 256, 4, 8), (64, 256, 4, 6), (64, 512, 4, 4), (64, 512, 4, 2), (64, 128, 4, 12),
    (128, 256, 4, 4), (128, 256, 8, 4),
]  # fmt: skip
FOR_48 = [(64, 128, 4, 6), (64, 128, 4, 8), (64, 256, 4, 4), (128, 128, 4, 4), (128, 128, 8, 4), (256, 128, 8, 3)]


class Shape:
    """Copies of a weight [columns, depth]."""

    def __init__(self, columns: int, depth: int, few: bool = False) -> None:
        self.launcher = Launcher(torch.device("cuda"), torch.bfloat16)
        self.weight = torch.randn((columns, depth), device="cuda", dtype=torch.bfloat16)
        values, scales = quantised(self.weight)
        self.copies = [values.clone() for _ in range(1 if few else 1 + 300_000_000 // values.nbytes)]
        self.scales = scales
        by_group = scales.expand(-(-depth // 128), -1).contiguous()
        self.groups = by_group * torch.rand_like(by_group)
        self.wide = [self.weight.clone() for _ in range(1 if few else 1 + 300_000_000 // self.weight.nbytes)]
        self.x = torch.randn((384, depth), device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty((384, columns), device="cuda", dtype=torch.bfloat16)

    def plain(self, rows: int) -> list[Callable[[], None]]:
        """Products in bfloat16."""
        x, out, linear = self.x[:rows], self.out[:rows], self.launcher.linear
        return [lambda weight=weight: linear(x, weight, out, None) for weight in self.wide]

    def fp8(self, rows: int, by_row: bool, by_group: bool, chosen: ProductTile) -> list[Callable[[], None]]:
        """Products in FP8 with one tile."""
        x, out, tiles = self.x[:rows], self.out[:rows], replace(tiles_of("bfloat16"), products=(chosen,), large=())
        tiles = replace(tiles, together=(), cut=())
        weights = [Fp8Weight(values, self.groups if by_group else self.scales, by_row) for values in self.copies]

        def run(weight: Fp8Weight) -> None:
            launches.fp8_tiles = lambda *args, **kind: tiles
            self.launcher.linear(x, weight, out, None)

        return [lambda weight=weight: run(weight) for weight in weights]

    def quantise(self, rows: int, by_two: bool) -> list[Callable[[], Any]]:
        """Quantisation alone."""
        return [lambda: self.launcher.quantise(self.x[:rows], None, by_two=by_two)] * 20


def cases(name: str) -> Iterator[tuple[int, bool, bool, ProductTile]]:
    """Rows, whether rows are one number in FP8, whether scales are by group, tile."""
    for by_row in (False, True):
        for size in WIDE if name == "gate_up" else NARROW:
            yield 1, by_row, False, tile(16, *size)
        for size in FOR_48:
            yield 48, by_row, False, tile(64, *size)


def main() -> None:
    """Compile everything, then time it."""
    found: list[dict[str, Any]] = []
    with compiling():
        for name, size in SHAPES.items():
            shape = Shape(*size, few=True)
            for rows in ROWS:
                shape.plain(rows)[0]()
                for by_two in (False, True):
                    shape.quantise(rows, by_two)[0]()
            for case in cases(name):
                shape.fp8(*case)[0]()
            del shape
    print("compiled", flush=True)
    for name, size in SHAPES.items():
        shape = Shape(*size)
        print(name, flush=True)

        def timed(runs: list[Callable[[], None]]) -> float:
            for run in runs:
                run()
            return microseconds(captured(lambda: [run() for run in runs] and None).replay, 5) / len(runs)

        base = {}
        for rows in ROWS:
            base[rows] = timed(shape.plain(rows))
            found.append({"shape": name, "rows": rows, "dtype": "bfloat16", "us": base[rows]})
            alone = [timed(shape.quantise(rows, by_two)) for by_two in (False, True)]
            print(
                f"  bfloat16 {rows:3} rows {base[rows]:7.1f} us; quantise {alone[0]:.1f}, {alone[1]:.1f} us", flush=True
            )
        for rows, by_row, by_group, one in cases(name):
            kind = f"{'row' if by_row else 'two'}{' g' if by_group else '  '}"
            what = f"{rows:3} {kind} {one.m},{one.n},{one.k},{one.warps},{one.stages},{'swap' if one.swap else ''}"
            try:
                runs = shape.fp8(rows, by_row, by_group, one)
                runs[0]()
                x = widened(*quantised(shape.x[:1])) if by_row else shape.x[:1].float()
                want = x.double() @ widened(shape.copies[0], shape.groups if by_group else shape.scales).double().T
                error = float((shape.out[:1] - want).abs().max() / want.abs().max())
                us = timed(runs)
            except Exception as failure:
                print(f"  {what}: {str(failure)[:90]!r}", flush=True)
                continue
            row = {"shape": name, "rows": rows, "by_row": by_row, "by_group": by_group, "us": us,
                   "of_bfloat16": us / base[rows], "error": error, "tile": vars(one)}  # fmt: skip
            found.append(row)
            print(f"  {what:30} {us:7.1f} us {us / base[rows]:.2f} error {error:.0e}", flush=True)
        del shape
        torch.cuda.empty_cache()
    write({"tiles": found}, Path(sys.argv[1]))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
