"""What two answers say: equal, a tie that rounding can turn, or a fault; and whether samples have one distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from specdec_hal_conformance.audit.endpoint import Answer, Token
from specdec_hal_conformance.statistics import ALPHA, chi_square_tail

FLOOR = 0.01
"""Least difference of log-probabilities, in nats, that counts."""
NOISE = 3.0
"""How much more the drafted side may differ than the plain side from itself."""
MOST_NOISE = 0.5
"""Largest difference of the plain side from itself, in nats; above it no difference means anything."""
FEWEST = 20
"""Fewest samples of both sides in a cell; rarer outcomes share one."""


class Verdict(Enum):
    """Of two greedy answers."""

    EQUAL = "equal"
    TIE = "tie"
    FAULT = "fault"
    UNKNOWN = "unknown"


class Comparison(NamedTuple):
    """`at`: the first token that differs. `gap`: how much less likely it was, in nats, on the side where that is
    larger. `compared`: equal tokens before it. `apart`: the largest difference of their log-probabilities, of the token
    `apart_at`. `bare`: equal tokens without alternatives on the second side only.
    """

    verdict: Verdict
    compared: int
    at: int | None = None
    gap: float | None = None
    apart: float = 0.0
    apart_at: int | None = None
    far: int = 0
    bare: int = 0


def noise(pairs: Sequence[tuple[Answer, Answer]]) -> float:
    """The threshold, in nats, by answers of one side to the same questions in different batches."""
    found = FLOOR / NOISE
    for one, other in pairs:
        result = compare(one, other, float("inf"))
        found = max(found, result.apart, result.gap or 0.0)
    return NOISE * found


def compare(plain: Answer, drafted: Answer, threshold: float) -> Comparison:
    """Compare greedy answers; `threshold`: see :func:`noise`."""
    if not plain.tokens or not drafted.tokens:
        same = plain.text == drafted.text
        return Comparison(Verdict.EQUAL if same else Verdict.UNKNOWN, 0)
    pairs = list(zip(plain.tokens, drafted.tokens, strict=False))
    spelt = plain.text == drafted.text  # then only engines' forms of parts of characters differ

    def alike(one: Token, other: Token) -> bool:
        return one.text == other.text or (spelt and (is_part(one.text) or is_part(other.text)))

    at = next((number for number, pair in enumerate(pairs) if not alike(*pair)), len(pairs))
    far = bare = 0
    apart, apart_at = 0.0, None
    for number, (one, other) in enumerate(pairs[:at]):
        bare += bool(one.top) and not other.top
        if one.logprob is None or other.logprob is None:
            continue
        difference = abs(one.logprob - other.logprob)
        far += difference > threshold
        if difference > apart:
            apart, apart_at = difference, number
    if at == max(len(plain.tokens), len(drafted.tokens)):
        return Comparison(Verdict.EQUAL, at, None, None, apart, apart_at, far, bare)
    if at == len(pairs):  # one ended here
        longer = plain.tokens if len(plain.tokens) > at else drafted.tokens
        gap = _gap_of_rest(longer[at])
    else:
        gaps = _gap(*pairs[at]), _gap(*reversed(pairs[at]))
        gap = max((one for one in gaps if one is not None), default=None)  # accepted drafts may have no alternatives
    verdict = Verdict.UNKNOWN if gap is None else Verdict.TIE if gap <= threshold else Verdict.FAULT
    return Comparison(verdict, at, at, gap, apart, apart_at, far, bare)


def is_part(text: str) -> bool:
    """Whether a token's text may be a part of a character, which engines write in different ways."""
    return not text or "\ufffd" in text or text.startswith("bytes:")


def _gap(one: Token, other: Token) -> float | None:
    """How much less likely the other side's token was on this side, at least; None where that is not reported."""
    if one.logprob is None or not one.top:
        return None
    return one.logprob - one.top.get(other.text, min(one.top.values()))


def _gap_of_rest(one: Token) -> float | None:
    """How much less likely any other token was, at least: end tokens are not reported."""
    if one.logprob is None:
        return None
    rest = -math.expm1(min(one.logprob, 0.0))
    return one.logprob - math.log(rest) if rest > 0 else math.inf


class Samples(NamedTuple):
    """Two sets of samples: `distance`, the total variation of their counts; `p` of one distribution."""

    cells: int
    distance: float
    p: float

    @property
    def fault(self) -> bool:
        """Whether they differ at the level of one test."""
        return self.p < ALPHA


def two_samples(plain: Sequence[Hashable], drafted: Sequence[Hashable]) -> Samples:
    """The G-test of two sets of outcomes."""
    counts = [Counter(plain), Counter(drafted)]
    both = counts[0] + counts[1]
    cells = [outcome for outcome, count in both.items() if count >= FEWEST]
    table = np.array([[one[cell] for cell in cells] for one in counts], np.float64).reshape(2, -1)
    rest = np.array([[len(plain)], [len(drafted)]]) - table.sum(1, keepdims=True)
    table = np.concatenate([table, rest], 1)
    table = table[:, table.sum(0) > 0]
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    seen = table > 0
    g = 2 * float((table[seen] * np.log(table[seen] / expected[seen])).sum())
    freedom = table.shape[1] - 1
    shares = table / table.sum(1, keepdims=True)
    distance = 0.5 * float(np.abs(shares[0] - shares[1]).sum())
    return Samples(table.shape[1], distance, chi_square_tail(freedom, g) if freedom else 1.0)


def fewer(plain: int, drafted: int, of: int) -> float:
    """p-value of Fisher's exact test: at most `drafted` successes if both sides succeed as often, each `of` trials."""
    both = plain + drafted
    ways = (math.comb(of, one) * math.comb(of, both - one) for one in range(max(0, both - of), drafted + 1))
    return sum(ways) / math.comb(2 * of, both)


def detectable(samples: int) -> float:
    """The total variation of two outcomes of equal probability that `samples` of each side show 9 times in 10."""
    return min(1.0, (5.62 + 1.28) * float(np.sqrt(0.5 / samples)))
