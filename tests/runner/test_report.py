"""The host's view of a step: all requested values in the right place, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.runner import SamplingParams, build_runner
from specdec_hal.runner.report import StepReport
from specdec_hal.runner.state import REPORT, ROW_SCORES
from tests.support.decoding import outputs_of
from tests.support.history_model import DeviceHistoryModel, LetterTokenizer

TAIL = -(10**6)


def values(**more: Any) -> dict[str, Any]:
    """Slots 0 to 2 decode with 2, 0 and 1 drafts, of which 1, 0 and 1 are accepted; slot 3 is of an earlier step."""
    return {
        "accept_tokens": np.array([[5, 6, -1], [7, -1, -1], [8, 9, -1], [-1, -1, -1]]),
        "accept_num": np.array([2, 1, 2, 0], np.int32),
        "stop_flags": np.zeros(4, bool),
        "limit_status": np.array([0, 3, 0, 0], np.int32),
        "cu_seqlens_q": np.array([0, 3, 4, 6, 1], np.int32),
        "cu_seqlens_q_output": np.array([0, 3, 4, 6, 1], np.int32),
        "ids_remove_padding": np.array([1, 5, 4, 2, 3, 8, TAIL, TAIL])[:, None],
        **more,
    }


@pytest.mark.parametrize(("slot", "column", "counts"), [(0, 1, True), (1, 0, True), (1, 1, False), (2, 2, False)])
def test_whether_a_request_may_have_ended(slot: int, column: int, counts: bool) -> None:
    """End tokens and what is no token, among those that the step emitted; and a slot that emitted nothing."""
    ordinary = np.arange(11) % 10 != 0
    for token in (0, 20, -1, 10):
        given = values()
        given["accept_tokens"][slot, column] = token
        found = StepReport(given, 3).goes_on(ordinary).tolist()
        assert found == [not (counts and at == slot) for at in range(3)]
    assert StepReport(values(), 4).goes_on(ordinary).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("params", "names", "apart"),
    [
        ({}, REPORT, False),
        ({"logprobs": 0}, (*REPORT, *ROW_SCORES), False),
        ({"logprobs": 2}, REPORT, True),
        ({"logprobs": 0, "repetition_penalty": 1.5}, REPORT, True),
    ],
)
def test_a_step_copies_what_its_requests_ask_for(
    params: dict[str, Any], names: tuple[str, ...], apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities without alternatives come with the rest of a step: no copy of their own."""
    config = parse({"runner": {"max_num_seqs": 2}, "speculative": {"method": "naive"}})
    tokenizer: Any = LetterTokenizer()
    runner = build_runner(config, ReferenceBackend(), DeviceHistoryModel(), tokenizer)
    fetched, made = list[Any](), list[Any]()
    fetch, outputs = runner.state.report.fetch, runner.state.device.outputs
    monkeypatch.setattr(runner.state.report, "fetch", lambda names: fetched.append(names) or fetch(names))
    monkeypatch.setattr(runner.state.device, "outputs", lambda fields: made.append(fields) or outputs(fields))
    (output,) = outputs_of(runner, ([3, 1], SamplingParams(max_new_tokens=5, **params)))
    assert len(output.token_ids) == 5 and set(fetched) == {names}
    assert bool(made) == apart
    assert len(output.logprobs) == (5 if "logprobs" in params else 0)
