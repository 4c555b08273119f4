"""Requests without a seed: each draws one when it is admitted, keeps it whatever happens, and reports it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specdec_hal.errors import JournalError, RequestError
from specdec_hal.ops import seeds
from specdec_hal.runner import Request, SamplingParams
from tests.runner.conftest import make_runner
from tests.support.decoding import outputs_of, plain_decoding

PROMPT = [3, 5, 6, 5, 6]
SAMPLED: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 20, "bad_token_ids": [0]}


def test_equal_requests_without_a_seed_differ_and_can_be_repeated() -> None:
    runner = make_runner(runner={"max_num_seqs": 2})
    outputs = outputs_of(runner, *[(PROMPT, SamplingParams(**SAMPLED))] * 4)
    assert len({output.token_ids for output in outputs}) == len({output.seed for output in outputs}) == 4
    for output in outputs:
        assert list(output.token_ids) == plain_decoding(PROMPT, SamplingParams(**SAMPLED, seed=output.seed)).tokens


def test_a_given_seed_is_reported_and_a_greedy_request_draws_none() -> None:
    given, greedy, both = {**SAMPLED, "seed": -7}, {"max_new_tokens": 5}, {"max_new_tokens": 5, "seed": 3}
    outputs = outputs_of(make_runner(), *((PROMPT, SamplingParams(**keys)) for keys in (given, greedy, both)))
    assert [output.seed for output in outputs] == [-7, None, 3]


def test_a_drawn_seed_is_written_into_the_journal() -> None:
    first = make_runner()
    first.add_request(Request("a", PROMPT, SamplingParams(**SAMPLED)))
    for _ in range(3):
        first.step()
    records = json.loads(json.dumps(first.snapshot()))
    second = make_runner()
    second.restore(records)
    before, after = first.run()["a"], second.run()["a"]
    assert before.seed == after.seed is not None
    assert before.token_ids == after.token_ids


def test_a_journal_without_the_seed_of_a_sampled_request_is_refused() -> None:
    runner = make_runner()
    runner.add_request(Request("a", PROMPT, SamplingParams(**SAMPLED)))
    (record,) = runner.snapshot()
    record["params"]["seed"] = None
    with pytest.raises(JournalError, match=r"record 0.*seed: expected one for a request that is sampled, got none"):
        make_runner().restore([record])


def test_a_request_that_is_preempted_or_fails_once_keeps_its_seed() -> None:
    runner = make_runner(runner={"max_num_seqs": 2})
    for n in range(2):
        runner.add_request(Request(str(n), PROMPT, SamplingParams(**SAMPLED)))
    runner.step()
    runner.model.failures.append(RuntimeError("once"))  # type: ignore[attr-defined]
    outputs = runner.run()
    assert runner.metrics.failed_steps == 1
    for output in outputs.values():
        assert list(output.token_ids) == plain_decoding(PROMPT, SamplingParams(**SAMPLED, seed=output.seed)).tokens


@pytest.mark.parametrize("seed", [5, -(1 << 63), (1 << 63) - 2, None])
def test_choices_are_seeded_one_after_the_other(seed: int | None) -> None:
    params = SamplingParams(**SAMPLED, seed=seed, n=3)
    own = [choice.seed for choice in params.choices()]
    assert all(choice.n == 1 and choice.temperature == 1 for choice in params.choices())
    first = own[0]
    assert first is not None and (seed is None or first == seed)
    assert own == [first, *(seeds.derived(first, i) for i in (1, 2))] and len(set(own)) == 3
    assert all(choice is not None and -(1 << 63) <= choice < 1 << 63 for choice in own)
    assert (own[2] == -(1 << 63)) == (seed == (1 << 63) - 2), "seeds wrap at 64 bits"
    if seed is None:
        assert own != [choice.seed for choice in params.choices()], "each prompt draws its own"


def test_a_request_of_the_runner_has_one_choice() -> None:
    runner = make_runner()
    with pytest.raises(RequestError, match=r"n: expected 1, got 2; add a request for each of params.choices\(\)"):
        runner.add_request(Request("a", PROMPT, SamplingParams(n=2)))
    for wrong in (0, -1, 1 << 20, True, 1.0):
        with pytest.raises(RequestError, match="sampling parameter n: expected an integer"):
            SamplingParams(n=wrong)


def test_fresh_seeds_are_integers_that_doubles_hold() -> None:
    drawn = seeds.fresh(1000)
    assert len(set(drawn.tolist())) == 1000 and drawn.min() >= 0
    assert drawn.max() >= 1 << 51 and all(int(float(seed + 127)) == seed + 127 for seed in drawn.tolist())
