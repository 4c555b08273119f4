"""A server with the API of OpenAI over a random Markov model, with the faults that engines' drafts have had."""

from __future__ import annotations

import hashlib
import json
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
    """

    def __init__(self, fault: str = "", noise: float = 0.003, refuses: tuple[str, ...] = ()) -> None:
        self.fault, self.noise, self.refuses = fault, noise, refuses
        self.emitted = self.requests = 0
        self._lock = threading.Lock()
        self._rng = np.random.default_rng(7)
        self.transport = httpx.MockTransport(self.answer)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """To a request."""
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "markov"}]})
        if request.method != "POST":
            return httpx.Response(404)
        body = json.loads(request.content)
        if refused := next((key for key in self.refuses if key in body and (key != "n" or body["n"] > 1)), None):
            return httpx.Response(400, json={"error": {"message": f"{refused}: not supported"}})
        with self._lock:
            self.requests += 1
            prompt = body.get("prompt") or body["messages"][0]["content"]
            choices = [self._choice(prompt, body, index) for index in range(body.get("n", 1))]
        counted = sum(len(one["logprobs"]["tokens"]) for one in choices)
        return httpx.Response(200, json={"choices": choices, "usage": {"completion_tokens": counted}})

    def _choice(self, prompt: str, body: dict[str, Any], index: int) -> dict[str, Any]:
        rng = np.random.default_rng((body.get("seed", 0), index))
        offsets = self._rng.normal(0, self.noise, len(WORDS))
        context, temperature = [prompt], float(body.get("temperature", 1))
        tokens, values, tops = list[str](), list[float](), list[dict[str, float]]()
        while len(tokens) < body["max_tokens"]:
            drafted = len(tokens) % 3 == 2  # every third token is a draft that was accepted
            seen = context[:-1] if self.fault == "stale state" and drafted and len(tokens) > 8 else context
            token, logprob, top = self._next(seen, temperature, drafted, rng, offsets)
            context.append(token)
            self.emitted += 1
            if self.fault == "dropped" and self.emitted % 500 == 0:
                continue
            if self.fault == "logprobs" and drafted:
                logprob, top = 0.0, {}
            again = self.fault == "off by one" and len(tokens) == 40
            again |= self.fault == "boundary" and len(tokens) % 16 == 15
            for _ in range(1 + again):
                tokens.append(token), values.append(logprob), tops.append(top)
        size = body["max_tokens"]
        text = "".join(tokens[:size])
        for stop in body.get("stop", ()):
            text = text.split(stop)[0]
        logprobs = {"tokens": tokens[:size], "token_logprobs": values[:size], "top_logprobs": tops[:size]}
        return {"text": text, "finish_reason": "length", "logprobs": logprobs, "index": index}

    def _next(
        self, context: list[str], temperature: float, drafted: bool, rng: np.random.Generator, offsets: Any
    ) -> tuple[str, float, dict[str, float]]:
        logits = _logits("".join(context[-2:])[-40:]) + offsets
        logprobs = logits - np.logaddexp.reduce(logits)
        order = np.argsort(-logprobs)
        if temperature == 0 or self.fault == "greedy" or (self.fault == "temperature" and len(context) > 1):
            chosen = order[0]
        elif self.fault == "window" and drafted:
            chosen = order[1] if logprobs[order[1]] > np.log(0.1) else order[0]
        else:
            chosen = rng.choice(len(WORDS), p=np.exp(logprobs))
        top = {WORDS[one]: float(logprobs[one]) for one in order[:5]}
        return WORDS[chosen], float(logprobs[chosen]), top
