"""Operators in place of a model's, on a CPU, in float32: products are those of :mod:`..linear`, whose packed weights
replace the model's own; the rest is PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from specdec_hal.models import linear
from specdec_hal.models.attention import Layer
from specdec_hal.models.linear import Weight, Weights
from specdec_hal.models.rope import Rotation
from specdec_hal.models.transformers.interface import STORE
from specdec_hal.models.transformers.replace import Linear, Parts, angles, by_position

EXPERTS = "specdec_hal"
"""The name of our experts function."""
_WIDTH = 32  # values that PyTorch computes at once
_SPLIT = 32768  # values, up to which it computes on one thread


class _Weight(Weight):
    """A packed weight, with what code of the library asks a weight for."""

    dtype = torch.float32


class Packed:
    """See :class:`.replace.Operators`."""

    pending: Rotation | None = None
    experts = EXPERTS
    gates = None
    rotary: Any = None
    """Rotations by position for the library of attention, where `fuse` lets it rotate; else None."""

    def __init__(self) -> None:
        self._angles: tuple[Any, Any, Any] = None, None, None
        self._weights = Weights()

    def weight(self, weight: Any) -> Weight:
        """See Operators."""
        return _Weight(*self._weights.pack(weight.detach().numpy()))

    def linear(self, x: Any, weight: Any, outputs: int, bias: Any | None, residual: Any | None, dtype: Any) -> Any:
        """See Operators. A few outputs lie in wider rows, so that PyTorch computes operators of them row by row."""
        out = multiply(x, weight, bias, residual)
        return out if outputs >= _WIDTH else F.pad(out, (0, _WIDTH - outputs))[..., :outputs]

    def norm(self, x: Any, weight: Any, epsilon: float) -> Any:
        """See Operators."""
        return norm(x, weight, epsilon)

    def gated(self, module: Any) -> Callable[[Any], Any] | None:
        """See Operators."""
        act, width = getattr(module, "act_fn", None), len(module.gate_proj.weight)
        if act is None:
            return None
        act = getattr(act, "forward", act)
        weight = self.weight(torch.cat([module.gate_proj.weight, module.up_proj.weight]))

        def forward(x: Any) -> Any:
            gate, up = multiply(x, weight).split_with_sizes((width, width), -1)
            return act(gate).mul_(up)

        return forward

    def rotate(self, rotation: Rotation) -> tuple[Any, Any]:
        """See Operators."""
        return self._turned(rotation.q, rotation), self._turned(rotation.k, rotation)

    def _turned(self, x: Any, rotation: Rotation, out: Any = None) -> Any:
        cos, sin = self._factors(rotation, x.shape[-1])
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, out=out)

    def _factors(self, rotation: Rotation, width: int) -> tuple[Any, Any]:
        """Cosines, and sines with the sign of the first half changed, [T, 1, width]; those of one step are kept."""
        known, cos, sin = self._angles
        if known is not rotation.cos:
            half = width // 2
            cos, sin = (x[0, :, None, :half] for x in (rotation.cos, rotation.sin))
            cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
            self._angles = rotation.cos, cos, sin
        return cos, sin

    def qkv(self, layer: Layer, query: Any, key: Any, value: Any) -> Any:
        """Queries, keys and values [T, heads, width] side by side, float32, after a pending rotary embedding."""
        due, self.pending = self.pending, None
        whole = _side_by_side(query, key, value)
        if due is not None:
            if due.norms is None and whole is not None:
                both = whole[:, : (layer.heads + layer.kv_heads) * layer.head_dim].unflatten(1, (-1, layer.head_dim))
                self._turned(both, due, both)
            else:
                if due.norms is not None:
                    *weights, epsilon = due.norms
                    query, key = (self.norm(x, w, epsilon) for x, w in zip((query, key), weights, strict=True))
                query, key, whole = self._turned(query, due), self._turned(key, due), None
        if whole is None:
            if narrower := layer.head_dim - layer.value_dim:
                value = F.pad(value, (0, narrower))
            whole = torch.cat([x.flatten(1) for x in (query, key, value)], 1)
        return whole.float()

    def buffer(self, width: int, rows: int) -> Any:
        """See attention.Operators."""
        return torch.empty((rows, width))

    def take_experts(self, module: Any) -> None:
        """See Operators."""
        module.__dict__["_specdec_weights"] = _pack_experts(module, self.weight)


class Products(TorchFunctionMode):  # type: ignore[misc]
    """Context in which `operators` compute products of modules that are no linear layers, such as routers of experts.

    A pass in it finds such modules of a model; `settle` lets each enter it by itself.
    """

    def __init__(self, model: Any, operators: Packed) -> None:
        super().__init__()
        self._operators, self._found = operators, dict[int, tuple[Any, Any, Weight]]()
        self._owners = {id(weight): module for module in model.modules() for weight in module.parameters(recurse=False)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._product if func is F.linear else func)(*args, **(kwargs or {}))

    def _product(self, x: Any, weight: Any, bias: Any = None) -> Any:
        if (owner := self._owners.get(id(weight))) is None or weight.ndim != 2 or x.dtype is not torch.float32:
            return F.linear(x, weight, bias)
        if id(weight) not in self._found:
            self._found[id(weight)] = owner, weight, self._operators.weight(weight)
        return self._operators.linear(x, self._found[id(weight)][2], len(weight), bias, None, x.dtype)

    def settle(self) -> None:
        """End the trial."""
        for module in {module for module, *_ in self._found.values()}:
            module.forward = partial(self._within, module.forward)

    def _within(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self:
            return forward(*args, **kwargs)


def fuse(decoder: Any, parts: list[Parts | None]) -> Callable[[], None] | None:
    """Run a model of Llama's or Qwen3's layers alone without the library's code between their parts.

    The native attention rotates queries and keys, whose rows go in pairs, as :mod:`specdec_hal.models.layout` has them.
    Returns a function that takes this back; None for other models, which stay. The caller compares results.
    """
    base, survey, layers = decoder.base, decoder.survey, [part for part in parts if part is not None]
    standard = {name for name, _ in base.named_children()} == {"embed_tokens", "layers", "norm", "rotary_emb"}
    if not standard or len(layers) < len(parts) or not by_position(base.rotary_emb):
        return None
    if any(layer.value_dim != layer.head_dim or layer.chunked for layer in survey.layers):
        return None
    if not all(isinstance(part.out, Linear) and isinstance(part.down, Linear) for part in layers):  # of ranks
        return None
    before = [(module, module.__dict__.get("forward")) for module in (base, *survey.blocks)]
    for block, layer, part in zip(survey.blocks, survey.layers, layers, strict=True):
        block.forward = _fused(layer, part)

    def forward(input_ids: Any = None, inputs_embeds: Any = None, **kwargs: Any) -> tuple[Any]:
        x = base.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        for block in survey.blocks:
            x = block(x)
        return (base.norm(x),)

    base.forward = forward

    def undo() -> None:
        for layer, part in zip(survey.layers, layers, strict=True):
            _reorder(part.qkv.weight, np.argsort(_pairs(layer)))
        for module, old in before:
            del module.forward
            if old is not None:
                module.forward = old

    return undo


def _fused(layer: Layer, part: Parts) -> Callable[..., Any]:
    order = torch.from_numpy(_pairs(layer))
    weight, bias = part.qkv.weight, None if part.qkv.bias is None else part.qkv.bias[order]
    _reorder(weight, order.numpy())
    norms: list[tuple[slice, Any]] = []
    if part.head_norms is not None:
        *scales, epsilon = part.head_norms
        queries, rotated = (heads * layer.head_dim for heads in (layer.heads, layer.heads + layer.kv_heads))
        columns = slice(0, queries), slice(queries, rotated)
        norms = [(mine, scale[order[: len(scale)]]) for mine, scale in zip(columns, scales, strict=True)]
    state, out, down, first, second, middle = (
        part.attention.__dict__, part.out, part.down, part.first, part.second, part.middle,
    )  # fmt: skip

    def forward(hidden_states: Any, **kwargs: Any) -> Any:
        qkv = multiply(first(hidden_states)[0], weight, bias)
        for mine, scale in norms:
            heads = qkv[:, mine].unflatten(1, (-1, layer.head_dim))
            heads.copy_(norm(heads, scale, epsilon))
        attended = multiply(state[STORE].attend_joined(layer, qkv)[None], out.weight, out.bias, hidden_states)
        return multiply(middle(second(attended)), down.weight, down.bias, attended)

    return forward


def _pairs(layer: Layer) -> Any:
    """An order of rows of queries, keys and values, int64, in which two that rotate together are neighbours."""
    rotated = (layer.heads + layer.kv_heads) * layer.head_dim
    rows = np.arange(rotated + layer.kv_heads * layer.value_dim)
    pairs = rows[:rotated].reshape(-1, 2, layer.head_dim // 2).swapaxes(1, 2).ravel()
    return np.concatenate([pairs, rows[rotated:]])


def _reorder(weight: Weight, order: Any) -> None:
    linear.replace(weight, linear.unpack(weight)[order])


def rotary_table(base: Any, positions: int) -> Any:
    """Rotations of positions, float32 [positions, head_dim]: cosine and sine of each pair."""
    cos, sin = (x[0] for x in angles(base, positions))
    half = cos.shape[1] // 2
    return torch.stack([cos[:, :half], sin[:, :half]], -1).flatten(1).float().contiguous()


def _side_by_side(*parts: Any) -> Any | None:
    """Parts [T, heads, width] of one contiguous tensor, one after the other, as that tensor [T, W]; else None."""
    query, at, rows = parts[0], parts[0].data_ptr(), len(parts[0])
    width = sum(x.shape[1] * x.shape[2] for x in parts)
    for x in parts:
        _, heads, size = x.shape
        line, *inner = x.stride()
        if x.dtype != torch.float32 or x.data_ptr() != at or inner != [size, 1] or (line != width and rows > 1):
            return None
        at += 4 * heads * size
    return query.as_strided((rows, width), (width, 1))


def multiply(x: Any, weight: Weight, bias: Any | None = None, residual: Any | None = None) -> Any:
    """x [.., K] weight^T + `bias` + `residual`."""
    out, residual = x.new_empty((*x.shape[:-1], weight.outputs)), None if residual is None else residual.contiguous()
    return linear.multiply(x.contiguous(), weight, bias, residual, torch.get_num_threads(), out)


def norm(x: Any, weight: Any, epsilon: float) -> Any:
    """RMSNorm over the last dimension."""
    x = x.contiguous()
    return linear.rms_norm(x, weight, epsilon, torch.empty_like(x))


def _pack_experts(module: Any, pack: Callable[[Any], Weight]) -> list[tuple[Any, Any, Any, Any]]:
    """Each expert's input and output weights and biases."""
    prefix = "gate_up_proj" if module.has_gate else "up_proj"
    made = []
    for expert in range(len(module.down_proj)):
        parts: list[Any] = []
        for name in (prefix, "down_proj"):
            weight = getattr(module, name)[expert]
            bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
            parts += [pack(weight.T if module.is_transposed else weight), bias]
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
        middle = _by_rows(act, multiply(hidden[rows // count], up, up_bias))
        out[rows] = multiply(middle, down, down_bias)
    out = out * top_k_weights.flatten()[:, None].to(out.dtype)
    total, *others = out.view(-1, count, hidden.shape[-1]).unbind(1)
    for other in others:
        total = total + other
    return total


def _by_rows(act: Callable[[Any], Any], x: Any) -> Any:
    """act(x [R, W]), whose rows have the same bits for every R: PyTorch computes the last few values of a tensor, or of
    a thread's part of it, without vectors.
    """
    rows = _WIDTH // math.gcd(_WIDTH, x.shape[1] // 2)  # whole vectors
    if missing := -len(x) % rows:
        x = F.pad(x, (0, 0, 0, missing))
    middle = [act(part) for part in x.split(max(1, _SPLIT // x.shape[1] // rows) * rows)]
    return torch.cat(middle)[: len(x) - missing]


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)
