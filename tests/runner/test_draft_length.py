"""The draft length that is chosen, in decodes whose acceptance and step times are given: no clock runs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from specdec_hal.config import parse
from specdec_hal.errors import ConfigError
from specdec_hal.runner import Request, SamplingParams
from specdec_hal.runner.draft_length import PROBE, Drafted, DraftLengths
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.step_cost import Cost
from tests.runner.conftest import make_runner

K = 8
TOKENS = 400


def sequence() -> Sequence:
    return Sequence(Request("a", [1], SamplingParams()), TOKENS, None)


def decode(
    rate: Any, slope: float, *, fixed: int | None = None, found: float = 1.0, asking: float = 0.0, batch: int = 1,
    noise: float = 0.0,
) -> float:  # fmt: skip
    """Tokens a second of a decode where draft i of step s is accepted with probability rate(s)[i].

    A token more costs `slope` of a step of one token; `found`: how often there is anything to draft; `asking`: what the
    proposer takes for a draft.
    """
    rng = np.random.default_rng(3)
    lengths = DraftLengths(K)
    sequences = [sequence() for _ in range(batch)]
    time = gained = 0.0
    for step in range(TOKENS):
        asked = [lengths.limit(one) if fixed is None else fixed for one in sequences]
        results = []
        for one, most in zip(sequences, asked, strict=True):
            drafts = most if rng.random() < found else 0
            lucky = rng.random(K) < rate(step)
            accepted = min(int(np.argmin([*lucky, False])), drafts)
            results.append(Drafted(one, drafts, accepted))
        seconds = 1 + slope * (sum(1 + one.drafted for one in results) - 1)
        shown = seconds * (1 + noise * rng.exponential())
        if fixed is None:
            lengths.stepped(results, shown)
            lengths.proposed(max(asked), asking * max(asked))
        time += seconds + asking * max(asked)
        gained += sum(1 + one.accepted for one in results)
    return gained / time


RATES, SLOPES, FOUND = (0.0, 0.3, 0.5, 0.9, 1.0), (0.02, 0.06, 0.2), (0.4, 1.0)
CASES = [
    *list(itertools.product(RATES, SLOPES, FOUND, [(1, 0.0)]))[::2],
    *((rate, SLOPES[i % 3], FOUND[i % 2], how) for i, rate in enumerate(RATES) for how in ((4, 0.0), (1, 0.3))),
]


@pytest.mark.parametrize(("rate", "slope", "found", "how"), CASES)
def test_it_never_loses(rate: float, slope: float, found: float, how: tuple[int, float]) -> None:
    batch, noise = how

    def decoded(fixed: int | None) -> float:
        return decode(lambda step: rate, slope, fixed=fixed, found=found, batch=batch, noise=noise)

    adaptive, fixed = decoded(None), [decoded(k) for k in (0, 1, 2, 4, 8)]
    assert adaptive >= 0.97 * fixed[0]
    assert adaptive >= (0.85 if noise else 0.9) * max(fixed)


def test_a_proposer_that_costs_more_than_it_gives() -> None:
    given = {"rate": lambda step: 0.3, "slope": 0.05, "asking": 0.4}
    assert decode(**given) >= 0.96 * decode(**given, fixed=0) > decode(**given, fixed=1)  # type: ignore[arg-type]


def test_it_begins_again_where_drafts_begin_to_be_accepted() -> None:
    def rate(step: int) -> float:
        return 0.95 if step >= TOKENS // 2 else 0.0

    assert decode(rate, 0.1) > 1.5 * decode(rate, 0.1, fixed=0)


def test_it_stops_within_few_steps() -> None:
    lengths, one = DraftLengths(K), sequence()
    limits = []
    for _ in range(40):
        limits.append(lengths.limit(one))
        lengths.stepped([Drafted(one, limits[-1], 0)], 1 + 0.1 * limits[-1])
    assert 0 < limits[0] <= K
    assert limits.index(0) <= 12
    assert 0 < sum(limit > 0 for limit in limits[16:]) <= 3  # tried again, and given up again


@pytest.mark.parametrize("slots", [1, 9, 40])
def test_any_number_of_requests_has_limits(slots: int) -> None:
    lengths, sequences = DraftLengths(K), [sequence() for _ in range(slots)]
    for _ in range(200):
        drafts = [lengths.limit(one) for one in sequences]
        assert all(0 <= limit <= K for limit in drafts)
        # Every other request has all accepted, the others none.
        decoded = [Drafted(one, n, n * (at % 2)) for at, (one, n) in enumerate(zip(sequences, drafts, strict=True))]
        lengths.stepped(decoded, slots + 0.05 * sum(drafts))
    limits = [lengths.limit(one) for one in sequences]
    assert max(limits[::2]) <= 1
    assert all(limit >= K - 1 for limit in limits[1::2])


def test_sums_stay_finite() -> None:
    lengths, one = DraftLengths(K), sequence()
    for _ in range(30_000):  # the weight of a step has grown beyond what a float holds, were it not scaled down
        limit = lengths.limit(one)
        lengths.stepped([Drafted(one, limit, limit)], 1 + 0.05 * limit)
    assert lengths.limit(one) == K


def test_costs_between_and_beyond_what_was_measured() -> None:
    cost = Cost()
    assert cost(3) == 0
    cost.add(1, 2.0)
    assert cost(1) == 2 and cost(3) > 2
    for _ in range(9):
        cost.add(5, 4.0)
        cost.add(1, 2.0)
    assert (cost(3), cost(9), cost(1)) == pytest.approx((3, 6, 2), rel=0.03)
    cost.add(5, 100.0)  # one that was disturbed
    assert cost(5) == pytest.approx(4, rel=0.15)
    # With another number of requests, steps take otherwise, and a draft costs as much.
    cost.add(0, 7.0, 4)
    assert cost(0, 4) == cost(0, 3) == 7
    assert cost(2, 4) - cost(0, 4) == pytest.approx(2 * cost.slope)
    for _ in range(99):
        cost.add(9, 1.5)  # shorter than steps of fewer tokens: that is noise
    assert 0 < cost(1) < cost(9)
    bent = Cost()
    for size in (5, 6, 7, 8) * 20:
        bent.add(size, 1.0 + 0.2 * min(size, 6))  # no line: it is followed where it was measured last
    assert [bent(size) for size in (6, 7, 8)] == pytest.approx([2.2, 2.2, 2.2], rel=0.05)
    fresh = Cost()
    for seconds in (9.0, 0.2, 0.2):  # the first one took part in compiling
        fresh.add(1, seconds)
    assert fresh(1) == pytest.approx(0.2)


def test_what_disturbs_steps_counts_little_and_not_for_long() -> None:
    cost = Cost()
    for size in (4, 12, 20, 28) * 20:
        cost.add(size, 3.0 + 0.15 * size, 4)
    for _ in range(3):
        cost.add(28, 5 * (3.0 + 0.15 * 28), 4)  # another program ran
    assert cost(28, 4) < 1.25 * (3.0 + 0.15 * 28)
    for size in (8, 16, 24) * 20:
        cost.add(size, 3.0 + 0.15 * size, 4)
    assert [cost(size, 4) for size in (0, 28)] == pytest.approx([3.0, 7.2], rel=0.1)


def test_a_wrong_idea_of_the_cost_is_given_up() -> None:
    """While few drafts are fed, since they seem to cost much."""
    cost = Cost()
    for size in (0, 12) * 20:
        cost.add(size, 2.7 + 0.52 * size, 4)
    for size in (0, 0, 1, 5, 5) * 12:
        cost.add(size, 4.1 + 0.17 * size, 4)
    assert [cost(size, 4) for size in (0, 5)] == pytest.approx([4.1, 4.95], rel=0.1)


def test_it_follows_requests_of_another_kind() -> None:
    """Sampling a token takes as long as a part of the model, and only some requests are sampled."""
    cost = Cost()
    for start, slope in ((3.0, 0.15), (3.8, 0.3)):
        for size in (4, 8, 16, 24) * 20:
            cost.add(size, start + slope * size, 4)
        assert [cost(size, 4) for size in (0, 16, 32)] == pytest.approx(
            [start + slope * size for size in (0, 16, 32)], rel=0.1
        )


def test_a_step_without_drafts_takes_something() -> None:
    cost = Cost()
    for size in (2, 20) * 9:
        cost.add(size, 0.1 * size)  # as if drafts were all that takes time
    assert cost(0) > 0


def test_tokens_stay_and_a_request_keeps_its_own_limit() -> None:
    outputs = []
    for adaptive in (False, True):
        speculative = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": adaptive}
        runner = make_runner(runner={"max_num_seqs": 2}, speculative=speculative)
        for seed in range(6):
            wanted = 1 if seed == 5 else None
            params = SamplingParams(temperature=0.6, seed=seed, max_new_tokens=40, num_speculative_tokens=wanted)
            runner.add_request(Request(str(seed), [3, 4, 5] * 4, params))
        outputs.append(runner.run())
    assert {n: o.token_ids for n, o in outputs[0].items()} == {n: o.token_ids for n, o in outputs[1].items()}
    assert outputs[1]["5"].drafted <= outputs[1]["5"].steps


def test_a_request_has_its_limit_before_its_first_step() -> None:
    speculative = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": True}
    runner = make_runner(runner={"max_num_seqs": 2}, speculative=speculative)
    params = SamplingParams(max_new_tokens=12, return_drafts=True)
    runner.add_request(Request("a", [3, 4, 5] * 4, params))
    drafts = runner.run()["a"].drafts
    assert drafts[0].start == 1
    assert len(drafts[0].token_ids) == PROBE  # no step was measured yet; the prompt's look-up gives more


def test_padded_drafts_have_no_length_to_choose() -> None:
    speculative = {"method": "ngram", "adaptive": True, "ngram": {"pad_to_max": True}}
    with pytest.raises(ConfigError, match=r"speculative\.adaptive: 'ngram' pads drafts to num_speculative_tokens"):
        make_runner(speculative=speculative)
    assert parse({"speculative": speculative}).speculative.adaptive
