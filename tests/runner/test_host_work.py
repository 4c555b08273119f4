"""What the host does for each request of a step whose tokens end nothing: counted in bytecodes, not in time."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from pathlib import Path
from time import sleep
from types import FrameType
from typing import Any

import pytest

from specdec_hal import output as output_package
from specdec_hal import runner as runner_package
from specdec_hal.output.text import LazyDelta
from specdec_hal.runner import ModelRunner, Request, SamplingParams, StreamDelta
from specdec_hal.serve.stream import FrameWriter
from tests.runner.conftest import make_runner
from tests.support.history_model import DeviceHistoryModel, LetterDetokenizer

OURS = tuple(str(Path(one.__file__).parent) for one in (runner_package, output_package))
PARAMS = SamplingParams(max_new_tokens=50, bad_token_ids=[0])


def decoding(requests: int, drafts: int, sink: bool = False, callback: Any = None) -> ModelRunner:
    """A runner all of whose requests decode."""
    speculative = {"method": "ngram", "num_speculative_tokens": drafts} if drafts else {"method": "naive"}
    sizes = {"max_num_seqs": requests, "block_size": 64, "max_num_batched_tokens": 512}
    runner = make_runner(model=DeviceHistoryModel(), runner=sizes, speculative=speculative)
    if sink:
        FrameWriter(runner, lambda data: True)
    for i in range(requests):
        runner.add_request(Request(str(i), [3, 4, 3, 4], PARAMS, callback))
    while min((one.generated for one in runner.streams), default=0) < 4:
        runner.step()
    return runner


def bytecodes(runner: ModelRunner) -> int:
    """Bytecodes of runner and output in a step."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes = frame.f_code.co_filename.startswith(OURS)
            frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        runner.step()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize(("sink", "most"), [(True, 2), (False, 40)])
def test_a_step_costs_python_little_for_each_request(drafts: int, sink: bool, most: int) -> None:
    """Nothing for a sink; else what hands its delta out, whatever tokens that has."""
    few, many = (bytecodes(decoding(requests, drafts, sink)) for requests in (4, 24))
    assert few > 500 and (many - few) / 20 < most, (few, many)


def test_text_is_made_by_who_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed, push = list[int](), LetterDetokenizer.push
    monkeypatch.setattr(LetterDetokenizer, "push", lambda self, token: pushed.append(token) or push(self, token))
    deltas = list[StreamDelta]()
    runner = decoding(1, 4, callback=deltas.append)
    while len(deltas) < 8:
        runner.step()
    assert len(pushed) == 1, "what a prompt gives is looked at alone"
    late = deltas[3]
    assert late.text == "".join(chr(ord("a") + token) for token in late.token_ids)
    assert pushed == [token for delta in deltas[:4] for token in delta.token_ids]
    outputs = runner.run()
    assert outputs["0"].text == "".join(delta.text for delta in deltas) and len(pushed) == 50
    assert outputs["0"].accepted_draft == sum((delta.accepted_draft for delta in deltas), ())


def test_text_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed, push = list[int](), LetterDetokenizer.push
    monkeypatch.setattr(LetterDetokenizer, "push", lambda self, token: pushed.append(token) or push(self, token))
    deltas = list[StreamDelta]()
    runner = decoding(2, 4, callback=deltas.append)
    assert runner.cancel("1")
    while runner.has_requests:
        runner.step()
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length", "cancelled"]
    tokens = sum(len(delta.token_ids) for delta in deltas)
    for name, output in runner.take_finished().items():
        text = "".join(delta.text for delta in deltas if delta.request_id == name)
        assert output.text == text and len(text) == len(output.token_ids)
    assert len(pushed) == tokens


def test_deltas_are_read_on_other_threads_while_the_runner_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    push = LetterDetokenizer.push
    monkeypatch.setattr(LetterDetokenizer, "push", lambda self, token: (sleep(1e-4), push(self, token))[1])
    deltas, texts = list[StreamDelta](), list[Future[str]]()
    runner = decoding(3, 4, callback=deltas.append)
    with ThreadPoolExecutor(4) as pool:
        while runner.has_requests:
            runner.step()
            texts += [pool.submit(getattr, delta, "text") for delta in deltas[len(texts) :]]
    for name, output in runner.take_finished().items():
        shown = [text.result() for delta, text in zip(deltas, texts, strict=True) if delta.request_id == name]
        assert "".join(shown) == output.text and len(output.text) == len(output.token_ids) == 50


def test_a_lazy_delta_is_a_tuple_like_others() -> None:
    deltas = list[StreamDelta]()
    decoding(2, 4, callback=deltas.append).run()
    seen = set[str]()
    assert len(deltas) > 8
    for delta in deltas:
        first = delta.request_id not in seen
        seen.add(delta.request_id)
        assert isinstance(delta, LazyDelta) or delta.finish_reason is not None or first
        made = StreamDelta._make(delta)
        assert type(made.token_ids) is type(made.accepted_draft) is type(made.spans) is tuple and made.spans
        assert delta == made == delta and (delta != made) is False and hash(delta) == hash(made) and delta != ()
        assert repr(delta) == repr(made) and delta[:] == tuple(delta) == made and delta[1] == made.token_ids
        for other in (copy(delta), pickle.loads(pickle.dumps(delta)), delta._replace(), StreamDelta.joined([delta])):
            assert type(other) is StreamDelta and other == made
        assert delta._asdict() == made._asdict()
