"""A rank's part of a decoder, after Shoeybi et al. (Megatron-LM, arXiv:1909.08053).

Q, K, V, gate and up are split by columns, so that a rank has whole heads; the products that lead back to the residual
are split by rows, and what they give is summed over the ranks. The head is split by columns, a stretch of the
vocabulary each. Embedding, norms and the projections of an MTP module are whole everywhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specdec_hal.backends.reference.primitives import CHUNK
from specdec_hal.errors import ArgumentError
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import VECTOR, Array, LayerWeights, LlamaWeights, padded_columns, round_up


def part_of_config(config: LlamaConfig, size: int) -> LlamaConfig:
    """What a rank's layers look like. ArgumentError if the sizes cannot be divided."""
    counts = {
        name: getattr(config, name) for name in ("num_key_value_heads", "num_attention_heads", "intermediate_size")
    }
    for name, count in counts.items():
        if count % size:
            raise ArgumentError(
                op="load_model",
                backend="torch",
                argument="tensor_parallel",
                expected=f"a divisor of {name} = {count}",
                got=str(size),
                cure="lower engine.tensor_parallel",
            )
    return replace(config, **{name: count // size for name, count in counts.items()})


def vocabulary_part(vocab_size: int, size: int) -> int:
    """Columns of the head that each rank has, whole chunks of a row's masses; the last ranks' last ones are zeros."""
    return round_up(-(-vocab_size // size), CHUNK)


def part_of_weights(weights: LlamaWeights, config: LlamaConfig, rank: int, size: int) -> LlamaWeights:
    """The weights of a rank, for :func:`part_of_config`'s configuration."""
    width = vocabulary_part(config.vocab_size, size)
    head = weights.head[:, rank * width : (rank + 1) * width]
    return replace(
        weights,
        layers=tuple(_layer(layer, config, rank, size) for layer in weights.layers),
        head=np.pad(head, ((0, 0), (0, width - head.shape[1]))),
        mtp=tuple(replace(module, layer=_layer(module.layer, config, rank, size)) for module in weights.mtp),
    )


def _layer(layer: LayerWeights, config: LlamaConfig, rank: int, size: int) -> LayerWeights:
    q, kv = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    ffn = config.intermediate_size
    queries, keys, values = np.split(layer.qkv[:, : q + 2 * kv], [q, q + kv], axis=1)
    gate, up = (half[:, :ffn] for half in np.split(layer.gate_up, 2, axis=1))

    def mine(whole: Array, axis: int) -> Array:
        return np.split(whole, size, axis=axis)[rank]

    down = mine(layer.down[:ffn], 0)
    return replace(
        layer,
        qkv=padded_columns(np.concatenate([mine(part, 1) for part in (queries, keys, values)], axis=1)),
        out=mine(layer.out[:q], 0).copy(),
        gate_up=np.concatenate([padded_columns(mine(part, 1)) for part in (gate, up)], axis=1),
        down=np.pad(down, ((0, round_up(len(down), VECTOR) - len(down)), (0, 0))),
    )
