"""Rotary factors and paired columns against their definitions."""

from __future__ import annotations

import numpy as np

from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import RotaryTable, arrange
from specdec_hal.models.weights import expected_shapes


def config(heads: int = 4, kv_heads: int = 2, head_dim: int = 6, ffn: int = 10) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=9, hidden_size=8, intermediate_size=ffn, num_hidden_layers=1, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, max_position_embeddings=64, rope_theta=100.0,
        rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip


def test_rotary_turns_pairs_of_a_head_and_leaves_values() -> None:
    """q and k, rotated as complex numbers, have the dot products of Hugging Face's rotate-half."""
    shape = config()
    generator = np.random.default_rng(0)
    weights = {
        name: generator.standard_normal(size).astype(np.float32) for name, size in expected_shapes(shape).items()
    }
    x = generator.standard_normal((5, 8)).astype(np.float32)
    positions = np.array([0, 3, 17, 40, 63])
    packed = x @ arrange(weights, shape).layers[0].qkv
    factors = RotaryTable(shape, 64).rows(positions)
    assert packed.shape == (5, 64) and factors.shape == (5, 32) and factors.dtype == np.complex64
    turned = (packed.view(np.complex64) * factors).view(np.float32)

    def reference(name: str) -> np.ndarray:
        heads = (x.astype(np.float64) @ weights[f"model.layers.0.self_attn.{name}.weight"].T).reshape(5, -1, 6)
        angle = positions[:, None, None] * 100.0 ** (-np.arange(3) / 3)
        first, second = heads[..., :3], heads[..., 3:]
        return np.concatenate(
            [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], -1
        )

    q, k = reference("q_proj"), reference("k_proj")
    ours_q, ours_k = turned[:, :24].reshape(5, 4, 6), turned[:, 24:36].reshape(5, 2, 6)
    for head in range(4):
        np.testing.assert_allclose(
            ours_q[:, head] @ ours_k[:, head // 2].T, q[:, head] @ k[:, head // 2].T / np.sqrt(6), atol=1e-4
        )
    np.testing.assert_array_equal(turned[:, 36:], packed[:, 36:])
    np.testing.assert_array_equal(packed[:, 48:], 0)


def test_positions_beyond_the_table_are_clipped() -> None:
    table = RotaryTable(config(), 10)
    np.testing.assert_array_equal(table.rows(np.array([9])), table.rows(np.array([12])))


def test_padding_of_the_feed_forward_width_is_zero() -> None:
    shape = config(ffn=65)
    weights = {name: np.ones(size, np.float32) for name, size in expected_shapes(shape).items()}
    layer = arrange(weights, shape).layers[0]
    assert layer.gate_up.shape == (8, 256) and layer.down.shape == (128, 8)
    np.testing.assert_array_equal(layer.gate_up[0].nonzero()[0], [*range(65), *range(128, 193)])
    np.testing.assert_array_equal(layer.down[:, 0].nonzero()[0], range(65))
