"""A server with the API of OpenAI over a random Markov model, with the faults that engines' drafts have had."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from functools import cache
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

WORDS = [f" {letter}{other}" for letter in "abcdef" for other in "xyzw"]


@cache
def _logits(context: str) -> NDArray[np.float64]:
    seed = hashlib.blake2b(context.encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(seed, "little")).normal(0, 2.5, len(WORDS))


def _logprobs(context: list[str], offsets: NDArray[np.float64]) -> tuple[NDArray[np.float64], dict[str, float]]:
    """After these texts, and the largest by word."""
    logits = _logits("".join(context[-2:])[-40:]) + offsets
    logprobs = logits - np.logaddexp.reduce(logits)
    return logprobs, {WORDS[one]: float(logprobs[one]) for one in np.argsort(-logprobs)[:5]}


class DraftingServer:
    """`noise`: standard deviation of logits, another in every request, as of batches. `fault`: how drafts go wrong:

    - "stale state": the model does not see the last token (vLLM #39273)
    - "off by one": an accepted token comes twice
    - "dropped": every 500th token is missing
    - "temperature": sampled tokens after the first are greedy
    - "window": a second-best draft is taken where it is likely enough
    - "boundary": a token comes again where a block of 16 begins
    - "greedy": sampled requests are greedy
    - "logprobs": accepted drafts have log-probability 0 and no alternatives (llama.cpp)
    - "seed": seeds have no effect
    - "stop": answers go on after a stop string
    - "usage": rejected drafts are counted
    - "second choice": with n, the second choice is sampled
    - "far logprobs": those of accepted drafts are 0.1 off

    `refuses`: keys of requests, and the longest prompt in characters as a number. `only`: "chats" has no completions,
    "texts" no log-probabilities; "counts" has /metrics, "zeros" too but counts no drafts.
    """

    def __init__(
        self, fault: str = "", noise: float = 0.003, refuses: tuple[str | int, ...] = (), only: str = "", seed: int = 7
    ) -> None:
        self.fault, self.noise, self.refuses, self.only = fault, noise, refuses, only
        self.emitted = self.requests = self.drafted = 0
        self._lock = threading.Lock()
        self._rng = np.random.default_rng(seed)
        self.transport = httpx.MockTransport(self.answer)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """To a request."""
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "markov"}]})
        if request.url.path == "/metrics" and self.only in ("counts", "zeros"):
            self.drafted *= self.only == "counts"
            spec = 'vllm:spec_decode_num_{}_tokens_total{{engine="0"}} {}.0\n'
            return httpx.Response(200, text=spec.format("draft", self.drafted) + spec.format("accepted", self.drafted))
        if request.method != "POST" or (self.only == "chats" and "chat" not in request.url.path):
            return httpx.Response(404)
        body = json.loads(request.content)
        prompt = body.get("prompt") or body["messages"][0]["content"]
        for key in self.refuses:
            if len(prompt) > key if isinstance(key, int) else key in body and (key != "n" or body["n"] > 1):
                return httpx.Response(400, json={"error": {"message": f"{key}: not supported"}})
        with self._lock:
            self.requests += 1
            choices = [self._choice(prompt, body, index) for index in range(body.get("n", 1))]
        counted = sum(len(one["logprobs"]["tokens"]) for one in choices) + (self.fault == "usage")
        for one in choices:
            if self.only == "texts":
                del one["logprobs"]
            elif self.only == "chats":
                content = list[dict[str, Any]]()
                for token, value, top in zip(*one["logprobs"].values(), strict=True):
                    tops = [{"token": word, "logprob": logprob} for word, logprob in top.items()]
                    content.append({"token": token, "logprob": value, "top_logprobs": tops})
                one.update(message={"content": one.pop("text")}, logprobs={"content": content})
        return httpx.Response(200, json={"choices": choices, "usage": {"completion_tokens": counted}})

    def _choice(self, prompt: str, body: dict[str, Any], index: int) -> dict[str, Any]:
        rng = np.random.default_rng((body.get("seed", 0), index, self.requests * (self.fault == "seed")))
        offsets = self._rng.normal(0, self.noise, len(WORDS))
        if body.get("echo"):
            return self._echo(prompt, offsets)
        context, temperature = [prompt], float(body.get("temperature", 1))
        if index and self.fault == "second choice":
            temperature = 1.0
        tokens, values, tops = list[str](), list[float](), list[dict[str, float]]()
        while len(tokens) < body["max_tokens"]:
            drafted = len(tokens) % 3 == 2  # every third token is a draft that was accepted
            seen = context[:-1] if self.fault == "stale state" and drafted and len(tokens) > 8 else context
            token, logprob, top = self._next(seen, temperature, drafted, rng, offsets)
            context.append(token)
            self.emitted += 1
            self.drafted += drafted
            if self.fault == "dropped" and self.emitted % 500 == 0:
                continue
            if self.fault == "logprobs" and drafted:
                logprob, top = 0.0, {}
            if self.fault == "far logprobs" and drafted:
                logprob -= 0.1
            again = self.fault == "off by one" and len(tokens) == 40
            again |= self.fault == "boundary" and len(tokens) % 16 == 15
            for _ in range(1 + again):
                tokens.append(token), values.append(logprob), tops.append(top)
        size = body["max_tokens"]
        text = "".join(tokens[:size])
        for stop in body.get("stop", ()) if self.fault != "stop" else ():
            text = text.split(stop)[0]
        logprobs = {"tokens": tokens[:size], "token_logprobs": values[:size], "top_logprobs": tops[:size]}
        return {"text": text, "finish_reason": "length", "logprobs": logprobs, "index": index}

    def _echo(self, text: str, offsets: NDArray[np.float64]) -> dict[str, Any]:
        """The prompt with the log-probabilities of the words at its end."""
        found = re.search(rf"(?:{'|'.join(WORDS)})*$", text)
        assert found is not None
        context, values, tops = [text[: found.start()]], [None], [{}]
        for word in re.findall(" ..", found[0]):
            logprobs, top = _logprobs(context, offsets)
            values.append(float(logprobs[WORDS.index(word)])), tops.append(top), context.append(word)
        logprobs = {"tokens": context, "token_logprobs": values, "top_logprobs": tops}
        return {"text": text, "finish_reason": "length", "logprobs": logprobs, "index": 0}

    def _next(
        self, context: list[str], temperature: float, drafted: bool, rng: np.random.Generator, offsets: Any
    ) -> tuple[str, float, dict[str, float]]:
        logprobs, top = _logprobs(context, offsets)
        order = np.argsort(-logprobs)
        if temperature == 0 or self.fault == "greedy" or (self.fault == "temperature" and len(context) > 1):
            chosen = order[0]
        elif self.fault == "window" and drafted:
            chosen = order[1] if logprobs[order[1]] > np.log(0.1) else order[0]
        else:
            chosen = rng.choice(len(WORDS), p=np.exp(logprobs))
        return WORDS[chosen], float(logprobs[chosen]), top
