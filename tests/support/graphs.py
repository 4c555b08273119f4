"""A device whose graphs replay launches, and engines that use it in turns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.runner import Request, SamplingParams, build_runner
from specdec_hal.tensors.device import DeviceGraph
from specdec_hal.tensors.graph_capture import capturing, refuse_in_capture
from specdec_hal.tensors.on_host import HostDevice
from tests.support.history_model import HistoryModel, LetterTokenizer


class GraphDevice(HostDevice):
    """Host memory with graphs, in which no value is read or written by the host."""

    def download(self, tensor: Any) -> Any:
        refuse_in_capture("read")
        return super().download(tensor)

    def write(self, tensor: Any, index: Any, values: Any) -> None:
        refuse_in_capture("written")
        super().write(tensor, index, values)

    def capturing(self) -> AbstractContextManager[Any]:
        return capturing(self.stream())

    def capture(self, launch: Callable[[], None]) -> DeviceGraph:
        def replay() -> None:
            with self.capturing():
                launch()

        return DeviceGraph(replay)


class LaunchingBackend(ReferenceBackend):
    """The reference, which says that its calls only launch work."""

    asynchronous = True


def plain_tokens(prompt: list[int], params: SamplingParams) -> tuple[int, ...]:
    """Without speculation, graphs or other requests."""
    tokenizer: Any = LetterTokenizer()
    runner = build_runner(parse({"runner": {"max_num_seqs": 1}}), ReferenceBackend(), HistoryModel(), tokenizer)
    runner.add_request(Request("plain", prompt, params))
    return runner.run()["plain"].token_ids


ROUNDS = int(os.environ.get("SPECDEC_HAL_ENGINE_ROUNDS", "200"))


def together(*works: Callable[[], Any]) -> list[Any]:
    """What each gave, on a thread of its own; all begin at once."""
    barrier = threading.Barrier(len(works), timeout=60)

    def begin(work: Callable[[], Any]) -> Any:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))
