"""Speculation changes nothing but the speed: same tokens with any drafts, any chunking, any neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.ops import MatchPolicy
from tests.support.decoder import Decoder, V, hash_model

PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [7, 7, 7, 7, 4], [2, 9, 2, 9, 2, 9, 2]]


def ngram(policy, budget=10**9):
    def propose(decoder):
        decoder.call("ngram_match", max_ngram_size=3, token_budget=budget, match_policy=policy)

    return propose


plain = ngram(MatchPolicy.LATEST)  # with K = 0 there is nothing to propose


def arbitrary(decoder):
    """Random numbers of random drafts, some of them what a greedy model would say; sometimes past the limit."""
    plain(decoder)
    s, rng = decoder.state, np.random.default_rng(decoder.steps)
    for b in np.flatnonzero((s["seq_lens_encoder"] == 0) & (s["seq_lens_decoder"] > 0))[: len(decoder.prompts)]:
        count = int(rng.integers(0, decoder.size["S"]))
        s["seq_lens_this_time"][b] = 1 + count
        text = [*decoder.prompts[b], *decoder.emitted[b]]
        for i in range(1, count + 1):
            guess = int(np.argmax(hash_model(text))) if rng.random() < 0.7 else int(rng.integers(V))
            s["draft_tokens"][b, i] = guess
            text.append(guess)


SETTINGS = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.9},
    "everything": {
        "temperature": 1.1, "top_p": 0.95, "top_k": 9, "min_p": 0.01, "repetition": 1.2, "frequency": 0.1,
        "presence": 0.2, "end_tokens": 4, "min_dec_len": 6, "bad_tokens": 7,
    },
    "ends": {"temperature": 1.0, "end_tokens": 3, "end_at_limit": True, "max_dec_len": [9, 1, 12, 10, 9]},
    "longer than the context": {"temperature": 0.7, "max_dec_len": 60},
}  # fmt: skip
PROPOSERS = {
    "leftmost": ngram(MatchPolicy.LEFTMOST),
    "latest": ngram(MatchPolicy.LATEST),
    "small budget": ngram(MatchPolicy.LATEST, budget=6),
    "arbitrary": arbitrary,
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_same_tokens(settings):
    expected = Decoder(PROMPTS, 0, plain, **settings).run()
    assert any(expected)
    for name, propose in PROPOSERS.items():
        for k, chunk in ((1, 48), (4, 3), (7, 1)):
            decoder = Decoder(PROMPTS, k, propose, chunk=chunk, **settings)
            assert decoder.run() == expected, (name, k, chunk)


def test_drafts_save_steps():
    alone = Decoder(PROMPTS, 0, plain)
    drafted = Decoder(PROMPTS, 4, PROPOSERS["latest"])
    assert alone.run() == drafted.run()
    assert drafted.steps < alone.steps


def test_each_request_alone():
    settings = SETTINGS["sampled"]
    together = Decoder(PROMPTS, 4, PROPOSERS["latest"], **settings).run()
    for b, prompt in enumerate(PROMPTS):
        alone = Decoder([prompt], 4, PROPOSERS["latest"], seed=b * 7919 - 3, **settings)
        assert alone.run() == [together[b]]
