"""Requests that lose their KV blocks, and failed steps: all get the tokens of plain decoding."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.errors import RequestError
from specdec_hal.ops import SlotAction
from specdec_hal.runner import Request, SamplingParams
from specdec_hal.runner.slot_writer import SlotWriter
from tests.runner.conftest import make_runner
from tests.support.decoding import THINK_END, THINKS_WITH, plain_decoding
from tests.support.history_model import DeviceHistoryModel, HistoryModel
from tests.support.random_requests import expected, random_request


def requests(count: int, new_tokens: int) -> list[Request]:
    params = [
        SamplingParams(
            seed=n,
            max_new_tokens=new_tokens,
            bad_token_ids=[0, 9],
            logprobs=1,
            temperature=0.7,
            repetition_penalty=1.3,
            frequency_penalty=0.2,
        )
        for n in range(count)
    ]
    return [Request(str(n), [n + 1, 5, 6, 7, 5, 6], params[n]) for n in range(count)]


def test_a_request_longer_than_all_blocks_is_refused() -> None:
    runner = make_runner(model=DeviceHistoryModel(), runner={"block_size": 4, "num_kv_blocks": 5})
    with pytest.raises(RequestError, match=r"6 prompt tokens and up to 15 new ones exceed .* \(20 positions\)"):
        runner.add_request(requests(1, 15)[0])
    request = requests(1, 14)[0]
    runner.add_request(request)
    assert len(runner.run()["0"].token_ids) == 14


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("after", [0, 2, 9])
def test_a_step_that_fails_once_is_computed_again(
    device: bool, overlap: bool, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = DeviceHistoryModel() if device else HistoryModel()
    runner = make_runner(model=model, runner={"prefill_chunk": 3, "overlap": overlap})
    asked = requests(3, 20)
    for request in asked:
        runner.add_request(request)
    for _ in range(after):
        runner.step()
    model.failures.append(MemoryError("out of memory"))
    outputs = runner.run()
    assert runner.summary()["failed_steps"] == 1
    assert "a step of 3 requests failed" in caplog.text or after == 0
    for request in asked:
        expected = plain_decoding(list(request.prompt_token_ids), request.params).tokens
        assert list(outputs[request.request_id].token_ids) == expected


@pytest.mark.parametrize("restriction", ["bad_sequences", "thinking"])
@pytest.mark.parametrize("method", ["ngram", "mtp"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_chunk_inside_generated_tokens_ends_nothing(overlap: bool, method: str, restriction: str) -> None:
    """The token drawn after it is dropped, even one that would stop the request."""
    prompt, free = [3, 4, 5], SamplingParams(temperature=1.0, seed=0, max_new_tokens=20, ignore_eos=True)
    last, stop = plain_decoding(prompt, free).tokens[2:4] if restriction == "thinking" else [4, 17]
    changed = {"thinking": {"max_tokens": 3}} if restriction == "thinking" else {"bad_sequences": [[last, stop]]}
    params = SamplingParams(**{**free.model_dump(), "stop_token_ids": [stop], **changed})
    model, text = DeviceHistoryModel(), [4, THINK_END, 2]
    runner = make_runner(
        model=model, model_settings={**THINKS_WITH, "think_end_text": text},
        runner={"prefill_chunk": 1, "overlap": overlap, "enable_prefix_caching": False},
        speculative={"method": method, "num_speculative_tokens": 2},
    )  # fmt: skip
    runner.add_request(Request("a", prompt, params))
    for _ in range(30):
        if runner.streams[0].generated < 9:
            runner.step()
    model.failures.append(MemoryError("out of memory"))
    for _ in range(100):
        runner.step()
    assert list(runner.take_finished()["a"].token_ids) == plain_decoding(prompt, params, text).tokens
    assert runner.summary()["failed_steps"] == 1
    assert runner.summary()["failed_proposals"] == 0, "the proposer continues another token"


def test_a_slot_is_stopped_until_a_step_was_launched() -> None:
    """A failed step may not have reached the device, which would then write to reassigned blocks."""
    runner = make_runner(model=DeviceHistoryModel(), runner={"max_num_seqs": 2, "block_size": 4, "overlap": False})
    for request in requests(2, 30):
        runner.add_request(request)
    for _ in range(4):
        runner.step()
    runner.cancel("1")
    scheduler, state = runner.scheduler, runner.state
    before = {name: array.copy() for name, array in state.schedule.host.items()}
    for _ in range(3):  # steps that fail
        step = scheduler.schedule()
        assert step is not None and step.actions.tolist() == [SlotAction.KEEP, SlotAction.STOP]
    scheduler.launched(step)
    after = scheduler.schedule()
    assert after is not None and after.actions.tolist() == [SlotAction.KEEP, SlotAction.KEEP]
    assert all((state.schedule.host[name] == array).all() for name, array in before.items()), "a schedule is a value"
    SlotWriter(state).apply(step)
    assert state.schedule.host["slot_actions"].tolist() == [SlotAction.KEEP, SlotAction.STOP]


@pytest.mark.parametrize("seed", range(3))
def test_a_step_that_fails_while_blocks_are_short_holds_up_nobody(seed: int) -> None:
    """The suspects of a failed step may need blocks of requests that must sit out meanwhile."""
    model, rng = DeviceHistoryModel(), np.random.default_rng(seed)
    runner = make_runner(
        model=model,
        runner={
            "max_num_seqs": 4, "prefill_chunk": 16, "max_num_batched_tokens": 44, "block_size": 4, "num_kv_blocks": 16,
        },
    )  # fmt: skip
    for number in range(25):
        runner.add_request(random_request(number))
    for _ in range(1000):
        if not runner.has_requests:
            break
        if rng.random() < 0.1 and runner.bisection.on_trial is None:
            model.failures.append(OSError("injected"))
        runner.step()
    outputs = runner.take_finished()
    assert runner.metrics.failed_steps > 3
    whole = [n for n in range(25) if outputs[f"request-{n}"].finish_reason != "error"]  # it failed alone, twice
    assert len(whole) > 20
    for number in whole:
        assert list(outputs[f"request-{number}"].token_ids) == expected(number).tokens
