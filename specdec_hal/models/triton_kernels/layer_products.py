"""A layer's products after its attention, and the next layer's queries, keys and values, as one kernel.

It is in CUDA C++ (``kernels_cuda/model/layer_products.cu``), as Triton fetches no weights across what blocks wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specdec_hal.models.triton_kernels.tiles import part_length
from specdec_hal.tensors.native import load_library

MOST_ROWS = 16
_MOST_WIDTH = 4096


@dataclass(frozen=True)
class Layer:
    """Weights [out, in] and biases [out] or None of the product after attention, gate and up in turns, down, and of the
    next layer's first, unless this one is the last; weights [out] and epsilons of the norms before the second and the
    last."""

    weights: list[Any]
    biases: list[Any | None]
    norms: list[Any]
    epsilons: list[float]
    gelu: bool


class LayerProducts:
    """The kernel for one layer. `launcher`: whose scratch memory it uses."""

    def __init__(self, launcher: Any, layer: Layer) -> None:
        self._launcher, self._layer = launcher, layer
        self._parts = [part_length(*weight.shape) for weight in layer.weights]
        self._call = load_library("specdec_cuda")["layer_products"]
        self.flags = 3 | 0x22 << 16

    @staticmethod
    def fits(layer: Layer) -> bool:
        """Whether the kernel takes such a layer on its device."""
        weight = layer.weights[0]
        return (
            weight.is_cuda
            and torch.cuda.get_device_capability(weight.device) == (9, 0)
            and weight.dtype in (torch.float16, torch.bfloat16)
            and len(weight) <= _MOST_WIDTH
            and layer.biases[1] is None
            and all(w.shape[1] % 8 == 0 and len(w) % 8 == 0 and w.is_contiguous() for w in layer.weights)
            and all(norm.dtype == weight.dtype for norm in layer.norms)
        )

    def __call__(self, attended: Any, residual: Any) -> tuple[Any, Any, Any | None]:
        """The layer's result, its norm, and the next layer's queries, keys and values, of `attended` [rows, K] and the
        layer's input [rows, D]."""
        layer, take = self._layer, self._launcher.arena.take
        rows, width = residual.shape
        middle = len(layer.weights[1]) // 2

        def new(columns: int) -> Any:
            return attended.new_empty((rows, columns))

        total, normed = new(width), new(width)
        product = new(len(layer.weights[3])) if len(layer.weights) > 3 else None
        attended_sum, attended_norm = (take(name, (rows, width), attended.dtype) for name in ("attended", "normed"))
        most = max(-(-w.shape[1] // part) * len(w) for w, part in zip(layer.weights, self._parts, strict=True))
        scratch = [
            take(f"layer {name}", (words,), torch.int32)
            for name, words in (
                ("partials", 2 * rows * most), ("normed", rows * width), ("middle", rows * middle), ("state", 2)
            )
        ]  # fmt: skip
        outs = [attended_sum, attended_norm, total, normed, *([] if product is None else [product])]
        self._call(
            attended, residual, layer.weights, layer.biases, self._parts, layer.norms, *layer.epsilons, outs,
            self._launcher.used_of_tiles(rows), scratch, layer.gelu, self.flags,
            torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        return total, normed, product
