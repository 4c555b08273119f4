"""Operators in place of a model's, on a CPU in float32: products and RMS norms of :mod:`..linear`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import nn
from paddleformers.nn.lm_head import LMHead
from paddleformers.nn.norm import RMSNorm

from specdec_hal.models import linear
from specdec_hal.models.attention import Layer


class Native:
    """See :class:`specdec_hal.models.attention.Operators`. `threads`: the most of products."""

    rotary: Any = None

    def __init__(self, threads: int) -> None:
        self._threads, self._weights = threads, linear.Weights()

    def qkv(self, layer: Layer, query: Any, key: Any, value: Any) -> Any:
        """See Operators."""
        if narrower := layer.head_dim - layer.value_dim:
            value = nn.functional.pad(value, [0, narrower], data_format="NCL")
        return paddle.concat([x.flatten(1) for x in (query, key, value)], 1).astype("float32")

    def buffer(self, width: int, rows: int) -> Any:
        """See Operators."""
        return paddle.empty([rows, width])

    def install(self, model: Any) -> bool:
        """Replace the model's products and norms. True if the library then computes row by row: it is left without
        matrices of its own, and without experts, which see only a part of the rows."""
        tied = model.get_input_embeddings().weight.data_ptr()
        whole, lists = True, 0
        for module in model.sublayers(include_self=True):
            own = list(module.parameters(include_sublayers=False))
            if type(module) in (nn.Linear, LMHead):
                stored = module.weight.numpy()
                weight = self._weights.pack(stored.T if type(module) is nn.Linear else stored)
                if module.weight.data_ptr() != tied:
                    module.weight = None  # else the model would be held twice
                module.forward = self._product(weight, module.bias)
            elif type(module) is RMSNorm:
                module.forward = self._norm(module.weight, module.variance_epsilon)
            elif not isinstance(module, nn.Embedding):
                whole &= all(x.ndim == 1 for x in own)
            lists += isinstance(module, nn.LayerList)
        return whole and lists == 1

    def _product(self, weight: linear.Weight, bias: Any) -> Callable[[Any], Any]:
        def forward(x: Any) -> Any:
            out = paddle.empty([*x.shape[:-1], weight.outputs])
            return linear.multiply(x.contiguous(), weight, bias, None, self._threads, out)

        return forward

    def _norm(self, weight: Any, epsilon: float) -> Callable[[Any], Any]:
        def forward(x: Any) -> Any:
            x = x.contiguous()
            return linear.rms_norm(x, weight, epsilon, paddle.empty(x.shape))

        return forward
