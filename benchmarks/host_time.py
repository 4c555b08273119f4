"""The host's time of a step: a runner of the embedded model's tokenizer on a device that does nothing.

``python benchmarks/host_time.py [--slots 64] [--drafts 0 8] [--steps 300] [--out FILE]``. No GPU. Steps are launched
as captured graphs that return at once. What a step emits is drawn beforehand from example prompts: every request gains
a token and, with drafts, up to K of K accepted ones. Figures are microseconds of the thread's processor time: of whole
calls of `step()`, and of taking a long prompt over and giving it a slot. Readers: a callback that counts tokens, one
that also reads the text, and none. `stop`: every request has a stop string; `adaptive`: draft lengths are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from record import write

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.models import load_tokenizer
from specdec_hal.ops import SlotAction
from specdec_hal.plugin.model import DeviceBatch, ModelCapabilities, ModelConfig
from specdec_hal.runner import ModelRunner, Request, SamplingParams, StreamDelta, build, build_runner
from specdec_hal.tensors.device import DeviceGraph
from specdec_hal.tensors.memory import freeze_heap
from specdec_hal.tensors.on_host import HostDevice

CHECKPOINT = Path(__file__).parents[1] / "models/tiny-py-lm"
PROMPTS = Path(__file__).parents[1] / "examples/prompts"
LENGTH = 2048
PROMPT, LONG_PROMPT = 100, 2000
VARIANTS = 16
STOP = ["\nclass "]


class IdleDevice(HostDevice):
    """Graphs of nothing."""

    def capture(self, launch: Callable[[], None]) -> DeviceGraph:
        """Launches nothing."""
        return DeviceGraph(lambda: None)


class IdleBackend(ReferenceBackend):
    """Every op does nothing."""

    asynchronous = True

    def plan(self, call: Any) -> Callable[[int], None]:
        """Does nothing."""
        return lambda stream: None


class IdleModel:
    """A model on a device that does nothing."""

    framework = "none"
    capabilities = ModelCapabilities(stable_row_counts=None, device_lengths=True, static_shapes=True)
    cache_bytes = 0

    def __init__(self, vocab_size: int, end: int) -> None:
        self.config = ModelConfig(
            vocab_size=vocab_size, hidden_size=8, max_position_embeddings=LENGTH, eos_token_ids=(end,)
        )

    def bytes_per_block(self, block_size: int) -> int:
        """Little."""
        return block_size

    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        """Nothing."""

    def forward_device(self, batch: DeviceBatch, out: Any) -> None:
        """Nothing."""

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """Nothing."""


class Reports:
    """What the device would have reported after each step."""

    def __init__(self, runner: ModelRunner, ids: Sequence[int]) -> None:
        size, rng = runner.state.symbols, np.random.default_rng(0)
        self._schedule, self._request = runner.state.schedule.host, runner.state.request.host
        self._m, self._s, self._at = size["M"], size["S"], 0
        self._fed = np.zeros(self._m, np.int32)
        """Tokens that a slot is fed in the next step: 0 unless it decodes."""
        self._tokens = rng.choice(ids, (VARIANTS, self._m, self._s + 1)).astype(np.int64)
        self._accepted = rng.integers(1, self._s + 1, (VARIANTS, self._m), np.int32)
        self._capacity = size["T_cap"]
        runner.state.report.fetch = self.fetch  # type: ignore[method-assign]

    def fetch(self, names: Any = None) -> Callable[[], dict[str, Any]]:
        """Of the step that was scheduled last."""
        self._at = (self._at + 1) % VARIANTS
        actions, host = self._schedule["slot_actions"], self._schedule
        chunk = actions == SlotAction.PREFILL
        decoded = np.minimum(self._fed, 1 + self._request["draft_token_num"])
        fed = np.where(chunk, host["chunk_lens"], np.where(actions == SlotAction.WAIT, 0, decoded))
        done = chunk & (host["chunk_starts"] + host["chunk_lens"] >= self._request["prompt_lens"])
        accepted = np.where(chunk, done, np.minimum(self._accepted[self._at], fed)).astype(np.int32)
        self._fed[done], self._fed[actions == SlotAction.STOP] = self._s, 0
        tokens = self._tokens[self._at]
        emitted = np.where(np.arange(self._s) < accepted[:, None], tokens[:, : self._s], -1)
        offsets = np.concatenate([[0], np.cumsum(fed)]).astype(np.int32)
        ids = np.zeros((self._capacity, 1), np.int64)
        for slot in np.flatnonzero(~chunk & (fed > 0)):  # drafts: the accepted ones, then others
            drafts = np.where(np.arange(self._s - 1) < accepted[slot] - 1, tokens[slot, : self._s - 1], -5)
            ids[offsets[slot] + 1 : offsets[slot + 1], 0] = drafts[: fed[slot] - 1]
        values = {
            "accept_tokens": emitted,
            "accept_num": accepted,
            "stop_flags": np.zeros(self._m, bool),
            "limit_status": np.zeros(self._m, np.int32),
            "cu_seqlens_q": offsets,
            "cu_seqlens_q_output": offsets,
            "ids_remove_padding": ids,
        }
        return lambda: values


def make(slots: int, k: int, adaptive: bool = False) -> tuple[ModelRunner, list[int], Reports]:
    """A runner, tokens as texts have them, and its device's reports."""
    tokenizer = load_tokenizer(CHECKPOINT)
    build.get_device = lambda place, framework: IdleDevice()  # type: ignore[assignment]
    method = {"method": "ngram", "num_speculative_tokens": k, "adaptive": adaptive} if k else {"method": "naive"}
    sizes = {"max_num_seqs": slots, "prefill_chunk": 1024, "max_num_batched_tokens": slots * (k + 1) + 2048}
    config = parse({"runner": {**sizes, "max_model_len": LENGTH}, "speculative": method})
    end = tokenizer.vocab_size - 1
    runner = build_runner(config, IdleBackend(), IdleModel(tokenizer.vocab_size, end), tokenizer)  # type: ignore[arg-type]
    texts = [path.read_text() for path in sorted(PROMPTS.glob("*.txt"))]
    ids = [token for text in texts for token in tokenizer.encode(text)]
    return runner, ids, Reports(runner, ids)


def thread_us(call: Callable[[], Any], less: Callable[[], float] = lambda: 0.0) -> float:
    """Microseconds of this thread's processor time."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e3 - less()


class Bench:
    """Figures of one runner."""

    def __init__(self, slots: int, k: int, steps: int, *, stop: bool = False, adaptive: bool = False) -> None:
        self.slots, self.k, self.steps = slots, k, steps
        self.params: dict[str, Any] = {"stop": STOP} if stop else {}
        self.runner, self.ids, self.reports = make(slots, k, adaptive)
        self.spent = 0.0
        fetch = self.runner.state.report.fetch

        def timed(names: Any = None) -> Any:
            start = time.thread_time_ns()
            values = fetch(names)
            self.spent += (time.thread_time_ns() - start) / 1e3
            return values

        self.runner.state.report.fetch = timed  # type: ignore[method-assign]

    def call(self, what: Callable[[], Any]) -> float:
        """Microseconds of a call, less those of drawing a report."""
        self.spent = 0.0
        return thread_us(what, lambda: self.spent)

    def decoding(self, reader: Callable[[StreamDelta], Any] | None, most: int) -> None:
        """Have every slot decode."""
        rng = np.random.default_rng(1)
        for i in range(self.slots):
            prompt = rng.choice(self.ids, PROMPT).tolist()
            self.runner.add_request(
                Request(f"r{i}", prompt, SamplingParams(max_new_tokens=most, **self.params), reader)
            )
        for _ in range(12):
            self.runner.step()
        assert self.runner.load().running == self.slots

    def end(self) -> None:
        """Of all requests."""
        for i in range(self.slots):
            self.runner.cancel(f"r{i}")
        self.runner.run()

    def steady(self, reader: Callable[[StreamDelta], Any] | None) -> dict[str, float]:
        """A step of decoding requests."""
        times = list[float]()
        while len(times) < self.steps:
            self.decoding(reader, LENGTH - PROMPT - 16)
            freeze_heap()
            rounds = (LENGTH - PROMPT - 100) // (self.k + 1) - 20
            times += [self.call(self.runner.step) for _ in range(min(rounds, self.steps - len(times)))]
            self.end()
        return {"least": min(times), "tenth": sorted(times)[len(times) // 10], "median": median(times)}

    def admission(self, count: int = 40) -> dict[str, Any]:
        """A long prompt beside decoding requests: taking it over, and each step until its first token."""
        added, steps = list[float](), list[list[float]]()
        rng = np.random.default_rng(2)
        self.decoding(None, LENGTH - PROMPT - 16)
        self.runner.cancel("r0")
        self.runner.step()
        self.runner.take_finished()
        usual = [self.call(self.runner.step) for _ in range(30)]
        for _ in range(count):
            prompt = rng.choice(self.ids, LONG_PROMPT).tolist()
            arrived = list[StreamDelta]()
            request = Request("long", prompt, SamplingParams(max_new_tokens=1), arrived.append)
            added.append(self.call(lambda request=request: self.runner.add_request(request)))  # type: ignore[misc]
            taken = list[float]()
            while not arrived:
                taken.append(self.call(self.runner.step))
            steps.append(taken)
            self.runner.take_finished()
            self.runner.step()
        self.end()
        return {
            "add_request": min(added),
            "usual_step": min(usual),
            "steps": [min(one[at] for one in steps if at < len(one)) for at in range(max(map(len, steps)))],
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[64])
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 8])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    count = {"tokens": 0}

    def tokens(delta: StreamDelta) -> None:
        count["tokens"] += len(delta.token_ids)

    def text(delta: StreamDelta) -> None:
        count["tokens"] += len(delta.text)

    rows = []
    for slots in options.slots:
        for k in options.drafts:
            for name, reader in {"tokens": tokens, "text": text, "none": None}.items():
                bench = Bench(slots, k, options.steps)
                rows.append({"slots": slots, "drafts": k, "reader": name, **bench.steady(reader)})
                print(rows[-1], flush=True)
            for name in ("stop", "adaptive")[: 1 + bool(k)]:
                bench = Bench(slots, k, options.steps, **{name: True})
                rows.append({"slots": slots, "drafts": k, "reader": "none", name: True, **bench.steady(None)})
                print(rows[-1], flush=True)
            if slots > 1:
                rows.append({"slots": slots, "drafts": k, **Bench(slots, k, options.steps).admission()})
                print(rows[-1], flush=True)
    if options.out is not None:
        write(rows, options.out)


if __name__ == "__main__":
    main()
