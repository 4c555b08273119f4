"""Exported ops refuse the same calls as the package, and run nothing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from specdec_hal.conformance.inputs.generate import generate
from specdec_hal.ops import OPS
from specdec_hal.tensors.native import load_library
from tests.support.cuda_on_host import ARCHS, CudaOnHost, library_of, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "never")


def call(op: str, inputs: dict[str, Any], **changes: Any) -> Any:
    """Binds, and does not launch."""
    given = {**inputs, **changes}
    attrs = (int(given[name]) for name in OPS[op].attr_by_name)
    return load_library(library_of(ARCHS[0]))[op](*(given.get(name) for name in OPS[op].by_name), *attrs)


def inputs_of(op: str, seed: int = 3, **options: Any) -> dict[str, Any]:
    return generate(op, seed, workspace=CudaOnHost().workspace, **{"M": 3, "S": 3, **options})


@pytest.mark.parametrize("op", OPS)
def test_every_operand_is_checked(op):
    """By dtype, by rank, and for layout; the error names the op and the operand."""
    inputs = inputs_of(op)
    call(op, inputs)
    for name in OPS[op].by_name:
        good = inputs.get(name)
        if good is None:
            continue
        refused = re.escape(f"{op}: argument '{name}': expected ")
        other = good if name == "x" else good.astype(np.complex64)  # rows of any dtype are moved
        for wrong in (other, np.stack([good, good]), np.stack([good, good], axis=-1)[..., 0]):
            if wrong.flags.c_contiguous and wrong.dtype == good.dtype and wrong.shape == good.shape:
                continue  # nothing is wrong, as with a stride of at most one element
            with pytest.raises(ValueError, match=refused + f"|{op}: argument '.*': expected B <= "):
                call(op, inputs, **{name: wrong})
        with pytest.raises(ValueError, match=refused + "a tensor, got int"):
            call(op, inputs, **{name: 7})


@pytest.mark.parametrize("op", OPS)
def test_every_needed_operand_must_be_there(op):
    inputs = inputs_of(op)
    for operand in OPS[op].operands:
        if operand.name in inputs and not operand.optional:
            with pytest.raises(ValueError, match=f"{op}: argument '{operand.name}': expected a tensor, got none"):
                call(op, inputs, **{operand.name: None})


def accepted(minimum: int | None, value: int, maximum: int | None) -> bool:
    return (minimum is None or minimum <= value) and (maximum is None or value <= maximum)


@pytest.mark.parametrize("op", OPS)
def test_attributes_are_checked(op):
    inputs = inputs_of(op)
    for attr in OPS[op].attrs:
        for wrong in (-(2**40), 2**40):
            if attr.kind is int and accepted(attr.minimum, wrong, attr.maximum):
                continue
            with pytest.raises(ValueError, match=f"{op}: attribute '{attr.name}': expected an integer in "):
                call(op, inputs, **{attr.name: wrong})
    with pytest.raises(TypeError, match=rf"{op}: expected \d+ tensors, \d+ attributes and 0 options, got 1 arguments"):
        load_library(library_of(ARCHS[0]))[op](None)


def test_operands_that_the_attributes_exclude_are_refused():
    inputs = inputs_of("verify_draft_tokens", strategy="GREEDY")
    top_p = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="'top_p': expected none for these attributes, got a tensor; leave it out"):
        call("verify_draft_tokens", inputs, top_p=top_p)


def test_relations_are_checked():
    inputs = inputs_of("ngram_match", index=False, B=3)
    with pytest.raises(ValueError, match="'min_ngram_size': expected min_ngram_size <= max_ngram_size, got 4 and 2"):
        call("ngram_match", inputs, min_ngram_size=4, max_ngram_size=2)
    with pytest.raises(ValueError, match="'seq_lens_this_time': expected B <= 3, got 4; pass smaller tensors"):
        call("ngram_match", inputs, seq_lens_this_time=np.zeros(4, np.int32))
    with pytest.raises(ValueError, match="'token_ids_all': expected L >= 1, got 0; pass larger tensors"):
        call("ngram_match", inputs, token_ids_all=np.zeros((3, 0), np.int64))


def test_a_column_passes_for_a_vector():
    inputs = inputs_of("prepare_inputs")
    call("prepare_inputs", inputs, ids_remove_padding=inputs["ids_remove_padding"][:, None].copy())


def test_bfloat16_comes_as_uint16_and_no_other_float_passes():
    inputs = inputs_of("sample_target", dtype="bfloat16")
    assert inputs["logits"].dtype == np.uint16
    call("sample_target", inputs)
    with pytest.raises(ValueError, match=r"'logits': expected float32 \| float16 \| bfloat16 .*, got float64"):
        call("sample_target", inputs, logits=inputs["logits"].astype(np.float64))


def test_limits_are_told():
    """An op has those of its own symbols."""
    xpu = load_library("specdec_xpu_sim")
    assert dict(xpu["ngram_match_limits"]().items()) == {"S": 32767}
    assert dict(xpu["prepare_inputs_limits"]().items()) == {}
