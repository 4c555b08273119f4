"""Draft models with other token ids: what both have is found by bytes, and decodes keep the target's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.errors import UnsupportedError
from specdec_hal.plugin.model import ModelConfig
from specdec_hal.proposers.vocabulary import intersection, padded, same_tokens
from specdec_hal.runner import RequestOutput, SamplingParams, build_runner
from specdec_hal_conformance.statistics import ALPHA, g_test
from tests.proposers.conftest import registry_with_draft_model
from tests.support.decoding import outputs_of
from tests.support.joint import FILTERS, PROMPT, TARGET, joint
from tests.support.markov_model import MarkovModel


class Words:
    """A tokenizer whose tokens are these bytes; it encodes greedily, the longest token first."""

    def __init__(self, *tokens: bytes, special: Sequence[int] = ()) -> None:
        self.tokens, self.vocab_size, self.special_ids = tokens, len(tokens), frozenset(special)

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id] if token_id < self.vocab_size else b""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        rest, found = text.encode(), list[int]()
        while rest:
            fitting = [i for i, token in enumerate(self.tokens) if token and rest.startswith(token)]
            if not fitting:
                return []
            found.append(max(fitting, key=lambda i: len(self.tokens[i])))
            rest = rest[len(self.tokens[found[-1]]) :]
        return found


def sizes(count: int, eos: int | None = None, positions: int = 32) -> ModelConfig:
    ends = () if eos is None else (eos,)
    return ModelConfig(vocab_size=count, hidden_size=count, max_position_embeddings=positions, eos_token_ids=ends)


def test_tokens_are_matched_by_bytes() -> None:
    """Parts of characters too; special tokens only with their like; the first of several; others are spelled."""
    target = Words(b"a", b"ab", b"\xc3", b"abc", b"</s>", b"<pad>", b"a", b"zzz", b"\xff", special=(4, 5))
    own = Words(b"</s>", b"\xc3", b"ab", b"c", b"a", b"ab", b"<pad>", special=(0,))
    found = intersection(sizes(9, eos=4), sizes(8, eos=0), target, own)  # type: ignore[arg-type]
    assert len(found) == 4
    assert found.read([0, 1, 2, 4]) == [4, 2, 1, 0]
    assert found.read([3, 5, 7, 8, 6]) == [2, 3, 0, 0, 0, 4]
    assert found.target_to_draft.tolist() == [4, 2, 1, -1, 0, -1, -1, -1, -1]


def test_ends_of_other_names_are_the_same() -> None:
    target, own = Words(b"a", b"<end>", special=(1,)), Words(b"</s>", b"a", special=(0,))
    found = intersection(sizes(2, eos=1), sizes(2, eos=0), target, own)  # type: ignore[arg-type]
    assert found.read([0, 1]) == [1, 0]


@pytest.mark.parametrize(("size", "more"), [(6, 4), (4, 6)])
def test_padding_is_never_drafted(size: int, more: int) -> None:
    tokens = Words(b"a", b"b", b"c"), Words(b"a", b"b", b"c", b"")
    assert same_tokens(*tokens)  # type: ignore[arg-type]
    found = padded(sizes(size), sizes(more))
    assert found.read([0, 3]) == [0, 3]
    assert found.target_to_draft.tolist() == [0, 1, 2, 3, -1, -1][:size]


LETTERS = Words(b"a", b"b", b"c", b"d")
# A token less than the target, two more, and in another order.
LACKING, PAIRS = Words(b"d", b"x", b"b", b"yy", b"a"), {0: 4, 1: 2, 3: 0}
PERMUTED = Words(b"d", b"b", b"c", b"a")


def decode(
    monkeypatch: pytest.MonkeyPatch, draft: MarkovModel, words: Any, requests: int, **params: Any
) -> tuple[list[RequestOutput], dict[str, Any]]:
    """`params`: strategy, method, and those of requests."""
    monkeypatch.setattr("specdec_hal.proposers.draft_model.load_tokenizer", lambda path: words)
    registry = registry_with_draft_model(lambda: draft, LETTERS)
    speculative: dict[str, Any] = {
        "method": params.pop("method", "imitation"),
        "num_speculative_tokens": 3,
        "adaptive": False,
    }
    if speculative["method"] == "imitation":
        speculative |= {"imitation": {"path": "nowhere"}, "verify_strategy": params.pop("strategy", "target_match")}
    config = parse({"runner": {"max_num_seqs": 50, "prefill_chunk": 4}, "speculative": speculative}, registry=registry)
    runner = build_runner(config, ReferenceBackend(), MarkovModel(TARGET), registry=registry)
    asked = [(PROMPT, SamplingParams(seed=seed, return_drafts=True, **params)) for seed in range(requests)]
    outputs = outputs_of(runner, *asked)
    assert runner.summary()["failed_proposals"] == runner.summary()["dropped_drafts"] == 0
    return outputs, runner.summary()


def lacking_model() -> MarkovModel:
    table = np.zeros((5, 5))
    for a, own in PAIRS.items():
        for b, other in PAIRS.items():
            table[own, other] = TARGET[a, b] + 0.3 * (a - b)
    return MarkovModel(table)


@pytest.mark.parametrize("strategy", ["target_match", "rejection"])
def test_the_distribution_is_the_targets(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    outputs, summary = decode(
        monkeypatch, lacking_model(), LACKING, 400, strategy=strategy, max_new_tokens=5, **FILTERS
    )
    counts = np.zeros((4, 4, 4))
    for output in outputs:
        counts[tuple(output.token_ids[:3])] += 1
    assert 0.2 < summary["acceptance_rate"] < 1
    assert g_test(counts, joint()) > ALPHA
    assert all(2 not in round_.token_ids for output in outputs for round_ in output.drafts)
    if strategy == "target_match":
        plain, _ = decode(monkeypatch, lacking_model(), LACKING, 400, method="naive", max_new_tokens=5, **FILTERS)
        assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_perfect_draft_model_of_other_ids(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    order = [3, 1, 2, 0]
    outputs, summary = decode(
        monkeypatch, MarkovModel(TARGET[order][:, order]), PERMUTED, 20, temperature=temperature, max_new_tokens=9
    )
    assert summary["acceptance_rate"] == 1.0 and sum(output.drafted for output in outputs) > 100


@pytest.mark.parametrize("longest", [4, 13, 16])
def test_drafts_end_where_the_models_context_does(monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    draft = MarkovModel(TARGET)
    draft.config = sizes(4, positions=longest)

    def checked(self: Any, batch: Any) -> Any:
        assert all(one.position + one.length <= longest for one in batch.segments)
        return MarkovModel.forward(self, batch)

    monkeypatch.setattr(draft, "forward", checked.__get__(draft))
    outputs, summary = decode(monkeypatch, draft, LETTERS, 3, temperature=0.7, max_new_tokens=16)
    plain, _ = decode(monkeypatch, draft, LETTERS, 3, method="naive", temperature=0.7, max_new_tokens=16)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    # The last draft comes after a token at the model's last position.
    room = max(longest - len(PROMPT) + 1, 0)
    for output in outputs:
        ends = [round_.start + len(round_.token_ids) for round_ in output.drafts]
        assert max(ends, default=0) == room if room else not ends
    assert summary["acceptance_rate"] == (1.0 if room else None)


def test_nothing_in_common_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="tokens that target and draft model both have, got none"):
        decode(monkeypatch, MarkovModel(TARGET), Words(b"w", b"x", b"y", b"z"), 1)
