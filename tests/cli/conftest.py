"""A language model in a few lines, in place of a checkpoint: the alphabet a..j, over and over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec_hal import models
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, ModelConfig

CYCLE = "abcdefghij"
VOCABULARY = 256
CONTEXT = 128


class CharDetokenizer:
    def push(self, token_id: int) -> str:
        return chr(token_id)

    def finish(self) -> str:
        return ""


class CharTokenizer:
    eos_token_id = 0
    eos_token_ids = (0,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Any) -> str:
        return "".join(chr(token) for token in ids)

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def detokenizer(self, prompt: Any = (), **options: bool) -> CharDetokenizer:
        return CharDetokenizer()


class CycleModel:
    """After each letter comes the next one, the one after that being the second choice.

    `cheat`: the choice depends on how many tokens the model is given at once, as it never may.
    """

    framework = "none"
    capabilities = ModelCapabilities()

    def __init__(self, *, cheat: bool = False, broken: bool = False) -> None:
        self.cheat, self.broken = cheat, broken
        self.config = ModelConfig(
            vocab_size=VOCABULARY, hidden_size=VOCABULARY, max_position_embeddings=CONTEXT, eos_token_ids=(0,),
        )  # fmt: skip

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None: ...

    def forward(self, batch: ForwardBatch) -> dict[int, Any]:
        hidden = np.zeros((len(batch.token_ids), VOCABULARY), np.float32)
        for segment in batch.segments:
            for at in range(segment.start, segment.start + segment.length):
                step = 2 if self.cheat and segment.length > 1 and segment.position > 0 else 1
                position = CYCLE.find(chr(batch.token_ids[at]))
                hidden[at, ord(CYCLE[(position + step) % len(CYCLE)])] = 5
                hidden[at, ord(CYCLE[(position + step + 1) % len(CYCLE)])] = 3
        return {FINAL_NORM: hidden * np.float32(np.nan) if self.broken else hidden}

    def compute_logits(self, hidden: Any) -> Any:
        return np.array(hidden)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., SimpleNamespace]:
    """Install such a model; gives the options that select it."""
    monkeypatch.setenv("COLUMNS", "200")
    for variable in ("SPECDEC_HAL_BACKEND", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)

    def install(**kind: bool) -> SimpleNamespace:
        monkeypatch.setitem(models.__dict__, "load_model", lambda path, framework="auto", **_: CycleModel(**kind))
        monkeypatch.setitem(models.__dict__, "load_tokenizer", lambda path: CharTokenizer())
        auto = ("--set", f"model.path={tmp_path}", "--set", "backend.name=reference")
        naive, ngram = ((*auto, "--set", f"speculative.method={method}") for method in ("naive", "ngram"))
        ngram = (*ngram, "--set", "speculative.adaptive=false")  # on a busy machine adaptive lengths may be 0
        return SimpleNamespace(auto=auto, naive=naive, ngram=ngram)

    return install
