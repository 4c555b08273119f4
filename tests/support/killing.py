"""Kills the processes of a split server at random moments under load, and holds every answer against plain decoding."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from specdec_hal.runner import SamplingParams
from specdec_hal.serve.split import addresses
from tests.support.decoding import plain_decoding, scored_prompt
from tests.support.history_model import END, LetterTokenizer
from tests.support.load import Answer, Clients, differs
from tests.support.processes import descendants

SCRIPT = Path(__file__).with_name("split_server.py")
HANGS_S = 40.0
"""Without a byte from the server; restarts take a second or two."""


class Server:
    """The processes of a split server."""

    def __init__(self, supervisor: subprocess.Popen[str], url: str, slow: Path) -> None:
        self.supervisor, self.url, self._slow = supervisor, url, slow

    def slow_down(self) -> None:
        """From now on no request ends for some 20 s."""
        self._slow.touch()

    def part(self, name: str) -> int | None:
        """The process of that name, if it is there now."""
        return next(iter(descendants(self.supervisor.pid, f"\0{name}\0")), None)

    def kill(self, name: str, how: int = signal.SIGKILL) -> bool:
        """Send a signal; False if it is not there."""
        pid = self.part(name)
        if pid is None:
            return False
        os.kill(pid, how)
        return True

    def until_ready(self) -> None:
        """Until new requests may come."""
        end = time.monotonic() + HANGS_S
        while time.monotonic() < end:
            try:
                if httpx.get(f"{self.url}/ready", timeout=HANGS_S).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError("the server has not come back")


@contextmanager
def split_server(http_workers: int = 2, **serve: Any) -> Iterator[Server]:
    """`serve`: more keys of the section."""
    command = [sys.executable, str(SCRIPT), json.dumps({"http_workers": http_workers, **serve})]
    with TemporaryDirectory() as folder, subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE,
        env={**os.environ, "SPECDEC_TEST_SLOW": f"{folder}/slow"},
    ) as supervisor:  # fmt: skip
        try:
            assert supervisor.stdout is not None and supervisor.stderr is not None
            threading.Thread(target=supervisor.stderr.read, daemon=True).start()
            yield Server(supervisor, supervisor.stdout.readline().strip(), Path(folder, "slow"))
            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(30) == 0
        finally:
            supervisor.kill()


def wanted(number: int) -> tuple[dict[str, Any], Callable[[int | None], str], list[int | None]]:
    """A request's body, the text that it must get with the seed that its answer reports, and the ranks of its prompt's
    tokens."""
    rng = random.Random(number)
    prompt = [rng.randrange(1, 24) for _ in range(rng.randint(1, 6))] * 2
    sampling: dict[str, Any] = {"temperature": rng.choice([0.0, 0.9])}
    own = {"seed": number} if rng.random() < 0.5 else {}
    stop = rng.choice([[], [], ["ab"], ["g"]])
    bias = rng.choice([{}, {5: 2.0, 9: -3.0}])

    def text(seed: int | None) -> str:
        params = SamplingParams(max_new_tokens=40, stop=stop, logit_bias=bias, seed=own.get("seed", seed), **sampling)
        found = LetterTokenizer().decode([token for token in plain_decoding(prompt, params).tokens if token != END])
        for end in stop:
            found = found.split(end)[0]
        return found

    body = {"prompt": prompt, "max_tokens": 40, "stop": stop, "logprobs": rng.choice([None, 2]), **sampling, **own}
    body |= {"logit_bias": bias, "prompt_logprobs": rng.choice([None, 0, 1])}
    return body, text, [entry and entry.rank for entry in scored_prompt(prompt, body["prompt_logprobs"])]


def check(number: int, answer: Answer) -> list[str]:
    """What of an answer is not that of plain decoding."""
    body, text, ranks = wanted(number)
    if answer.outcome == "connection lost":
        return []
    found = differs(text(answer.seed), answer)
    pairs = zip(body["prompt"], answer.prompt_logprobs, strict=False)
    got = [entry and entry[str(token)]["rank"] for token, entry in pairs]
    if answer.error is None and got != ranks:
        found.append(f"expected the prompt's ranks {ranks}, got {got}")
    return found


def kill_under_load(kills: int, clients: int, seed: int, http_workers: int = 2) -> tuple[Counter[str], list[str]]:
    """What came of the requests, and what was wrong with any."""
    rng, names = random.Random(seed), addresses.parts(http_workers)
    with split_server(http_workers) as server:
        server.until_ready()
        load = Clients(server.url, clients, seed, 200, lambda number: wanted(number)[0], check, HANGS_S)
        try:
            for number in range(kills):
                time.sleep(rng.uniform(0.05, 0.5))
                name = names[number] if kills <= len(names) else rng.choice(names)
                while not server.kill(name):
                    time.sleep(0.01)
                if rng.random() < 0.7:
                    server.until_ready()
            server.until_ready()
            time.sleep(0.5)
        finally:
            load.stop()
            load.join()
    return load.outcomes, load.findings
