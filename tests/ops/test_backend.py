"""Backend: capabilities, strictness and fallback, binding, debug mode, explanations."""

from __future__ import annotations

import gc
import logging
import weakref

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.errors import ArgumentError, PluginError, UnsupportedError
from specdec_hal.ops import OPS, MatchPolicy, Strategy, TokenOrder
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.spec import FLOATS
from specdec_hal.plugin.backend import Backend, Capability
from tests.support.calls import valid_call
from tests.support.running import BACKEND, copied, run, written


class Recorder(Backend):
    """Covers what its table says and computes nothing; remembers the calls it served."""

    def __init__(self, name="recorder", **capabilities):
        super().__init__()
        self.name, self.capabilities, self.served = name, capabilities, []

    def plan(self, call):
        def launch(stream):
            self.served.append((call.op.name, call.attrs, stream))

        return launch


def unsupported(backend, op, **call):
    with pytest.raises(UnsupportedError) as caught:
        getattr(backend, op)(**(call or valid_call(op)))
    return str(caught.value)


def test_a_missing_op_is_an_error():
    for op in OPS:
        message = unsupported(Recorder(), op)
        assert message.startswith(f"{op} [recorder]: not supported: recorder: the op is missing; choose a backend")
        assert "fallback: {allow: [...]}" in message


def test_wrong_arguments_come_before_what_is_unsupported():
    with pytest.raises(ArgumentError):
        Recorder().ngram_index_reset(1, 2)


def test_modes_that_are_not_covered():
    backend = Recorder(
        verify_draft_tokens=Capability(attrs={"strategy": frozenset({Strategy.GREEDY, Strategy.TARGET_MATCH})}),
        sample_target=Capability(dtypes={"logits": frozenset({"float32"})}, limits={"V": 10}),
        ngram_match=Capability(attrs={"pad_to_max": frozenset({False})}),
    )
    topp = valid_call("verify_draft_tokens", strategy=Strategy.TOPP)
    assert "strategy=TOPP (has: GREEDY, TARGET_MATCH)" in unsupported(backend, "verify_draft_tokens", **topp)
    half = valid_call("sample_target", dtype="float16")
    assert "logits of dtype float16 (has: float32)" in unsupported(backend, "sample_target", **half)
    large = valid_call("sample_target", dtype="float32")
    assert "V = 11 (largest: 10)" in unsupported(backend, "sample_target", **large)
    padded = valid_call("ngram_match", pad_to_max=True)
    assert "pad_to_max=True (has: False)" in unsupported(backend, "ngram_match", **padded)

    backend.verify_draft_tokens(**valid_call("verify_draft_tokens", strategy=Strategy.GREEDY))
    backend.sample_target(**valid_call("sample_target", dtype="float32", V=10, C=5, N=5))
    backend.ngram_match(**valid_call("ngram_match", pad_to_max=False))
    assert [op for op, _, _ in backend.served] == ["verify_draft_tokens", "sample_target", "ngram_match"]


def test_limits_of_operands_that_are_absent_do_not_matter():
    backend = Recorder(verify_draft_tokens=Capability(dtypes={"draft_probs": frozenset({"float32"})}, limits={"C": 1}))
    backend.verify_draft_tokens(**valid_call("verify_draft_tokens", strategy=Strategy.GREEDY))
    assert len(backend.served) == 1


def test_fallback_serves_counts_and_logs_once(caplog):
    backend, call = Recorder(), valid_call("ngram_match")
    expected = run("ngram_match", call)
    backend.set_fallback([Recorder("other"), BACKEND])
    with caplog.at_level(logging.WARNING, "specdec_hal"):
        for _ in range(3):
            actual = copied(call)
            backend.ngram_match(**actual)
        bound = backend.bind("ngram_match", **copied(call))
        bound()
    for name, array in written("ngram_match", actual).items():
        np.testing.assert_array_equal(array, expected[name])
    assert backend.fallback_calls == {"ngram_match": 4}
    assert [r.getMessage() for r in caplog.records] == [
        "ngram_match falls back to backend 'reference' (recorder: the op is missing)"
    ]


def test_fallback_for_a_mode():
    backend = Recorder(sample_target=Capability(dtypes={"logits": frozenset({"float32"})}))
    backend.set_fallback([BACKEND])
    backend.sample_target(**valid_call("sample_target", dtype="float32"))
    assert backend.fallback_calls == {} and len(backend.served) == 1
    backend.sample_target(**valid_call("sample_target", dtype="bfloat16"))
    assert backend.fallback_calls == {"sample_target": 1} and len(backend.served) == 1


def test_a_fallback_must_cover_the_call_and_share_the_device():
    backend, elsewhere = Recorder(), Recorder("gpu", ngram_match=Capability())
    elsewhere.device = "cuda"
    narrow = Recorder("narrow", ngram_match=Capability(attrs={"match_policy": frozenset({MatchPolicy.LATEST})}))
    backend.set_fallback([elsewhere, narrow])
    message = unsupported(backend, "ngram_match", **valid_call("ngram_match", match_policy=MatchPolicy.LEFTMOST))
    for part in (
        "recorder: the op is missing",
        "gpu: it works on cuda, not cpu",
        "narrow: match_policy=LEFTMOST (has: LATEST)",
    ):
        assert part in message
    backend.ngram_match(**valid_call("ngram_match", match_policy=MatchPolicy.LATEST))
    assert len(narrow.served) == 1 and not elsewhere.served


def test_a_fallback_works_in_the_order_of_the_backend_it_serves():
    backend = Recorder()
    backend.token_order = TokenOrder.PREFILL_FIRST
    backend.set_fallback([BACKEND])
    call = valid_call("adjust_batch", token_order=TokenOrder.PREFILL_FIRST)
    expected = run("adjust_batch", call)["out"]
    del call["token_order"]
    backend.adjust_batch(**call)
    np.testing.assert_array_equal(call["out"], expected)


def test_the_stream_reaches_the_launch():
    backend = Recorder(ngram_index_reset=Capability())
    call = valid_call("ngram_index_reset")
    backend.ngram_index_reset(**call, stream=77)
    backend.ngram_index_reset(**call)
    backend.bind("ngram_index_reset", **call)(5)
    assert [stream for _, _, stream in backend.served] == [77, 0, 5]


def test_explanations():
    backend = Recorder(
        ngram_match=Capability(attrs={"match_policy": frozenset({MatchPolicy.LATEST})}, limits={"M": 8}),
        sample_target=Capability(dtypes={"logits": frozenset({"float32", "bfloat16"})}),
    )
    by_op = {status.op: status for status in backend.explain()}
    assert list(by_op) == list(OPS)
    assert by_op["ngram_match"].available and by_op["ngram_match"].modes == "match_policy: LATEST; M <= 8"
    assert by_op["sample_target"].modes == "logits: bfloat16|float32"
    missing = by_op["verify_draft_tokens"]
    assert not missing.available and missing.reason == "recorder does not implement it" and missing.hint
    backend.set_fallback([BACKEND])
    served = {status.op: status for status in backend.explain()}["verify_draft_tokens"]
    assert served.available and served.via == "reference" and served.reason == "recorder lacks it"
    assert {status.via for status in BACKEND.explain()} == {""} and all(s.available for s in BACKEND.explain())


def test_capability_and_names():
    assert BACKEND.capability("ngram_match") == Capability()
    assert Recorder().capability("ngram_match") is None
    for ask in (BACKEND.capability, BACKEND.workspace, BACKEND.bind):
        with pytest.raises(UnsupportedError, match="did you mean 'ngram_match'"):
            ask("ngram_mach")
    with pytest.raises(AttributeError, match="backend 'reference' has no attribute or op 'ngram_mach'"):
        BACKEND.ngram_mach()
    assert BACKEND.ngram_match.__name__ == "ngram_match" and BACKEND.ngram_match.__doc__ == OPS["ngram_match"].doc
    assert repr(BACKEND) == "<Backend reference>"
    assert BACKEND.workspace("verify_draft_tokens") == {}
    with pytest.raises(UnsupportedError, match="backend 'x' does not implement 'ngram_index_reset'"):
        type("X", (Backend,), {"name": "x", "capabilities": {"ngram_index_reset": Capability()}})().ngram_index_reset(
            **valid_call("ngram_index_reset")
        )


@pytest.mark.parametrize("op", OPS)
def test_a_bound_call_is_the_unbound_one(op):
    for seed in range(5):
        dtype = {"dtype": "bfloat16"} if any(o.tensor.dtypes == FLOATS for o in OPS[op].operands) else {}
        call = valid_call(op, seed=seed, **dtype)
        expected = run(op, call)
        bound_to = copied(call)
        bound = BACKEND.bind(op, **bound_to)
        bound()
        for name, array in written(op, bound_to).items():
            np.testing.assert_array_equal(array, expected[name])
        # Later contents of the same tensors are seen.
        other = valid_call(op, seed=seed + 100, **dtype, **{a: call[a] for a in OPS[op].attr_by_name})
        for name, value in other.items():
            if isinstance(value, np.ndarray):
                bound_to[name][...] = value
        expected = run(op, other)
        bound()
        for name, array in written(op, bound_to).items():
            np.testing.assert_array_equal(array, expected[name])


def test_a_bound_call_keeps_its_tensors():
    call = valid_call("ngram_index_reset")
    owners = [weakref.ref(value) for value in call.values()]
    bound = BACKEND.bind("ngram_index_reset", **call)
    assert repr(bound) == "<bound ngram_index_reset on reference>"
    del call
    gc.collect()
    assert all(owner() is not None for owner in owners)
    bound()
    del bound
    gc.collect()
    assert all(owner() is None for owner in owners)


def test_binding_checks_the_arguments():
    with pytest.raises(ArgumentError, match="'reset_slots': expected a tensor"):
        BACKEND.bind("ngram_index_reset", valid_call("ngram_index_reset")["index"])


BAD_VALUES = {
    "reasoning_seen": -2, "seq_lens_this_time": -1, "seq_lens_encoder": -1, "seq_lens_decoder": -1, "prompt_lens": -1,
    "step_idx": -1, "base_model_step_idx": -1, "max_dec_len": -1, "min_dec_len": -1, "draft_token_num": -1,
    "top_p": 1.5, "top_k": -1, "min_p": np.nan, "temperature": np.nan, "probs": -0.5, "target_probs": np.nan,
    "draft_probs": 2, "candidate_lens": 99, "chunk_lens": 99, "chunk_starts": -1, "chunk_step_idx": -1,
    "stop_seqs_lens": -1, "accept_num": -1, "limit_status": -1, "batch_token_num": -1, "next_token_num": -1,
    "cu_next_token_offset": -5, "row_temperature": -1, "row_top_p": np.nan, "row_top_k": -2, "row_min_p": 1.1,
    "bitmask_rows": -2, "batch_id_per_token": -2, "batch_id_per_token_output": 4, "cu_seqlens_q": -5,
    "base_model_cu_seqlens_q": -5, "cu_seqlens_q_output": -5, "cu_batch_token_offset": -5, "logits": np.nan,
    "target_tokens": -2, "accept_tokens": -2, "candidate_ids": -2, "token_ids": -2, "rows": -2,
    "target_to_draft": -2, "own_logits": np.nan, "path_logits": np.nan, "path_ids": -2,
}  # fmt: skip
RULED = [(op, o.name) for op, spec in OPS.items() for o in spec.operands if o.tensor.values and o.role.value != "out"]


@pytest.mark.parametrize("op", dict.fromkeys(op for op, _ in RULED))
def test_debug_mode_names_bad_values(op):
    for name in (name for other, name in RULED if other == op):
        try:
            bad_values_are_named(op, name)
        except BaseException as error:
            error.add_note(f"with a bad value in {name}")
            raise


def bad_values_are_named(op, name):
    backend = ReferenceBackend()
    call = valid_call(op, name, dtype="float32") if "logits" in OPS[op].by_name else valid_call(op, name)
    backend.debug = True
    getattr(backend, op)(**copied(call))  # what is generated satisfies the rules
    bound = backend.bind(op, **call)
    call[name].reshape(-1)[-1] = BAD_VALUES[name]
    backend.debug = False
    getattr(backend, op)(**copied(call))  # unobserved
    backend.debug = True
    before = copied(call)
    for attempt in (bound, lambda: getattr(backend, op)(**call)):
        with pytest.raises(ArgumentError, match=f"argument '{name}': expected values .*; fix the producer"):
            attempt()
    for other, value in before.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(call[other], value)


def test_debug_mode_looks_into_bfloat16_and_columns():
    backend = ReferenceBackend()
    backend.debug = True
    call = valid_call("sample_target", dtype="bfloat16")
    backend.sample_target(**call)
    call["logits"][2, 1] = 0x7FC0
    with pytest.raises(ArgumentError, match="'logits': expected values no NaN, got NaN in row 2"):
        backend.sample_target(**call)
    call = valid_call("ngram_match")
    call["step_idx"] = call["step_idx"].reshape(-1, 1)
    call["step_idx"][1] = -3
    with pytest.raises(ArgumentError, match=r"'step_idx': expected values in \[0, L\], got -3 at \[1\]"):
        backend.ngram_match(**call)
    call = valid_call("gather_accepted")
    call["cu_seqlens_q_output"][:] = [0, 2, 1, 1]
    with pytest.raises(ArgumentError, match=r"non-decreasing, starting at 0, got 1 after 2 at \[2\]"):
        backend.gather_accepted(**call)


def test_tensors_may_be_empty():
    for op in OPS:
        if op.startswith("ngram_index"):
            continue
        for size in (
            {"B": 0},
            {"E": 0, "W": 0},
            {"B": 0, "E": 0, "T_cap": 0, "R_cap": 0, "A_cap": 0, "D_cap": 0, "W": 0},
        ):
            run(op, generate(op, 0, **size))


def test_a_capability_takes_names_as_a_call_does() -> None:
    named = Capability(attrs={"strategy": {"GREEDY", "target_match"}, "end_at_limit": [False]})
    assert named == Capability(
        attrs={"strategy": frozenset({Strategy.GREEDY, Strategy.TARGET_MATCH}), "end_at_limit": frozenset({False})}
    )
    assert named.modes() == "strategy: GREEDY|TARGET_MATCH; end_at_limit: False"
    backend = Recorder(verify_draft_tokens=Capability(attrs={"strategy": {"Greedy"}}))
    backend.check_capabilities()
    backend.verify_draft_tokens(**valid_call("verify_draft_tokens", strategy="greedy"))
    topp = valid_call("verify_draft_tokens", strategy="topp")
    assert "strategy=TOPP (has: GREEDY)" in unsupported(backend, "verify_draft_tokens", **topp)


@pytest.mark.parametrize(
    ("name", "hook"),
    [("place", "device_name"), ("device_names", "device_name"), ("to_hosts", "to_host"), ("work_space", "workspace"),
     ("stream_off", "stream_of"), ("capability_", ""), ("kernels", ""), ("_plan", ""), ("plan", "")],
)  # fmt: skip
def test_a_name_that_is_almost_a_hook_is_refused(name: str, hook: str) -> None:
    backend = type("Slip", (Recorder,), {name: lambda self, *args: None})()
    if hook:
        with pytest.raises(PluginError, match=f"nothing uses its '{name}'; did you mean '{hook}'"):
            backend.check_hooks()
    else:
        backend.check_hooks()
