"""examples/torch_loop.py: thirty lines around a model of `transformers`, and its tokens."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.support.scripts import script

pytestmark = pytest.mark.torch
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seeds": 7}


@pytest.fixture(scope="module")
def loop(transformers: Any) -> Any:
    return script("examples/torch_loop.py")


def test_the_loop_is_short(loop: Any) -> None:
    assert len(inspect.getsource(loop.generate).splitlines()) <= 30


@pytest.mark.parametrize("name", ["completion", "edit_function", "prose", "unique"])
def test_greedy_tokens_are_those_of_transformers(loop: Any, model: Any, prompts: Any, name: str) -> None:
    import torch

    ids = torch.tensor([prompts[name]])
    mask = torch.ones_like(ids)
    plain = model.generate(ids, attention_mask=mask, max_new_tokens=48, do_sample=False)[0, ids.shape[1] :].tolist()
    tokens, steps = loop.generate(model, prompts[name], 48)
    assert tokens == plain
    assert steps < len(plain) // 2 if name == "edit_function" else steps < len(plain)


def test_sampled_tokens_are_those_without_drafts(loop: Any, model: Any, prompts: Any) -> None:
    tokens, steps = loop.generate(model, prompts["edit_function"], 48, **SAMPLED)
    plain, plain_steps = loop.generate(model, prompts["edit_function"], 48, k=0, **SAMPLED)
    assert tokens == plain
    assert steps < plain_steps == len(plain)
    other, _ = loop.generate(model, prompts["edit_function"], 48, **{**SAMPLED, "seeds": 8})
    assert other != tokens


def test_it_stops_at_the_limit_and_at_the_end_of_the_text(
    loop: Any, model: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = loop.generate(model, prompts["edit_function"], 40)
    assert len(whole) == 40
    for limit in (1, 9):
        assert loop.generate(model, prompts["edit_function"], limit)[0] == whole[:limit]
    monkeypatch.setattr(model.config, "eos_token_id", whole[30])
    ended, _ = loop.generate(model, prompts["edit_function"], 40)
    assert ended == whole[: whole.index(whole[30]) + 1]
