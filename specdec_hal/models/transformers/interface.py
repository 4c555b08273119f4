"""The attention function registered with `transformers` under our name, and its implementations."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from transformers import AttentionInterface, AttentionMaskInterface

from specdec_hal.models.attention import Layer
from specdec_hal.models.states import Recurrence

NAME = "specdec_hal"
"""Without a mask function of this name, so `transformers` builds no masks."""
TRIAL = "specdec_hal_trial"
"""The name during a trial, whose masks show what a layer attends to."""

LAYER, STORE, BIAS = "_specdec_layer", "_specdec_store", "_specdec_bias"
"""Where an attention layer, or a recurrent one, keeps its own, and one with ALiBi its biases."""
GATES = "_specdec_gates"
"""Where a Mamba-2 layer keeps what computes its gates instead of PyTorch's operators."""


class Store(Protocol):
    """The KV cache during a step. That of a model with indexers is a :class:`~.sparse.SparseStore`."""

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None, bias: Any | None = None) -> Any:
        """Store `key` [T, kv_heads, head_dim] and `value` [T, kv_heads, value_dim]; return the attention [T, heads,
        value_dim] of `query` [T, heads, head_dim]. `sinks` [heads]: one score per head without a value, added to the
        softmax's sum. `bias` float32 [heads, positions]: a score of key j at position i changes by bias[j] - bias[i].
        """


class States(Protocol):
    """The states of recurrent layers during a step (:class:`specdec_hal.models.states.StateStore`)."""

    def convolve(self, layer: Recurrence, x: Any, weight: Any, bias: Any, silu: bool) -> Any:
        """See StateStore.convolve."""

    def delta_rule(self, layer: Recurrence, query: Any, key: Any, value: Any, decay: Any, beta: Any) -> Any:
        """See StateStore.delta_rule."""

    def mamba2(self, layer: Recurrence, x: Any, decay: Any, dt: Any, b: Any, c: Any, skip: Any) -> Any:
        """See StateStore.mamba2."""


class Recorder(Protocol):
    """Serves the layers during a trial."""

    def record(self, module: Any, query: Any, key: Any, value: Any, mask: Any, arguments: dict[str, Any]) -> Any:
        """As Store.attend; `arguments`: the layer's keyword arguments."""

    def mask(self, mask_function: Any) -> Any:
        """Represents a mask in the arguments of `record`."""

    def index(self, module: Any, width: int, rows: int, choose: Any) -> Any:
        """An indexer with keys of that width chooses keys for the rows: see :mod:`.sparse`."""

    def convolution(self, module: Any, x: Any, weight: Any, activation: Any, arguments: dict[str, Any]) -> None:
        """A recurrent layer convolves `x` [1, channels, T] by `weight` [channels, taps]."""

    def recurrence(
        self,
        module: Any,
        op: str,
        state: tuple[int, ...],
        key_heads: int,
        arguments: dict[str, Any],
        known: dict[str, Any],
        by_channel: bool = False,
    ) -> None:
        """A recurrent layer updates a state [heads, d_k, d_v] as `op`, with keys of `key_heads` heads and a decay per
        head or key channel; `known`: the only values of some arguments."""


class _Trial(threading.local):
    recorder: Recorder | None = None


loading = threading.Lock()
"""Held while `transformers` loads a model, when it changes what all threads share."""
trial = _Trial()
"""Of this thread: its recorder is set while a model is tried."""


def bind(module: Any, layer: Layer | Recurrence, store: Store | States) -> None:
    """Serve an attention layer by a Store, or a recurrent one by States."""
    module.__dict__[LAYER], module.__dict__[STORE] = layer, store


class Calls:
    """A store for a layer that calls its attention several times in a pass; each call has a layer of the cache."""

    def __init__(self, store: Store, layers: Sequence[Layer]) -> None:
        self._store, self._layers, self._next = store, layers, 0

    def begin(self) -> None:
        """Start a pass."""
        self._next = 0

    def attend(self, layer: Layer, *tensors: Any) -> Any:
        """See Store.attend."""
        here = self._layers[self._next]
        self._next = (self._next + 1) % len(self._layers)
        return self._store.attend(here, *tensors).clone()  # a store writes all results to one buffer


def bind_calls(attentions: Sequence[Any], layers: Sequence[Layer], store: Store) -> list[Calls]:
    """Serve attention layers by a store: one call in a pass of each of `attentions`, by its layer. Those that are there
    several times have Calls."""
    found: dict[Any, list[Layer]] = {}
    for module, layer in zip(attentions, layers, strict=True):
        found.setdefault(module, []).append(layer)
    repeated = {module: Calls(store, own) for module, own in found.items() if len(own) > 1}
    for module, own in found.items():
        bind(module, own[0], repeated.get(module, store))
    return list(repeated.values())


def _attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **arguments: Any) -> tuple[Any, None]:
    """`query`, `key` and `value` are [1, heads, T, width], rotated already."""
    state = module.__dict__
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    if arguments.get("indices") is not None:
        return state[STORE].attend_chosen(state[LAYER], query, key, value, arguments["indices"])[None], None
    out = state[STORE].attend(state[LAYER], query, key, value, arguments.get("s_aux"), state.get(BIAS))
    return out[None], None


def _try(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **arguments: Any) -> tuple[Any, None]:
    assert trial.recorder is not None  # models have this name during a trial only
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    return trial.recorder.record(module, query, key, value, attention_mask, arguments)[None], None


def attend(module: Any, query: Any, key: Any, value: Any, **arguments: Any) -> Any:
    """As of the interface, for a layer that does not call it: [1, T, heads, value_dim]."""
    return (_attend if trial.recorder is None else _try)(module, query, key, value, None, **arguments)[0]


def _mask(*args: Any, mask_function: Any, **arguments: Any) -> Any:
    assert trial.recorder is not None
    return trial.recorder.mask(mask_function)


AttentionInterface.register(NAME, _attend)
AttentionInterface.register(TRIAL, _try)
AttentionMaskInterface.register(TRIAL, _mask)
