"""A backend that is wrong now and then is found while it serves, and what it got wrong can be run again."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.engine.runtime import Runtime
from specdec_hal.engine.shadow_check import Shadow
from specdec_hal.errors import ConfigError, OutputError
from specdec_hal.ops.inputs.files import load_inputs
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Launch
from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner
from tests.support.history_model import HistoryModel, LetterTokenizer

PARAMS = SamplingParams(temperature=0.8, seed=3, max_new_tokens=30, bad_token_ids=[0], logprobs=2)


class Wrong(ReferenceBackend):
    """Writes a value into an output of one op, at every launch of it from the n-th on."""

    name = "wrong"

    def __init__(self, op: str, output: str, value: int, after: int = 0) -> None:
        super().__init__()
        self.fault, self.left = (op, output, value), after

    def plan(self, call: Call) -> Launch:
        launch, (op, output, value) = super().plan(call), self.fault
        if call.op.name != op:
            return launch

        def run(stream: int) -> None:
            launch(stream)
            self.left -= 1
            if self.left < 0:
                call.tensors[output].reshape(-1)[0] = value

        return run


def decode(backend: ReferenceBackend, **sections: Any) -> ModelRunner:
    sections.setdefault("speculative", {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False})
    config = parse({"backend": {"name": "reference"}, "runner": {"max_num_seqs": 2}, **sections})
    tokenizer: Any = LetterTokenizer()
    runner = build_runner(config, backend, HistoryModel(), tokenizer)
    for name in "abc":
        runner.add_request(Request(name, [3, 4, 5, 3, 4], PARAMS))
    return runner


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_backends_that_agree(name: str) -> None:
    plain = decode(ReferenceBackend()).run()
    sections = {"backend": {"name": "reference"}, "shadow": {"backend": name, "fraction": 0.25}}
    backend = Runtime(parse(sections)).backend
    runner = decode(backend)  # type: ignore[arg-type]
    assert runner.run() == plain
    seen = runner.summary()["shadow"]
    assert seen["differing"] == {} and seen["backend"] == name
    steps = runner.summary()["steps"]
    assert steps // 4 <= seen["compared"]["verify_draft_tokens"] <= steps // 4 + 1
    assert {"prepare_inputs", "sample_target", "ngram_match", "token_logprobs"} <= seen["compared"].keys()


def test_a_difference_is_logged_counted_and_can_be_reproduced(caplog: pytest.LogCaptureFixture) -> None:
    backend = Wrong("verify_draft_tokens", "accept_tokens", 7, after=2)
    backend.shadow = Shadow(backend, ReferenceBackend(), 1.0)
    with caplog.at_level(logging.ERROR):
        runner = decode(backend)
        runner.run()
    seen = runner.summary()["shadow"]
    assert seen["differing"].keys() == {"verify_draft_tokens"}
    assert 1 <= seen["differing"]["verify_draft_tokens"] <= seen["compared"]["verify_draft_tokens"] - 2
    first = caplog.messages[0]
    assert first.startswith("verify_draft_tokens [wrong] differs from reference: 'accept_tokens'[0, 0] is 7, expected ")
    path = re.search(r"'equality', '([^']+)'\)", first)
    assert path is not None
    inputs = load_inputs(path[1])
    assert inputs["strategy"] == "TARGET_MATCH"
    assert inputs["accept_tokens"].shape == (2, 4) and inputs["accept_tokens"].dtype == np.int64
    assert 0 < len(caplog.messages) == sum(seen["differing"].values())


def test_a_backend_that_works_elsewhere_cannot_be_a_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"backend": {"name": "reference"}, "shadow": {"backend": "cpu"}}
    runtime = Runtime(parse(sections))
    monkeypatch.setattr("specdec_hal.backends.cpu.backend.CpuBackend.device", "cuda", raising=True)
    with pytest.raises(ConfigError, match=r"shadow\.backend: expected a backend that works on host memory"):
        _ = runtime.backend
    with pytest.raises(ConfigError, match=r"shadow\.fraction: expected a number > 0 and <= 1"):
        parse({"shadow": {"backend": "reference", "fraction": 0}})


@pytest.mark.parametrize(
    ("op", "output", "value", "expected"),
    [
        ("sample_target", "target_tokens", 10**9, r"in \[-1, V-1\], got 1000000000 at \[0\]"),
        ("prepare_inputs", "cu_seqlens_q", 3, r"non-decreasing, starting at 0, got 3 at \[0\]"),
        ("verify_draft_tokens", "accept_num", 99, r"in \[0, S\], got 99 at \[0\]"),
        ("build_sampling_params", "row_top_p", 2, r"in \[0, 1\], got 2.0 at \[0\]"),
    ],
)
def test_debug_checks_what_ops_write(op: str, output: str, value: int, expected: str) -> None:
    backend = Wrong(op, output, value)
    backend.debug = True
    outputs = decode(backend, runner={"max_num_seqs": 2, "debug": True}).run()
    assert {o.finish_reason for o in outputs.values()} == {"error"}
    for o in outputs.values():
        assert "OutputError" in o.error
        assert re.search(rf"{op} \[wrong\]: output '{output}': expected values {expected}; the backend breaks", o.error)
        assert not any(token >= 24 for token in o.token_ids)


def test_a_token_outside_the_vocabulary_is_never_delivered() -> None:
    backend = Wrong("verify_draft_tokens", "accept_tokens", 10**9, after=3)
    runner = decode(backend)
    deltas = []
    while runner.has_requests:
        deltas += runner.step()
    outputs = runner.take_finished()
    assert all(0 <= token < 24 for delta in deltas for token in delta.token_ids)
    failed = [o for o in outputs.values() if o.finish_reason == "error"]
    assert failed and failed[0].error == "backend 'wrong' emitted 1000000000, outside the vocabulary [0, 24)"


def test_output_error_outside_a_runner() -> None:
    backend = Wrong("sample_target", "target_tokens", 50)
    backend.debug = True
    f32 = lambda value: np.array([value], np.float32)  # noqa: E731
    with pytest.raises(OutputError, match="'target_tokens': expected values in"):
        backend.sample_target(
            np.zeros((1, 5), np.float32), f32(0), f32(1), np.zeros(1, np.int32), f32(0),
            np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64),
        )  # fmt: skip
