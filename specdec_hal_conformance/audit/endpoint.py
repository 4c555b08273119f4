"""An endpoint with the API of OpenAI: greedy and sampled answers with the log-probabilities of their tokens."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from specdec_hal.errors import SpecDecError

TOP = 5
"""Alternatives of each token."""


class EndpointError(SpecDecError):
    """The endpoint cannot be reached, or fails."""


class RefusedError(EndpointError):
    """The endpoint refuses a request: 4xx, or cannot do what is asked."""


class Token(NamedTuple):
    """A token's text, its log-probability, and those of the most likely tokens."""

    text: str
    logprob: float | None
    top: dict[str, float]


class Answer(NamedTuple):
    """One choice. `tokens` is empty where the endpoint reports none. `drafts`: drafted and accepted, if it says so.
    `seconds`: of the request.
    """

    text: str
    tokens: list[Token]
    finish_reason: str
    completion_tokens: int | None
    drafts: tuple[int, int] | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Answer:
        """From its form in a file."""
        tokens = [Token(text, logprob, dict(top)) for text, logprob, top in data["tokens"]]
        drafts = data["drafts"] and tuple(data["drafts"])
        seconds = data.get("seconds", 0.0)
        return cls(data["text"], tokens, data["finish_reason"], data["completion_tokens"], drafts, seconds)

    def document(self) -> dict[str, Any]:
        """For a file."""
        return self._asdict()


class Endpoint:
    """`url`: of the server or its /v1. `extra`: keys for the body of every request. `transport`: httpx's, for tests.
    `wait`: seconds that the server may take to start.

    Asks for completions; for chats of one message where the server has only those.
    """

    foreign = False
    """Whether its answers are another engine's than those of the drafted side."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        extra: Mapping[str, Any] | None = None,
        wait: float = 0.0,
        transport: Any = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise SpecDecError("audit: httpx is not installed (pip install 'specdec-hal[audit]')") from error
        self.url = url.rstrip("/").removesuffix("/v1")
        self.extra = dict(extra or {})
        self._errors = httpx.HTTPError
        self._client = httpx.Client(base_url=self.url, timeout=600, transport=transport)
        self._await(time.monotonic() + wait)
        self.model = model or self._only_model()
        self._chats, self._logprobs = self._forms()

    def _await(self, until: float) -> None:
        """Until the server answers that it is ready, or for so long; the next request says what is wrong."""
        while time.monotonic() < until:
            try:
                if self._client.get("/v1/models").status_code != 503:
                    return
            except self._errors:
                pass
            time.sleep(0.2)

    def _only_model(self) -> str:
        data = self.send("GET", "/v1/models")["data"]
        if not data:
            raise EndpointError(f"{self.url}: lists no model; name one by --model")
        return str(data[0]["id"])

    def _forms(self) -> tuple[bool, bool]:
        """Whether there are only chats, and whether log-probabilities may be asked for."""
        refused = list[RefusedError]()
        for self._chats, self._logprobs in itertools.product((False, True), (True, False)):
            try:
                self.complete("a", 1, temperature=0)
                return self._chats, self._logprobs
            except RefusedError as error:
                refused.append(error)
        raise refused[0]

    def asked(self, prompt: str, max_tokens: int, **more: Any) -> tuple[str, dict[str, Any]]:
        """Path and body of a question."""
        if self._chats:
            return self.asked_chat(prompt, max_tokens, **more)
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens}
        return "/v1/completions", {**body, **({"logprobs": TOP} if self._logprobs else {}), **more, **self.extra}

    def asked_chat(self, prompt: str, max_tokens: int, **more: Any) -> tuple[str, dict[str, Any]]:
        """Path and body of a chat of one message."""
        messages = [{"role": "user", "content": prompt}]
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens}
        logprobs = {"logprobs": True, "top_logprobs": TOP} if self._logprobs else {}
        return "/v1/chat/completions", {**body, **logprobs, **more, **self.extra}

    def complete(self, prompt: str, max_tokens: int, **more: Any) -> list[Answer]:
        """The choices of an answer."""
        return _answers(self.send("POST", *self.asked(prompt, max_tokens, **more)))

    def chat(self, prompt: str, max_tokens: int, **more: Any) -> list[Answer]:
        """The choices of a chat of one message."""
        return _answers(self.send("POST", *self.asked_chat(prompt, max_tokens, **more)))

    def score(self, prompt: str, answer: Answer, near: float) -> list[Token]:
        """The answer's tokens with the log-probabilities that the server gives them as a part of a prompt, in which
        nothing is drafted. `near`: see :meth:`local.Local.score`. Empty if the server splits that text otherwise.
        RefusedError if it does not echo prompts.
        """
        if self._chats or not answer.tokens:
            raise RefusedError(f"{self.url}: has no echo with log-probabilities")
        found = self.complete(prompt + answer.text, 0, echo=True, temperature=0)[0].tokens
        if len(found) <= len(answer.tokens):
            raise RefusedError(f"{self.url}: does not echo the log-probabilities of a prompt")
        for tokens in (answer.tokens, answer.tokens[:-1]):  # the last may be the end token
            scored = found[len(found) - len(tokens) :]
            if [one.text for one in scored] == [one.text for one in tokens]:
                return scored
        return []

    def abandon(self, prompt: str, max_tokens: int) -> None:
        """Begin a streamed answer and close the connection after its first bytes."""
        path, body = self.asked(prompt, max_tokens, stream=True, temperature=0)
        try:
            with self._client.stream("POST", path, json=body) as answer:
                next(answer.iter_bytes(), b"")
        except self._errors as error:
            raise EndpointError(f"{self.url}: {error}") from error

    def metrics(self) -> dict[str, float]:
        """Sums of the series of /metrics by name; empty without them."""
        try:
            answer = self._client.get("/metrics")
        except self._errors:
            return {}
        sums = dict[str, float]()
        for line in answer.text.splitlines() if answer.status_code == 200 else ():
            if found := re.match(r"([a-zA-Z_:][\w:]*)(?:{.*})? ([-+.\deE]+)$", line):
                sums[found[1]] = sums.get(found[1], 0.0) + float(found[2])
        return sums

    def drafts(self) -> tuple[int, int] | None:
        """Drafted and accepted tokens up to now, by the names of vLLM; None where they are not counted."""
        counts = {name.partition("spec_decode_num_")[2]: value for name, value in self.metrics().items()}
        names = ("draft_tokens_total", "accepted_tokens_total")
        return (int(counts[names[0]]), int(counts[names[1]])) if counts.keys() >= set(names) else None

    def curl(self, path: str, body: Mapping[str, Any]) -> str:
        """The command that sends this body."""
        data = shlex.quote(json.dumps(body, ensure_ascii=False))
        return f"curl -s {self.url}{path} -H 'Content-Type: application/json' -d {data}"

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON of an answer. EndpointError if there is none, RefusedError for a status of 400 to 499."""
        try:
            answer = self._client.request(method, path, json=body)
        except self._errors as error:
            raise EndpointError(f"{self.url}: {type(error).__name__}: {error}; is the server running?") from error
        if 400 <= answer.status_code < 500:
            raise RefusedError(f"{self.url}{path}: status {answer.status_code}: {_message(answer.text)}")
        if answer.status_code != 200:
            raise EndpointError(f"{self.url}{path}: status {answer.status_code}: {_message(answer.text)}")
        try:
            data: dict[str, Any] = answer.json()
        except ValueError as error:
            raise EndpointError(f"{self.url}{path}: expected JSON, got {answer.text[:80]!r}") from error
        return data


def _message(text: str) -> str:
    try:
        found = json.loads(text)
        return str(found.get("error", found).get("message", text))[:200]
    except (ValueError, AttributeError):
        return text[:200]


def _answers(data: Mapping[str, Any]) -> list[Answer]:
    usage, timings = data.get("usage") or {}, data.get("timings") or {}
    drafts = None
    if "draft_n" in timings:
        drafts = int(timings["draft_n"]), int(timings.get("draft_n_accepted", 0))
    choices = data.get("choices") or []
    counted = usage.get("completion_tokens") if len(choices) == 1 else None
    return [_answer(choice, counted, drafts) for choice in choices]


def _answer(choice: Mapping[str, Any], counted: int | None, drafts: tuple[int, int] | None) -> Answer:
    text = choice.get("text")
    if text is None:
        text = (choice.get("message") or {}).get("content") or ""
    return Answer(text, _tokens(choice.get("logprobs") or {}), choice.get("finish_reason") or "", counted, drafts)


def _tokens(logprobs: Mapping[str, Any]) -> list[Token]:
    """Of the completions' form (tokens, token_logprobs, top_logprobs) or of the chats' (content)."""
    if (content := logprobs.get("content")) is not None:
        return [Token(one["token"], one.get("logprob"), _top(one.get("top_logprobs"))) for one in content]
    texts = logprobs.get("tokens") or []
    values = logprobs.get("token_logprobs") or [None] * len(texts)
    tops = logprobs.get("top_logprobs") or [None] * len(texts)
    return [Token(text, value, dict(top or {})) for text, value, top in zip(texts, values, tops, strict=True)]


def _top(entries: list[dict[str, Any]] | None) -> dict[str, float]:
    return {one["token"]: one["logprob"] for one in entries or ()}
