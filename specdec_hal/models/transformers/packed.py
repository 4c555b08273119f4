"""Linear layers and experts of a model on a CPU, in float32, multiplied by oneDNN from weights packed once.

Its products gave a row the same bits for any number of rows and take half the time of MKL's at 2 to 16 rows
(:mod:`specdec_hal.models.llama_torch`). The packed weights replace the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.pytorch_utils import Conv1D

EXPERTS = "specdec_hal"
"""The name of our experts function."""


class PackedLinear(torch.nn.Module):  # type: ignore[misc]
    """Linear layers [out, in] of one input, as one product: the first one called computes it, the last forgets it."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__()
        weights = [layer.weight.T if type(layer) is Conv1D else layer.weight for layer in layers]
        biases = [layer.bias for layer in layers]
        self._sizes, self._inputs = [len(weight) for weight in weights], weights[0].shape[1]
        self._packed, self._bias = _pack(torch.cat(weights)), None
        if any(bias is not None for bias in biases):
            filled = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
            self._bias = torch.cat(filled)
        self._held: tuple[Any, Any] = None, None

    def forward(self, x: Any, part: int = 0) -> Any:
        """The product of each row and layer `part`."""
        if self._held[0] is not x:
            out = _multiply(x.reshape(-1, self._inputs), self._packed, self._bias).view(*x.shape[:-1], -1)
            if len(self._sizes) == 1:
                return out
            self._held = x, out.split(self._sizes, -1)
        result = self._held[1][part]
        if part == len(self._sizes) - 1:
            self._held = None, None
        return result


class Part(torch.nn.Module):  # type: ignore[misc]
    """One of the layers of a product of several."""

    def __init__(self, whole: Any, part: int) -> None:
        super().__init__()
        self.__dict__["_whole"], self._part = whole, part

    def forward(self, x: Any) -> Any:
        """What this layer makes of x [.., in]."""
        return self._whole(x, self._part)


def same_inputs(model: Any, dtype: Any, run: Callable[[], Any]) -> list[list[Any]]:
    """Linear layers of one parent that take the same input one after the other, together; `run`: a pass."""
    groups: list[list[Any]] = []
    inputs: list[Any] = []
    owner = {child: parent for parent in model.modules() for child in parent.children()}

    def called(module: Any, args: Any) -> None:
        if any(module in group for group in groups):
            return
        if inputs and inputs[-1] is args[0] and owner[groups[-1][0]] is owner[module]:
            groups[-1].append(module)
        else:
            groups.append([module])
        inputs.append(args[0])

    layers = [module for module in model.modules() if is_linear(module, dtype)]
    hooks = [module.register_forward_pre_hook(called) for module in layers]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return groups


def pack(model: Any, run: Callable[[], Any]) -> bool:
    """Replace what can be; whether what a row is computed with then depends on no other row.

    Experts that are not reached through the interface of `transformers` take rows in groups of any size. `run`: a pass.
    """
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return not any(is_experts(module) for module in model.modules())
    steady, made = True, dict[Any, Any]()
    for group in same_inputs(model, torch.float32, run):
        whole = PackedLinear(group)
        made |= {layer: Part(whole, part) for part, layer in enumerate(group)} if len(group) > 1 else {group[0]: whole}
    for parent in list(model.modules()):
        if is_experts(parent):
            parent.config._experts_implementation = EXPERTS
            parent.__dict__["_specdec_weights"] = _pack_experts(parent)
            continue
        steady &= not holds_experts(parent)
        for name, child in parent.named_children():
            if is_linear(child, torch.float32):
                parent._modules[name] = made[child] if child in made else made.setdefault(child, PackedLinear([child]))
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
