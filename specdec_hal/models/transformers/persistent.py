"""One kernel for the products between two layers' attentions, where a layer's parts are known (:class:`.replace.Parts`).

It computes the same bits as the single kernels, which steps of more rows use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from specdec_hal.models.transformers.kernels import GateUp
from specdec_hal.models.transformers.replace import Linear, Norm, Parts
from specdec_hal.models.triton_kernels.layer_products import MOST_ROWS, Layer, LayerProducts


def join_layers(decoder: Any, parts: list[Parts | None], launcher: Any) -> int:
    """Let small steps of a model run the kernel; returns in how many layers."""
    final = getattr(getattr(decoder.base, "norm", None), "forward", None)
    following = [*parts[1:], None]
    joined = 0
    for block, mine, next in zip(decoder.survey.blocks, parts, following, strict=True):
        norm = final if next is None else next.first
        if mine is None or not isinstance(norm, Norm) or not isinstance(mine.second, Norm):
            continue
        if not isinstance(mine.middle, GateUp):
            continue
        products = [mine.out, mine.middle, mine.down, *([] if next is None else [next.qkv])]
        if not all(isinstance(product, Linear) for product in (mine.out, mine.down)):
            continue
        weights = [getattr(product, "weight", product) for product in products]
        biases = [getattr(product, "bias", None) for product in products]
        layer = Layer(weights, biases, [mine.second.weight, norm.weight], [mine.second.epsilon, norm.epsilon], mine.middle.gelu)
        if not LayerProducts.fits(layer):
            continue
        run = LayerProducts(launcher, layer)
        block.forward = partial(_forward, block.forward, run, mine, norm, None if next is None else next.qkv)
        joined += 1
    return joined


def _forward(
    single: Callable[..., Any], run: LayerProducts, mine: Parts, norm: Norm, qkv: Linear | None, hidden_states: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    rows = hidden_states.shape[1]
    if rows > MOST_ROWS or len(hidden_states) != 1:
        return single(hidden_states, **kwargs)
    attended = mine.inner(mine.first(hidden_states), kwargs["position_embeddings"])
    total, normed, product = run(attended.view(rows, -1), hidden_states[0])
    total, normed = total[None], normed[None]
    norm.ready = total, normed
    if qkv is not None:
        qkv.ready = normed, product[None]
    return total
