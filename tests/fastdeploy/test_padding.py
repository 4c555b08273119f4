"""`get_padding_offset` and its older relatives: which version a call is written for, and what each gives back."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from specdec_hal.errors import ArgumentError
from tests.fastdeploy.batches import Batch, equal, tensor, tensors, values
from tests.fastdeploy.kernels_rows import speculate_pre_process

ROUNDS = range(12)


def test_of_neither_order_the_argument_is_named(gpu: Any) -> None:
    ids, lens, wide = np.zeros((2, 4), np.int64), np.ones(2, np.int32), np.ones(2, np.int64)
    with pytest.raises(ArgumentError, match=r"get_padding_offset.*seq_lens_decoder.*int32, got int64"):
        gpu.get_padding_offset(*tensors(ids, lens, wide, wide), None, 2)


def test_fewer_arguments_of_older_versions(gpu: Any, xpu: Any) -> None:
    ids, lens = np.arange(12).reshape(3, 4), np.array([2, 0, 3], np.int32)
    today = gpu.get_padding_offset(*tensors(ids, lens, lens, 0 * lens), None, 5)
    for served in (gpu, xpu):
        five = served.get_padding_offset(*tensors(ids, lens), None, None, 5)
        four = served.get_padding_offset(*tensors(ids, np.cumsum(4 - lens), np.array([5]), lens))
        if served is xpu:
            equal(four.pop(1), [0, 2, 6])
        three = served.get_padding_offset(*tensors(ids, lens), 5)
        equal(three.pop(1), [0, 2, 6])
        for now, *others in zip(today, five, four, three, strict=True):
            for other in others:
                equal(other, values(now))


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_speculate_get_padding_offset(layer: Any, rng: Any, platform: str) -> None:
    """XPU's has one tensor more, its second."""
    op = layer.ADAPTORS[platform]["speculate_get_padding_offset"]
    for _ in ROUNDS:
        b = Batch(rng)
        packed = speculate_pre_process(b.tokens, b.input_ids, b.slt, b.drafts, b.enc, b.dec)[:4]
        empty = np.cumsum(b.chunk - b.slt)
        out = op(*tensors(b.input_ids, b.drafts, empty, np.array([b.tokens]), b.slt, b.enc))
        assert len(out) == (4 if platform == "gpu" else 5)
        if platform == "xpu":
            assert out[1].dtype == paddle.int32
            equal(out.pop(1), [0, *empty[:-1]])
        for given, wanted in zip(out, packed, strict=True):
            equal(given, wanted)


@pytest.mark.parametrize("shape", [[], [1], [1, 1]])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_tensor_of_one_element_is_a_number(gpu: Any, xpu: Any, shape: list[int], dtype: str) -> None:
    """XPU's runner hands over token_num_cpu as it comes from sum().cpu()."""
    ids, lens = np.arange(12).reshape(3, 4), np.array([2, 0, 3], np.int32)
    number = paddle.full(shape, 5, dtype)
    for served in (gpu, xpu):
        args = tensors(ids, lens, ids, lens, 0 * lens)
        given = served.speculate_pre_process(number, *args)
        for one, other in zip(given, served.speculate_pre_process(5, *args), strict=True):
            equal(one, values(other))
        five = served.get_padding_offset(*args[:2], None, None, number)
        equal(five[0], [0, 1, 8, 9, 10])
        five = served.get_padding_offset(*args[:2], *tensors(lens, 0 * lens), None, number)
        equal(five[0], [0, 1, 8, 9, 10])


def test_such_a_number_may_change(gpu: Any) -> None:
    """No plan of an op that works in place keeps it."""
    text, one = np.array([[1, 2, 3, 4, 1, 2, 3]]), np.ones((1, 1), np.int64)
    for number, size in ((paddle.to_tensor(3), 3), (paddle.to_tensor([3]), 3)):
        lens = tensor(np.ones(1, np.int32))
        state = tensors(text, 0 * one, 7 * one, np.full(1, 5, np.int32), np.zeros((1, 6), np.int64))
        args = [*state, lens, *tensors(np.zeros(1, np.int32), np.full(1, 7, np.int32), 99 * one), number, 5]
        gpu.ngram_match(*args)
        equal(lens, [5])
        number.fill_(size - 3)
        with pytest.raises(ArgumentError, match=r"ngram_match.*max_ngram_size"):
            gpu.ngram_match(*args)


@pytest.mark.parametrize("number", [paddle.ones([2], "int64"), paddle.ones([1], "float32"), paddle.ones([1], "bool")])
def test_no_other_tensor_is(gpu: Any, number: Any) -> None:
    ids, lens = np.arange(12).reshape(3, 4), np.array([2, 0, 3], np.int32)
    with pytest.raises(ArgumentError, match=r"speculate_pre_process.*'cpu_token_num'.*int tensor of one element"):
        gpu.speculate_pre_process(number, *tensors(ids, lens, ids, lens, 0 * lens))
