"""Every edge in every mode: most rules depend on no strategy or policy, and a backend may claim a single one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from specdec_hal.ops import MatchPolicy, Strategy
from specdec_hal_conformance.case import Case, Inputs, Workspace
from specdec_hal_conformance.expectations import unmet
from specdec_hal_conformance.subject import REFERENCE, reference_outputs

_BY_TOKEN = (Strategy.GREEDY, Strategy.TARGET_MATCH)
_MOST_IDS = 4096
"""Larger vocabularies are not written out as probabilities."""


def in_other_modes(case: Case) -> Iterator[Case]:
    """The same edge in the modes that it does not name.

    Where the contract's answer there is the one written out by hand, that and the edge's rules go along; elsewhere the
    case stands for equality with the reference alone.
    """
    if case.op in ("ngram_match", "hybrid_mtp_ngram"):
        policy = case.make(REFERENCE.workspace)["match_policy"]
        yield from (_variant(case, other.name, {"match_policy": other}) for other in MatchPolicy if other != policy)
    elif case.op == "verify_draft_tokens":
        given = case.make(REFERENCE.workspace)
        if given["strategy"] in _BY_TOKEN:
            for other in Strategy:
                changes = _accepting(given, other)
                if other is not given["strategy"] and changes is not None:
                    yield _variant(case, other.name, changes)


def _variant(case: Case, mode: str, changes: dict[str, Any]) -> Case:
    make = partial(_changed, case, changes)
    variant = replace(case, name=f"{case.name} [{mode}]", make=make)
    inputs = make(REFERENCE.workspace)
    with np.errstate(all="ignore"):
        same = case.expected and unmet(case.expected, reference_outputs(case.op, inputs)) is None
    return variant if same else replace(variant, rules=(), expected={})


def _changed(case: Case, changes: dict[str, Any], workspace: Workspace) -> Inputs:
    inputs = case.make(workspace)
    for name, value in changes.items():
        inputs[name] = value.copy() if isinstance(value, np.ndarray) else value
    return {name: value for name, value in inputs.items() if value is not None}


def _accepting(given: Inputs, strategy: Strategy) -> dict[str, Any] | None:
    """What makes `strategy` accept the target tokens and nothing else; None where that cannot be written."""
    tokens = given["target_tokens"].reshape(-1)
    if strategy in _BY_TOKEN:
        return {"strategy": strategy}
    if tokens.size and not (int(tokens.min()) >= 0 and int(tokens.max()) < _MOST_IDS):
        return None
    changes: dict[str, Any] = {"strategy": strategy, "target_tokens": None}
    if strategy is Strategy.REJECTION:
        return {**changes, "target_probs": np.eye(int(tokens.max(initial=1)) + 1, dtype=np.float32)[tokens]}
    rows = len(tokens)
    return {
        **changes,
        "candidate_ids": tokens[:, None].copy(),
        "candidate_scores": np.ones((rows, 1), np.float32),
        "candidate_lens": np.ones(rows, np.int32),
        "top_p": np.ones(len(given["seed"]), np.float32),
    }
