"""How an edge is written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specdec_hal.ops import get_op
from specdec_hal_conformance.building import build
from specdec_hal_conformance.case import Case, Inputs, Workspace


def edge(
    op: str,
    name: str,
    rules: str,
    expected: Mapping[str, Any],
    sizes: Mapping[str, int] | None = None,
    *,
    index: bool = False,
    **given: Any,
) -> Case:
    """A case with the given values (see `building.build`) and outputs, touching the rules named in `rules` (a
    convention by its full id).

    `index`: pass the op an n-gram index as well.
    """
    spec = get_op(op)
    listed = tuple(rules.split())
    for rule in listed:
        if "#" not in rule and rule not in spec.rules:
            raise LookupError(f"edge '{name}': {op} has no rule '{rule}'; rules: {', '.join(spec.rules)}")

    def make(workspace: Workspace) -> Inputs:
        inputs = build(op, sizes, **{n: v.copy() if isinstance(v, np.ndarray) else v for n, v in given.items()})
        if index:
            m, length = inputs["token_ids_all"].shape
            grams = {n: int(inputs[n]) for n in ("max_ngram_size", "min_ngram_size")}
            layout = workspace(op, M=m, L=length, **grams)["index"]
            inputs["index"] = np.full(layout.shape, 0xA5, layout.dtype)
        return inputs

    return Case(op, f"edge:{name}", make, listed, expected)
