"""The plug-in: how it announces itself, its options, what it says it has."""

from __future__ import annotations

import re

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.backends import native_ops
from specdec_hal.backends.cpu import plugin
from specdec_hal.backends.cpu.options import Options
from specdec_hal.errors import ConfigError, UnsupportedError
from specdec_hal.ops import OPS, TokenOrder
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.plugin import registry
from specdec_hal.tensors import cpu_threads
from specdec_hal.tensors.native import load_library
from tests.support.running import assert_same, run, searched


def test_it_is_the_default_without_a_gpu():
    info = {entry.name: entry for entry in registry.backends()}
    assert info["cpu"].available
    order = [info[name].priority for name in ("cuda", "cpu", "reference")]
    assert order == sorted(set(order), reverse=True)
    if not info["cuda"].available:
        assert registry.choose() == "cpu" and sd.get_backend().name == "cpu"
    assert sd.get_backend("cpu").token_order is TokenOrder.SLOT  # so that a runner moves no rows


def test_it_serves_every_op():
    backend = sd.get_backend("cpu")
    assert {op for op in OPS if backend.capability(op) is not None} == set(OPS)


def test_without_its_library_it_says_how_to_build_it(monkeypatch):
    monkeypatch.setattr(native_ops, "library_path", lambda name: None)
    probe = plugin.specdec_backends().probe()
    assert not probe.available
    assert "libspecdec_cpu.so" in probe.reason and "make setup" in probe.hint


@pytest.mark.parametrize("options", [{}, {"threads": None}, {"threads": 1}, {"threads": 1024}])
def test_good_options(options):
    inputs = generate("update_model_status", 3, M=7)
    backend = sd.get_backend("cpu", options=options)
    assert_same(run("update_model_status", inputs, backend), run("update_model_status", inputs))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"thread": 2}, r"options\.thread: unknown option.*did you mean 'threads'"),
        ({"threads": 0}, r"options\.threads: expected an integer in \[1, 1024\], got 0"),
        ({"threads": 1025}, r"options\.threads: .*got 1025"),
        ({"threads": True}, r"options\.threads: .*got True"),
        ({"threads": "all"}, r"options\.threads: .*got 'all'"),
    ],
)
def test_bad_options(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        sd.get_backend("cpu", options=options)


def test_threads_are_those_of_the_process(monkeypatch):
    monkeypatch.setattr(cpu_threads, "available", lambda: 5)
    assert Options.parse({}).most_threads() == 5 and Options.parse({"threads": 2}).most_threads() == 2
    assert "5 threads" in plugin.specdec_backends().probe().reason


def test_a_vocabulary_beyond_its_limit_is_refused():
    inputs = generate("sample_target", 1, M=1, B=1, S=1, V=262_145, R_cap=1)
    with pytest.raises(UnsupportedError, match=r"V = 262145 \(largest: 262144\)"):
        sd.get_backend("cpu").sample_target(**inputs)


def test_exports_check_their_operands():
    """Python has checked them before; here they are asserted."""
    inputs = generate("prepare_inputs", 1, M=3)
    good = [inputs.get(name) for name in OPS["prepare_inputs"].by_name]
    attrs = [int(inputs[name]) for name in OPS["prepare_inputs"].attr_by_name]
    export = load_library("specdec_cpu")["prepare_inputs"]
    export(*good, *attrs, 1)
    wrong = [good[0].astype(np.float64), *good[1:]]
    name = next(iter(OPS["prepare_inputs"].by_name))
    with pytest.raises(ValueError, match=re.escape(f"prepare_inputs: argument '{name}': expected ")):
        export(*wrong, *attrs, 1)
    with pytest.raises(RuntimeError, match="prepare_inputs: call it through specdec_hal"):
        export(*good, *attrs)


def test_a_plan_runs_again_on_changed_tensors():
    backend = sd.get_backend("cpu")
    inputs = generate("gather_accepted", 2, M=9, S=4)
    plan = backend.bind("gather_accepted", **inputs)
    plan()
    inputs["accept_num"][:] = np.arange(9) % 5
    expected = searched("gather_accepted", inputs)
    plan()
    assert_same({name: inputs[name] for name in expected}, expected)
