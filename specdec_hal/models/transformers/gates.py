"""Gates of recurrent layers and norms with a gate, in one launch each; a trial compares them with the library's.

The library computes these from some ten operators a layer, each a launch on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from specdec_hal.models.states import MAMBA2
from specdec_hal.models.transformers.bits import Silent
from specdec_hal.models.transformers.interface import GATES, LAYER, STORE

_GATED = "RMSNormGated"
"""How the names of norms with a gate end."""
_PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
"""Of a layer with a gated delta rule as in Qwen3.5, in the order in which it computes them."""
Close = Callable[[Any, Any], bool]
"""Whether two results are equal up to rounding."""


class Gates(Protocol):
    """What computes gates (:mod:`.kernels`)."""

    def gated_norm(self, x: Any, gate: Any, weight: Any, epsilon: float, gate_first: bool, sigmoid: bool) -> Any:
        """Of `x`, `gate` [T, n, D]: see :class:`GatedNorm`."""

    def delta_inputs(self, mixed: Any, a: Any, b: Any, rate: Any, dt_bias: Any, d_k: int, d_v: int) -> tuple[Any, ...]:
        """Queries, keys, values, decay and beta of a gated delta rule: see :class:`DeltaLayer`."""

    def mamba2_gates(self, dt: Any, a: Any, dt_bias: Any, limits: Any) -> tuple[Any, Any]:
        """See :func:`specdec_hal.models.states.mamba2_gates`."""


def install_gates(model: Any, gates: Gates, whole_of: Callable[[list[Any]], Any], close: Close) -> None:
    """Replace norms with a gate, layers with a gated delta rule, and gates of Mamba-2.

    `whole_of`: the product whose parts some modules are, in their order, or None.
    """
    for module in model.modules():
        if type(module).__name__.endswith(_GATED) and getattr(module, "weight", None) is not None:
            _replace_norm(module, gates, close)
    for module in model.modules():
        parts = [getattr(module, name, None) for name in _PROJECTIONS]
        if LAYER in module.__dict__ and None not in parts and (whole := whole_of(parts)) is not None:
            _replace_layer(module, gates, whole, close)
        elif getattr(module.__dict__.get(LAYER), "op", "") == MAMBA2:
            module.__dict__[GATES] = gates.mamba2_gates


class GatedNorm:
    """RMSNorm(x) * act(gate), or with `gate_first` RMSNorm(x * act(gate)); act: SILU or the sigmoid.

    `width`: of the parts of a row that are normed, each by itself.
    """

    def __init__(self, module: Any, gates: Gates, gate_first: bool, sigmoid: bool, width: int) -> None:
        self._weight, self._epsilon = module.weight.detach(), module.variance_epsilon
        self._gates, self.how, self.width = gates, (gate_first, sigmoid), width
        self._library = module.forward

    def __call__(self, hidden_states: Any, gate: Any = None) -> Any:
        """Of [.., D] or [T, heads, D]."""
        if gate is None or gate.shape != hidden_states.shape:
            return self._library(hidden_states, gate)
        x, gate = self._parts(hidden_states), self._parts(gate)
        out = self._gates.gated_norm(x, gate, self._weight, self._epsilon, *self.how)
        return out.view(hidden_states.shape)

    def _parts(self, x: Any) -> Any:
        """`x` as [T, n, width], without a copy where it can be."""
        x = x[0] if x.ndim > 2 and len(x) == 1 else x
        if x.stride()[1:] not in ((1,), (x.shape[-1], 1)):
            x = x.contiguous()
        n = x[0].numel() // self.width
        if x.is_contiguous() and n == 1:
            return x.view(-1, 1, self.width)
        return x.as_strided((len(x), n, self.width), (x.stride(0), self.width, 1))


def _replace_norm(module: Any, gates: Gates, close: Close) -> None:
    weight = module.weight
    if weight.ndim != 1 or not isinstance(getattr(module, "variance_epsilon", None), float):
        return
    width = getattr(module, "group_size", None) or len(weight) // getattr(module, "n_groups", 1)
    wave = torch.linspace(-2, 2, 3 * len(weight), device=weight.device)
    x, gate = ((wave * by).sin().view(1, 3, -1).to(weight.dtype) for by in (5, 7))
    cases = [(x * scale, gate) for scale in (1.0, 1e-3, 32.0)]
    expected = [module(*case) for case in cases]
    for gate_first, sigmoid in product((False, True), repeat=2):
        ours = GatedNorm(module, gates, gate_first, sigmoid, width)
        if all(close(want, ours(*case)) for want, case in zip(expected, cases, strict=True)):
            module.forward = ours
            return


class _Taken(Silent):
    """Keeps what a recurrence was given."""

    def delta_rule(self, layer: Any, query: Any, key: Any, value: Any, decay: Any, beta: Any) -> Any:
        """See States."""
        self.taken = query, key, value, decay, beta
        return value.contiguous()


class DeltaLayer:
    """The forward of a layer whose projections are the parts of `whole`."""

    def __init__(self, module: Any, gates: Gates, whole: Any) -> None:
        self._module, self._gates, self._whole = module, gates, whole
        self._rate, self._bias = -module.A_log.detach().float().exp(), module.dt_bias.detach().float()
        self._taps, self._convolution = module.conv1d.weight.detach().squeeze(1), module.conv1d.bias

    def __call__(self, hidden_states: Any, **others: Any) -> Any:
        """See the library's layer; `others` are for padded batches and caches, which do not come here."""
        module = self._module
        state, heads = module.__dict__, len(self._bias)
        store, layer = state[STORE], state[LAYER]
        mixed, z, b, a = self._whole.product(hidden_states)[0].split_with_sizes(self._whole.sizes, -1)
        mixed = store.convolve(layer, mixed, self._taps, self._convolution, True)
        inputs = self._gates.delta_inputs(mixed, a, b, self._rate, self._bias, module.head_k_dim, module.head_v_dim)
        core = store.delta_rule(layer, *inputs)
        core = module.norm.forward(core, z.unflatten(-1, (heads, -1)))
        return module.out_proj(core.reshape(1, len(core), -1))


def _replace_layer(module: Any, gates: Gates, whole: Any, close: Close) -> None:
    names = ("A_log", "dt_bias", "conv1d", "norm", "out_proj", "head_k_dim", "head_v_dim")
    if not all(hasattr(module, name) for name in names) or getattr(module, "activation", "") not in ("silu", "swish"):
        return
    ours, state = DeltaLayer(module, gates, whole), module.__dict__
    before, state[STORE] = state[STORE], (store := _Taken())
    try:
        for x in _inputs(module):
            results = []
            for forward in (module.forward, ours):
                results.append((forward(x), *store.taken))
            if not all(a.shape == b.shape and close(a, b) for a, b in zip(*results, strict=True)):
                return
    finally:
        state[STORE] = before
    module.forward = ours


def _inputs(module: Any) -> Iterator[Any]:
    weight = module.norm.weight
    wave = torch.linspace(-3, 3, 3 * module.hidden_size, device=weight.device)
    for scale in (1.0, 30.0):
        yield F.normalize((wave * 11).sin().view(1, 3, -1), dim=-1).mul(scale).to(module.conv1d.weight.dtype)
