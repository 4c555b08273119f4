"""Random requests under injected faults, for as long as you like: ``python tools/soak.py --seconds 3600``.

Each round makes a runner with a random configuration and a seed of its own, and gives it random requests while the
model, ops, proposer, callbacks, clock and disk fail at random. Invariants are checked after every step: slots and KV
blocks are conserved, and every request ends exactly once. Its tokens are those of plain decoding, up to its end, and
its stream adds up to its output. A failure prints the round's seed; ``--seed`` runs it again.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from specdec_hal.bench.record import circumstances
from specdec_hal.config import parse
from specdec_hal.ops.validate import Call
from specdec_hal.plugin import registry
from specdec_hal.plugin.backend import Backend, Launch
from specdec_hal.runner import ModelRunner, Request, StreamDelta, build_runner
from tests.runner.test_equality import plain_decoding
from tests.support.history_model import DeviceHistoryModel, HistoryModel, LetterTokenizer
from tests.support.random_requests import check_drafts, random_request
from tests.support.torch_history_model import TorchHistoryModel, UploadingHistoryModel

POISON = 23
"""The token that the model raises on, where a round says so."""


class Fault(Exception):
    """Injected."""


class Round:
    """One runner, its requests and its faults."""

    def __init__(self, backend: str, seed: int) -> None:
        self.rng, self.seed = random.Random(seed), seed
        self.faults: Counter[str] = Counter()
        self.requests: dict[str, Request] = {}
        self.streams: dict[str, list[StreamDelta]] = {}
        self.ended: dict[str, Any] = {}
        self.now = 0.0
        self.rates = {name: self.rng.choice([0.0, 0.0, 0.01, 0.05]) for name in ("model", "op", "callback", "disk")}
        self.poisonous = self.rng.random() < 0.3
        self.folder = tempfile.TemporaryDirectory(prefix="specdec-soak-")
        self.config = self._config()
        self.backend = self._backend(backend)
        self.runner = self._runner()

    def _config(self) -> Any:
        rng = self.rng
        slots, k, size = rng.randint(1, 6), rng.randint(0, 5), rng.randint(1, 8)
        blocks = -(-64 // size) + rng.randint(0, 3 * slots)
        runner = {
            "max_num_seqs": slots, "prefill_chunk": rng.randint(1, 16), "block_size": size, "num_kv_blocks": blocks,
            "overlap": rng.random() < 0.5, "journal": f"{self.folder.name}/journal",
            "journal_interval": rng.randint(1, 9), "queue_timeout_s": rng.choice([None, 50.0]),
        }  # fmt: skip
        ngram = {"use_index": rng.random() < 0.5, "match_policy": rng.choice(["latest", "leftmost"])}
        method = {"method": "ngram", "num_speculative_tokens": k, "ngram": ngram} if k else {"method": "naive"}
        return parse({"runner": runner, "speculative": method})

    def _backend(self, name: str) -> Backend:
        backend, soak = registry.get_backend(name), self
        plan = backend.plan

        def faulty(call: Call) -> Launch:
            launch = plan(call)

            def run(stream: int) -> None:
                soak.fault("op")
                launch(stream)

            return run

        backend.plan = faulty  # type: ignore[method-assign]
        return backend

    def _runner(self) -> ModelRunner:
        soak = self

        base, where = self._model()

        class Faulty(base):  # type: ignore[misc]
            def forward(self, batch: Any) -> Any:
                soak.fail(batch.token_ids)
                return super().forward(batch)

            def forward_device(self, batch: Any, out: Any) -> None:
                # On a GPU the host reads no token, and what fails is a capture or a step without a graph.
                soak.fail(() if where else batch.token_ids[: int(batch.cu_seqlens_q[-1]), 0])
                super().forward_device(batch, out)

        tokenizer: Any = LetterTokenizer()
        with mock.patch("time.monotonic", lambda: soak.now):
            runner = build_runner(self.config, self.backend, Faulty(*where), tokenizer)
        runner._deadlines._clock = lambda: soak.now
        return runner

    def _model(self) -> tuple[type[HistoryModel], tuple[str, ...]]:
        """A class of model for this backend, and its arguments: with lengths on the device, or on the host."""
        device_lengths = self.rng.random() < 0.5
        if not self.backend.device.startswith("cuda"):
            return (DeviceHistoryModel if device_lengths else HistoryModel), ()
        return (TorchHistoryModel, ("cuda:0",)) if device_lengths else (UploadingHistoryModel, ("torch",))

    # ---- faults

    def fault(self, kind: str) -> None:
        """Raise, now and then."""
        if self.rng.random() < self.rates[kind] / 10:
            self.faults[kind] += 1
            raise Fault(kind)

    def fail(self, tokens: Any) -> None:
        """The model's."""
        if self.poisonous and POISON in tokens:
            self.faults["poison"] += 1
            raise Fault("poison")
        self.fault("model")

    def fsync(self, *_: object) -> None:
        """The disk's."""
        if self.rng.random() < self.rates["disk"]:
            self.faults["disk"] += 1
            raise OSError("no space left")

    # ---- the round

    def run(self) -> None:
        """Until everything that was asked has ended."""
        rng, to_come = self.rng, self.rng.randint(3, 25)
        with mock.patch("os.fsync", self.fsync):
            while to_come or self.runner.has_requests:
                while to_come and rng.random() < 0.4:
                    self.ask(rng.randrange(1 << 20))
                    to_come -= 1
                if self.requests and rng.random() < 0.03:
                    self.faults["cancel"] += self.runner.cancel(rng.choice(list(self.requests)))
                if rng.random() < 0.02:
                    self.crash()
                self.now += rng.choice([0.1, 0.1, 0.1, 8.0])
                self.runner.step()
                self.check()
        self.settle()

    def ask(self, number: int) -> None:
        """A random request, if the id is free."""
        request = random_request(number)
        if request.request_id in self.requests:
            return
        name, late = request.request_id, self.rng.random()
        self.streams[name] = []
        request = replace(
            request, callback=lambda delta: self.hear(name, delta), timeout_s=60.0 if late < 0.1 else None,
            ttft_timeout_s=20.0 if late > 0.9 else None,
        )  # fmt: skip
        self.requests[name] = request
        self.runner.add_request(request)

    def hear(self, name: str, delta: StreamDelta) -> None:
        """A callback; it may fail, cancel or ask."""
        assert delta.request_id == name
        self.streams[name].append(delta)
        self.fault("callback")
        luck = self.rng.random()
        if luck < 0.005:
            self.faults["cancel in a callback"] += self.runner.cancel(self.rng.choice(list(self.requests)))
        elif luck < 0.01:
            self.ask(self.rng.randrange(1 << 20))

    def crash(self) -> None:
        """Another runner goes on from a snapshot; streams begin again."""
        self.faults["crash"] += 1
        records = json.loads(json.dumps(self.runner.snapshot()))
        self.runner = self._runner()
        self.runner.restore(records)
        for record in records:
            self.streams[record["request_id"]] = []
        for sequence in self.runner.streams:
            name = sequence.request.request_id
            sequence.request = replace(sequence.request, callback=self.requests[name].callback)

    # ---- invariants

    def check(self) -> None:
        """After every step."""
        scheduler = self.runner.scheduler
        slots = [*scheduler._free_slots, *scheduler.running]
        assert sorted(slots) == list(range(self.config.runner.max_num_seqs)), f"slots {slots}"
        assert scheduler.live == len(scheduler.waiting) + len(scheduler.running), "a request is lost or duplicated"
        if scheduler.pool is not None:
            used = Counter(block for sequence in scheduler.running.values() for block in sequence.blocks)
            assert len(used) + scheduler.pool.free == scheduler.pool.num_blocks, "a block is lost"
            users = dict(enumerate(scheduler.pool._users))
            assert users == {block: used[block] for block in users}, "a block has more or fewer users than it knows of"

    def settle(self) -> None:
        """At the end: every request once, with the tokens of plain decoding."""
        self.ended = self.runner.take_finished()
        assert self.ended.keys() == self.requests.keys(), "a request has no output, or an unknown one has"
        for name, output in self.ended.items():
            request, stream = self.requests[name], self.streams[name]
            wanted = plain_decoding(list(request.prompt_token_ids), request.params)
            whole = output.finish_reason in ("stop", "length")
            tokens = list(output.token_ids)
            assert tokens == (wanted.tokens if whole else wanted.tokens[: len(tokens)]), f"{name}: other tokens"
            assert not whole or output.finish_reason == wanted.finish_reason, f"{name}: {output.finish_reason}"
            assert whole or output.error or output.finish_reason == "cancelled", f"{name}: ended without a cause"
            ends = [delta.finish_reason for delta in stream if delta.finish_reason is not None]
            assert ends == [output.finish_reason], f"{name}: its stream ended with {ends}"
            assert [token for delta in stream for token in delta.token_ids] == tokens, f"{name}: its stream differs"
            assert "".join(delta.text for delta in stream) == output.text, f"{name}: its text differs"
            for part in ("logprobs", "prompt_logprobs", "drafts"):
                told = sum((getattr(delta, part) for delta in stream), ())
                assert told == getattr(output, part), f"{name}: its {part} differ"
            check_drafts(output, request)


def soak(backend: str, seconds: float, rounds: int | None, seed: int | None, out: Path | None) -> int:
    """Rounds until the time or their number is over; 1 if one failed."""
    logging.disable(logging.CRITICAL)
    start, done, requests = time.perf_counter(), 0, 0
    faults, reasons, memory = Counter[str](), Counter[str](), list[int]()
    findings = 0
    while time.perf_counter() - start < seconds and (rounds is None or done < rounds) and not findings:
        one = Round(backend, random.SystemRandom().randrange(1 << 32) if seed is None else seed)
        try:
            one.run()
        except Exception as error:
            findings += 1
            print(f"seed {one.seed}: {type(error).__name__}: {error}", file=sys.stderr)
            if seed is not None:
                raise
        done, requests = done + 1, requests + len(one.requests)
        faults += one.faults
        reasons += Counter(output.finish_reason for output in one.ended.values())
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        if seed is not None:
            break
    half = memory[len(memory) // 2] if memory else 0
    figures = {
        "backend": backend, "seconds": round(time.perf_counter() - start, 1), "rounds": done, "requests": requests,
        "faults": dict(faults), "ended": dict(reasons), "findings": findings, "max_rss_kb_at_half": half,
        "max_rss_kb": memory[-1] if memory else 0,
    }  # fmt: skip
    print(json.dumps(figures))
    if out is not None:
        out.write_text(json.dumps({**circumstances(["python", *sys.argv]), "figures": figures}) + "\n")
    return 1 if findings else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="reference")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, help="run this round alone, with a traceback")
    parser.add_argument("--out", type=Path, help="record the figures with their circumstances")
    args = parser.parse_args()
    return soak(args.backend, args.seconds, args.rounds, args.seed, args.out)


if __name__ == "__main__":
    sys.exit(main())
