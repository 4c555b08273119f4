"""Parts of the suite on their own: devices, shrinking, reproductions, expectations, edges."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from specdec_hal.errors import BackendUnavailableError, ConfigError
from specdec_hal.ops import OPS, Strategy
from specdec_hal.ops.bits import difference
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.spec import parse_rules
from specdec_hal.plugin import registry
from specdec_hal_conformance import reproduce, traces
from specdec_hal_conformance.building import build
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.checks import CHECKS
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.expectations import Close, Where, unmet
from specdec_hal_conformance.fences import FencedDevice
from specdec_hal_conformance.guarded import GuardedDevice, GuardedHost, GuardedTorch, device_for
from specdec_hal_conformance.report import REFUSED
from specdec_hal_conformance.reproduction import source
from specdec_hal_conformance.shrink import shrink
from specdec_hal_conformance.subject import Subject
from specdec_hal_conformance.suite import Settings, Unit, run_unit


@pytest.fixture(params=["host", "fenced", "fenced at start", pytest.param("torch", marks=pytest.mark.torch)])
def device(request: pytest.FixtureRequest) -> GuardedDevice:
    if request.param == "torch":
        return GuardedTorch("cpu")
    return GuardedHost() if request.param == "host" else FencedDevice(at_start="start" in request.param)


def test_tensors_are_guarded(device: GuardedDevice) -> None:
    dtypes = ("int64", "int32", "uint8", "bool", "float32", "float16", "uint16")
    for dtype, shape in product(dtypes, [(3, 5), (0, 4), (1,)]):
        array = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
        placed = device.place(array)
        assert difference({dtype: placed.value()}, {dtype: array}) is None and placed.damage() is None, (dtype, shape)
        assert tuple(placed.tensor.shape) == shape
        device.assign(placed, np.zeros_like(array))
        assert not placed.value().any() and placed.damage() is None, (dtype, shape)


def test_damage_is_found_on_both_sides() -> None:
    placed = GuardedHost().place(np.zeros(4, np.int32))
    buffer = placed.read()
    buffer[len(buffer) - 256] = 1
    assert placed.damage() == "1 bytes written after its end, the nearest 1 byte(s) away"
    buffer[250] = 1
    assert placed.damage() == "1 bytes written before its start, the nearest 6 byte(s) away"


def test_devices_of_another_kind() -> None:
    backend = registry.get_backend("reference")
    assert isinstance(device_for(backend), GuardedHost)
    with pytest.raises(BackendUnavailableError, match="works on cpu, not on 'cuda:1'; leave the device out"):
        device_for(backend, "cuda:1")
    backend.device = "tpu"
    with pytest.raises(BackendUnavailableError, match="no way to put tensors on 'tpu'"):
        device_for(backend)


def test_shrinking_keeps_what_matters() -> None:
    inputs = generate("verify_draft_tokens", 3, M=6, B=6, S=7, V=40, E=3, states=("decode",), strategy="GREEDY")

    def fails(candidate: dict[str, Any]) -> bool:
        return candidate["draft_tokens"].shape[1] >= 3 and bool((candidate["max_dec_len"] > 1).any())

    assert fails(inputs)
    small = shrink("verify_draft_tokens", inputs, fails)
    assert small["draft_tokens"].shape == (1, 3) and small["end_tokens"].size == 0
    assert not small["draft_tokens"].any() and (small["max_dec_len"] > 1).all()
    assert small["strategy"] is Strategy.GREEDY  # the mode stays
    assert inputs["draft_tokens"].shape == (6, 7)


def test_what_does_not_get_smaller_is_returned_as_it_was() -> None:
    inputs = build("ngram_index_reset", {"X": 8}, reset_slots=[True, False])
    assert shrink("ngram_index_reset", inputs, lambda candidate: False) is inputs


@pytest.mark.parametrize("op", OPS)
def test_reproductions_hold_the_same_inputs(op: str) -> None:
    inputs = generate(op, 5, workspace=registry.get_backend("reference").workspace, V=40, M=4)
    case = Case(op, "generated:1", lambda workspace: inputs, note="seed=5")
    code = source("reference", case, "equality", inputs, 5, {"a": 1})
    assert f"# {op}/generated:1::equality (seed=5)" in code
    namespace: dict[str, Any] = {}
    exec(code.rpartition("\n")[0], namespace)
    written = namespace["inputs"]
    arrays = {n: v for n, v in inputs.items() if isinstance(v, np.ndarray)}
    assert difference({n: written[n] for n in arrays}, arrays) is None
    assert written.keys() == inputs.keys()


def test_large_arrays_are_packed() -> None:
    inputs = build(
        "gather_accepted",
        {"S": 2, "A_cap": 2, "M": 1, "B": 1},
        logits=np.random.default_rng(0).random((50, 100), np.float32),
    )
    code = source("reference", Case("gather_accepted", "edge:x", lambda w: inputs), "equality", inputs, 0, {})
    namespace: dict[str, Any] = {}
    exec(code.rpartition("\n")[0], namespace)
    assert np.array_equal(namespace["inputs"]["logits"], inputs["logits"])


def test_reproduce() -> None:
    inputs = generate("prepare_inputs", 1)
    assert reproduce("reference", "prepare_inputs", "equality", inputs) == "passes"
    with pytest.raises(ConfigError, match="no check 'equalty'; checks: equality, sentinels"):
        reproduce("reference", "prepare_inputs", "equalty", inputs)
    assert set(CHECKS) >= {"equality", "sentinels", "poison", "determinism", "replay", "independence"}


def test_expectations() -> None:
    outputs = {"a": np.array([1, 2]), "b": np.array([0.5], np.float32), "c": np.array([0x3F80], np.uint16)}
    assert unmet({"a": [1, 2], "b": Close([0.5 + 1e-8]), "c": [1.0]}, outputs) is None
    assert unmet({"a": [1, 3]}, outputs) == "'a' is [1, 2], by hand [1, 3]"
    assert unmet({"b": Close([0.51])}, outputs) == "'b' is [0.5], by hand [0.51]"
    assert unmet({"a": Where("no 2", lambda a: 2 not in a)}, outputs) == "'a' is [1, 2], by hand no 2"


def test_an_edge_of_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(LookupError, match="edge 'x': gather_accepted has no rule 'nonsense'; rules: offsets"):
        edge("gather_accepted", "x", "nonsense", {})


def test_building_complains() -> None:
    with pytest.raises(LookupError, match=r"build\('gather_accepted'\): no argument nonsense"):
        build("gather_accepted", nonsense=1)
    with pytest.raises(ValueError, match="'accept_num' has M = 3, others say 2"):
        build("gather_accepted", accept_tokens=[[1], [2]], accept_num=[1, 2, 3])


def test_rule_ids() -> None:
    assert parse_rules("A is 1 [#one]; B is\n  2 [#two].") == {"one": "A is 1", "two": "B is 2"}
    with pytest.raises(ValueError, match="'one' marks two statements"):
        parse_rules("A [#one] B [#one]")
    for spec in OPS.values():
        assert spec.rules and all(len(text) > 3 for text in spec.rules.values())


def test_bits() -> None:
    nan = np.array([np.nan, 0.0], np.float32)
    other = np.array([0xFFC00001, 0], np.uint32).view(np.float32)
    assert difference({"a": nan}, {"a": other}) is None  # any NaN is NaN
    assert difference({"a": np.array([-0.0])}, {"a": np.array([0.0])}) == "'a'[0] is -0.0, expected 0.0"
    assert "int64 (1,), expected int32 (1,)" in difference({"a": np.zeros(1, int)}, {"a": np.zeros(1, np.int32)})
    assert difference({}, {"a": nan}) == "tensors [] instead of ['a']"
    assert "(2 of 2 differ)" in difference({"a": np.array([1, 2])}, {"a": np.array([3, 4])})


def test_traces_are_small_and_of_the_ops_of_decode_runs() -> None:
    assert traces.FILE.stat().st_size < 4 << 20
    recorded = {op: cases for op in OPS if (cases := list(traces.trace_cases(op, 10**6)))}
    assert len(recorded) >= 25
    for op, cases in recorded.items():
        runs = {case.name.partition(":")[2].split()[0] for case in cases}
        assert len(cases) >= 4 and len({case.name for case in cases}) == len(cases)
        assert runs <= {"greedy", "sampled", "rejection", "topp", "thinking", "hybrid"}
        assert len(list(traces.trace_cases(op, 3))) == 3


def test_what_a_device_cannot_hold_is_refused_and_not_left_out():
    """Otherwise the rule of sizes would count as untouched, and the run of every GPU backend fail."""
    subject = cast(Subject, SimpleNamespace(device=object(), backend=registry.get_backend("reference")))
    results = list(run_unit(subject, Unit("gather_next_token", "wide"), Settings()))
    assert results and {result.status for result in results} == {REFUSED}
    assert {rule for result in results for rule in result.rules} == {"conventions#sizes"}
