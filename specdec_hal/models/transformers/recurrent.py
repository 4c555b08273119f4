"""Layers of `transformers` with a state besides keys and values: Qwen3.5's, Mamba-2's, LFM2's.

Their code calls a convolution and a recurrence by names of its module. A layer gets a copy of its `forward` in which
these names are our functions, as attention layers get ours by the attention interface. Projections, gates and norms
stay the library's. The functions compute on states by position (:class:`specdec_hal.models.states.StateStore`): every
token by the arithmetic of one token, whatever the width of its step, so rejected drafts are forgotten and chunks,
preemption and resuming give the same bits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

from specdec_hal.models.states import DELTA_RULE, MAMBA2, mamba2_gates
from specdec_hal.models.transformers.interface import GATES, LAYER, STORE, trial

CONVOLUTION = "causal_conv1d_fn"
KINDS = "short convolutions, gated delta rules and Mamba-2"
"""What is supported, for messages."""
_SELECTIVE = "mamba_selective_state_update"
"""Mamba-1's recurrence, a state per channel; there is no op for it."""


class _Current(threading.local):
    module: Any = None


_current = _Current()
"""Of this thread: the layer whose code runs."""


def unsupported(architecture: Any) -> str:
    """The recurrence of a class's module for which there is no op; "" if there are ops for its layers."""
    names = vars(sys.modules[architecture.__module__])
    if _SELECTIVE in names:
        return "the selective scan of Mamba-1"
    return "" if CONVOLUTION in names else f"none of {KINDS}"


def attach(model: Any) -> None:
    """Let the recurrent layers of a model call our functions, which serve those with a store (see `interface.bind`)."""
    for module in model.modules():
        forward = type(module).forward
        while hasattr(forward, "__wrapped__"):  # hooks of the package accelerate, which are not ours
            forward = forward.__wrapped__
        if isinstance(forward, FunctionType) and CONVOLUTION in forward.__code__.co_names:
            module.forward = MethodType(_with_ours(forward), module)


@cache
def _with_ours(forward: FunctionType) -> Callable[..., Any]:
    known = forward.__globals__
    ours = {name: partial(function, known[name]) for name, function in _OURS.items() if name in known}
    inner = FunctionType(
        forward.__code__, {**known, **ours}, forward.__name__, forward.__defaults__, forward.__closure__
    )
    inner.__kwdefaults__ = forward.__kwdefaults__

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, _current.module = _current.module, self
        try:
            return inner(self, *args, **kwargs)
        finally:
            _current.module = before

    return run


def _convolve(original: Any, x: Any, weight: Any, bias: Any = None, activation: Any = None, **others: Any) -> Any:
    """`x` [1, channels, T], `weight` [channels, taps]; `original`: the library's function."""
    module = _current.module
    if trial.recorder is not None:
        trial.recorder.convolution(module, x, weight, activation, others)
        return original(x, weight, bias, activation, **others)
    state = module.__dict__
    out = state[STORE].convolve(state[LAYER], x[0].T, weight, bias, activation is not None)
    return out.T[None]


def _delta_rule(original: Any, query: Any, key: Any, value: Any, g: Any, beta: Any, **others: Any) -> tuple[Any, None]:
    """`query`, `key` [1, T, heads, d_k], `value` [1, T, heads, d_v], `beta` [1, T, heads]; `g`: the logarithm of the
    decay, of a head [1, T, heads] or of each channel of its keys [1, T, heads, d_k].
    """
    module = _current.module
    if trial.recorder is not None:
        shape, keys = (value.shape[2], key.shape[3], value.shape[3]), _distinct(query, key)
        trial.recorder.recurrence(module, DELTA_RULE, shape, keys, others, _DELTA_RULE, by_channel=g.ndim == 4)
        return original(query, key, value, g=g, beta=beta, **others)[0], None
    state = module.__dict__
    each = key.shape[2] // state[LAYER].key_heads
    query, key, decay = query[0, :, ::each], key[0, :, ::each], g[0].float().exp()
    return state[STORE].delta_rule(state[LAYER], query, key, value[0], decay, beta[0].float())[None], None


def _distinct(query: Any, key: Any) -> int:
    """How many heads there are where the library repeats each for its value heads: the fewest possible."""
    heads = int(key.shape[2])

    def repeated(x: Any, each: int) -> bool:
        return bool(x.equal(x[:, :, ::each].repeat_interleave(each, 2)))

    repeats = (each for each in range(heads, 0, -1) if heads % each == 0)
    return heads // next(each for each in repeats if repeated(query, each) and repeated(key, each))


def _mamba2(original: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, **others: Any) -> Any:
    """`x` [1, T, heads, width], `dt` [1, T, heads], `A` [heads], `B`, `C` [1, T, groups, size]."""
    module = _current.module
    if trial.recorder is not None:
        shape = x.shape[2], B.shape[3], x.shape[3]
        trial.recorder.recurrence(module, MAMBA2, shape, B.shape[2], others, _MAMBA2)
        return original(x, dt, A, B, C, **others)
    state = module.__dict__
    decay, dt = state.get(GATES, mamba2_gates)(dt[0], A, others.get("dt_bias"), others.get("dt_limit"))
    return state[STORE].mamba2(state[LAYER], x[0], decay, dt, B[0], C[0], others.get("D"))[None]


_DELTA_RULE = {
    "initial_state": None, "output_final_state": False, "use_qk_l2norm_in_kernel": True, "cu_seqlens": None,
}  # fmt: skip
_MAMBA2 = {"z": None, "return_final_states": False, "initial_states": None, "dt_softplus": True}
"""Arguments that our function knows with this value only."""
_OURS: dict[str, Callable[..., Any]] = {
    CONVOLUTION: _convolve,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _mamba2,
}
