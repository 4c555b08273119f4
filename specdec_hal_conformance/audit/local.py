"""The target in `transformers`, in this process: a plain side that is not of the audited engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specdec_hal.errors import ConfigError, SpecDecError
from specdec_hal.models import load_tokenizer
from specdec_hal_conformance.audit.endpoint import TOP, Answer, Endpoint, RefusedError, Token

MOST_TRIED = 200
"""Most likely tokens in which one that continues a text is looked for."""


class Local(Endpoint):
    """`folder`: a checkpoint, computed in its own dtype. Answers as `like` asks: completions, or chats."""

    foreign = True

    def __init__(self, folder: Path, like: Endpoint | None = None) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise SpecDecError(
                f"--model-path: {error.name} is not installed (pip install torch transformers)"
            ) from error
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
        except (OSError, ValueError) as error:
            raise ConfigError(f"--model-path {folder}: expected a checkpoint of transformers: {error}") from error
        self._bytes = load_tokenizer(folder).token_bytes
        self._torch, self._lock = torch, threading.Lock()
        self.url = self.model = str(folder)
        self.extra: dict[str, Any] = {}
        self._chats, self._logprobs = like is not None and like._chats, True
        named = self._model.generation_config.eos_token_id
        self._ends = set(named if isinstance(named, list) else [named])

    def abandon(self, prompt: str, max_tokens: int) -> None:
        """Nothing: there is no client that could leave."""

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def score(self, prompt: str, answer: Answer, near: float) -> list[Token]:
        """The tokens that make the answer's text: the most likely ones if those do, else others that are up to `near`
        nats less likely, else the most likely one that does, with which the list ends. An end token is the last.
        """
        text, at, scored = answer.text.rstrip("\ufffd").encode(), 0, list[Token]()
        with self._lock, self._torch.inference_mode():
            rows, cache = self._torch.tensor([self._ids(prompt, self._chats)]), None
            while at < len(text) or answer.finish_reason == "stop":
                result = self._model(rows, past_key_values=cache, use_cache=True)
                cache, logprobs = result.past_key_values, result.logits[0, -1].float().log_softmax(-1)
                values, ids = (one.tolist() for one in logprobs.topk(min(MOST_TRIED, len(logprobs))))
                fits = self._ends.__contains__ if at == len(text) else partial(self._continues, text, at)
                rank = next((rank for rank, one in enumerate(ids) if fits(one)), len(ids) - 1)
                piece = self._bytes(ids[rank]) if at < len(text) and fits(ids[rank]) else b""
                scored.append(Token(piece.decode(errors="replace"), values[rank], self._top(logprobs)))
                if not piece or values[0] - values[rank] > near:
                    break
                at, rows = at + len(piece), self._torch.tensor([[ids[rank]]])
        return scored

    def _continues(self, text: bytes, at: int, token: int) -> bool:
        return token not in self._ends and bool(piece := self._bytes(token)) and text.startswith(piece, at)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer of a server to a completion or a chat."""
        body = body or {}
        if "response_format" in body:
            raise RefusedError("--model-path: response_format is not supported")
        chat = "messages" in body
        with self._lock, self._torch.inference_mode():
            ids = self._ids(body["messages"][0]["content"] if chat else body["prompt"], chat)
            limit = getattr(self._model.config, "max_position_embeddings", None)
            if limit is not None and len(ids) + body["max_tokens"] > limit:
                raise RefusedError(
                    f"--model-path: a prompt of {len(ids)} tokens, its answer and {limit} tokens at most"
                )
            choices = [self._choice(ids, body, index) for index in range(body.get("n", 1))]
        counted = sum(len(one["logprobs"]["tokens"]) for one in choices)
        return {"choices": choices, "usage": {"completion_tokens": counted}}

    def _choice(self, ids: list[int], body: Mapping[str, Any], index: int) -> dict[str, Any]:
        torch, sampled = self._torch, body.get("temperature", 1) > 0
        torch.manual_seed(body.get("seed", 0) + index)
        explicit = self._model.generation_config.to_diff_dict()
        how = {"temperature": float(body.get("temperature", 1)), "top_k": explicit.get("top_k", 0)} if sampled else {}
        rows = torch.tensor([ids])
        result = self._model.generate(
            rows, attention_mask=torch.ones_like(rows), max_new_tokens=body["max_tokens"], do_sample=sampled,
            output_logits=True, return_dict_in_generate=True, **how,
        )  # fmt: skip
        made = result.sequences[0, len(ids) :].tolist()
        tokens = list(self._tokens(made, [row[0].float().log_softmax(-1) for row in result.logits]))
        text = "".join(one.text for one in tokens)
        ended = made[-1] in self._ends
        for stop in body.get("stop", ()):
            text, ended = text.split(stop)[0], ended or stop in text
        return {
            "text": text, "finish_reason": "stop" if ended else "length",
            "logprobs": {
                "tokens": [one.text for one in tokens], "token_logprobs": [one.logprob for one in tokens],
                "top_logprobs": [one.top for one in tokens],
            },
        }  # fmt: skip

    def _tokens(self, made: list[int], logprobs: list[Any]) -> Iterator[Token]:
        """A token in the middle of a character has no text; the last of the character has it."""
        rest = b""
        for one, row in zip(made, logprobs, strict=True):
            rest += b"" if one in self._ends else self._bytes(one)
            text = "" if _in_character(rest) else rest.decode(errors="replace")
            rest = b"" if text else rest
            yield Token(text, float(row[one]), self._top(row))

    def _top(self, logprobs: Any) -> dict[str, float]:
        values, ids = (one.tolist() for one in logprobs.topk(TOP))
        return {self._bytes(one).decode(errors="replace"): value for one, value in zip(ids, values, strict=True)}

    def _ids(self, prompt: str, chat: bool) -> list[int]:
        if not chat:
            return list(self.tokenizer(prompt)["input_ids"])
        messages = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _in_character(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False
