"""Processor time that `serve`'s HTTP processes take per request, event and token, with a stand-in for the engine.

``python benchmarks/http_cost.py --tokens 1 3``: the processes of ``specdec-hal serve`` except the engine's. The
stand-in gives every request so many tokens of Python code each `--step-ms`, as a GPU would. Time is the kernel's of
each process's threads, which other load on the machine hardly changes. Requests of one token have the cost of a
request; long ones, less that, the cost of an event. An event that holds tokens of several steps, since its process was
late, counts once: `tokens_per_event` shows that.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import record
import zmq
from serving_load import ROOT, Clients, parts, processor_s, resident_mb

from specdec_hal.config import load
from specdec_hal.engine.async_engine import EngineInfo
from specdec_hal.models.loader import load_tokenizer
from specdec_hal.output.detokenizing import PROMPT_TAIL
from specdec_hal.serve import listeners
from specdec_hal.serve.frame_codes import FrameKind
from specdec_hal.serve.split import addresses, messages
from specdec_hal.serve.split.addresses import ENGINE, Outbox
from specdec_hal.serve.split.supervisor import Part, Supervisor
from specdec_hal.serve.stream import OutputFrame
from specdec_hal.serve.stream.channel import FrameSender, receiver
from specdec_hal.serve.stream.frame import NOTHING, StreamEnd, StreamStart

CONFIG = ROOT / "configs/serve.yaml"
STARTS_S = 60.0
TEXT = (ROOT / "examples/prompts/unique.txt").read_text()


def settings(workers: int, most: int) -> list[str]:
    """Of the server; without the watchdog, which asks for the engine's counts."""
    keys = [f"serve.http_workers={workers}", f"serve.max_concurrent_requests={2 * most}", "serve.port=0"]
    return [*keys, "runner.watchdog_s=null"]


class StandIn:
    """What HTTP sees of an engine: each request gains `tokens` of a text per step."""

    def __init__(self, directory: Path, workers: int, tokens: int, step_s: float) -> None:
        self._tokens, self._step_s = tokens, step_s
        self._text = load_tokenizer(ROOT / "models/tiny-py-lm").encode(TEXT)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands = receiver(context, addresses.endpoint(directory, ENGINE), 0)
        self._http = [Outbox(context, directory, addresses.http(worker)) for worker in range(workers)]
        frames = [addresses.endpoint(directory, addresses.frames(worker)) for worker in range(workers)]
        self._frames = FrameSender(context, frames, 64, drop=False)
        self._session, self._sequence, self._numbers = secrets.randbits(62), 0, count()
        self._streams, self._released = list[StreamStart](), list[int]()
        self._live: dict[int, list[int]] = {}
        """Tokens so far and most, by number."""
        self._names: dict[str, int] = {}

    def run(self) -> None:
        """Until the supervisor ends it."""
        due = time.perf_counter()
        while True:
            while self._commands.poll(0 if self._live else None):
                self._carry_out(messages.for_engine(self._commands.recv()))
            self._step()
            due = max(due + self._step_s, time.perf_counter())
            time.sleep(due - time.perf_counter() if due > time.perf_counter() else 0)

    def _carry_out(self, command: messages.ToEngine) -> None:
        match command:
            case messages.Adopt():
                self._http[command.worker].send(messages.Hello(EngineInfo("cpu", 2048, [0], "ngram", 8), []))
                self._sequence, self._session = 0, secrets.randbits(62)
            case messages.Submit():
                for asked in command.requests:
                    number = next(self._numbers)
                    most, tail = asked.params["max_new_tokens"], asked.prompt_token_ids[-PROMPT_TAIL:]
                    start = StreamStart(number, asked.request_id, len(asked.prompt_token_ids), most, asked.params, 0.0)
                    start.prompt_tail.extend(tail)
                    self._streams.append(start)
                    self._live[number], self._names[asked.request_id] = [0, most], number
                self._http[command.worker].send(messages.Queued(command.number))
            case messages.Release():
                number = self._names.pop(command.request_id)
                self._live.pop(number, None)
                self._released.append(number)

    def _step(self) -> None:
        ids, counts, numbers, starts, ended = list[int](), list[int](), list[int](), list[int](), list[StreamEnd]()
        for number, state in self._live.items():
            done, most = state
            gained = min(self._tokens, most - done)
            at = (13 * number + done) % (len(self._text) - gained)
            ids += self._text[at : at + gained]
            numbers.append(number)
            starts.append(done)
            counts.append(gained)
            state[0] += gained
            if state[0] == most:
                ended.append(StreamEnd(number, "length", ""))
        for end in ended:
            del self._live[end.number]
        flags = bytes(at % 3 > 0 for at in range(len(ids)))
        frame = OutputFrame(
            self._session, self._sequence, FrameKind.TARGET, 1, 9, numbers, starts, counts, [8] * len(counts), flags,
            np.array(ids, "<i8").data if ids else NOTHING, NOTHING, NOTHING, self._streams, ended, self._released,
            [0] if self._sequence == 0 else [],
        )  # fmt: skip
        self._frames.send(frame.encode())
        self._sequence += 1
        self._streams, self._released = [], []


@contextmanager
def served(workers: int, tokens: int, step_ms: float, most: int) -> Iterator[tuple[str, list[int]]]:
    """The address of such a server, and the ids of its HTTP processes."""
    own = [str(workers), str(tokens), str(step_ms), str(most)]
    with tempfile.NamedTemporaryFile("r") as out, subprocess.Popen(
        [sys.executable, __file__, "--serve", *own, out.name]
    ) as process:  # fmt: skip
        try:
            due = time.monotonic() + STARTS_S
            while not (said := Path(out.name).read_text()).endswith("\n"):
                assert time.monotonic() < due and process.poll() is None, "the server does not start"
                time.sleep(0.1)
            while len(found := parts(process.pid)) < 1 + workers:
                time.sleep(0.1)
            yield said.strip(), [pid for name, pid in found.items() if name != ENGINE]
        finally:
            process.terminate()
            process.wait(30)


def supervise(workers: int, tokens: int, step_ms: float, most: int, out: str) -> int:
    """Be the server, and write its address into the file `out`."""
    keys = settings(workers, most)
    with listeners.listen(load(CONFIG, keys), workers) as sockets:
        fds = tuple(listener.fileno() for listener in sockets)

        def command(part: Part) -> list[str]:
            if part.name == ENGINE:
                own = [f"--part={ENGINE}", str(part.directory), str(workers), str(tokens), str(step_ms)]
                return [sys.executable, __file__, *own]
            words = [word for key in keys for word in ("--set", key)]
            own = [f"--part={part.name}", f"--directory={part.directory}", f"--alive-fd={part.alive_fd}"]
            own += [f"--listener-fd={fds[part.worker or 0]}", f"--resume={int(part.resume)}"]
            return [sys.executable, "-m", "specdec_hal.cli", "serve", "--no-access-log", *words, *own]

        supervisor = Supervisor(command, fds, workers)
        Path(out).write_text(listeners.url(sockets[0]) + "\n")
        return supervisor.run()


def measured(args: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """Costs of a request and an event of so many tokens."""
    body = {"prompt": TEXT[:400], "temperature": 0, **args.body}
    with served(args.http_workers, tokens, args.step_ms, args.clients) as (url, http), Clients(1) as asking:

        def cost(requests: int, new_tokens: int) -> tuple[float, int, int]:
            wanted = [{**body, "max_tokens": new_tokens, "return_token_ids": True}] * requests
            began = sum(map(processor_s, http))
            answers, _ = asking.closed_loop(wanted, args.clients, url)
            spent = sum(map(processor_s, http)) - began
            assert all(answer.ok for answer in answers), "a request failed"
            got = sum(sum(answer.tokens) for answer in answers)
            assert got == requests * new_tokens, f"expected {requests * new_tokens} tokens, got {got}"
            return spent, sum(len(answer.tokens) for answer in answers), got

        cost(2 * args.clients, 64)
        rounds = []
        for _ in range(args.rounds):
            short, _, _ = cost(args.requests, 1)
            each = short / args.requests
            long, events, got = cost(args.long, tokens * args.steps)
            event = (long - args.long * each) / (events - args.long)
            rounds.append((each, event, got / events))
        middle = [float(np.median(values)) for values in zip(*rounds, strict=True)]
        return {
            "request_us": round(1e6 * middle[0], 1), "event_us": round(1e6 * middle[1], 2),
            "tokens_per_event": round(middle[2], 2), "token_us": round(1e6 * middle[1] / middle[2], 2),
            "resident_mb": [round(resident_mb(pid), 1) for pid in http],
        }  # fmt: skip


def main() -> None:
    """Measure and print."""
    if len(sys.argv) > 1 and sys.argv[1] == f"--part={ENGINE}":
        directory, workers, tokens, step_ms = sys.argv[2:]
        StandIn(Path(directory), int(workers), int(tokens), float(step_ms) / 1e3).run()
    if len(sys.argv) > 1 and sys.argv[1] == "--serve":
        numbers, out = sys.argv[2:6], sys.argv[6]
        sys.exit(supervise(int(numbers[0]), int(numbers[1]), float(numbers[2]), int(numbers[3]), out))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 3], help="of a request in a step")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=150, help="of a long request")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=320, help="of one token, in a round")
    parser.add_argument("--long", type=int, default=32, help="long requests in a round")
    parser.add_argument("--http-workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--body", type=json.loads, default={}, help="more keys of requests, as JSON")
    args = parser.parse_args()
    figures = {str(tokens): measured(args, tokens) for tokens in args.tokens}
    record.write({"step_ms": args.step_ms, "clients": args.clients, "by_tokens_per_step": figures}, args.out)


if __name__ == "__main__":
    main()
