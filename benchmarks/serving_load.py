"""Servers as processes of their own, and a load on them: requests as streams, with the time of every event.

The client reads HTTP by hand: at hundreds of events a second a library's cost would be a part of what is measured.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
HANGS_S = 120.0


@dataclass
class Answer:
    """What came of one request. `times`: of each event, in seconds from its sending; `tokens`: in each."""

    status: int = 0
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    error: str = ""
    done: bool = False

    @property
    def ok(self) -> bool:
        """Whether it is complete."""
        return self.status == 200 and self.done

    @property
    def gaps(self) -> list[float]:
        """Seconds from token to token; those of one event share its time evenly."""
        pairs = zip(self.times, self.times[1:], self.tokens[1:], strict=False)
        return [(late - early) / count for early, late, count in pairs for _ in range(count)]


async def ask(url: str, body: dict[str, Any]) -> Answer:
    """One request. `body` should ask for the ids of tokens, so that they can be counted."""
    where, answer = urlsplit(url), Answer()
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 24)
    try:
        payload = json.dumps({**body, "stream": True}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        start = time.perf_counter()
        writer.write(head.encode() + payload)
        answer.status = int((await asyncio.wait_for(reader.readline(), HANGS_S)).split()[1])
        while (line := await asyncio.wait_for(reader.readline(), HANGS_S)) or not reader.at_eof():
            if line.startswith(b"data: [DONE]"):
                answer.done = True
            elif line.startswith(b"data: "):
                _event(answer, json.loads(line[len(b"data: ") :]), time.perf_counter() - start)
        return answer
    finally:
        writer.close()


def _event(answer: Answer, event: dict[str, Any], now: float) -> None:
    if "error" in event:
        answer.error = str(event["error"]["message"])
        return
    for choice in event["choices"]:
        answer.text += choice["text"]
        if choice.get("token_ids"):
            answer.times.append(now)
            answer.tokens.append(len(choice["token_ids"]))


async def closed_loop(url: str, bodies: Sequence[dict[str, Any]], clients: int) -> tuple[list[Answer], float]:
    """All requests by so many clients, each of which asks when it has its answer; the answers, and seconds in all."""
    waiting, answers = list(reversed(bodies)), list[Answer]()

    async def client() -> None:
        while waiting:
            answers.append(await ask(url, waiting.pop()))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return answers, time.perf_counter() - start


class Clients:
    """Processes that ask side by side: one cannot read what a GPU decodes. A context manager."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    def __enter__(self) -> Clients:
        self._pool = multiprocessing.get_context("spawn").Pool(self.processes)
        self._pool.map(abs, range(self.processes))  # all have started
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.terminate()

    def closed_loop(self, bodies: Sequence[dict[str, Any]], clients: int, *urls: str) -> tuple[list[Answer], float]:
        """As the function, with requests and clients shared out evenly, over the servers too."""
        shared = min(self.processes, clients)
        shares = [(urls[at % len(urls)], bodies[at::shared], clients // shared) for at in range(shared)]
        start = time.perf_counter()
        answers = [answer for some in self._pool.map(_share, shares, chunksize=1) for answer in some]
        return answers, time.perf_counter() - start


def _share(share: tuple[str, Sequence[dict[str, Any]], int]) -> list[Answer]:
    return asyncio.run(closed_loop(*share))[0]


@contextmanager
def server(*arguments: str, environment: dict[str, str] | None = None, stderr: Any = None) -> Iterator[tuple[int, str]]:
    """`specdec-hal serve` with these arguments: its process id and address. `stderr`: a file for its log."""
    command = [sys.executable, "-m", "specdec_hal.cli", "serve", "--json", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT, env={**os.environ, **(environment or {})}
    ) as process:
        try:
            assert process.stdout is not None
            shown = ""
            while not shown.endswith("}\n"):
                line = process.stdout.readline()
                assert line, f"the server ended before it listened: {' '.join(arguments)}"
                shown += line
            yield process.pid, json.loads(shown)["url"]
        finally:
            process.terminate()
            process.wait(60)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in family(int(child)))]


def parts(pid: int) -> dict[str, int]:
    """The processes of a split server by name; empty for a server of one process."""
    found = dict[str, int]()
    for one in family(pid):
        name = re.search(rb"--part=([^\0]+)", Path(f"/proc/{one}/cmdline").read_bytes())
        if name is not None:
            found[name[1].decode()] = one
    return found


def processor_s(pid: int) -> float:
    """Seconds that the threads of a process have run."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def resident_mb(pid: int) -> float:
    """Memory of a process and all below it."""
    pages = 0
    for one in family(pid):
        pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
