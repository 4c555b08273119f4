"""N-gram drafts in a runner: in a text that goes round they fill every step, unless FastDeploy's rule is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import specdec_hal as sd
from specdec_hal.ops import MatchPolicy
from specdec_hal.proposers.hybrid import HybridSettings
from specdec_hal.proposers.ngram import NgramSettings
from specdec_hal.runner import SamplingParams
from tests.support.decoding import outputs_of

CONFIG = Path(__file__).parents[2] / "configs" / "cpu.yaml"
TOKENS = 64


def steps_and_tokens(*overrides: str) -> tuple[int, tuple[int, ...]]:
    runtime = sd.load(CONFIG, overrides)
    prompt = runtime.load_tokenizer().encode("def f(b):\n    return b + b + b + b")
    (output,) = outputs_of(runtime.runner(), (prompt, SamplingParams(temperature=0, max_new_tokens=TOKENS)))
    return output.steps, tuple(output.token_ids)


def test_a_text_that_goes_round_takes_few_steps() -> None:
    """The model repeats two tokens, so that a draft to the end of the text has two; K is 8."""
    steps, tokens = steps_and_tokens()
    ending, same = steps_and_tokens("speculative.ngram.continue_cycles=false")
    assert tokens == same
    assert len(tokens) == TOKENS
    assert steps < 12 < 2 * steps < ending


@pytest.mark.parametrize("settings", [NgramSettings, HybridSettings])
@pytest.mark.parametrize("policy", MatchPolicy)
def test_cycles_are_the_default_of_one_policy(settings: type[NgramSettings], policy: MatchPolicy) -> None:
    name = policy.name.lower()
    assert settings(match_policy=name).continues_cycles == (policy is MatchPolicy.LATEST)
    for given in (False, True):
        assert settings(match_policy=name, continue_cycles=given).continues_cycles is given
