"""Clients of a server that is disturbed: threads that ask one request after the other, and see what comes of each."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Answer:
    """What a client has received of a completion."""

    text: str = ""
    seed: int | None = None
    prompt_logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    error: int | None = None
    whole: bool = False

    @property
    def outcome(self) -> str:
        if self.error is not None:
            return f"error {self.error}"
        if not self.whole:
            return "connection lost"
        return "ended" if self.finish_reason == "abort" else "whole"

    def take(self, event: dict[str, Any]) -> None:
        """An event of a stream, or the body of an answer."""
        if "error" in event:
            self.error = self.error or int(event["error"]["code"])
            return
        (choice,) = event["choices"]
        self.text += choice["text"]
        self.seed = choice.get("seed", self.seed)
        self.prompt_logprobs += choice.get("prompt_logprobs", [])
        self.finish_reason = choice["finish_reason"]


def ask(http: httpx.Client, body: dict[str, Any], *, stream: bool) -> Answer:
    """A completion. Raises httpx.TransportError where the connection breaks outside of a stream's events."""
    found = Answer()
    if not stream:
        found.take(http.post("/v1/completions", json=body).json())
        found.whole = found.error is None
        return found
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                found.whole = True
            elif data:
                found.take(json.loads(data))
    return found


class Clients:
    """Threads that ask requests of `numbers`: `body(number)` is one, `check(number, answer)` says what is wrong.

    `outcomes` counts what came of them, `findings` is what was wrong.
    """

    def __init__(
        self, url: str, count: int, seed: int, numbers: int, body: Callable[[int], dict[str, Any]],
        check: Callable[[int, Answer], list[str]], timeout_s: float,
    ) -> None:  # fmt: skip
        self.outcomes, self.findings = Counter[str](), list[str]()
        self._url, self._seed, self._numbers, self._timeout_s = url, seed, numbers, timeout_s
        self._body, self._check = body, check
        self._done = threading.Event()
        self.since: list[float | None] = [None] * count
        """When each client sent the request that it waits for."""
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._done.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def answered(self, before: float) -> bool:
        """Whether all requests sent before that time have an answer."""
        return all(since is None or since > before for since in self.since)

    def _run(self, client: int) -> None:
        rng = random.Random(self._seed * 1000 + client)
        with httpx.Client(base_url=self._url, timeout=self._timeout_s) as http:
            while not self._done.is_set():
                number, stream = rng.randrange(self._numbers), rng.random() < 0.7
                self.since[client] = time.monotonic()
                try:
                    answer = ask(http, self._body(number), stream=stream)
                except httpx.TimeoutException:
                    self.findings.append(f"request {number}: no answer within {self._timeout_s:g} s")
                    answer = Answer()
                except httpx.TransportError:
                    answer = Answer()
                self.since[client] = None
                self.outcomes[answer.outcome] += 1
                self.findings += [f"request {number}: {what}" for what in self._check(number, answer)]
                if answer.outcome != "whole":
                    time.sleep(0.02)


def differs(expected: str, answer: Answer) -> list[str]:
    """Whether the text of an answer is not the expected one, or not a beginning of it where it has not come whole."""
    if answer.text == expected if answer.outcome == "whole" else expected.startswith(answer.text):
        return []
    return [f"expected {'' if answer.outcome == 'whole' else 'a beginning of '}{expected!r}, got {answer.text!r}"]
