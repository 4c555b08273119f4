"""Grammars in the runner, beside what test_equality compares with decoding one by one: restarts, refusals, drafts."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.errors import RequestError
from specdec_hal.runner import Request
from tests.runner.conftest import make_runner
from tests.support.decoding import THINK_END, THINKS_WITH, outputs_of, plain_decoding
from tests.support.history_model import END, DeviceHistoryModel, HistoryModel
from tests.support.sessions import WORDS, params
from tests.support.stuck_matchers import STUCK, stuck_matchers


def test_what_is_forced_costs_no_step_of_its_own() -> None:
    outputs = {}
    for drafts in (None, 0):
        (outputs[drafts],) = outputs_of(make_runner(), ([3, 9], params(num_speculative_tokens=drafts)))
    assert outputs[None].token_ids == outputs[0].token_ids and outputs[0].drafted == 0
    assert outputs[0].steps == len(outputs[0].token_ids) - 1 > 2 * outputs[None].steps


@pytest.mark.parametrize("device", [False, True])
def test_drafts_that_were_drawn_are_neither_cut_nor_replaced(device: bool) -> None:
    """Or the output would have another distribution than the target's; their texts are words all the same."""
    runner = make_runner(
        model=DeviceHistoryModel() if device else HistoryModel(),
        speculative={"method": "mtp", "num_speculative_tokens": 3, "verify_strategy": "rejection"},
    )
    outputs = outputs_of(runner, *(([seed + 1, 4], params(seed, return_drafts=True)) for seed in range(12)))
    for output in outputs:
        letters = "".join(chr(ord("a") + token) for token in output.token_ids if token != END)
        assert letters in WORDS and output.finish_reason == "stop"
    refused = [
        draft
        for output in outputs
        for one in output.drafts
        for draft in one.token_ids
        if chr(ord("a") + draft) not in "bcdefa"
    ]
    assert runner.compiler.exact_drafts and refused


def test_thoughts_are_free_up_to_their_end_inside_a_step() -> None:
    runner = make_runner(model_settings=THINKS_WITH, speculative={"method": "ngram", "num_speculative_tokens": 5})
    free = {
        "temperature": 10.0,
        "logit_bias": {THINK_END: 75.0, 9: 80.0},
        "structured": {"choice": WORDS, "after_thinking": True},
    }
    requests = [Request(str(seed), [9, 9, THINK_END] * 3, params(seed, **free)) for seed in range(20)]
    for request in requests:
        runner.add_request(request)
    outputs = runner.run()
    inside = 0
    for request in requests:
        output = outputs[request.request_id]
        assert list(output.token_ids) == plain_decoding(list(request.prompt_token_ids), request.params).tokens
        ends = [at for at, token in enumerate(output.token_ids) if token == THINK_END]
        inside += bool(ends) and output.accepted_draft[ends[0]]
    assert inside


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"structured": {"regex": "(b"}}, "structured.regex: llguidance refuses it"),
        ({"structured": {"json_object": True}}, "structured.json_object: the tokenizer has no token that begins"),
        ({"structured": {"choice": ["b"], "after_thinking": True}}, "set model.think_end_id"),
        ({"structured": {"choice": ["b"]}, "allowed_token_ids": [END]}, "no allowed_token_ids begin such a text"),
        (
            {"structured": {"choice": ["b"]}, "bad_sequences": [[1]]},
            "structured.choice: at the beginning it and bad_words leave no token",
        ),
        (
            {"structured": {"choice": ["b", "c"]}, "bad_token_ids": [1, 2]},
            "structured.choice: at the beginning it and bad_token_ids leave no token",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(keys: dict[str, Any], message: str) -> None:
    runner = make_runner()
    with pytest.raises(RequestError) as refused:
        runner.add_request(Request("a", [1], params(**keys)))
    assert message in str(refused.value) and not runner.has_requests


def test_what_leaves_nothing_inside_a_text_is_named() -> None:
    """It blamed the model."""
    runner = make_runner()
    for name, keys in {
        "words": {"structured": {"choice": ["bcd"]}, "bad_sequences": [[1, 2]]},
        "allowed": {"structured": {"choice": ["bcd"]}, "allowed_token_ids": [1, 2]},
        "fine": {"structured": {"choice": ["bcd"]}},
    }.items():
        runner.add_request(Request(name, [1, 2], params(**keys)))
    outputs = runner.run()
    words, allowed = outputs["words"], outputs["allowed"]
    assert (words.finish_reason, list(words.token_ids)) == ("error", [1])
    assert words.error == "structured.choice: after 1 tokens it and bad_words leave no token; change one of them"
    assert (allowed.finish_reason, list(allowed.token_ids)) == ("error", [1, 2])
    assert "structured.choice: after 2 tokens it and allowed_token_ids leave no token" in allowed.error
    assert list(outputs["fine"].token_ids)[:3] == [1, 2, 3] and outputs["fine"].finish_reason == "stop"


@pytest.mark.parametrize("method", ["naive", "ngram"])
def test_a_complete_text_that_may_not_end_ends(method: str) -> None:
    """As with a forbidden end token: also where a sequence forbids it after this text, and only there."""
    speculative = {"method": method, "num_speculative_tokens": 0 if method == "naive" else 3}
    runner = make_runner(speculative=speculative)
    for name, keys in {
        "token": {"bad_token_ids": [END]},
        "sequence": {"bad_sequences": [[3, END]]},
        "longer": {"bad_sequences": [[1, 2, 3, END]]},
        "another": {"bad_sequences": [[2, END], [2, 2, 3, END]]},
    }.items():
        asked = params(structured={"choice": ["bcd"]}, **keys)
        runner.add_request(Request(name, [1, 2, 3, 1, 2, 3, 1, 2], asked))
    outputs = runner.run()
    for name, output in outputs.items():
        wanted = [1, 2, 3, END] if name == "another" else [1, 2, 3]
        assert (output.finish_reason, list(output.token_ids), output.error) == ("stop", wanted, ""), name


@pytest.mark.parametrize("stuck", ["mask", "advance", "forced"])
def test_a_matcher_that_does_not_return_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch, stuck: str) -> None:
    gate = stuck_matchers(monkeypatch, stuck)
    runner = make_runner(structured={"backend": "llguidance", "mask_timeout_s": 0.3})
    others = [Request(str(seed), [seed, 4], params(seed)) for seed in range(3)]
    runner.add_request(Request("stuck", [1, 2], params(structured={"regex": STUCK})))
    for request in others:
        runner.add_request(request)
    outputs = runner.run()
    assert outputs["stuck"].finish_reason == "error"
    assert outputs["stuck"].error == (
        "structured.regex: llguidance has taken more than 0.3 s (structured.mask_timeout_s) for the masks of a step; "
        "simplify the grammar"
    )
    for request in others:
        output = outputs[request.request_id]
        assert list(output.token_ids) == plain_decoding(list(request.prompt_token_ids), request.params).tokens
    with pytest.raises(RequestError, match=r"structured\.regex: llguidance has taken more than 0\.3 s"):
        runner.add_request(Request("again", [1, 2], params(structured={"regex": STUCK})))
    gate.set()
    (late,) = outputs_of(runner, ([1, 4], params(1)))
    assert list(late.token_ids) == plain_decoding([1, 4], params(1)).tokens
