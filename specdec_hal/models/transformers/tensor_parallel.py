"""A model of `transformers` over a group of ranks, divided by the plan of its class (`base_model_tp_plan`).

Layers that the plan calls "colwise" keep a part of their outputs, those that it calls "rowwise" a part of their inputs.
Results of the latter are added in float32, in the order of ranks. So a token's bits do not depend on its batch, as a
library's reduction may have it, and are the same on every rank; they depend on the number of ranks. With fewer KV heads
than ranks, several ranks have the same one. The head is divided by tokens; the embedding is whole on every rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from specdec_hal.backends.reference.primitives import vocabulary_part
from specdec_hal.errors import ArgumentError
from specdec_hal.models.batch import refused as refused_argument
from specdec_hal.models.transformers.replace import is_experts
from specdec_hal.models.transformers.survey import refused
from specdec_hal.tensors.group import Group

_WHOLE = {"embedding_rowwise", "replicated_with_grad_allreduce"}
_BY_OUTPUTS = {"colwise", "packed_colwise"}
_GATHERED = {"colwise_gather_output", "colwise_rep"}
_BY_INPUTS = {"rowwise", "rowwise_split_input", "rowwise_rep"}
_KV = ("k_proj", "v_proj")


class Summed(torch.nn.Module):  # type: ignore[misc]
    """A linear layer whose inputs are divided among ranks. `split`: its input is whole.

    `exchange`: adds the ranks' products of x and a residual or None, for this layer; None: they are gathered. `norm`:
    the RMSNorm of the result that follows, where the exchange may compute it.
    """

    exchange: Callable[[Summed, Any, Any | None], Any] | None = None
    norm: Any = None

    def __init__(self, layer: Any, group: Group, mine: slice, split: bool) -> None:
        super().__init__()
        self.bias, layer.bias = layer.bias, None
        self.part, self._group, self._mine = layer, group, mine if split else slice(None)
        self._residual: list[Any] = []
        _keep(layer, "weight", layer.weight[:, mine])

    def add(self, residual: Any) -> None:
        """A residual to add to the next result."""
        self._residual[:] = [residual]

    def product(self, x: Any) -> Any:
        """The sum of all ranks' products, the bias and the residual."""
        x = x[..., self._mine]
        residual = self._residual.pop() if self._residual else None
        if self.exchange is not None:
            return self.exchange(self, x, residual)
        out = summed(self._group, self.part(x.contiguous()))
        for more in (self.bias, residual):
            out = out if more is None else out + more
        return out

    def forward(self, x: Any) -> Any:
        """See :meth:`product`."""
        return self.product(x)


class Gathered(torch.nn.Module):  # type: ignore[misc]
    """A linear layer whose outputs are divided among ranks and gathered."""

    def __init__(self, layer: Any, group: Group) -> None:
        super().__init__()
        self._outputs = len(layer.weight)
        width = vocabulary_part(self._outputs, group.size)
        for name in ("weight", "bias"):
            if (whole := getattr(layer, name)) is not None:
                part = whole[group.rank * width : (group.rank + 1) * width]
                rows = torch.cat([part, part.new_zeros((width - len(part), *part.shape[1:]))])
                _keep(layer, name, rows)
        self.part, self._group = layer, group

    def forward(self, x: Any) -> Any:
        """All outputs, of all ranks in turn."""
        parts = self._group.gather(self.part(x))
        return torch.cat(list(parts), -1)[..., : self._outputs]


def summed(group: Group, partial: Any) -> Any:
    """All ranks' summands, added in their order."""
    first, *others = group.gather(partial)
    total = first.float()
    for other in others:
        total = total + other.float()
    return total.to(partial.dtype)


def divide(model: Any, group: Group) -> None:
    """Leave this rank's part of a whole model. UnsupportedError for what its plan says and is not done here.

    ArgumentError for sizes that cannot be divided.
    """
    config, plan = model.config.get_text_config(), model.tp_plan
    if getattr(model, "is_quantized", False):
        raise refused(model, "its weights are quantised, which ranks do not support")
    if not config.base_model_tp_plan:
        if getattr(config, "base_model_ep_plan", None):
            raise refused(model, "its plan is expert parallelism (base_model_ep_plan), which is not supported")
        raise refused(model, "it has no plan for tensor parallelism (base_model_tp_plan)")
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if group.size % kv_heads and kv_heads % group.size:
        raise indivisible("a divisor or a multiple", "num_key_value_heads", kv_heads, group.size)
    _part(group, config.num_attention_heads, "num_attention_heads")

    def style(name: str) -> Any:
        return plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))

    for name, module in list(model.named_modules()):
        kind = style(name)
        if kind is None or kind in _WHOLE:
            continue
        parent, _, last = name.rpartition(".")
        if kind == "moe_tp_experts" and is_experts(module):
            _divide_experts(model, name, module, group, style)
        elif type(module) is not torch.nn.Linear or kind not in _BY_OUTPUTS | _GATHERED | _BY_INPUTS:
            raise refused(model, f"its plan for ranks has '{kind}' for {name}, which is not supported")
        elif kind in _BY_OUTPUTS:
            count = len(module.weight)
            rows = torch.arange(count).view(1 if kind == "colwise" else 2, -1)
            if last in _KV and group.size > kv_heads:  # ranks share a head
                first, width = group.rank * kv_heads // group.size, count // kv_heads
                mine = slice(first * width, (first + 1) * width)
            else:
                mine = _part(group, rows.shape[1], name)
            for tensor in ("weight", "bias"):
                if (whole := getattr(module, tensor)) is not None:
                    _keep(module, tensor, whole[rows[:, mine].flatten()])
        else:
            by_inputs = kind in _BY_INPUTS
            made = (
                Summed(module, group, _part(group, module.in_features, name), kind != "rowwise")
                if by_inputs
                else Gathered(module, group)
            )
            setattr(model.get_submodule(parent), last, made)


def _divide_experts(model: Any, name: str, module: Any, group: Group, style: Any) -> None:
    up = "gate_up_proj" if module.has_gate else "up_proj"
    kinds = style(f"{name}.{up}"), style(f"{name}.down_proj")
    if kinds != ("packed_colwise" if module.has_gate else "colwise", "rowwise") or module.has_bias:
        raise refused(model, f"its plan for ranks divides {name} in an unsupported way")
    if module.is_transposed:
        raise refused(model, f"the weights of {name} are transposed, which ranks do not support")
    mine = _part(group, module.down_proj.shape[2], name)
    whole = getattr(module, up)
    packed = whole.view(len(whole), 1 + module.has_gate, -1, whole.shape[2])
    _keep(module, up, packed[:, :, mine].flatten(1, 2))
    _keep(module, "down_proj", module.down_proj[:, :, mine])
    module.register_forward_hook(lambda module, args, out: summed(group, out))


def indivisible(relation: str, name: str, count: int, size: int) -> ArgumentError:
    """The error of sizes that cannot be divided among ranks."""
    expected, hint = f"{relation} of {name} = {count}", "lower engine.tensor_parallel"
    return refused_argument("transformers", "load_model", "tensor_parallel", expected, size, hint)


def _part(group: Group, count: int, what: str) -> slice:
    if count % group.size:
        raise indivisible("a divisor", what, count, group.size)
    width = count // group.size
    return slice(group.rank * width, (group.rank + 1) * width)


def _keep(module: Any, name: str, part: Any) -> None:
    """A part of a weight in memory of its own, so that the whole can go."""
    setattr(module, name, torch.nn.Parameter(part.detach().clone(), requires_grad=False))
