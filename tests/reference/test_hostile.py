"""No input value may crash an op, make it warn, or make it touch memory outside its tensors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from specdec_hal.conformance.inputs.generate import cases, generate, hostile
from specdec_hal.ops import OPS
from specdec_hal.ops.spec import Role
from tests.support.redzone import RedZones
from tests.support.running import BACKEND, run

CLAMPED = (
    "apply_penalties", "update_model_status", "set_stop_sequences", "write_accepted", "reasoning_constraint",
    "ngram_match", "hybrid_mtp_ngram",
)  # fmt: skip
COUNT = {"ngram_index_update": 20}  # an index full of random bits makes every look-up go round its table


def hostile_inputs(op):
    for options in cases(op, COUNT.get(op, 80)):
        yield options, hostile(op, workspace=BACKEND.workspace, **options)


@pytest.mark.parametrize("op", OPS)
def test_hostile_values(op):
    for options, inputs in hostile_inputs(op):
        zones = RedZones(inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            getattr(BACKEND, op)(**zones.call)
        zones.check()
        for name, operand in OPS[op].by_name.items():
            if operand.role is Role.IN and name in inputs:
                np.testing.assert_array_equal(zones.call[name], inputs[name], f"{name} {options}")


@pytest.mark.parametrize("make", [generate, hostile])
@pytest.mark.parametrize("op", [n for n, spec in OPS.items() if any(o.role is Role.OUT for o in spec.operands)])
def test_nothing_is_left_unwritten(op, make):
    """Whatever the outputs held before, they hold the same afterwards."""
    outputs = [operand.name for operand in OPS[op].operands if operand.role is Role.OUT]
    for options in cases(op, 40):
        inputs = make(op, **options)
        zeroed = {name: np.zeros_like(value) if name in outputs else value for name, value in inputs.items()}
        first, second = run(op, inputs), run(op, zeroed)
        for name in first.keys() & set(outputs):  # without the optional ones that a case leaves out
            np.testing.assert_array_equal(first[name], second[name], f"{name} {options}")


def test_hostile_tokens_stay_tokens():
    """What comes out of a hostile verification is still a draft, a target token or a valid id, exactly counted."""
    for options in cases("verify_draft_tokens", 150):
        inputs = hostile("verify_draft_tokens", **options)
        out = run("verify_draft_tokens", inputs)
        assert ((out["accept_num"] >= 0) & (out["accept_num"] <= out["accept_tokens"].shape[1])).all()
        for tokens, count in zip(out["accept_tokens"], out["accept_num"], strict=True):
            assert (tokens[count:] == -1).all()


@pytest.mark.parametrize("op", CLAMPED)
def test_prompt_lengths_are_clamped_to_the_row(op):
    for options in cases(op, 100):
        inputs = generate(op, index=False, **options) if "ngram" in op else generate(op, **options)
        length = inputs["token_ids_all"].shape[1]
        beyond = np.random.default_rng(options["seed"]).choice(
            [-(2**62), -3, length + 5, 2**62], len(inputs["step_idx"])
        )
        clamped = run(op, {**inputs, "prompt_lens": beyond.clip(0, length)})
        for name, array in run(op, {**inputs, "prompt_lens": beyond}).items():
            np.testing.assert_array_equal(array, clamped[name], f"{name} {options}")
