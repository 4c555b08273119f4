"""Packing and gathering at their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from tests.fastdeploy.batches import Batch, equal, tensor, tensors
from tests.fastdeploy.kernels_rows import rebuild_padding

ROUNDS = range(12)


def test_pre_process_of_an_empty_step_gives_zeros_that_can_be_copied(gpu: Any) -> None:
    idle = np.zeros(3, np.int32)
    out = gpu.speculate_pre_process(
        0, *tensors(np.zeros((3, 8), np.int64), idle, np.zeros((3, 4), np.int64), idle, idle)
    )
    equal(out[6], [0])
    paddle.full([4], -7, "int32").copy_(out[4], True)
    equal(out[4], [0, 0, 0, 0])
    assert out[5][: out[6].item()].shape == [0]


def test_pre_process_takes_prompts_where_there_are_no_drafts(gpu: Any) -> None:
    lens = np.array([2, 0, 3], np.int32)
    ids = np.arange(12).reshape(3, 4)
    no_drafts = paddle.zeros([3, 0], "int64")
    out = gpu.speculate_pre_process(5, tensor(ids), tensor(lens), no_drafts, *tensors(lens * 0, lens))
    equal(out[0], [0, 1, 8, 9, 10])


def test_an_upper_bound_of_the_tokens_leaves_a_defined_tail(gpu: Any) -> None:
    lens = np.array([2, 1], np.int32)
    ids = np.arange(1, 9).reshape(2, 4)
    out = gpu.speculate_pre_process(6, *tensors(ids, lens, ids, lens * 0, lens))
    equal(out[0], [1, 2, 5, 0, 0, 0])
    equal(out[1], [0, 0, 1, -1, -1, -1])


def test_speculate_get_seq_lens_output(gpu: Any, rng: Any) -> None:
    for _ in ROUNDS:
        b = Batch(rng)
        (rows,) = gpu.speculate_get_seq_lens_output(*tensors(b.slt, b.enc, b.dec))
        equal(rows, b.rows_per_slot)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("speculative", [True, False])
def test_rebuild_padding(gpu: Any, rng: Any, dtype: str, speculative: bool) -> None:
    for _ in ROUNDS:
        b = Batch(rng, width=None if speculative else 1)
        if b.tokens == 0:
            continue
        x = rng.integers(-9, 9, (b.tokens, 4)).astype(np.float32)
        rows = (b.row_slots, b.cu_out) if speculative else (None, None)
        wanted = rebuild_padding(x, b.cu_q, b.slt, b.dec, b.enc, *rows, None, False)
        out = gpu.rebuild_padding(tensor(x).astype(dtype), *tensors(b.cu_q, b.slt, b.dec, b.enc, *rows), None, False)
        assert str(out.dtype).endswith(dtype)
        equal(out.astype("float32"), wanted)


def test_rebuild_padding_keeps_the_row_before_a_prompts_last(gpu: Any) -> None:
    enc, dec, slt = (np.array(v, np.int32) for v in ([3, 0, 2], [0, 7, 0], [3, 2, 2]))
    x = np.arange(7, dtype=np.float32).reshape(7, 1) * np.ones((1, 2), np.float32)
    first = tensor(np.full((4, 2), -5, np.float32))
    cu_q, cu_out, row_slots = (np.array(v, np.int32) for v in ([0, 3, 5, 7], [0, 1, 3, 4], [0, 1, 1, 2]))
    out = gpu.rebuild_padding(*tensors(x, cu_q, slt, dec, enc, row_slots, cu_out), first, True)
    equal(out[:, 0], [2, 3, 4, 6])
    equal(first[:, 0], [1, -5, 5, -5])


def test_rows_of_a_strided_view_are_taken_as_they_are(gpu: Any) -> None:
    lens, cu = np.array([1, 1], np.int32), np.array([0, 1, 2], np.int32)
    x = tensor(np.arange(8, dtype=np.float32).reshape(2, 4))[:, 1:3]
    assert not x.is_contiguous()
    out = gpu.rebuild_padding(x, *tensors(cu, lens, lens, lens * 0, np.array([0, 1], np.int32), cu), None, False)
    equal(out, [[1, 2], [5, 6]])
