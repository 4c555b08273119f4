"""Words and sequences that a request may not complete, in rows of drafts as in plain ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from specdec_hal.runner import SamplingParams
from specdec_hal.runner.bad_words import bad_sequences, forbidden_next
from tests.runner.conftest import make_runner
from tests.support.decoding import outputs_of
from tests.support.history_model import VOCABULARY, DeviceHistoryModel

EMBEDDED = Path(__file__).parents[2] / "models" / "tiny-py-lm"
PROMPT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n"


def test_words_are_spelled_as_by_vllm() -> None:
    """At the start of a text and after a space; the second only if it differs in its first token, not in length."""
    spellings = {"a": [1], " a": [2], "b": [3], " b": [9, 3], "c d": [4, 5], " c d": [6, 5], "e": [7, 8], " e": [7, 9]}
    found = bad_sequences(["a", " a", "  b", "c d", "e"], spellings.__getitem__)
    assert list(found) == [[1], [2], [1], [2], [3], [4, 5], [6, 5], [7, 8]]


@pytest.mark.torch
def test_as_transformers_forbids() -> None:
    """Its processor sees prompts too, so that here the text is all there is."""
    torch = pytest.importorskip("torch")
    from transformers import NoBadWordsLogitsProcessor

    rng = np.random.default_rng(3)
    for _ in range(60):
        sequences = [rng.integers(0, 4, rng.integers(1, 4)).tolist() for _ in range(rng.integers(1, 6))]
        text = rng.integers(0, 4, rng.integers(1, 6)).tolist()
        processor = NoBadWordsLogitsProcessor(sequences, eos_token_id=7)
        scores = processor(torch.tensor([text]), torch.zeros(1, 8))[0]
        assert set(forbidden_next(text, sequences)) == set(torch.where(scores == -torch.inf)[0].tolist())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_model_that_would_say_it(temperature: float) -> None:
    """With drafts and without; other requests of the batch are unaffected, and may overlap again afterwards."""
    free = SamplingParams(max_new_tokens=40, temperature=temperature, seed=3, bad_token_ids=[0])
    runner = make_runner(model=DeviceHistoryModel(), runner={"overlap": True})
    prompt = [3, 4, 5] * 4
    said = list(outputs_of(runner, (prompt, free))[0].token_ids)
    pairs = sorted(set(pairwise(said)))[::2]
    params = free.model_copy(update={"bad_sequences": [list(pair) for pair in pairs]})
    without = params.model_copy(update={"num_speculative_tokens": 0})
    one, *others, other = outputs_of(runner, *((prompt, some) for some in (params, free, free, without)))
    assert one.token_ids == other.token_ids
    tokens = one.token_ids
    assert len(tokens) == 40 and not set(pairwise(tokens)) & set(pairs)
    assert all(list(output.token_ids) == said for output in others)
    assert set(range(VOCABULARY)) > set(tokens)
