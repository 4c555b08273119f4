"""One case on one backend: what every check starts from, made once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.conformance import lookups
from specdec_hal.conformance.case import Case, Inputs
from specdec_hal.conformance.subject import Outcome, Subject, reference_outputs

Array = NDArray[Any]


class Trial:
    """A case's inputs on a backend. `inputs`: given ones (while shrinking); None makes the case's own."""

    def __init__(self, subject: Subject, case: Case, inputs: Inputs | None = None) -> None:
        self.subject, self.case, self.op = subject, case, case.op
        self.given = case.make(subject.workspace) if inputs is None else inputs

    @cached_property
    def inputs(self) -> Inputs:
        """What the op gets: as given, with an n-gram index that knows the history (except in hostile cases)."""
        if self.case.kind == "hostile":
            return self.given
        return lookups.with_index(self.subject, self.op, self.given)

    @property
    def comparable(self) -> bool:
        """Whether the reference knows the answer. What a look-up does with an invalid index is up to the backend."""
        return not (self.case.kind == "hostile" and "index" in self.given)

    @cached_property
    def expected(self) -> dict[str, Array]:
        """The contract's answer."""
        return reference_outputs(self.op, self.given)

    @cached_property
    def outcome(self) -> Outcome:
        """The backend's answer. Raises CallFailed."""
        return self.subject.run(self.op, self.inputs)


def repoisoned(op_outputs: list[str], inputs: Inputs) -> Inputs:
    """The inputs with another pattern in what the op only writes."""
    changed = dict(inputs)
    for name in op_outputs:
        array = inputs[name]
        changed[name] = np.zeros_like(array) if array.dtype == np.bool_ else np.full_like(array, 0x3C)
    return changed
