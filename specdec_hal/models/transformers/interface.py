"""The attention function registered with `transformers` under our name, and its implementations."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from transformers import AttentionInterface, AttentionMaskInterface

from specdec_hal.models.paged import Layer

NAME = "specdec_hal"
"""Without a mask function of this name, so `transformers` builds no masks."""
TRIAL = "specdec_hal_trial"
"""The name during a trial, whose masks show what a layer attends to."""

LAYER, STORE = "_specdec_layer", "_specdec_store"
"""Where an attention layer keeps its own."""


class Store(Protocol):
    """The KV cache during a step."""

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None) -> Any:
        """Store `key` [T, kv_heads, head_dim] and `value` [T, kv_heads, value_dim]; return the attention [T, heads,
        value_dim] of `query` [T, heads, head_dim]. `sinks` [heads]: one score per head without a value, added to the
        softmax's sum.
        """


class Recorder(Protocol):
    """Serves the layers during a trial."""

    def record(self, module: Any, query: Any, key: Any, value: Any, mask: Any, arguments: dict[str, Any]) -> Any:
        """As Store.attend; `arguments`: the layer's keyword arguments."""

    def mask(self, mask_function: Any) -> Any:
        """Represents a mask in the arguments of `record`."""


class _Trial(threading.local):
    recorder: Recorder | None = None


loading = threading.Lock()
"""Held while `transformers` loads a model, when it changes what all threads share."""
trial = _Trial()
"""Of this thread: its recorder is set while a model is tried."""


def bind(module: Any, layer: Layer, store: Store) -> None:
    """Serve an attention layer."""
    module.__dict__[LAYER], module.__dict__[STORE] = layer, store


def _attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **arguments: Any) -> tuple[Any, None]:
    """`query`, `key` and `value` are [1, heads, T, width], rotated already."""
    state = module.__dict__
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    out = state[STORE].attend(state[LAYER], query, key, value, arguments.get("s_aux"))
    return out[None], None


def _try(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **arguments: Any) -> tuple[Any, None]:
    assert trial.recorder is not None  # models have this name during a trial only
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    return trial.recorder.record(module, query, key, value, attention_mask, arguments)[None], None


def _mask(*args: Any, mask_function: Any, **arguments: Any) -> Any:
    assert trial.recorder is not None
    return trial.recorder.mask(mask_function)


AttentionInterface.register(NAME, _attend)
AttentionInterface.register(TRIAL, _try)
AttentionMaskInterface.register(TRIAL, _mask)
