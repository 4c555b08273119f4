"""A plain Llama in float64 over a whole text: no cache, no layout, no tile; every implementation is held against it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def stored(path: Path) -> dict[str, Doubles]:
    """The checkpoint's own tensors."""
    from safetensors.numpy import load_file

    return {name: array.astype(np.float64) for name, array in load_file(path / "model.safetensors").items()}


def oracle(
    path: Path, tokens: npt.NDArray[np.int64], weights: Mapping[str, Doubles] | None = None, tap: int | None = None,
    mtp: bool = False,
) -> Doubles:  # fmt: skip
    """Logits [T, V] of a text, or with `tap` the residual [T, D] after that layer; `weights` replace the stored.

    `mtp`: the module's logits [T - 1, V], row p from the hidden state of p and the token at p + 1.
    """
    config: dict[str, Any] = json.loads((path / "config.json").read_text())
    weights = stored(path) if weights is None else weights
    heads, kv_heads, head_dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    half = head_dim // 2

    def norm(x: Doubles, name: str) -> Doubles:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weights[f"{name}.weight"]

    def rotate(x: Doubles) -> Doubles:
        angle = np.outer(np.arange(len(x)), config["rope_theta"] ** (-2 * np.arange(half) / head_dim))[:, None]
        first, second = x[..., :half], x[..., half:]
        return np.concatenate(
            [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], -1
        )

    def decode(x: Doubles, layer: str) -> Doubles:
        h = norm(x, f"{layer}.input_layernorm")
        q, k, v = (
            (h @ weights[f"{layer}.self_attn.{n}_proj.weight"].T).reshape(len(x), -1, head_dim) for n in ("q", "k", "v")
        )
        q, k = rotate(q), rotate(k)
        attended = np.empty((len(x), heads, head_dim))
        for j in range(heads):
            own = j // (heads // kv_heads)
            scores = q[:, j] @ k[:, own].T / np.sqrt(head_dim)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            attended[:, j] = shares / shares.sum(-1, keepdims=True) @ v[:, own]
        x = x + attended.reshape(len(x), -1) @ weights[f"{layer}.self_attn.o_proj.weight"].T
        h = norm(x, f"{layer}.post_attention_layernorm")
        gate, up = (h @ weights[f"{layer}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        return x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{layer}.mlp.down_proj.weight"].T

    embedding, layers = weights["model.embed_tokens.weight"], config["num_hidden_layers"]
    x = embedding[tokens]
    for i in range(layers):
        x = decode(x, f"model.layers.{i}")
        if i == tap:
            return x
    head = weights["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"].T
    x = norm(x, "model.norm")
    if not mtp:
        return x @ head
    module = f"model.layers.{layers}"
    joined = np.concatenate([norm(embedding[tokens[1:]], f"{module}.enorm"), norm(x[:-1], f"{module}.hnorm")], -1)
    x = decode(joined @ weights[f"{module}.eh_proj.weight"].T, module)
    return norm(x, f"{module}.shared_head.norm") @ head
