"""Parameters by row, candidates and penalties, against FastDeploy's semantics in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from specdec_hal.errors import ArgumentError
from tests.fastdeploy.batches import Batch, equal, tensor, tensors, values

ROUNDS = range(10)


def test_the_documented_example(gpu: Any) -> None:
    lens, offsets, seeds = np.array([2, 1], np.int32), np.array([0, 2, 3], np.int32), tensor(np.array([100, 200]))
    out = gpu.build_sampling_params(
        *tensors(np.array([0.9, 0.5], np.float32), np.array([0, 3])), seeds, *tensors(lens, offsets),
        token_num_output_cpu=3, increment_value=1,
    )  # fmt: skip
    equal(out[2][:, 0], [100, 104, 200])
    equal(seeds, [101, 201])


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_seeds_after_many_steps_are_fastdeploys(request: Any, layer: Any, rng: Any, platform: str) -> None:
    """In the caller's buffer, of more slots than are in use; those in use advance, with rows or without."""
    ops, modulus = request.getfixturevalue(platform), 2**63 - 2 if platform == "gpu" else 2**31 - 2
    slots = 9
    seeds = modulus - 1 - rng.integers(0, 300, (slots, 1))
    given, model = tensor(seeds), [int(seed) for seed in seeds[:, 0]]
    top_p, top_k = np.ones((slots, 1), np.float32), np.zeros((slots, 1), np.int64)
    for _ in range(8):
        b = Batch(rng, width=5)
        described = b.cu_out if platform == "gpu" else b.enc
        out = ops.build_sampling_params(*tensors(top_p, top_k), given, *tensors(b.slt, described), b.rows, 20)
        inside = np.arange(b.rows) - b.cu_out[b.row_slots]
        sums = [model[slot] + 4 * int(i) for slot, i in zip(b.row_slots, inside, strict=True)]
        model = [seed + 20 * (slot < b.slots) for slot, seed in enumerate(model)]
        if platform == "xpu":  # beyond int64, FastDeploy's sums are not defined
            sums, model = [s % modulus for s in sums], [s % modulus for s in model]
        wrapped = [(s + 2**63) % 2**64 - 2**63 for s in sums]
        equal(out[2][:, 0], [s % modulus for s in wrapped])
        model = [((s + 2**63) % 2**64 - 2**63) % modulus for s in model]
        equal(given[:, 0], model)


@pytest.mark.parametrize(("dtype", "default"), [("float32", 1.0), ("int32", 1), ("bool", False)])
def test_build_sampling_params_logprob(gpu: Any, rng: Any, dtype: str, default: Any) -> None:
    for _ in ROUNDS:
        n = int(rng.integers(1, 6))
        params, num = rng.integers(0, 3, n).astype(dtype), rng.integers(0, 5, n).astype(np.int32)
        rows = int(num.sum()) + int(rng.integers(0, 4))
        wanted = np.full(rows, default, dtype)
        wanted[: num.sum()] = np.repeat(params, num)
        out = gpu.build_sampling_params_logprob(*tensors(params, num), rows)
        assert str(out.dtype).endswith(dtype)
        equal(out, wanted)


def penalised(
    b: Batch, logits: Any, text: Any, prompt: Any, step: Any, pen: Any, bad: Any, least: Any, temp: Any
) -> Any:
    """Each row by the text of its slot."""
    out = logits.astype(np.float64)
    for r, slot in enumerate(b.row_slots):
        p, s = int(prompt[slot]), int(step[slot])
        generated = text[slot, p : p + s].tolist()
        for token in {*text[slot, :p].tolist(), *generated}:
            x = out[r, token]
            x = x / pen[0][slot] if x > 0 else x * pen[0][slot]
            if token in generated:
                x -= generated.count(token) * pen[1][slot] + pen[2][slot]
            out[r, token] = x
        drafts_before = r - int(b.cu_out[slot])
        too_short = s + drafts_before < least[slot]
        forbidden = [t for t in bad[slot] if t >= 0] + (b.ends.tolist() if too_short else [])
        out[r, forbidden] = -np.inf
        out[r] /= temp[slot]
    return out


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_penalties(request: Any, layer: Any, rng: Any, platform: str) -> None:
    ops = request.getfixturevalue(platform)
    for _ in ROUNDS:
        b = Batch(rng)
        n, v, plain = b.slots, 40, platform == "xpu" and rng.random() < 0.5
        if plain:  # a row a slot
            b.rows, b.row_slots, b.cu_out = n, np.arange(n), np.arange(n + 1)
        logits = rng.normal(size=(b.rows, v)).astype(np.float32)
        text = b.text % v
        prompt = b.prompt if platform == "gpu" else np.zeros(n, np.int64)
        pen = [rng.choice([1.0, 1.3], n), rng.choice([0, 0.2], n), rng.choice([0, 0.4], n)]
        temp = rng.choice([0.5, 1.0, 2.0], n)
        bad, bad_len = rng.integers(0, v, (n, 3)), rng.integers(0, 4, n)
        least = rng.integers(0, 12, n)
        one_list = platform == "xpu" and rng.random() < 0.5
        if platform == "xpu":
            bad_len[:] = 3
        if one_list:
            bad[:] = bad[0]
        kept = np.where(np.arange(3) < bad_len[:, None], bad, -1)
        columns = [a.astype(np.float32).reshape(-1, 1) for a in (*pen, temp)]
        given = tensor(logits)
        history = tensors(text, prompt.reshape(-1, 1)) if platform == "gpu" else tensors(text)
        forbidden = tensors(bad, bad_len.reshape(-1, 1)) if platform == "gpu" else tensors(bad[0] if one_list else bad)
        lens = tensors(b.step.reshape(-1, 1), least.reshape(-1, 1), b.ends.reshape(-1, 1))
        args = [*history, given, *tensors(*columns), *forbidden, *lens]
        if plain:
            ops.get_token_penalty_multi_scores(*args)
        else:
            ops.speculate_get_token_penalty_multi_scores(*args, *tensors(b.slt, b.row_slots, b.cu_out), 64)
        wanted = penalised(b, logits, text, prompt, b.step, pen, kept, least, temp)
        np.testing.assert_allclose(values(given), wanted, rtol=1e-5, atol=1e-6)


def test_xpus_sampler_goes_on_with_the_result(xpu: Any) -> None:
    """`softmax(get_token_penalty_multi_scores(...))`, of a call that is planned and of one that is kept."""
    logits = tensor(np.array([[0, 4, 0, 0], [1, 2, 3, 4]], np.float32))
    one = np.ones((2, 1), np.float32)
    history, lens = tensor(np.array([[1, -1], [0, 3]])), tensors(np.array([[1], [2]]), np.zeros((2, 1), np.int64))
    args = [history, logits, *tensors(one, 0 * one, 0 * one, 2 * one, np.array([[-1]])), *lens, tensor(np.array([[9]]))]
    for step in (2, 4):
        result = xpu.get_token_penalty_multi_scores(*args)
        assert result is logits
        probs = paddle.nn.functional.softmax(result)
        wanted = np.exp(np.array([[0, 4, 0, 0], [1, 2, 3, 4]]) / step)
        np.testing.assert_allclose(values(probs), wanted / wanted.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_a_row_of_no_slot_is_refused_before_anything_is_written(
    request: Any, layer: Any, rng: Any, platform: str
) -> None:
    n, v = 2, 8
    logits, text = tensor(rng.normal(size=(3, v)).astype(np.float32)), tensor(rng.integers(0, v, (n, 9)))
    one, lens = np.ones((n, 1), np.float32), np.array([1, 2], np.int32)
    history = [text, tensor(np.full((n, 1), 3))] if platform == "gpu" else [text]
    bad = [*tensors(np.array([[4], [5]])), *([tensor(np.ones((n, 1), np.int64))] if platform == "gpu" else [])]
    rows = tensor(np.array([0, 1, 1], np.int32))
    args = [*history, logits, *tensors(one * 1.5, one, one, one * 2), *bad]
    args += tensors(np.full((n, 1), 3), np.full((n, 1), 9), np.array([[7]]), lens)
    op = request.getfixturevalue(platform).speculate_get_token_penalty_multi_scores
    op(*args, rows, tensor(np.array([0, 1, 3], np.int32)), 64)
    before = values(logits).copy()
    rows[2] = n
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"multi_scores.*'batch_id_per_token_output'.*below 2, got 2"):
            op(*args, rows, tensor(np.array([0, 1, 3], np.int32)), 64)
        equal(logits, before)
