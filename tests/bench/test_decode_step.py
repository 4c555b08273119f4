"""The decode step that is benchmarked is one that a runner could be in, accepts what it says, and is checked."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.bench import sampling, verify
from specdec_hal.bench.case import Prepared, WrongResult
from specdec_hal.bench.decode_step import DecodeStep
from specdec_hal.bench.runner import cases_of
from specdec_hal.tensors.device import get_device

BACKEND = ReferenceBackend()
BACKEND.debug = True


def verified(step: DecodeStep, strategy: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    state = step.state()
    rows = step.rows(state)
    verified_by = {"target_tokens": step.target_tokens(state, rows)}
    if strategy == "TOPP":
        verified_by = {**step.candidate_lists(state, rows), "top_p": state["top_p"]}
    names = ("draft_tokens", "seed", "prompt_lens", "step_idx", "max_dec_len", "stop_flags", "is_block_step")
    lengths = ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "reasoning_status", "end_tokens")
    accepted = np.zeros(step.slots, np.int32)
    BACKEND.verify_draft_tokens(
        **{name: state[name] for name in (*names, *lengths)}, **verified_by,
        cu_seqlens_q_output=rows["cu_seqlens_q_output"], accept_tokens=np.zeros((step.slots, step.width), np.int64),
        accept_num=accepted, strategy=strategy, verify_window=2, accept_policy="NORMAL", end_at_limit=False,
    )  # fmt: skip
    return state, accepted


@pytest.mark.parametrize("strategy", ["GREEDY", "TOPP"])
@pytest.mark.parametrize(("acceptance", "low", "high"), [(0.0, 1.0, 1.0), (0.6, 1.9, 2.9), (1.0, 6.0, 6.0)])
def test_acceptance(strategy, acceptance, low, high):
    state, accepted = verified(DecodeStep(200, 5, 1000, acceptance, mixed=False), strategy)
    assert not state["seq_lens_encoder"].any() and (state["seq_lens_this_time"] == 6).all()
    assert low <= accepted.mean() <= high


def test_a_mixed_batch():
    state, accepted = verified(DecodeStep(90, 3, 1000), "GREEDY")
    prefill, idle = state["seq_lens_encoder"] > 0, state["stop_flags"]
    assert (prefill.sum(), idle.sum()) == (30, 9)
    unfinished = prefill & (state["seq_lens_decoder"] + state["seq_lens_encoder"] < state["prompt_lens"])
    assert 5 < unfinished.sum() < 25
    assert ((accepted == 0) == (idle | unfinished)).all()
    assert (state["seq_lens_decoder"] >= 0).all()


def test_offsets_are_those_of_prepare_inputs():
    step = DecodeStep(40, 3, 1000, seed=7)
    state = step.state()
    rows = step.rows(state)
    tokens = int(state["seq_lens_this_time"].sum())
    written = {
        "ids_remove_padding": np.zeros(tokens, np.int64),
        "batch_id_per_token": np.zeros(tokens, np.int32),
        "cu_seqlens_k": np.zeros(41, np.int32),
        "num_tokens": np.zeros(2, np.int32),
        **{name: np.zeros_like(value) for name, value in rows.items()},
    }
    names = ("input_ids", "draft_tokens", "seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")
    BACKEND.prepare_inputs(**{name: state[name] for name in names}, **written)
    for name, value in rows.items():
        np.testing.assert_array_equal(written[name], value, name)


@pytest.mark.parametrize("suite", ["verify", "step"])
def test_the_suites_give_the_ops_what_they_take(suite):
    device = get_device("cpu", "numpy")
    for case in cases_of(suite, quick=True):
        Prepared(case, BACKEND, device, seed=1).check()


def test_every_target_and_peer_of_sampling_has_its_case():
    labels = {case.label for case in cases_of("sampling")}
    for setting, size in [*sampling.TARGETS, *sampling.PEERS]:
        assert f"sample_target, {setting}, {size}" in labels


def test_a_large_vocabulary_is_checked_in_part():
    step = DecodeStep(9, 3, 500, mixed=False)
    case = verify.by_probs(step, in_part=True)
    assert not case.checked
    prepared = Prepared(case, BACKEND, get_device("cpu", "numpy"), seed=1)
    prepared.check()

    class Wrong(ReferenceBackend):
        def plan(self, call):
            right = super().plan(call)

            def launch(stream: int) -> None:
                right(stream)
                call.tensors["accept_tokens"][8, 0] += 1

            return launch

    with pytest.raises(WrongResult, match="'accept_tokens' of slot 8: expected"):
        Prepared(case, Wrong(), get_device("cpu", "numpy"), seed=1).check()


def test_a_dense_proposer_is_tested():
    """Some drafts are rejected, so that draws have something to take away."""
    step = DecodeStep(60, 3, 500, mixed=False)
    (call,) = verify.by_probs(step, dense=True).calls(1)
    BACKEND.verify_draft_tokens(**call.inputs)
    assert 1.5 < call.inputs["accept_num"].mean() < 3
