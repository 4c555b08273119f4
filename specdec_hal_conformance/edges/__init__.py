"""Enumerated edges: for each rule of the contract at least one named case, with its outputs written out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.modes import in_other_modes

_MODULES = (
    "near_misses",  # first: they fail quickly
    "bounds",
    "batch",
    "gather",
    "sampling",
    "kept",
    "chunks",
    "candidates",
    "verify",
    "verify_random",
    "status",
    "ngram",
    "hybrid",
    "output",
    "schedule",
    "phases",
    "draft_model",
    "bitmask",
    "drafter",
    "draft_path",
    "recurrent",
    "flags",
)


@cache
def _all() -> dict[str, tuple[Case, ...]]:
    by_op: dict[str, list[Case]] = {}
    for name in _MODULES:
        for case in import_module(f"{__name__}.{name}").edges():
            by_op.setdefault(case.op, []).append(case)
    for op, cases in by_op.items():
        cases += [other for case in cases for other in in_other_modes(case)]
        names = [case.name for case in cases]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"{op}: two edges are called {', '.join(sorted(twice))}")
    return {op: tuple(cases) for op, cases in by_op.items()}


def edge_cases(op: str) -> Iterator[Case]:
    """The edges of one op."""
    yield from _all().get(op, ())
