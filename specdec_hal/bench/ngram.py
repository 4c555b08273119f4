"""N-gram look-up: the five groups of FastDeploy's pull requests #6960, #7103, #7136, and more.

Vocabulary 10..499 at random, n-grams of 3 to 1 tokens, 10 drafts; 20 generated tokens. A hit has the last three of them
planted elsewhere, followed by ten others. Targets and figures of other implementations were measured in another run on
an H200; FastDeploy's rule is LEFTMOST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specdec_hal.bench.case import Case, OpCall, WarmCold, alone

DRAFTS = 10
GENERATED = 20
_KEY, _FOLLOWING = (1001, 1002, 1003), tuple(range(2001, 2011))
_PLANTED = len(_KEY) + len(_FOLLOWING)
_FAR = 1 << 20

_BY_BOTH = ("latency", "length", "hit type", "extreme")
"""Groups that both policies search."""
KINDS = ("high_input", "low_input", "high_pre", "low_pre", "none")
"""Where the match lies: early or late in the prompt, early or late in the generated tokens, nowhere."""


@dataclass(frozen=True)
class Text:
    """A batch of histories: prompts of `length` tokens."""

    slots: int
    length: int
    kind: str
    budget: int
    policy: str = "LEFTMOST"

    @property
    def column(self) -> int | None:
        """Column of the match."""
        at = {"high_input": 5, "low_input": self.length - 18, "high_pre": self.length, "low_pre": self.length + 4}
        return at.get(self.kind)

    @property
    def moved(self) -> int:
        """Bytes that a search must read: from where the policy starts to the match."""
        end = self.length + GENERATED
        if self.column is None:
            tokens = end
        elif self.policy == "LATEST":
            tokens = end - self.column
        else:
            tokens = self.column + len(_KEY)
        return 8 * self.slots * tokens


_PEERS: Mapping[tuple[int, int, str], tuple[WarmCold, dict[str, WarmCold]]] = {
    (32, 512, "low_input"): ((3.4, 7.2), {"FastDeploy": (7.4, 11.5), "vLLM V2, L 1,024": (3.6, 7.5)}),
    (16, 16_384, "low_input"): ((4.7, 8.5), {"FastDeploy": (11.4, 19.1), "vLLM V2, B 32, L 8,192": (4.7, 8.0)}),
    (16, 131_072, "low_input"): ((9, 15), {"FastDeploy": (40.9, 73.8)}),
    (16, 32_768, "none"): ((5, 9), {"FastDeploy": (29.0, 39.6)}),
    (128, 16_384, "low_input"): ((8, 14), {"FastDeploy": (12.4, 22.0), "vLLM V2, L 8,192": (8.7, 12.5)}),
    (512, 16_384, "low_input"): ((22, 28), {"FastDeploy": (35.4, 45.8), "vLLM V2, L 8,192": (24.7, 28.8)}),
    (256, 131_072, "low_input"): ((68, 78), {"FastDeploy": (83.5, 95.1)}),
    (256, 131_072, "none"): ((68, 78), {"FastDeploy": (224.8, 235.3)}),
}  # fmt: skip
"""Targets, and figures of other implementations, in us (warm, cold)."""


def cases(quick: bool) -> Iterator[Case]:
    """Every text, most with both policies."""
    for group, text in _quick_texts() if quick else _texts():
        for policy in ("LEFTMOST", "LATEST") if group in _BY_BOTH else ("LEFTMOST",):
            yield _search(group, replace(text, policy=policy))


def _quick_texts() -> Iterator[tuple[str, Text]]:
    yield "latency", Text(32, 512, "low_input", 128)
    yield "length", Text(4, 4096, "low_input", 512)


def _texts() -> Iterator[tuple[str, Text]]:
    yield "latency", Text(32, 512, "low_input", 128)
    for length in (1024, 4096, 16_384, 65_536, 131_072):
        yield "length", Text(16, length, "low_input", 512)
    yield "length", Text(32, 8192, "low_input", 512)
    for slots in (1, 8, 32, 128, 512):
        yield "batch", Text(slots, 16_384, "low_input", 8192)
    for kind in KINDS:
        yield "hit type", Text(16, 32_768, kind, 512)
    for slots, group in ((8, "budget"), (128, "budget and batch")):
        for budget in (16, 32, 64, 128, 256):
            yield group, Text(slots, 32_768, "low_input", budget)
    for kind in ("low_input", "none"):
        for budget in (8192, 16_384):
            yield "extreme", Text(256, 131_072, kind, budget)
    for slots in (32, 128, 256, 512, 1024):
        yield "scaling", Text(slots, 512, "low_input", 8192)


def _search(group: str, text: Text) -> Case:
    def call(seed: int) -> OpCall:
        return OpCall("ngram_match", _inputs(text, seed))

    target, peers = _PEERS.get((text.slots, text.length, text.kind), ((None, None), {}))
    label = f"search, {text.policy}, B {text.slots}, L {text.length:,}, {text.kind}, budget {text.budget:,}"
    params = {
        "form": "search", "policy": text.policy, "B": text.slots, "L": text.length, "kind": text.kind,
        "token_budget": text.budget,
    }  # fmt: skip
    return Case(label, group, alone(call), text.moved, target, peers, params)


def _inputs(text: Text, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    m, end = text.slots, text.length + GENERATED
    rows = rng.integers(10, 500, (m, end), dtype=np.int64)
    if text.column is not None:
        rows[:, text.column : text.column + _PLANTED] = _KEY + _FOLLOWING
    rows[:, end - len(_KEY) :] = _KEY
    return {
        "token_ids_all": rows,
        "prompt_lens": np.full(m, text.length, np.int64),
        "step_idx": np.full(m, GENERATED, np.int64),
        "draft_token_num": np.full(m, DRAFTS, np.int32),
        "seq_lens_encoder": np.zeros(m, np.int32),
        "seq_lens_decoder": np.full(m, end, np.int32),
        "max_dec_len": np.full(m, _FAR, np.int64),
        "draft_tokens": rng.integers(10, 500, (m, DRAFTS + 1), dtype=np.int64),
        "seq_lens_this_time": np.ones(m, np.int32),
        "token_budget": text.budget,
        "match_policy": text.policy,
        "pad_to_max": False,
        "max_ngram_size": 3,
        "min_ngram_size": 1,
    }
