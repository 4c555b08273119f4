"""Engines in one process, each on its own thread: captures do not mix."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.errors import CaptureError
from specdec_hal.runner import Request, SamplingParams, build_runner
from specdec_hal.tensors.graph_capture import capturing, check_stream, refuse_in_capture
from tests.support.graphs import ROUNDS, GraphDevice, LaunchingBackend, plain_tokens, together
from tests.support.history_model import DeviceHistoryModel, LetterTokenizer

STREAMS = count(1)


class StreamDevice(GraphDevice):
    """With a stream of its own; a replay captures for so long that other threads launch meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._number = next(STREAMS)

    def stream(self) -> int:
        return self._number

    @contextmanager
    def capturing(self) -> Iterator[None]:
        with capturing(self._number):
            time.sleep(0.0005)
            yield


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_hal.runner.build.get_device", lambda place, framework: StreamDevice())


def engine(seed: int) -> Callable[[], None]:
    """Rounds of a runner, which captures every step; each gives the tokens of plain decoding."""
    prompt, params = [3 + seed, 4, 5] * 3, SamplingParams(max_new_tokens=6, temperature=0.8, seed=seed)
    expected = plain_tokens(prompt, params)

    def rounds() -> None:
        tokenizer: Any = LetterTokenizer()
        settings = {
            "speculative": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False},
            "runner": {"max_num_seqs": 1},
        }
        runner = build_runner(parse(settings), LaunchingBackend(), DeviceHistoryModel(), tokenizer)
        for turn in range(ROUNDS):
            runner.add_request(Request(str(turn), prompt, params))
            (output,) = runner.run().values()
            assert (output.error, output.token_ids) == ("", expected), turn
        summary = runner.summary()
        assert summary["failed_steps"] == summary["graph_failures"] == summary["failed_proposals"] == 0
        assert summary["graphs"] > 0

    return rounds


def drafter() -> None:
    """Rounds of drafts for histories that grow."""
    proposer = sd.Drafter(method="ngram", backend="reference", num_speculative_tokens=3)
    for turn in range(ROUNDS):
        history = [7, 8, 9, 10] * (turn % 40 + 2) + [7, 8]
        assert proposer.propose([history], request_ids=["a"] if turn % 2 else None) == [[9, 10, 7]]
        time.sleep(0.0005)


@pytest.mark.usefixtures("streams")
def test_two_runners_that_capture_and_a_drafter() -> None:
    together(engine(1), engine(2), drafter)
    assert gc.isenabled()
    check_stream("ngram_match", 0)


def test_captures_that_overlap() -> None:
    """A enters, B enters, A leaves, B leaves: each minds its own stream, and the last one wakes the collector."""
    entered, left = threading.Event(), threading.Event()

    def first() -> None:
        with capturing(5):
            assert entered.wait(60)
            check_stream("ngram_match", 5)
            with pytest.raises(CaptureError, match="captured stream 0x5, got stream 0x7"):
                check_stream("ngram_match", 7)
        check_stream("ngram_match", 9)
        refuse_in_capture("read")
        assert not gc.isenabled(), "another thread captures"
        left.set()

    def second() -> None:
        with capturing(7):
            entered.set()
            assert left.wait(60)
            check_stream("ngram_match", 7)
            with pytest.raises(CaptureError, match="captured stream 0x7, got stream 0x5"):
                check_stream("ngram_match", 5)

    together(first, second)
    assert gc.isenabled()
    check_stream("ngram_match", 0)


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with capturing(5):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_thread_that_does_not_capture_reads_and_writes(streams: None) -> None:
    device = StreamDevice()
    tensor = np.zeros(2, np.int32)
    with capturing(5):
        with pytest.raises(CaptureError):
            device.write(tensor, 0, 1)
        together(lambda: device.write(tensor, 0, 7), lambda: device.download(tensor))
    assert tensor[0] == 7
