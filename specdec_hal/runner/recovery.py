"""Find the request that makes a step fail.

Tokens depend only on prompt, parameters and seed, so a failed step needs no undo: all running requests return to the
queue and resume later. The failed step's requests are retried in halves until one fails alone twice; all others get the
same tokens as without the failure.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from specdec_hal.runner.sequence import Sequence

ATTEMPTS = 2
"""Failures of a request alone before it is given up; the first may be accidental."""


class Bisection:
    """Groups of suspected requests; the last group is tried alone."""

    def __init__(self) -> None:
        self._groups: list[dict[Sequence, int]] = []

    @property
    def on_trial(self) -> SequenceOf[Sequence] | None:
        """Requests allowed in the next step; None: all."""
        return tuple(self._groups[-1]) if self._groups else None

    def failed(self, suspects: SequenceOf[Sequence]) -> Sequence | None:
        """Record a failed step of these. Returns the faulty request once identified."""
        if self._groups and set(suspects) <= self._groups[-1].keys():
            others = {s: length for s, length in self._groups.pop().items() if s not in suspects}
            if others:
                self._groups.append(others)
        if len(suspects) == 1:
            suspect = suspects[0]
            suspect.failures += 1
            if suspect.failures >= ATTEMPTS:
                return suspect
            self._try(suspects)
        else:
            half = len(suspects) // 2
            self._try(suspects[half:])
            self._try(suspects[:half])
        return None

    def _try(self, group: SequenceOf[Sequence]) -> None:
        self._groups.append({sequence: sequence.length for sequence in group})

    def passed(self) -> None:
        """After a step, clear requests that gained a token or ended."""
        while self._groups:
            group = self._groups[-1]
            for sequence, length in list(group.items()):
                if sequence.finish_reason is not None or sequence.length > length:
                    del group[sequence]
            if group:
                return
            self._groups.pop()
