"""Our Triton kernels in place of a model's operators, on a GPU.

They give a row the same bits in any step, and products skip rows that a step does not use. For what :mod:`.replace`
leaves to the library, :class:`Invariant` replaces operators that do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from specdec_hal.models import fp8
from specdec_hal.models.fp8 import Fp8Weight
from specdec_hal.models.rope import Rotation

EXPERTS = "specdec_hal_kernels"
"""The name of our experts function."""
_GELU = ("GELUTanh", "NewGELUActivation", "FastGELUActivation")


class Kernels:
    """See :class:`.replace.Operators`. `launcher`: of Triton's kernels."""

    experts = EXPERTS

    def __init__(self, launcher: Any) -> None:
        self._launcher = launcher

    @property
    def gates(self) -> Kernels:
        """See Operators."""
        return self

    @property
    def pending(self) -> Rotation | None:
        """Of the launcher, whose attention computes it."""
        found: Rotation | None = self._launcher.pending
        return found

    @pending.setter
    def pending(self, rotation: Rotation | None) -> None:
        self._launcher.pending = rotation

    def weight(self, weight: Any) -> Any:
        """See Operators."""
        return weight

    def linear(self, x: Any, weight: Any, outputs: int, bias: Any | None, residual: Any | None, dtype: Any) -> Any:
        """See Operators."""
        out, rows = x.new_empty((*x.shape[:-1], outputs), dtype=dtype), _rows(x)
        count = self._launcher.used_of_tiles(len(rows))
        self._launcher.linear(rows, weight, out.view(len(rows), -1), count, bias=bias, residual=residual)
        return out

    def norm(self, x: Any, weight: Any, epsilon: float) -> Any:
        """See Operators."""
        rows = x[0] if x.ndim in (3, 4) and len(x) == 1 else x.reshape(-1, x.shape[-1])
        inner = rows.stride()[1:]
        if inner not in ((1,), (rows.shape[-1], 1)):
            rows = _rows(x)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self._launcher.rms_norm(rows, weight, out.view(-1, x.shape[-1]), None, epsilon)
        return out

    def gated_norm(self, x: Any, gate: Any, weight: Any, epsilon: float, gate_first: bool, sigmoid: bool) -> Any:
        """See Operators."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self._launcher.gated_norm(
            x, gate, weight, out.view(-1, x.shape[-1]), epsilon, gate_first=gate_first, sigmoid=sigmoid
        )
        return out

    def delta_inputs(self, mixed: Any, a: Any, b: Any, rate: Any, dt_bias: Any, d_k: int, d_v: int) -> tuple[Any, ...]:
        """See Operators."""
        shape, like = a.shape, {"dtype": mixed.dtype, "device": mixed.device}
        keys = len(mixed), (mixed.shape[1] - shape[1] * d_v) // (2 * d_k), d_k
        q, k, v = (torch.empty(size, **like) for size in (keys, keys, (*shape, d_v)))
        decay, beta = (torch.empty(shape, dtype=torch.float32, device=mixed.device) for _ in range(2))
        self._launcher.delta_inputs(mixed, a, b, rate, dt_bias, (q, k, v, decay, beta))
        return q, k, v, decay, beta

    def mamba2_gates(self, dt: Any, a: Any, dt_bias: Any, limits: Any) -> tuple[Any, Any]:
        """See Operators."""
        decay, out = (torch.empty(dt.shape, dtype=torch.float32, device=dt.device) for _ in range(2))
        dt = dt if dt.stride(1) == 1 else dt.contiguous()
        self._launcher.mamba2_gates(dt, a, dt_bias, limits, decay, out)
        return decay, out

    def gated(self, module: Any) -> Callable[[Any], Any] | None:
        """See Operators; one launch."""
        act = getattr(module, "act_fn", None)
        gelu = type(act).__name__ in _GELU or getattr(act, "approximate", None) == "tanh"
        both = [module.gate_proj.weight, module.up_proj.weight]
        with torch.no_grad():
            in_fp8 = isinstance(both[0], Fp8Weight)
            weight = fp8.in_turns(both) if in_fp8 else torch.stack(both, 1).flatten(0, 1)

        def forward(x: Any) -> Any:
            rows = _rows(x)
            middle = rows.new_empty((len(rows), len(weight) // 2))
            self._launcher.gate_up(rows, weight, middle, self._launcher.used_of_tiles(len(rows)), gelu=gelu)
            return middle.view(*x.shape[:-1], -1)

        return forward

    def rotate(self, rotation: Rotation) -> tuple[Any, Any]:
        """See Operators."""
        q, k = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (rotation.q, rotation.k))
        self._launcher.rotate(rotation.q, rotation.k, rotation.cos[0], rotation.sin[0], q, k, dims=rotation.dims)
        return q, k

    def take_experts(self, module: Any) -> None:
        """See Operators."""
        module.__dict__["_specdec_launcher"] = self._launcher


def _rows(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1]).contiguous()


def _experts(module: Any, hidden: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """See ALL_EXPERTS_FUNCTIONS of `transformers`."""
    launcher = module.__dict__["_specdec_launcher"]
    name = "gate_up_proj" if module.has_gate else "up_proj"
    act = module._apply_gate if module.has_gate else module.act_fn
    experts, chosen = len(module.down_proj), top_k_index.flatten()
    order = chosen.argsort(stable=True)
    starts = torch.searchsorted(chosen[order], torch.arange(experts + 1, device=chosen.device), out_int32=True)

    def multiply(x: Any, name: str) -> Any:
        weight = getattr(module, name)
        if module.is_transposed and not isinstance(weight, Fp8Weight):
            weight = weight.transpose(1, 2)
        out = x.new_empty((len(chosen), weight.shape[1]))
        launcher.experts(x, weight, getattr(module, f"{name}_bias") if module.has_bias else None, out, order, starts)
        return out

    middle = act(multiply(hidden.contiguous(), name))
    parts, total = multiply(middle.contiguous(), "down_proj"), torch.empty_like(hidden)
    launcher.combine(parts, top_k_weights.contiguous(), total, top_k_index.contiguous(), experts)
    return total


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)


class Invariant(TorchFunctionMode):  # type: ignore[misc]
    """Context in which our kernels compute matrix products, and sums and means over the last dimension.

    The library's order of sums depends on the number of rows. `launcher`: returns one for a dtype.
    """

    def __init__(self, launcher: Callable[[Any], Any]) -> None:
        super().__init__()
        self._launcher = launcher
        tensor, functional = torch.Tensor, torch.nn.functional
        products = (torch.matmul, tensor.matmul, tensor.__matmul__, torch.mm, tensor.mm)
        self._table: dict[Any, Callable[..., Any]] = {
            functional.linear: self._linear,
            torch.addmm: self._addmm,
            tensor.addmm: self._addmm,
            **dict.fromkeys(products, self._matmul),
            **dict.fromkeys((torch.mean, tensor.mean), self._mean),
            **dict.fromkeys((torch.sum, tensor.sum), self._sum),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = self._table.get(func)
        result = NotImplemented if ours is None else ours(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        if weight.ndim != 2 or input.dtype != weight.dtype or not input.is_floating_point() or not input.numel():
            return NotImplemented
        rows = input.reshape(-1, input.shape[-1]).contiguous()
        out = rows.new_empty((len(rows), len(weight)))
        self._launcher(rows.dtype).linear(rows, weight.contiguous(), out, None, bias=bias)
        return out.view(*input.shape[:-1], -1)

    def _matmul(self, input: Any, other: Any) -> Any:
        return self._linear(input, other.T) if other.ndim == 2 and input.ndim > 1 else NotImplemented

    def _addmm(self, input: Any, mat1: Any, mat2: Any, **scales: Any) -> Any:
        return NotImplemented if scales or input.ndim != 1 else self._linear(mat1, mat2.T, input)

    def _sum(self, input: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
        last = dim in (-1, (-1,), [-1]) and input.ndim > 1 and input.is_floating_point() and input.numel()
        if options or not last:
            return NotImplemented
        rows = input.reshape(-1, input.shape[-1]).contiguous()
        out = rows.new_empty(len(rows))
        self._launcher(rows.dtype).row_sum(rows, out)
        return out.view(*input.shape[:-1], *([1] * keepdim))

    def _mean(self, input: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
        total = self._sum(input, dim, keepdim, **options)
        return total if total is NotImplemented else total / input.shape[-1]
