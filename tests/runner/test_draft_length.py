"""The draft length that is chosen, in decodes whose acceptance and step times are given: no clock runs."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec_hal.config import parse
from specdec_hal.errors import ConfigError
from specdec_hal.runner import Request, SamplingParams
from specdec_hal.runner.draft_length import (
    FIRST_PAUSE,
    FIRST_PLAIN,
    FIRST_PRIOR,
    LATER_PRIOR,
    LONGEST_PAUSE,
    LONGEST_PLAIN,
    PLAIN_GROWTH,
    PLAIN_SETTLING,
    PLAIN_WAIT,
    POOLED_DECAY,
    POOLED_STRENGTH,
    PROBE,
    PROPOSAL_SPREAD,
    REQUEST_DECAY,
    SHARED_STRENGTH,
    DraftLengths,
    Prior,
)
from specdec_hal.runner.step_cost import Cost
from tests.runner.conftest import make_runner

K = 8
TOKENS = 400


class Drafting:
    """A request."""


def stepped(lengths: DraftLengths, requests: list[Drafting], drafted: Any, accepted: Any, seconds: float) -> None:
    lengths.stepped(lengths.rows(requests), np.asarray(drafted), np.asarray(accepted), seconds)


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


def add(counts: dict[str, list[float]], keep: float, results: list[dict[str, list[float]]]) -> None:
    """Count some results, of which the last weighs 1."""
    weights = (keep ** np.arange(len(results), -1, -1)).tolist()
    for name, values in counts.items():
        for at, value in enumerate(values):
            new = sum(weight * one[name][at] for weight, one in zip(weights[1:], results, strict=True))
            values[at] = weights[0] * value + new


class Rule:
    """The rule of :mod:`specdec_hal.runner.draft_length`, request by request and draft by draft."""

    def __init__(self, k: int) -> None:
        self.k, self.steps, self.plain_steps, self.asking = k, Cost(), Cost(), Cost(PROPOSAL_SPREAD, of_steps=False)
        self.asks, self.slots = False, 1
        self.plain = self.settling = 0
        self.until_plain = self.interval = FIRST_PLAIN
        self.pooled = [self.counts(), self.counts()]
        self.requests: dict[Drafting, dict[str, Any]] = {}
        self.refresh()

    def counts(self) -> dict[str, list[float]]:
        return {name: [0.0] * len(values) for name, values in self.result(0, 0).items()}

    def result(self, drafted: int, accepted: int) -> dict[str, list[float]]:
        verified = [float(i < accepted or i == accepted < drafted) for i in range(self.k)]
        taken = [float(i < accepted) for i in range(self.k)]
        later = [sum(verified[1:])], [sum(taken[1:])]
        return {
            "asked": [1.0], "found": [float(drafted > 0)], "verified": verified, "accepted": taken,
            "verified_later": later[0], "accepted_later": later[1],
        }  # fmt: skip

    def refresh(self) -> None:
        self.usual, self.every = [0.0, 0.0], [[0.0] * self.k, [0.0] * self.k]
        for kind, (first, later) in enumerate(zip(FIRST_PRIOR.acceptance, LATER_PRIOR.acceptance, strict=True)):
            pooled = self.pooled[kind]
            verified, accepted = pooled["verified"], pooled["accepted"]
            usual = Prior(later, LATER_PRIOR.strength).estimate(
                pooled["accepted_later"][0], pooled["verified_later"][0]
            )
            every = [Prior(usual, SHARED_STRENGTH).estimate(*one) for one in zip(accepted, verified, strict=True)]
            every[0] = Prior(first, FIRST_PRIOR.strength).estimate(accepted[0], verified[0])
            self.usual[kind], self.every[kind] = usual, every

    def known(self, request: Drafting) -> dict[str, Any]:
        if request not in self.requests:
            one = {"seen": [self.counts(), self.counts()], "kind": 0, "pause": 0, "next_pause": FIRST_PAUSE}
            known = self.steps or self.plain_steps
            first = self.best([one] * self.slots)[0] if known else min(PROBE, self.k)
            self.requests[request] = {**one, "limit": first}
        return self.requests[request]

    def gains(self, one: dict[str, Any]) -> tuple[float, list[float]]:
        seen, usual, every = one["seen"][one["kind"]], self.usual[one["kind"]], self.every[one["kind"]]
        verified, accepted = seen["verified"], seen["accepted"]
        here = Prior(usual, POOLED_STRENGTH).estimate(seen["accepted_later"][0], seen["verified_later"][0])
        found = Prior(1.0, POOLED_STRENGTH).estimate(seen["found"][0], seen["asked"][0])
        chance = found * Prior(every[0], POOLED_STRENGTH).estimate(accepted[0], verified[0])
        gains = [chance]
        for i in range(1, self.k):
            chance *= Prior((every[i] + here) / 2, SHARED_STRENGTH).estimate(accepted[i], verified[i])
            gains.append(chance)
        return found, gains

    def best(self, requests: list[dict[str, Any]]) -> list[int]:
        drafts = list[tuple[float, float, int]]()
        for at, one in enumerate(requests):
            found, gains = self.gains(one)
            drafts += [(gain, found, at) for gain in gains]
        drafts.sort(key=lambda draft: -draft[0])
        line, asking = (self.steps or self.plain_steps).line(self.slots), self.asking.line(1)
        limits, longest = [0] * len(requests), 0
        gained = waited = 0.0
        plain = self.plain_steps(0, self.slots) if self.plain_steps else line.start
        speed, best = self.slots / plain, list(limits)
        for gain, found, at in drafts:
            limits[at] += 1
            longest = max(longest, limits[at])
            gained, waited = gained + gain, waited + found
            taken = line.start + line.slope * waited + (asking(longest) if self.asks else 0.0)
            if (self.slots + gained) / taken > speed:
                speed, best = (self.slots + gained) / taken, list(limits)
        return best

    def limit(self, request: Drafting) -> int:
        limit: int = self.known(request)["limit"]
        return 0 if self.plain else limit

    def measures(self, total: int, slots: int, seconds: float) -> bool:
        """A step without drafts, now and then: nothing else is learned until there are drafts again."""
        if self.plain:
            self.plain -= 1
            if total == 0:
                self.plain_steps.add(0, seconds, slots)
                self.plain, self.settling = 0, PLAIN_SETTLING
            return True
        if self.settling:
            self.settling = 0 if total else self.settling - 1
            return total == 0
        self.until_plain = self.until_plain - 1 if total else self.interval
        if self.until_plain <= 0:
            self.interval = min(PLAIN_GROWTH * self.interval, LONGEST_PLAIN)
            self.until_plain, self.plain = self.interval, PLAIN_WAIT
        return False

    def stepped(self, requests: list[Drafting], drafted: list[int], accepted: list[int], seconds: float) -> None:
        if self.measures(sum(drafted), len(requests), seconds):
            return
        known = [self.known(one) for one in requests]
        changed, self.slots = len(requests) != self.slots, len(requests)
        (self.steps if sum(drafted) else self.plain_steps).add(sum(drafted), seconds, self.slots)
        asked, results = list[tuple[dict[str, Any], int]](), ([], [])  # type: ignore[var-annotated]
        for one, d, a in zip(known, drafted, accepted, strict=True):
            if one["limit"] == 0:
                one["pause"] -= 1
                one["limit"] = min(PROBE, self.k) if one["pause"] <= 0 else 0
                continue
            asked.append((one, d))
            results[one["kind"]].append(self.result(d, a))
            add(one["seen"][one["kind"]], REQUEST_DECAY, [self.result(d, a)])
            changed |= one["kind"] != (0 < d == a)
            one["kind"] = int(0 < d == a)
        for pooled, new in zip(self.pooled, results, strict=True):
            add(pooled, POOLED_DECAY, new)
        if not asked or not (sum(drafted) or changed):
            return
        self.refresh()
        for (one, d), limit in zip(asked, self.best([one for one, _ in asked]), strict=True):
            one["limit"] = limit
            one["pause"] = one["pause"] if limit else one["next_pause"]
            if d:
                pause = one["next_pause"] // 2 if limit else one["next_pause"] * 2
                one["next_pause"] = min(max(pause, FIRST_PAUSE), LONGEST_PAUSE)


@pytest.mark.parametrize("seed", range(12))
def test_arrays_decide_as_the_rule_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, slots, slope = int(rng.integers(2, 9)), (1, 3, 17, 64)[seed % 4], (0.1, 0.3, 0.9)[seed % 3]
    lengths, rule = DraftLengths(k), Rule(k)
    everyone, rates = [Drafting() for _ in range(slots)], rng.random(slots)
    changes = 0
    for step in range(60):
        if rng.random() < 0.1:
            everyone[rng.integers(slots)] = Drafting()
        if step == 30:
            lengths.forget()
            rule.pooled = [rule.counts(), rule.counts()]
            rule.refresh()
        at = [i for i in range(slots) if step % 5 or rng.random() < 0.8] or [0]
        requests = [everyone[i] for i in at]
        wanted = [rule.limit(one) for one in requests]
        assert limits_of(lengths, requests) == wanted, step
        drafted = [most if rng.random() < 0.8 else int(rng.integers(most + 1)) for most in wanted]
        accepted = [min(int(rng.geometric(1 - 0.99 * rates[i])) - 1, d) for i, d in zip(at, drafted, strict=True)]
        seconds = (1 + slope * sum(drafted) / slots) * (1 + 0.2 * rng.random())
        stepped(lengths, requests, drafted, accepted, seconds)
        rule.stepped(requests, drafted, accepted, seconds)
        if seed % 3 == 0:
            rule.asks = True
            for one in (lengths.proposed, rule.asking.add):
                one(max(wanted), 0.01 + 0.01 * max(wanted))
        changes += len(set(wanted)) > 1
    assert slots == 1 or changes > 10


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


@pytest.mark.parametrize(("choosing_s", "share"), [(1e-9, 1.0), (0.5, 0.25)])
def test_choices_that_cost_much_are_rare(monkeypatch: pytest.MonkeyPatch, choosing_s: float, share: float) -> None:
    """Choosing takes half the time of a step: in the long run a quarter of the steps choose at most."""
    now, choices = 0.0, 0

    def perf_counter() -> float:
        nonlocal now, choices
        now, choices = now + choosing_s, choices + 1
        return now

    monkeypatch.setattr("specdec_hal.runner.draft_length.time", SimpleNamespace(perf_counter=perf_counter))
    lengths, request = DraftLengths(4), Drafting()
    steps = 2000
    for _ in range(steps):
        rows = lengths.rows([request])
        drafts = lengths.limits(rows)
        lengths.stepped(rows, drafts, drafts, 1.0 + 0.01 * int(drafts[0]))
    assert choices / 2 == steps if share == 1 else choices / 2 < share * steps
    assert lengths.limits(lengths.rows([request])).tolist() in ([4], [0])  # 0: a step that measures plain decoding
