"""A token processor makes of frames what a runner with a tokenizer makes of the same steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import FrameError
from specdec_hal.runner import Request, RequestOutput, SamplingParams, StreamDelta
from specdec_hal.serve.frame_codes import FrameKind
from specdec_hal.serve.stream import FrameReader, FrameWriter, OutputDelta, OutputFrame, TokenProcessor
from specdec_hal.serve.stream.frame import PromptScores, StreamEnd, StreamStart
from specdec_hal.serve.stream.writer import TOO_SLOW
from tests.runner.conftest import make_runner
from tests.support.history_model import DeviceHistoryModel, LetterTokenizer
from tests.support.random_requests import check_drafts, expected, random_request


class Pair:
    """A runner without a tokenizer, and a processor at the other end of a wire that tests may cut."""

    def __init__(self, **sections: Any) -> None:
        self.sent: list[bytes] = []
        self.accepts: Callable[[bytes], bool] = lambda data: True
        self.runner = make_runner(model=DeviceHistoryModel(), **sections)
        self.writer = FrameWriter(self.runner, self._send)
        self.reader, self.processor = FrameReader(), TokenProcessor(LetterTokenizer().detokenizer)
        self.deltas: dict[str, list[StreamDelta]] = {}
        self.ends: dict[str, OutputDelta] = {}

    def _send(self, data: bytes) -> bool:
        if accepted := self.accepts(data):
            self.sent.append(data)
        return accepted

    def step(self) -> None:
        self.runner.step()
        self.writer.flush()

    def receive(self) -> list[OutputDelta]:
        sent, self.sent = self.sent, []
        deltas = list[OutputDelta]()
        for data in sent:
            frame = self.reader.feed(data)
            if frame is not None:
                deltas += self.processor.take(frame)
        for one in deltas:
            name = one.delta.request_id
            before = self.deltas.setdefault(name, [])
            if one.token_start == 0 and one.char_start == 0:
                before.clear()
            assert one.token_start == sum(len(delta.token_ids) for delta in before)
            assert one.char_start == sum(len(delta.text) for delta in before)
            assert name not in self.ends or not before, "a stream ended before"
            before.append(one.delta)
            if one.ended is not None:
                self.ends[name] = one
        return deltas

    def output(self, name: str) -> RequestOutput:
        """As the other end sees it."""
        joined, ended = StreamDelta.joined(self.deltas[name]), self.ends[name].ended
        assert ended is not None and joined.finish_reason is not None
        steps, drafted, accepted, num_drafts = ended.counts
        sequence = self.runner.find(name)
        seed = None if sequence is None else sequence.request.params.seed
        return RequestOutput(
            name, ended.prompt_tokens, joined.token_ids, joined.accepted_draft, joined.text, joined.finish_reason,
            ended.error, joined.logprobs, steps, drafted, accepted, ended.queue_s,
            joined.prompt_logprobs, joined.drafts, seed, num_drafts, ended.num_cached_tokens,
        )  # fmt: skip

    def restart_processor(self) -> None:
        """Unsent data is lost."""
        self.sent.clear()
        self.reader, self.processor = FrameReader(), TokenProcessor(LetterTokenizer().detokenizer)
        self.ends.clear()
        self.writer.begin()


SECTIONS: dict[str, Any] = {
    "runner": {
        "max_num_seqs": 4, "prefill_chunk": 16, "max_num_batched_tokens": 44, "block_size": 4, "num_kv_blocks": 16,
        "overlap": True,
    },
    "speculative": {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False},
}  # fmt: skip
COUNT = 60


@cache
def in_process() -> dict[str, RequestOutput]:
    """Of a runner with a tokenizer, in the order of the requests."""
    runner = make_runner(model=DeviceHistoryModel(), **SECTIONS)
    for number in range(COUNT):
        runner.add_request(random_request(number))
    outputs = runner.run()
    return {f"request-{number}": outputs[f"request-{number}"] for number in range(COUNT)}


def test_what_the_prefix_cache_had_comes_with_the_end() -> None:
    pair = Pair(**SECTIONS)
    for name in "ab":
        pair.runner.add_request(Request(name, list(range(1, 14)), SamplingParams(max_new_tokens=2)))
        while pair.runner.has_requests:
            pair.step()
        pair.receive()
    assert [pair.output(name).num_cached_tokens for name in "ab"] == [0, 12]


def test_each_of_several_readers_has_the_streams_of_its_own_requests() -> None:
    """Together, what one has of the same frames."""
    pair = Pair(**SECTIONS)
    names = [f"request-{number}" for number in range(COUNT)]
    for number in range(COUNT):
        request = random_request(number)
        pair.runner.add_request(replace(request, params=request.params.updated(return_drafts=number % 3 == 0)))
    while pair.runner.has_requests:
        pair.step()
    for name in names:
        stream = pair.runner.find(name)
        assert stream is not None
        pair.writer.released(stream)
    pair.writer.flush()
    frames = list(pair.sent)
    pair.receive()

    def deltas(mine: Callable[[str], bool]) -> list[OutputDelta]:
        reader, processor = FrameReader(), TokenProcessor(LetterTokenizer().detokenizer, mine)
        return [delta for data in frames if (frame := reader.feed(data)) for delta in processor.take(frame)]

    whole = deltas(lambda name: True)
    odd = {name for name in names if int(name.split("-")[1]) % 2}
    shares = [deltas(odd.__contains__), deltas(lambda name: name not in odd)]
    assert [one for one in whole if one.delta.request_id in odd] == shares[0]
    assert [one for one in whole if one.delta.request_id not in odd] == shares[1]
    assert {one.delta.request_id for share in shares for one in share if one.ended} == set(names)


@pytest.mark.parametrize("trouble", ["none", "restarts", "failures"])
def test_every_stream_is_what_plain_decoding_gives(trouble: str) -> None:
    pair, rng = Pair(**SECTIONS), np.random.default_rng(1)
    for number in range(COUNT):
        pair.runner.add_request(random_request(number))
    while pair.runner.has_requests:
        company = pair.runner.bisection.on_trial is None and pair.runner.load().running > 1  # alone, two are fatal
        if trouble == "failures" and rng.random() < 0.05 and company:
            pair.runner.model.failures.append(OSError("injected"))  # type: ignore[attr-defined]
        pair.step()
        if rng.random() < 0.5:
            for deltas in pair.receive():  # the engine continues a request after a stop string until it is notified
                if deltas.ended is not None:
                    pair.runner.cancel(deltas.delta.request_id, "stop")
        if trouble == "restarts" and rng.random() < 0.05:
            pair.restart_processor()
    pair.writer.flush()
    pair.receive()
    finished = pair.runner.take_finished()
    assert finished.keys() == pair.deltas.keys() and len(finished) == COUNT
    reasons = Counter[str]()
    for number, (name, wanted) in enumerate(in_process().items()):
        output = pair.output(name)
        assert list(output.token_ids) == expected(number).tokens, output.error
        for field in ("token_ids", "text", "finish_reason", "logprobs", "prompt_logprobs", "prompt_tokens"):
            assert getattr(output, field) == getattr(wanted, field), (name, field)
        assert output.accepted == sum(output.accepted_draft), "drafts after a stop string do not count"
        check_drafts(output, random_request(number))
        reasons[output.finish_reason] += 1
        assert output.accepted <= output.drafted and (output.queue_s or 0) >= 0
    assert sum(bool(pair.output(f"request-{n}").drafts) for n in range(COUNT)) > 3
    assert sum(bool(output.prompt_logprobs) for output in in_process().values()) > 5
    assert reasons["stop"] > 5 < reasons["length"]
    assert pair.processor.preempted > 0 or trouble == "restarts"
    assert (pair.processor.recovered > 0) == (trouble == "failures")
    assert sum(pair.output(f"request-{n}").accepted for n in range(COUNT)) > 0


def test_a_runner_whose_steps_are_sent_makes_no_deltas() -> None:
    """The processor makes them of frames."""
    pair, shown = Pair(), list[StreamDelta]()
    pair.runner.add_request(Request("a", [3, 4], SamplingParams(max_new_tokens=6), shown.append))
    while pair.runner.has_requests:
        shown += pair.runner.step()
    pair.receive()
    assert not shown and len(pair.output("a").token_ids) == 6


def test_the_same_output_as_a_runner_with_a_tokenizer_to_the_last_count() -> None:
    requests = [
        replace(random_request(n), params=random_request(n).params.model_copy(update={"stop": []})) for n in range(9)
    ]
    pair, whole = Pair(**SECTIONS), make_runner(model=DeviceHistoryModel(), **SECTIONS)
    for request in requests:
        pair.runner.add_request(request)
        whole.add_request(request)
    while pair.runner.has_requests:
        pair.step()
    pair.receive()
    for name, output in whole.run().items():
        assert pair.output(name) == output


def test_what_is_released_is_forgotten() -> None:
    pair = Pair(**SECTIONS)
    pair.runner.add_request(Request("a", [1, 2], SamplingParams(max_new_tokens=3)))
    while pair.runner.has_requests:
        pair.step()
    (sequence,) = pair.runner.streams
    pair.runner.take_finished(["a"])
    pair.writer.released(sequence)
    pair.writer.flush()
    pair.receive()
    assert pair.ends["a"].ended is not None
    pair.processor.take(frame(1, streams=[START]))  # its number is free
    pair.writer.flush()
    assert not pair.sent, "nothing happened"


@pytest.mark.parametrize("return_drafts", [False, True])
def test_a_reader_that_is_too_slow_costs_requests_and_says_so(return_drafts: bool) -> None:
    pair = Pair(**SECTIONS)
    params = SamplingParams(max_new_tokens=20, bad_token_ids=[0], return_drafts=return_drafts)
    pair.runner.add_request(Request("a", [1, 2], params))
    for _ in range(4):
        pair.step()
    pair.receive()
    had = sum(len(delta.token_ids) for delta in pair.deltas["a"])
    pair.accepts = lambda data: False
    pair.runner.add_request(Request("b", [3], params))
    pair.runner.add_request(Request("c", [3], params.model_copy(update={"max_new_tokens": 1})))
    for _ in range(3):
        pair.step()
    pair.accepts = lambda data: True
    pair.runner.add_request(Request("d", [3], params))
    while pair.runner.has_requests:
        pair.step()
    pair.writer.flush()
    pair.receive()
    a = pair.output("a")
    assert (a.finish_reason, a.error, len(a.token_ids)) == ("error", TOO_SLOW, had)
    assert pair.runner.take_finished()["a"].error == TOO_SLOW
    for name, tokens in (("b", 0), ("c", 0), ("d", 20)):
        output = pair.output(name)
        assert (output.finish_reason == "error", len(output.token_ids)) == (not tokens, tokens), name


def drafting(number: int) -> Request:
    params = SamplingParams(max_new_tokens=20, bad_token_ids=[0], return_drafts=True)
    return Request(str(number), [number + 1, 5, 6] * 4, params)


def test_sessions_that_begin_at_steps_with_drafts() -> None:
    """Whatever ends in the step that begins a session ends after its tokens."""
    pair, whole = Pair(**SECTIONS), make_runner(model=DeviceHistoryModel(), **SECTIONS)
    for number in range(3):
        pair.runner.add_request(drafting(number))
        whole.add_request(drafting(number))
    while pair.runner.has_requests:
        pair.restart_processor()
        pair.step()
        pair.receive()
    outputs = whole.run()
    assert sum(len(output.drafts) for output in outputs.values()) > 5
    for name, output in outputs.items():
        assert pair.output(name) == output


def test_a_reader_that_takes_drafts_and_then_no_tokens_goes_on_with_others() -> None:
    pair = Pair(**SECTIONS)
    pair.runner.add_request(drafting(0))
    kinds = list[int]()

    def full(data: bytes) -> bool:
        kinds.append(OutputFrame.decode(data).flags)
        return FrameKind.DRAFT not in kinds[:-1]

    pair.accepts = full
    while FrameKind.DRAFT not in kinds and pair.runner.has_requests:
        kinds.clear()
        pair.step()
    assert kinds[:2] == [FrameKind.DRAFT, FrameKind.TARGET]
    pair.accepts = lambda data: True
    pair.runner.add_request(drafting(1))
    while pair.runner.has_requests:
        pair.step()
    pair.writer.flush()
    pair.receive()
    assert (pair.output("0").error, pair.output("1").finish_reason) == (TOO_SLOW, "length")
    check_drafts(pair.output("1"), drafting(1))


START = StreamStart(0, "a", 2, 5, SamplingParams().model_dump(), None)


def frame(sequence: int = 0, numbers: tuple[int, ...] = (), starts: tuple[int, ...] = (), **more: Any) -> OutputFrame:
    each = more.pop("each", 1)
    total = each * len(numbers)
    return OutputFrame(
        7, sequence, more.pop("flags", FrameKind.TARGET), 1, 4, list(numbers), list(starts), [each] * len(numbers),
        more.pop("drafted", [0] * len(numbers)), more.pop("accepted", bytes(total)), np.arange(1, 1 + total).data,
        **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (frame(1, flags=5), "flags: expected 3, tokens of the target model, or after frame 0 4, drafts; got 5"),
        (frame(0, flags=FrameKind.DRAFT), "or after frame 0 4, drafts; got 4"),
        (frame(1, (5,), (0,)), "number: expected a request of this session, got 5"),
        (frame(1, prompts=[PromptScores(0, 2, [])]), "prompts: request 'a': expected 0 tokens before, got 2; some are"),
        (frame(1, (0,), (2,)), "request 'a': expected 1 tokens before, got 2; some are missing"),
        (frame(1, streams=[START]), "streams: expected a new number, got 0 again"),
        (frame(1, ended=[StreamEnd(3, "stop", "")]), "number: expected a request of this session, got 3"),
        (frame(1, released=[2]), "number: expected a request of this session, got 2"),
    ],
)
def test_frames_that_cannot_follow(wrong: OutputFrame, message: str) -> None:
    processor = TokenProcessor(LetterTokenizer().detokenizer)
    processor.take(frame(0, (0,), (0,), streams=[START]))
    with pytest.raises(FrameError, match=message):
        processor.take(wrong)


DRAFTS = StreamStart(0, "a", 2, 9, SamplingParams(return_drafts=True).model_dump(), None)


@pytest.mark.parametrize(
    ("drafts", "tokens", "message"),
    [
        ((), frame(2, (0,), (1,), drafted=[1]), "request 'a': expected 1 that give [1] after 1, got []"),
        ((1, 2), frame(2, (0,), (1,), drafted=[1]), "request 'a': expected 1 that give [1] after 1, got [1, 2]"),
        ((1,), frame(2, (0,), (1,), drafted=[1]), "request 'a': expected 1 that give [1] after 1, got [1]"),
        ((1,), frame(2), "drafts: request 0: expected tokens after 1 for its drafts, got none"),
    ],
)
def test_drafts_that_are_not_those_of_the_tokens(drafts: tuple[int, ...], tokens: OutputFrame, message: str) -> None:
    processor = TokenProcessor(LetterTokenizer().detokenizer)
    processor.take(frame(0, (0,), (0,), streams=[DRAFTS]))
    if drafts:
        assert not processor.take(frame(1, (0,), (1,), each=len(drafts), flags=FrameKind.DRAFT))
    with pytest.raises(FrameError, match=re.escape(message)):
        processor.take(tokens)
