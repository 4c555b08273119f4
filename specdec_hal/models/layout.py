"""The framework-independent part of a Llama decoder, as NumPy arrays.

Weights are rearranged at loading, for few and large matrix products:

- stored [in, out], the order in which ``x @ w`` reads them;
- q, k and v are one matrix, gate and up another;
- 1/sqrt(head_dim) is multiplied into q;
- rotary embeddings pair dimension i with i + head_dim/2 (Su et al., arXiv:2104.09864, in Hugging Face's order). The
  columns of q and k are permuted to put each pair side by side, as the real and imaginary part of one complex number:
  the rotation is then one complex multiplication, and q.k is what it was;
- q, k and v together, gate, and up are padded with zero columns to a multiple of 64. So no vector loop over several
  rows has a rest, which might be computed with other instructions and get other bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.rope import rotations
from specdec_hal.models.weights import EMBEDDING, HEAD

Array = npt.NDArray[np.float32]

VECTOR = 64
"""Columns of products are padded to a multiple of this."""


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer, float32. Q, K are heads times head_dim; P is Q + 2K, F intermediate_size, both padded."""

    attention_norm: Array  # [D]
    qkv: Array  # [D, P]
    out: Array  # [Q, D]
    mlp_norm: Array  # [D]
    gate_up: Array  # [D, 2F]
    down: Array  # [F, D]


@dataclass(frozen=True)
class MTPWeights:
    """A multi-token-prediction module, float32: a layer over the projected embedding and hidden state."""

    embedding_norm: Array  # [D]
    hidden_norm: Array  # [D]
    embedding_in: Array  # [D, D], the half of eh_proj for the embedding
    hidden_in: Array  # [D, D], the one for the hidden state
    layer: LayerWeights
    final_norm: Array  # [D]


@dataclass(frozen=True)
class LlamaWeights:
    """A whole decoder, float32."""

    embedding: Array  # [V, D]
    layers: tuple[LayerWeights, ...]
    final_norm: Array  # [D]
    head: Array  # [D, V]
    mtp: tuple[MTPWeights, ...] = ()


def arrange_layer(weights: Mapping[str, Array], layer: str, config: LlamaConfig) -> LayerWeights:
    """The layer of that name of a checkpoint in this module's layout."""

    def get(name: str) -> Array:
        return weights[f"{layer}.{name}.weight"]

    q = _pair_rotary(get("self_attn.q_proj"), config.head_dim) * np.float32(config.head_dim**-0.5)
    k = _pair_rotary(get("self_attn.k_proj"), config.head_dim)
    return LayerWeights(
        attention_norm=get("input_layernorm"),
        qkv=in_out(_padded(np.concatenate([q, k, get("self_attn.v_proj")]))),
        out=in_out(get("self_attn.o_proj")),
        mlp_norm=get("post_attention_layernorm"),
        gate_up=in_out(np.concatenate([_padded(get("mlp.gate_proj")), _padded(get("mlp.up_proj"))])),
        down=_padded(in_out(get("mlp.down_proj"))),
    )


def arrange_mtp(weights: Mapping[str, Array], index: int, config: LlamaConfig) -> MTPWeights:
    """The MTP module that a checkpoint holds as layer `index`."""
    layer = f"model.layers.{index}"
    embedding_in, hidden_in = np.split(weights[f"{layer}.eh_proj.weight"], 2, axis=1)
    return MTPWeights(
        embedding_norm=weights[f"{layer}.enorm.weight"],
        hidden_norm=weights[f"{layer}.hnorm.weight"],
        embedding_in=in_out(embedding_in),
        hidden_in=in_out(hidden_in),
        layer=arrange_layer(weights, layer, config),
        final_norm=weights[f"{layer}.shared_head.norm.weight"],
    )


def arrange(weights: Mapping[str, Array], config: LlamaConfig) -> LlamaWeights:
    """A checkpoint's weights in this module's layout."""
    embedding = weights[EMBEDDING]
    head = embedding if config.tie_word_embeddings else weights[HEAD]
    modules = config.num_nextn_predict_layers
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(arrange_layer(weights, f"model.layers.{i}", config) for i in range(config.num_hidden_layers)),
        final_norm=weights["model.norm.weight"],
        head=in_out(head),
        mtp=tuple(arrange_mtp(weights, config.num_hidden_layers + i, config) for i in range(modules)),
    )


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is >= `value`."""
    return -(-value // step) * step


def in_out(weight: Array) -> Array:
    """A weight [out, in] as [in, out]."""
    return np.ascontiguousarray(weight.T)


def _padded(weight: Array) -> Array:
    return np.pad(weight, ((0, round_up(len(weight), VECTOR) - len(weight)), (0, 0)))


def _pair_rotary(weight: Array, head_dim: int) -> Array:
    """Rows (0, h, 1, h+1, ...) of each head, h = head_dim / 2, for (0, 1, ..., h, h+1, ...)."""
    paired = weight.reshape(-1, 2, head_dim // 2, weight.shape[1]).swapaxes(1, 2)
    return paired.reshape(weight.shape)


class RotaryTable:
    """Rotations of :mod:`specdec_hal.models.rope`, computed in float64 and rounded once."""

    def __init__(self, config: LlamaConfig, positions: int) -> None:
        self._table = rotations(config, positions).astype(np.complex64)
        self._rotated = config.num_attention_heads + config.num_key_value_heads
        self._width = round_up((self._rotated + config.num_key_value_heads) * config.head_dim, VECTOR) // 2

    def rows(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.complex64]:
        """Factors for rows of q, k and v: complex64 [n, P / 2], 1 but for q and k. Positions are clipped."""
        rows = np.ones((len(positions), self._width), np.complex64)
        half = self._table.shape[1]
        heads = rows[:, : self._rotated * half].reshape(len(positions), self._rotated, half)
        heads[:] = self._table.take(positions, axis=0, mode="clip")[:, None]
        return rows
