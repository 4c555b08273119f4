"""The suites over rows of logits check what they measure, by some of the rows."""

from __future__ import annotations

import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.bench import logprobs, sampling
from specdec_hal.bench.case import WrongResult
from specdec_hal.ops import get_op
from specdec_hal.ops.spec import Role

CASES = {case.label: case for suite in (sampling, logprobs) for case in suite.cases(True)}


@pytest.mark.parametrize("label", CASES)
def test_a_wrong_row_is_seen(label):
    check = CASES[label].check
    assert check is not None
    calls = CASES[label].calls(3)
    inputs = calls[0].inputs
    operands = get_op(calls[0].op).by_name
    written = [name for name in inputs if name in operands and operands[name].role is not Role.IN]
    computed = {name: inputs[name].copy() for name in written}
    getattr(ReferenceBackend(), calls[0].op)(**{**inputs, **computed})
    outputs = {id(inputs[name]): computed[name] for name in written}
    check(calls, outputs)
    for name in written:
        right = computed[name][-1].copy()
        computed[name][-1] += 1
        with pytest.raises(WrongResult, match=f"'{name}' of rows .* is not the reference's"):
            check(calls, outputs)
        computed[name][-1] = right
