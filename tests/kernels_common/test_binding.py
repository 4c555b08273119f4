"""Exported ops assert that each tensor is what they take; Python has checked the rest (tests/ops)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from specdec_hal.ops import OPS
from specdec_hal.ops.inputs.generate import generate
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
def test_every_tensor_is_asserted(op):
    """By dtype, by rank, and for layout; the error names the op and the operand."""
    inputs = inputs_of(op)
    call(op, inputs)
    for name in OPS[op].by_name:
        good = inputs.get(name)
        if good is None:
            continue
        other = good if name == "x" else good.astype(np.complex64)  # rows of any dtype are moved
        for wrong in (other, np.stack([good, good]), np.stack([good, good], axis=-1)[..., 0]):
            if wrong.flags.c_contiguous and wrong.dtype == good.dtype and wrong.shape == good.shape:
                continue  # nothing is wrong, as with a stride of at most one element
            with pytest.raises(ValueError, match=re.escape(f"{op}: argument '{name}': expected ")):
                call(op, inputs, **{name: wrong})
        with pytest.raises(TypeError):
            call(op, inputs, **{name: 7})
    with pytest.raises(RuntimeError, match=f"{op}: call it through specdec_hal"):
        load_library(library_of(ARCHS[0]))[op](None)


def test_a_column_passes_for_a_vector():
    inputs = inputs_of("prepare_inputs")
    call("prepare_inputs", inputs, ids_remove_padding=inputs["ids_remove_padding"][:, None].copy())


def test_bfloat16_comes_as_uint16_and_no_other_float_passes():
    inputs = inputs_of("sample_target", dtype="bfloat16")
    assert inputs["logits"].dtype == np.uint16
    call("sample_target", inputs)
    with pytest.raises(ValueError, match=r"'logits': expected float32 \| float16 \| bfloat16 .*, got float64"):
        call("sample_target", inputs, logits=inputs["logits"].astype(np.float64))
