"""A tensor-parallel server whose ranks are killed and stopped under load, and what its clients hear of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.processes import descendants

ROOT = Path(__file__).parents[2]
START_S = 120.0
"""Until a server listens: the ranks load their model, and compile on a GPU."""
PROMPTS = ("def add(a, b):", "class Stack:\n    def __init__(self):", "import os\n\nfor path in", "x = [")
SLACK_S = 2.0
"""Time in which callers must be notified of a dead or abandoned rank."""
END_S = 5.0
"""Within which every process ends."""


class RankServer:
    """The first rank's process, and the others below it."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log
        self.ranks = [process.pid, *descendants(process.pid, "--multiprocessing-fork")]
        """By number; processes are numbered in the order of their start."""

    def stacks(self) -> str:
        """What it has logged, and where its processes are that have not ended; ends them."""
        for pid in self.ranks:
            if not gone(pid):
                _kill(pid, signal.SIGCONT)
                _kill(pid, signal.SIGABRT)
        until(lambda: all(map(gone, self.ranks)), END_S)
        return self.log.read_text()

    def health(self) -> int:
        """Status of `/health`; 0 once the port is closed."""
        try:
            return httpx.get(f"{self.url}/health", timeout=10).status_code
        except httpx.TransportError:
            return 0


@contextmanager
def rank_server(*arguments: str) -> Iterator[RankServer]:
    """`specdec-hal serve` with these arguments, once it listens."""
    command = [sys.executable, "-m", "specdec_hal.cli", "serve", "--json", "--port", "0", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("w") as written:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=written, text=True, cwd=ROOT,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )  # fmt: skip
        server = None
        try:
            assert process.stdout is not None
            timer = threading.Timer(START_S, process.send_signal, [signal.SIGABRT])
            timer.start()
            shown = _document(process)
            timer.cancel()
            assert shown, f"the server has not started:\n{log.read_text()}"
            server = RankServer(process, json.loads(shown)["url"], log)
            yield server
        finally:
            for pid in server.ranks if server is not None else [process.pid]:
                _kill(pid, signal.SIGKILL)
            process.wait()


def _document(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("}"):
            return "".join(lines)
    return ""


def _kill(pid: int, how: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, how)


def gone(pid: int) -> bool:
    """Whether a process has ended, even if it is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until(what: Callable[[], bool], limit_s: float) -> float | None:
    """Seconds until that was so; None if it was not in time."""
    start = time.monotonic()
    while not what():
        if time.monotonic() - start > limit_s:
            return None
        time.sleep(0.01)
    return time.monotonic() - start


@dataclass
class Texts:
    """What each request gets whenever and wherever it is answered. `findings`: answers that differ."""

    known: dict[int, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def whole(self, number: int, text: str) -> None:
        """A complete answer."""
        with self.lock:
            expected = self.known.setdefault(number, text)
        if text != expected:
            self.findings.append(f"request {number}: expected {expected!r}, got {text!r}")

    def part(self, number: int, text: str) -> None:
        """What came before an error."""
        expected = self.known.get(number)
        if expected is not None and not expected.startswith(text):
            self.findings.append(f"request {number}: expected a beginning of {expected!r}, got {text!r}")


class Clients:
    """Threads that ask one request after the other. `outcomes` counts what came of them."""

    def __init__(self, url: str, count: int, texts: Texts, seed: int) -> None:
        self.outcomes = Counter[str]()
        self._url, self._texts, self._seed = url, texts, seed
        self._done = threading.Event()
        self.since: list[float | None] = [None] * count
        """When each client sent what it waits for now."""
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._done.set()

    def wait(self, before: float) -> bool:
        """Whether all requests sent before that time have an answer."""
        return all(since is None or since > before for since in self.since)

    def _run(self, client: int) -> None:
        rng = random.Random(self._seed * 1000 + client)
        with httpx.Client(base_url=self._url, timeout=START_S) as http:
            while not self._done.is_set():
                self.since[client] = time.monotonic()
                try:
                    outcome = self._ask(http, rng.randrange(24), stream=rng.random() < 0.7)
                except httpx.TransportError:
                    outcome = "connection lost"
                self.since[client] = None
                self.outcomes[outcome] += 1
                if outcome != "whole":
                    time.sleep(0.02)

    def _ask(self, http: httpx.Client, number: int, *, stream: bool) -> str:
        body = {"prompt": PROMPTS[number % 4], "max_tokens": 60 + number, "seed": number}
        body |= {"temperature": 0.8 * (number % 2), "stream": stream}
        if not stream:
            answer = http.post("/v1/completions", json=body)
            if answer.status_code != 200:
                return f"error {answer.status_code}"
            (choice,) = answer.json()["choices"]
            if choice["finish_reason"] == "abort":
                self._texts.part(number, choice["text"])
                return "ended"
            self._texts.whole(number, choice["text"])
            return "whole"
        got = ""
        with http.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    self._texts.whole(number, got)
                    return "whole"
                if data:
                    event = json.loads(data)
                    if "error" in event:
                        self._texts.part(number, got)
                        return f"error {event['error']['code']}"
                    got += event["choices"][0]["text"]
                    if event["choices"][0]["finish_reason"] == "abort":
                        self._texts.part(number, got)
                        return "ended"
        self._texts.part(number, got)
        return "connection lost"


def disturb(
    arguments: Sequence[str], rank: int, how: int, rank_timeout_s: float, texts: Texts, seed: int, clients: int = 4
) -> dict[str, Any]:
    """Start a server, send a rank a signal under load, and see how everything ends: seconds, and `findings`."""
    rng = random.Random(seed)
    stopped, name = how == signal.SIGSTOP, signal.Signals(how).name
    asked = how in (signal.SIGINT, signal.SIGTERM)
    noticed_s = SLACK_S + (rank_timeout_s if stopped else 0)
    findings = list[str]()
    with rank_server(*arguments, "--set", f"engine.rank_timeout_s={rank_timeout_s}") as server:
        load = Clients(server.url, clients, texts, seed)
        if until(lambda: load.outcomes["whole"] >= clients, START_S) is None:
            findings.append(f"no answers before the signal: {dict(load.outcomes)}")
        time.sleep(rng.uniform(0, 0.5))
        start = time.monotonic()
        os.kill(server.ranks[rank], how)
        answered = until(lambda: load.wait(start), noticed_s + 30)
        health = server.health()
        load.stop()
        ended = until(lambda: server.process.poll() is not None, noticed_s + END_S + 30)
        left = until(lambda: all(map(gone, server.ranks)), END_S)
        if answered is None or answered > noticed_s:
            findings.append(f"{name} of rank {rank}: clients heard of it after {answered} s, expected {noticed_s}")
        if health != (503 if rank else 0):
            findings.append(f"{name} of rank {rank}: /health gave {health}, expected {503 if rank else 0}")
        if ended is None or (server.process.returncode == 0) != asked:
            status = server.process.returncode
            findings.append(f"{name} of rank {rank}: the server ends with status {status} after {ended} s")
        if left is None:
            findings.append(f"{name} of rank {rank}: ranks are left over")
        if rank and (set(load.outcomes) - {"whole", "error 503", "connection lost"}):
            findings.append(f"{name} of rank {rank}: {dict(load.outcomes)}")
        total = time.monotonic() - start
        if total > noticed_s + END_S:
            findings.append(f"{name} of rank {rank}: everything has ended after {total:.1f} s")
        if findings:
            findings.append(server.stacks()[-6000:])
    return {
        "signal": name, "rank": rank, "clients_heard_s": answered and round(answered, 2),
        "all_ended_s": round(total, 2), "health": health, "status": server.process.returncode,
        "outcomes": dict(load.outcomes), "findings": findings,
    }  # fmt: skip
