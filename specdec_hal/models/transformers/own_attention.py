"""Layers of `transformers` that compute their attention themselves, not by its attention interface.

Each class gets a `forward`, or the part of it that is attention, which calls our attention function. Biases by position
(ALiBi) are tables by key, which the library's own function fills. The trial compares hidden states with those of the
library's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from specdec_hal.models.layout import round_up
from specdec_hal.models.transformers.interface import BIAS, attend

_NO_MASK = torch.zeros((1, 1, 1, 1))
_KEYS = 64
"""Positions of a table of biases are a multiple of it, for the native attention."""


def _falcon(self: Any, hidden_states: Any, alibi: Any, *others: Any, **known: Any) -> tuple[Any, None]:
    qkv = self.query_key_value(hidden_states).unflatten(-1, (self.num_kv_heads, -1, self.head_dim))
    q, k, v = qkv[..., :-2, :].flatten(2, 3), qkv[..., -2, :], qkv[..., -1, :]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if alibi is None:
        q, k = _names(self)["apply_rotary_pos_emb"](q, k, *known["position_embeddings"])
    return self.dense(attend(self, q, k, v, scaling=self.inv_norm_factor).flatten(2)), None


def _bloom(self: Any, hidden_states: Any, residual: Any, *others: Any, **known: Any) -> tuple[Any, None]:
    q, k, v = self._reshape(self.query_key_value(hidden_states))
    return self.dense(attend(self, q, k, v, scaling=self.inv_norm_factor).flatten(2)) + residual, None


def _mpt(self: Any, hidden_states: Any, *others: Any, **known: Any) -> tuple[Any, None]:
    qkv = self.Wqkv(hidden_states)
    if self.clip_qkv:
        qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    q, k, v = (x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for x in qkv.chunk(3, -1))
    return self.out_proj(attend(self, q, k, v, scaling=self.softmax_scale).flatten(2)), None


def _xglm(self: Any, hidden_states: Any, *others: Any, **known: Any) -> tuple[Any, None]:
    products = (product(hidden_states) for product in (self.q_proj, self.k_proj, self.v_proj))
    q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in products)
    return self.out_proj(attend(self, q, k, v, scaling=self.scaling).flatten(2)), None


def _attn(self: Any, query: Any, key: Any, value: Any, attention_mask: Any = None) -> tuple[Any, None]:
    """The method of GPT-J, CodeGen and GPT-Neo."""
    window = self.config.window_size if getattr(self, "attention_type", "") == "local" else None
    scale = 1 / getattr(self, "scale_attn", 1.0)
    out = attend(self, query, key, value, scaling=scale, sliding_window=window)
    return out.transpose(1, 2), None


_OURS: dict[str, tuple[str, Callable[..., Any]]] = {
    "FalconAttention": ("forward", _falcon),
    "BloomAttention": ("forward", _bloom),
    "MptAttention": ("forward", _mpt),
    "XGLMAttention": ("forward", _xglm),
    "GPTJAttention": ("_attn", _attn),
    "CodeGenAttention": ("_attn", _attn),
    "GPTNeoSelfAttention": ("_attn", _attn),
}
"""By class: the method that is replaced, and ours."""


def through_interface(architecture: Any) -> bool:
    """Whether layers of a class of models call the attention interface; in newer versions of the library more do."""
    return bool(architecture.is_backend_compatible() or architecture._can_set_attn_implementation())


def is_known(architecture: Any) -> bool:
    """Whether the attention of a class of models is replaced here."""
    return not through_interface(architecture) and any(name in _names(architecture) for name in _OURS)


def implementation(architecture: Any) -> str:
    """The library's implementation that such a class is compared with; "" for another class.

    Not "eager" where there is a choice: Falcon's adds its biases twice.
    """
    return "" if not is_known(architecture) else "sdpa" if architecture._supports_sdpa else "eager"


def attach(model: Any) -> None:
    """Let the layers of a model call our attention function."""
    for module in model.modules() if is_known(type(model)) else ():
        kind = type(module).__name__
        if kind in _OURS:
            name, method = _OURS[kind]
            setattr(module, name, MethodType(method, module))
        elif kind == "FalconLinear":
            module.__class__ = torch.nn.Linear  # what it computes, by the name that is looked for
        elif kind == "MptModel" and not module._forward_pre_hooks:
            module.register_forward_pre_hook(without_mask, with_kwargs=True)


def without_mask(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Its code needs a mask, and `transformers` makes none for our attention."""
    given = kwargs.get("attention_mask")
    return args, {**kwargs, "attention_mask": _NO_MASK if given is None else given}


def tabulate(model: Any, positions: int) -> None:
    """Give attention layers with ALiBi their biases, float32 [heads, `positions` or more], by key."""
    known = model.modules() if is_known(type(model)) else ()
    layers = [module for module in known if type(module).__name__ in _OURS]
    table = _alibi(layers[0], round_up(positions, _KEYS)) if layers else None
    if table is not None:
        for module in layers:
            module.__dict__[BIAS] = table.flatten(0, -2).to(next(model.parameters()).device).contiguous()


def _alibi(module: Any, count: int) -> Any | None:
    """The library's biases of the first `count` keys for each head, which it adds to scores; None for none."""
    names = _names(module)
    if "build_mpt_alibi_tensor" in names:
        return names["build_mpt_alibi_tensor"](module.n_heads, count)
    if "build_alibi_tensor" not in names or not getattr(getattr(module, "config", None), "alibi", True):
        return None
    bias = names["build_alibi_tensor"](torch.ones((1, count), dtype=torch.int64), module.num_heads, torch.float32)
    return bias * module.inv_norm_factor if module.beta != 1.0 else bias  # of Falcon, before it scales scores


def _names(of: Any) -> dict[str, Any]:
    """What the file of a module or class names."""
    return vars(sys.modules[(of if isinstance(of, type) else type(of)).__module__])
