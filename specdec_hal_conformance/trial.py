"""One case on one backend, prepared once for all checks."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal_conformance import lookups
from specdec_hal_conformance.case import Case, Inputs
from specdec_hal_conformance.subject import Outcome, Subject, reference_outputs

Array = NDArray[Any]


class Trial:
    """A case's inputs on a backend. `inputs`: given ones (while shrinking); None: the case's."""

    def __init__(self, subject: Subject, case: Case, inputs: Inputs | None = None) -> None:
        self.subject, self.case, self.op = subject, case, case.op
        self.given = case.make(subject.workspace) if inputs is None else inputs

    @cached_property
    def inputs(self) -> Inputs:
        """The op's inputs, with an up-to-date n-gram index (except in hostile cases)."""
        if self.case.kind == "hostile":
            return self.given
        return lookups.with_index(self.subject, self.op, self.given)

    @property
    def comparable(self) -> bool:
        """Whether the reference defines the result; a look-up with an invalid index is backend-specific."""
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
    """The inputs with another pattern in pure outputs."""
    changed = dict(inputs)
    for name in op_outputs:
        array = inputs[name]
        changed[name] = np.zeros_like(array) if array.dtype == np.bool_ else np.full_like(array, 0x3C)
    return changed
