"""Linear layers and experts of a model on a CPU, in float32, multiplied by oneDNN from weights packed once.

Its products gave a row the same bits for any number of rows and take half the time of MKL's at 2 to 16 rows
(:mod:`specdec_hal.models.llama_torch`). The packed weights replace the model's own.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.pytorch_utils import Conv1D

EXPERTS = "specdec_hal"
"""The name of our experts function."""


class PackedLinear(torch.nn.Module):  # type: ignore[misc]
    """x weight^T + bias; `weight` [out, in]."""

    def __init__(self, weight: Any, bias: Any | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._packed, self._bias = _pack(weight), bias

    def forward(self, x: Any) -> Any:
        """The product of each row."""
        out = _multiply(x.reshape(-1, self.in_features), self._packed, self._bias)
        return out.view(*x.shape[:-1], self.out_features)


def pack(model: Any) -> bool:
    """Replace layers; returns whether each row's computation is then independent of other rows.

    Experts outside the interface of `transformers` take rows in groups of any size.
    """
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return not any(is_experts(module) for module in model.modules())
    steady, made = True, dict[int, PackedLinear]()
    for parent in list(model.modules()):
        if is_experts(parent):
            parent.config._experts_implementation = EXPERTS
            parent.__dict__["_specdec_weights"] = _pack_experts(parent)
            continue
        steady &= not holds_experts(parent)
        for name, child in parent.named_children():
            if not is_linear(child, torch.float32):
                continue
            if id(child) not in made:
                weight = child.weight if type(child) is torch.nn.Linear else child.weight.T
                made[id(child)] = PackedLinear(weight, child.bias)
            parent._modules[name] = made[id(child)]
    return steady


def is_linear(module: Any, dtype: Any) -> bool:
    """Whether a module is a linear layer over a plain tensor of that dtype: quantised ones are classes of their own, or
    have tensors that are."""
    plain = type(module) in (torch.nn.Linear, Conv1D) and type(module.weight.data) is torch.Tensor
    return plain and module.weight.dtype is dtype


def is_experts(module: Any) -> bool:
    """Whether a module uses our experts function (use_experts_implementation of `transformers`)."""
    return hasattr(module, "_apply_gate") and hasattr(module, "down_proj") and hasattr(module, "has_gate")


def holds_experts(module: Any) -> bool:
    """Whether a module runs its experts one by one on their rows."""
    experts = getattr(module, "experts", None)
    return isinstance(experts, torch.nn.ModuleList)


def _pack(weight: Any) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)


def _multiply(x: Any, packed: Any, bias: Any | None) -> Any:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _pack_experts(module: Any) -> list[tuple[Any, Any, Any, Any]]:
    """Each expert's input and output weights and biases."""
    prefix = "gate_up_proj" if module.has_gate else "up_proj"
    made = []
    for expert in range(len(module.down_proj)):
        parts: list[Any] = []
        for name in (prefix, "down_proj"):
            weight = getattr(module, name)[expert]
            bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
            parts += [_pack(weight.T if module.is_transposed else weight), bias]
        made.append(tuple(parts))
    for name in (prefix, "down_proj"):
        setattr(module, name, torch.nn.Parameter(getattr(module, name).new_empty((0,)), requires_grad=False))
    return made


def _experts(module: Any, hidden: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """Each token's experts, summed in the order of its list."""
    experts = module.__dict__["_specdec_weights"]
    act = module._apply_gate if module.has_gate else module.act_fn
    count = top_k_index.shape[-1]
    out = hidden.new_zeros((top_k_index.numel(), hidden.shape[-1]))
    chosen = top_k_index.flatten()
    for expert in chosen.unique().tolist():
        if expert >= len(experts):  # the sentinel of another rank
            continue
        rows = (chosen == expert).nonzero()[:, 0]
        up, up_bias, down, down_bias = experts[expert]
        middle = act(_multiply(hidden[rows // count], up, up_bias))
        out[rows] = _multiply(middle, down, down_bias)
    out = out * top_k_weights.flatten()[:, None].to(out.dtype)
    total, *others = out.view(-1, count, hidden.shape[-1]).unbind(1)
    for other in others:
        total = total + other
    return total


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)
