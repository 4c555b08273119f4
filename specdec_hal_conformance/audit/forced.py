"""Drafted answers as the plain side scores them: each token after the same text, also behind a difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from specdec_hal_conformance.audit.endpoint import Answer, RefusedError, Token
from specdec_hal_conformance.audit.verdict import MOST_NOISE, NOISE, Comparison, Verdict, is_part

Score = Callable[[str, int, Answer, float], list[Token]]
"""The tokens of an answer to the prompt of this number, kept under a name (:meth:`endpoint.Endpoint.score`)."""


class Forced:
    """`own`: the plain side's answers, whose scores show how much rounding differs. `threshold`: at least, in nats."""

    def __init__(self, score: Score, own: Mapping[int, Answer], threshold: float) -> None:
        self._score, self.threshold, self.skipped = score, threshold, ""
        self._scored = 0
        for number, answer in own.items():
            apart = [one[0] for one in _apart(answer, self._tokens("plain", number, answer, math.inf))]
            self.threshold = max(self.threshold, NOISE * max(apart, default=0.0))
        if self.threshold > NOISE * MOST_NOISE:
            self.skipped = f"the plain side scores its own answers {self.threshold / NOISE:.2f} nats off"

    def _tokens(self, name: str, number: int, answer: Answer, near: float) -> list[Token]:
        """Nothing if this text is refused; a side that refuses the first text is not asked again."""
        if self.skipped:
            return []
        try:
            scored = self._score(name, number, answer, near)
        except RefusedError as error:
            self.skipped = "" if self._scored else str(error)
            return []
        self._scored += 1
        return scored

    def compare(self, name: str, number: int, answer: Answer) -> Comparison | None:
        """Whether every token of a greedy answer is the most likely one up to rounding, with the right log-probability.

        None if the text cannot be scored.
        """
        scored = self._tokens(name, number, answer, self.threshold)
        if not scored:
            return None
        gaps = [max(one.top.values(), default=one.logprob) - one.logprob for one in scored if one.logprob is not None]
        gap = max(gaps, default=0.0)
        apart, apart_at = max(_apart(answer, scored), default=(0.0, None))
        far = sum(one > self.threshold for one, _ in _apart(answer, scored))
        verdict = Verdict.FAULT if gap > self.threshold else Verdict.TIE if gap > 0 else Verdict.EQUAL
        return Comparison(verdict, len(scored), gaps.index(gap) if gap > 0 else None, gap, apart, apart_at, far)


def _apart(answer: Answer, scored: list[Token]) -> list[tuple[float, int]]:
    """Differences of log-probabilities with their positions, up to where the text is split otherwise."""
    found = list[tuple[float, int]]()
    for number, (one, other) in enumerate(zip(answer.tokens, scored, strict=False)):
        if one.text != other.text and not (is_part(one.text) or is_part(other.text)):
            break
        if one.logprob is not None and other.logprob is not None:
            found.append((abs(one.logprob - other.logprob), number))
    return found
