"""The plug-in: how it announces itself, its options, what it says it has, and errors of launches."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.backends import native_ops
from specdec_hal.errors import ArgumentError, ConfigError, UnsupportedError
from specdec_hal.ops import OPS, TokenOrder
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.plugin import registry
from specdec_hal.tensors.native import load_library
from specdec_hal_xpu import plugin
from specdec_hal_xpu.options import LIBRARY, MODEL, Options
from tests.support.running import assert_same, copied, run, searched


def test_it_is_preferred_to_the_reference_and_wants_prefills_first():
    info = {entry.name: entry for entry in registry.backends()}
    assert info["xpu_sim"].available and info["xpu_sim"].priority > info["reference"].priority
    backend = sd.get_backend("xpu_sim")
    assert backend.name == "xpu_sim" and backend.token_order is TokenOrder.PREFILL_FIRST


def test_without_its_library_it_says_how_to_build_it(monkeypatch):
    monkeypatch.setattr(native_ops, "library_path", lambda name: None)
    probe = plugin.specdec_backends().probe()
    assert not probe.available
    assert "libspecdec_xpu_sim.so" in probe.reason and "make setup" in probe.hint


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clusters": 255, "cores": 64, "seed": 2**63 - 1, "dma": "random"},
        {"clusters": "auto", "cores": 1, "mode": "fast", "workers": 2},
        {"clusters": 7, "cores": 16, "mode": "strict", "dma": "deferred"},
        {"model": {"dma_fifo": True, "gsm_stack_bytes": 8192}},
    ],
)
def test_good_options(options):
    inputs = generate("update_model_status", 3, M=7)
    backend = sd.get_backend("xpu_sim", options=options)
    assert_same(run("update_model_status", inputs, backend), run("update_model_status", inputs))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"cluster": 2}, r"options\.cluster: unknown option.*did you mean 'clusters'"),
        ({"clusters": 0}, r"options\.clusters: expected auto \| an integer in \[1, 255\], got 0"),
        ({"clusters": 256}, r"options\.clusters: .*got 256"),
        ({"cores": 65}, r"options\.cores: expected auto \| an integer in \[1, 64\], got 65"),
        ({"cores": True}, r"options\.cores: .*got True"),
        ({"cores": "many"}, r"options\.cores: .*got 'many'"),
        ({"seed": -1}, r"options\.seed: expected an integer in .*got -1"),
        ({"seed": 1.5}, r"options\.seed: .*got 1\.5"),
        ({"dma": "lazy"}, r"options\.dma: expected eager \| deferred \| random, got 'lazy'"),
        ({"mode": "slow"}, r"options\.mode: expected fast \| strict \| asan, got 'slow'"),
        ({"workers": 0}, r"options\.workers: .*got 0"),
        ({"workers": 33}, r"options\.workers: expected an integer in \[1, 32\], got 33"),
        ({"model": "dma_fifo=1"}, r"options\.model: expected a mapping of flags to their values, got 'dma_fifo=1'"),
        ({"model": {"fifo": True}}, r"options\.model\.fifo: unknown flag; did you mean 'dma_fifo'\?; flags: exit_"),
        ({"model": {"dma_fifo": 1}}, r"options\.model\.dma_fifo: expected true \| false, got 1"),
        ({"model": {"gsm_stack_bytes": 32769}}, r"options\.model\.gsm_stack_bytes: expected an integer in .*got 32769"),
    ],
)
def test_bad_options(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        sd.get_backend("xpu_sim", options=options)


def test_the_flags_of_the_model_are_the_emulators():
    header = (Path(__file__).parents[2] / "kernels_xpu_sim/sim/include/xpu_sim/options.h").read_text()
    model = re.search(r"struct Model \{(.*?)\};", header, re.DOTALL)
    assert model and {name: kind.__name__ for name, kind in MODEL.items()} == dict(
        (name, kind) for kind, name in re.findall(r"^  (\w+) (\w+) = ", model[1], re.MULTILINE)
    )


def test_explain_is_honest():
    """Listed ops run; others are refused by name, unless a fallback is allowed."""
    backend = sd.get_backend("xpu_sim")
    for status in backend.explain():
        assert status.available == (status.op in OPS)
        inputs = generate(status.op, 1, workspace=backend.workspace)
        if status.available:
            assert_same(run(status.op, inputs, backend), searched(status.op, inputs))
        else:
            with pytest.raises(UnsupportedError, match=f"{status.op} .*the op is missing"):
                getattr(backend, status.op)(**inputs)
    assert {status.op for status in backend.explain()} == set(OPS)


def test_a_bound_plan_sees_changes_of_its_tensors():
    inputs = generate("prepare_inputs", 5, M=6)
    call = copied(inputs)
    plan = sd.get_backend("xpu_sim").bind("prepare_inputs", **call)
    for slots in (call["seq_lens_this_time"].copy(), np.zeros_like(call["seq_lens_this_time"])):
        call["seq_lens_this_time"][:] = inputs["seq_lens_this_time"][:] = slots
        plan(0)
        assert_same({name: call[name] for name in run("prepare_inputs", inputs)}, run("prepare_inputs", inputs))


def test_wide_draft_rows_are_refused_by_the_ngram_ops():
    inputs = generate("ngram_match", 0, M=1, S=32768, L=8, index=False)
    with pytest.raises(UnsupportedError, match=r"S = 32768 \(largest: 32767\)"):
        sd.get_backend("xpu_sim").ngram_match(**inputs)


def test_an_index_of_the_wrong_size_is_refused():
    backend = sd.get_backend("xpu_sim")
    inputs = generate("ngram_match", 0, L=8, max_ngram_size=3, min_ngram_size=1, index=False)
    wrong = np.zeros((inputs["token_ids_all"].shape[0], 48), np.uint8)
    with pytest.raises(ArgumentError, match=r"'index': expected shape .*backend.workspace"):
        backend.ngram_match(**inputs, index=wrong)


def test_budgets_and_windows_beyond_64_bits():
    inputs = generate("ngram_match", 2, M=5, index=False, token_budget=2**70)
    assert_same(run("ngram_match", inputs, sd.get_backend("xpu_sim")), run("ngram_match", inputs))


def test_exports_check_their_operands():
    """A wrong call from outside the package is an error, not a crash."""
    exports = load_library(LIBRARY)
    index, flags = np.zeros((2, 64), np.uint8), np.zeros(3, np.bool_)
    message = "ngram_index_reset: argument 'reset_slots': expected bool [2] contiguous on the CPU, got bool [3]"
    with pytest.raises(ValueError, match=re.escape(message)):
        exports["ngram_index_reset"](index, flags, *Options().arguments())


def test_limits_of_an_op():
    """Those of its own symbols."""
    xpu = load_library("specdec_xpu_sim")
    assert dict(xpu["ngram_match_limits"]().items()) == {"S": 32767}
    assert dict(xpu["prepare_inputs_limits"]().items()) == {}


def test_it_is_chosen_by_name_alone():
    info = {entry.name: entry for entry in registry.backends()}
    assert info["cpu"].priority > info["xpu_sim"].priority > info["reference"].priority
