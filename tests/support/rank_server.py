"""A tensor-parallel server whose ranks are killed and stopped under load, and what its clients hear of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from specdec_hal.serve.split.addresses import ENGINE
from tests.support.command import START_S, serving
from tests.support.load import Answer, Clients, differs
from tests.support.processes import descendants, gone

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

    def split_ranks(self) -> list[int]:
        """The ranks of a split server as they are now: the engine's process, and the others below it."""
        (engine,) = descendants(self.process.pid, f"={ENGINE}\0")
        return [engine, *descendants(engine, "--multiprocessing-fork")]

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
    with (
        tempfile.NamedTemporaryFile("w") as log,
        serving(*arguments, stderr=log, PYTHONFAULTHANDLER="1") as (process, url),
    ):
        server = RankServer(process, url, Path(log.name))
        try:
            yield server
        finally:
            for pid in server.ranks:
                _kill(pid, signal.SIGKILL)


def _kill(pid: int, how: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, how)


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

    def check(self, number: int, answer: Answer) -> list[str]:
        expected = self.known.setdefault(number, answer.text) if answer.outcome == "whole" else self.known.get(number)
        self.findings += [] if expected is None else differs(expected, answer)
        return []


def body(number: int) -> dict[str, Any]:
    return {
        "prompt": PROMPTS[number % 4], "max_tokens": 60 + number, "seed": number, "temperature": 0.8 * (number % 2),
    }  # fmt: skip


def disturb(
    arguments: Sequence[str], rank: int, how: int, rank_timeout_s: float, texts: Texts, seed: int, clients: int = 4
) -> dict[str, Any]:
    """Start a server, send a rank a signal under load, and see how everything ends: seconds, and `findings`."""
    rng = random.Random(seed)
    stopped, name = how == signal.SIGSTOP, signal.Signals(how).name
    asked = how in (signal.SIGINT, signal.SIGTERM)
    noticed_s = SLACK_S + (rank_timeout_s if stopped else 0)
    with rank_server(*arguments, "--set", f"engine.rank_timeout_s={rank_timeout_s}") as server:
        load = Clients(server.url, clients, seed, 24, body, texts.check, START_S)
        findings = load.findings
        if until(lambda: load.outcomes["whole"] >= clients, START_S) is None:
            findings.append(f"no answers before the signal: {dict(load.outcomes)}")
        time.sleep(rng.uniform(0, 0.5))
        start = time.monotonic()
        os.kill(server.ranks[rank], how)
        answered = until(lambda: load.answered(start), noticed_s + 30)
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
