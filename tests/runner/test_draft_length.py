"""The draft length that is chosen, in decodes whose acceptance and step times are given: no clock runs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from specdec_hal.config import parse
from specdec_hal.errors import ConfigError
from specdec_hal.runner import Request, SamplingParams
from specdec_hal.runner.draft_length import PROBE, DraftLengths
from specdec_hal.runner.step_cost import Cost
from tests.runner.conftest import make_runner

K = 8
TOKENS = 400
REQUEST_DECAY, POOLED_DECAY = 0.98, 0.99


class Drafting:
    """A request."""


def stepped(
    lengths: DraftLengths, requests: list[Drafting], drafted: Any, accepted: Any, seconds: float | None,
    narrow: bool | None = None,
) -> None:  # fmt: skip
    lengths.stepped(lengths.rows(requests), np.asarray(drafted), np.asarray(accepted), seconds, narrow=narrow)


def limits_of(lengths: DraftLengths, requests: list[Drafting]) -> list[int]:
    return lengths.limits(lengths.rows(requests)).tolist()


def decode(
    rate: Any, slope: float, *, fixed: int | None = None, found: float = 1.0, asking: float = 0.0, batch: int = 1,
    noise: float = 0.0, module: float = 0.0,
) -> float:  # fmt: skip
    """Tokens a second of a decode where draft i of step s is accepted with probability rate(s)[i].

    A token more costs `slope` of a step of one token; `found`: how often there is anything to draft; `asking`: what the
    proposer takes for a draft; `module`: what it takes besides, for any number of drafts.
    """
    rng = np.random.default_rng(3)
    lengths = DraftLengths(K)
    requests = [Drafting() for _ in range(batch)]
    time = gained = 0.0
    for step in range(TOKENS):
        asked = limits_of(lengths, requests) if fixed is None else [fixed] * batch
        drafted, accepted = [], []
        for most in asked:
            drafted.append(most if rng.random() < found else 0)
            lucky = rng.random(K) < rate(step)
            accepted.append(min(int(np.argmin([*lucky, False])), drafted[-1]))
        seconds = 1 + slope * (batch + sum(drafted) - 1) + module * any(asked)
        shown = seconds * (1 + noise * rng.exponential())
        if fixed is None:
            stepped(lengths, requests, drafted, accepted, shown)
            lengths.proposed(max(asked), asking * max(asked))
        time += seconds + asking * max(asked)
        gained += batch + sum(accepted)
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


@pytest.mark.parametrize("module", [0.5, 2.0])
@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_a_module_that_costs_the_same_for_any_number_of_drafts(module: float, rate: float) -> None:
    """Its cost shows in no number of drafts but 0."""
    given: dict[str, Any] = {"rate": lambda step: rate, "slope": 0.02, "module": module}
    best = max(decode(**given, fixed=fixed) for fixed in (0, K))
    assert decode(**given) >= 0.9 * best


def test_requests_retry_together_where_rows_for_drafts_cost_much() -> None:
    """One that retries alone makes the step as long for all; now and then one ends and another begins."""
    lengths, requests, drafting = DraftLengths(K), [Drafting() for _ in range(32)], 0
    for step in range(1200):
        if step % 8 == 0:
            requests = [*requests[1:], Drafting()]
        drafted = np.array(limits_of(lengths, requests))
        stepped(lengths, requests, drafted, np.zeros_like(drafted), 1 + 0.6 * any(drafted) + 0.001 * sum(drafted))
        drafting += step >= 200 and any(drafted)
    assert 0 < drafting <= 0.06 * 1000


def test_it_begins_again_where_drafts_begin_to_be_accepted() -> None:
    def rate(step: int) -> float:
        return 0.95 if step >= TOKENS // 2 else 0.0

    assert decode(rate, 0.1) > 1.5 * decode(rate, 0.1, fixed=0)


def test_it_stops_within_few_steps() -> None:
    lengths, one = DraftLengths(K), [Drafting()]
    limits = list[int]()
    for _ in range(40):
        limits += limits_of(lengths, one)
        stepped(lengths, one, [limits[-1]], [0], 1 + 0.1 * limits[-1])
    assert 0 < limits[0] <= K
    assert limits.index(0) <= 12
    assert 0 < sum(limit > 0 for limit in limits[16:]) <= 3  # tried again, and given up again


@pytest.mark.parametrize("slots", [1, 9, 40])
def test_any_number_of_requests_has_limits(slots: int) -> None:
    lengths, requests = DraftLengths(K), [Drafting() for _ in range(slots)]
    for _ in range(200):
        drafts = limits_of(lengths, requests)
        assert all(0 <= limit <= K for limit in drafts)
        # Every other request has all accepted, the others none.
        accepted = [n * (at % 2) for at, n in enumerate(drafts)]
        stepped(lengths, requests, drafts, accepted, slots + 0.05 * sum(drafts))
    limits = limits_of(lengths, requests)
    assert max(limits[::2]) <= 1
    assert all(limit >= K - 1 for limit in limits[1::2])


def test_an_ended_request_leaves_its_row_to_a_new_one() -> None:
    lengths, kept = DraftLengths(K), Drafting()
    rows, new = list[int](), limits_of(DraftLengths(K), [Drafting()])
    for _ in range(40):
        one = Drafting()
        mine = lengths.rows([kept, one])
        rows += mine.tolist()
        assert lengths.limits(mine[1:]).tolist() == new
        del one
    assert len(set(rows[::2])) == 1 and rows[0] not in rows[1::2]
    assert len(set(rows[1::2])) < 5


def expected(lengths: DraftLengths, row: int, k: int) -> tuple[float, list[float]]:
    """Of a request in its next step: the probability that there are drafts, and that each yields a token [K]."""
    kind = lengths.requests["kind"][row]
    asked, found, later, later_accepted, *positions = lengths.seen[2 * row + kind]
    verified, accepted = positions[:k], positions[k:]
    _, _, all_later, all_later_accepted, *positions = lengths.pooled[kind]
    usual = (all_later_accepted + 20 * (0.85, 0.92)[kind]) / (all_later + 20)
    first = (positions[k] + 4 * (0.6, 0.9)[kind]) / (positions[0] + 4)
    every = [(a + 24 * usual) / (v + 24) for v, a in zip(positions[:k], positions[k:], strict=True)]
    own = (later_accepted + 8 * usual) / (later + 8)
    chance = [(a + 12 * (prior + own)) / (v + 24) for v, a, prior in zip(verified, accepted, every, strict=True)]
    there = (found + 8) / (asked + 8)
    chance[0] = there * (accepted[0] + 8 * first) / (verified[0] + 8)
    return there, np.cumprod(chance).tolist()


@pytest.mark.parametrize("seed", range(8))
def test_lengths_are_those_with_the_most_tokens_per_second(seed: int) -> None:
    """Of all that requests of different acceptance may have, by what was measured."""
    rng = np.random.default_rng(seed)
    k, rates, slope = 3, np.array([0.4, 0.7, 0.95]), (0.02, 0.06, 0.1)[seed % 3]
    lengths, requests = DraftLengths(k), [Drafting() for _ in rates]
    choices = 0
    for _ in range(60):
        before = limits_of(lengths, requests)
        drafted = [most if rng.random() < 0.8 else 0 for most in before]
        accepted = [min(int(rng.geometric(1 - rate)) - 1, d) for rate, d in zip(rates, drafted, strict=True)]
        narrow = not any(before) if seed % 2 else None
        stepped(lengths, requests, drafted, accepted, 1 + slope * sum(drafted) + 0.2 * (narrow is False), narrow)
        after = limits_of(lengths, requests)
        if not all(before) or not any(drafted) or not all(after):
            continue
        rows, choices = lengths.rows(requests), choices + 1
        found, gains = map(np.array, zip(*(expected(lengths, row, k) for row in rows.tolist()), strict=True))
        line = lengths.steps.line(3)

        def speed(limits: Any, found: Any = found, gains: Any = gains, line: Any = line) -> float:
            drafts = sum(gains[at, :most].sum() for at, most in enumerate(limits))
            return float((3 + drafts) / (line.start + line.slope * (found * limits).sum()))

        assert speed(after) >= 0.99 * max(map(speed, itertools.product(range(k + 1), repeat=3)))
    assert choices > 3


def test_counts_decay_and_are_kept_by_kind() -> None:
    """Of a request, and of all: after a fully accepted step, and after another."""
    lengths, one = DraftLengths(2), Drafting()
    results, kinds = [(2, 2), (2, 1), (1, 1), (2, 0)], [0, 1, 0, 1]
    (row,) = lengths.rows([one])
    seen, pooled = np.zeros((2, 8)), np.zeros((2, 8))
    for (drafted, accepted), kind in zip(results, kinds, strict=True):
        lengths.requests["limit"][row] = 2
        stepped(lengths, [one], [drafted], [accepted], 1.0)
        first, second = float(accepted > 0), float(accepted > 1)
        verified = float(accepted > 0 and drafted > 1)
        result = np.array([1, 1, verified, second, 1, verified, first, second])
        seen[kind], pooled[kind] = seen[kind] * REQUEST_DECAY + result, pooled[kind] * POOLED_DECAY + result
    np.testing.assert_allclose(lengths.seen[2 * row : 2 * row + 2], seen)
    np.testing.assert_allclose(lengths.pooled, pooled)


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
    assert cost(2, 4) - cost(0, 4) == pytest.approx(2 * cost.line(4).slope)
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


def test_a_draft_of_many_requests_costs_less_than_one_of_a_single_request() -> None:
    """Which reads the weights for itself alone."""
    cost = Cost()
    for size in (2, 5) * 40:
        cost.add(size, 1.0, 1)
    for size in (280, 320) * 20:
        cost.add(size, 1.5, 64)
    assert cost(320, 64) == pytest.approx(1.5, rel=0.02) and cost(0, 64) > 1.3


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
