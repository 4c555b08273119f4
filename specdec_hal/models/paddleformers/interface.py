"""The attention function registered with `paddleformers` under our name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paddleformers.nn.attention.interface import AttentionInterface

from specdec_hal.models.attention import Layer

NAME = "specdec_hal"
EAGER = "eager"
"""The library's own attention, with masks."""
LAYER, STORE = "_specdec_layer", "_specdec_store"
"""Where an attention layer keeps its own."""

_MASK = "_prepare_decoder_attention_mask"


def set_attention(model: Any, name: str) -> None:
    """Let every layer use that attention function, ours without masks; classes read its name in one of two places."""
    for module in model.sublayers(include_self=True):
        if hasattr(type(module), _MASK):
            module.__dict__.pop(_MASK, None)
            if name == NAME:
                module.__dict__[_MASK] = _no_mask
        if hasattr(getattr(module, "config", None), "_attn_implementation"):
            module.config._attn_implementation = name
        if hasattr(module, "attn_implementation"):
            module.attn_implementation = name


@contextmanager
def library_attention(model: Any) -> Iterator[None]:
    """Context in which a model computes its attention itself, from the beginning of a text."""
    set_attention(model, EAGER)
    try:
        yield
    finally:
        set_attention(model, NAME)


def bind(module: Any, layer: Layer | None, store: Any) -> None:
    """Serve an attention layer by a store: :class:`~specdec_hal.models.attention.HostStore` or alike. A `layer` None:
    by a recorder, in a trial."""
    module.__dict__[LAYER], module.__dict__[STORE] = layer, store


def release(module: Any) -> None:
    """Undo :func:`bind`."""
    del module.__dict__[LAYER], module.__dict__[STORE]


def _no_mask(**arguments: Any) -> None:
    """Instead of a mask for a sliding window, which the library makes in any case."""


def _attend(module: Any, query: Any, key: Any, value: Any, **arguments: Any) -> tuple[Any, None]:
    """[1, T, heads * width] of `query`, `key` and `value` [1, heads, T, width], which are rotated already."""
    layer, store = module.__dict__[LAYER], module.__dict__[STORE]
    query, key, value = (x[0].transpose([1, 0, 2]) for x in (query, key, value))
    if layer is None:
        out = store.record(module, query, key, value, arguments)
    else:
        out = store.attend(layer, query, key, value, arguments.get("sink"))
    return out.flatten(1)[None], None


AttentionInterface.register(NAME, _attend)
