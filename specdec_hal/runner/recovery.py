"""A step that fails, taken apart until it is known which request makes it fail.

Tokens depend on nothing but prompt, parameters and seed, so a failed step needs no undoing: every running request goes
back to the line and resumes later. The requests of the failed step are tried again in halves, until one that fails
alone twice is the suspect; all others get the tokens that they would have had.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from specdec_hal.runner.sequence import Sequence

ATTEMPTS = 2
"""Failures of a request alone before it is given up: the first may have been an accident of the machine."""


class Bisection:
    """Groups of requests that are still under suspicion; the last one is on trial, alone in its steps."""

    def __init__(self) -> None:
        self._groups: list[dict[Sequence, int]] = []

    @property
    def on_trial(self) -> SequenceOf[Sequence] | None:
        """Who may take part in the next step; None: everybody."""
        return tuple(self._groups[-1]) if self._groups else None

    def failed(self, suspects: SequenceOf[Sequence]) -> Sequence | None:
        """A step of these failed. Returns the suspect if there is no doubt left."""
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
        """After a step was read: whoever gained a token, or has ended, is out of suspicion."""
        while self._groups:
            group = self._groups[-1]
            for sequence, length in list(group.items()):
                if sequence.finish_reason is not None or sequence.length > length:
                    del group[sequence]
            if group:
                return
            self._groups.pop()
