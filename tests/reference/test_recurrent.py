"""Recurrent layers of the reference against the functions of `transformers`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.ops.inputs.generate import generate

pytestmark = pytest.mark.torch
TOKENS, RING = 11, 5
SIZES = {"M": 1, "B": 1, "T_cap": TOKENS, "R": RING, "dtype": "float32"}
BACKEND = ReferenceBackend()


def made(op: str, seed: int, **sizes: Any) -> dict[str, Any]:
    """One slot's tokens from position 0 on."""
    stored = {} if op == "causal_conv1d" else {"storage": "STATES"}
    call = generate(op, seed, **SIZES, **stored, **sizes)
    return {**call, "cu_seqlens_q": np.array([0, TOKENS], np.int32), "seq_lens_decoder": np.zeros(1, np.int32)}


def in_steps(op: str, call: dict[str, Any], *steps: int) -> None:
    """Runs the op on some tokens a step; outputs and states are those of the call."""
    tokens = ("conv_x", "conv_out", "q", "k", "v", "decay", "beta", "dt", "core_out")
    at = 0
    for count in steps:
        rows = {n: call[n][at : at + count] for n in tokens if n in call}
        place = {"cu_seqlens_q": np.array([0, count], np.int32), "seq_lens_decoder": np.array([at], np.int32)}
        getattr(BACKEND, op)(**{**call, **rows, **place})
        at += count
    assert at == TOKENS


@pytest.mark.parametrize("seed", range(4))
def test_gated_delta_rule(seed: int) -> None:
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    call = made("gated_delta_rule", seed, H_k=2, H_v=4, D_k=20, D_v=12, qk_l2norm=True, decay_per_channel=False)
    call["decay"] = np.clip(call["decay"], 1e-3, 1)
    in_steps("gated_delta_rule", call, 4, 1, 5, 1)
    q, k, v, decay, beta = (torch.from_numpy(call[name])[None] for name in ("q", "k", "v", "decay", "beta"))
    out, state = qwen.torch_recurrent_gated_delta_rule(
        q.repeat_interleave(2, 2),
        k.repeat_interleave(2, 2),
        v,
        decay.log(),
        beta,
        None,
        True,
        use_qk_l2norm_in_kernel=True,
    )
    np.testing.assert_allclose(call["core_out"], out[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(call["states"][0, (TOKENS - 1) % RING], state[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_kda(seed: int) -> None:
    torch = pytest.importorskip("torch")
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    call = made("gated_delta_rule", seed, H_k=3, H_v=3, D_k=16, D_v=8, qk_l2norm=True, decay_per_channel=True)
    call["decay"] = np.clip(call["decay"], 1e-3, 1)
    in_steps("gated_delta_rule", call, 4, 1, 5, 1)
    out, state = kimi.recurrent_kimi_delta_attention(
        *(torch.from_numpy(x)[None] for x in (call["q"], call["k"], call["v"], np.log(call["decay"]), call["beta"])),
        initial_state=None, output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    np.testing.assert_allclose(call["core_out"], out[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(call["states"][0, (TOKENS - 1) % RING], state[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", ["SILU", "NONE"])
def test_causal_conv1d(biased: bool, activation: str) -> None:
    torch = pytest.importorskip("torch")
    bamba = pytest.importorskip("transformers.models.bamba.modeling_bamba")
    call = made("causal_conv1d", 3, D=10, Taps=4, conv_bias=biased, activation=activation)
    in_steps("causal_conv1d", call, 1, 3, 6, 1)
    state, weight = torch.zeros(1, 10, 3), torch.from_numpy(call["conv_weight"])
    bias = torch.from_numpy(call["conv_bias"]) if biased else None
    name = "silu" if activation == "SILU" else None
    x = torch.from_numpy(call["conv_x"].T.copy())[None]
    out = bamba.causal_conv1d_update(x, state, weight, bias, name)
    np.testing.assert_allclose(call["conv_out"], out[0].numpy().T, atol=1e-5)
    kept = [call["conv_ring"][0, p % RING] for p in range(TOKENS - 3, TOKENS)]
    np.testing.assert_array_equal(np.array(kept).T, state[0].numpy())


@pytest.mark.parametrize("skipped", [False, True])
def test_mamba2_step(skipped: bool) -> None:
    torch = pytest.importorskip("torch")
    bamba = pytest.importorskip("transformers.models.bamba.modeling_bamba")
    call = made("mamba2_step", 5, H_k=2, H_v=4, D_k=16, D_v=12, skip=skipped)
    a = -np.random.default_rng(0).random(4).astype(np.float32)
    call["decay"] = np.exp(call["dt"] * a)
    in_steps("mamba2_step", call, 4, 1, 5, 1)
    state, tensors = torch.zeros(1, 4, 12, 16), {n: torch.from_numpy(call[n]) for n in ("q", "k", "v", "dt")}
    skip = torch.from_numpy(call["skip"])[:, None].expand(4, 12) if skipped else None
    for p in range(TOKENS):
        out = bamba.mamba2_selective_state_update(
            state, tensors["v"][p : p + 1], tensors["dt"][p : p + 1, :, None].expand(1, 4, 12),
            torch.from_numpy(a)[:, None, None].expand(4, 12, 16), tensors["k"][p : p + 1], tensors["q"][p : p + 1],
            skip,
        )  # fmt: skip
        np.testing.assert_allclose(call["core_out"][p], out[0].numpy(), atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(call["states"][0, (TOKENS - 1) % RING], state[0].numpy().transpose(0, 2, 1), atol=1e-5)
