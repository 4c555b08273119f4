"""Broken backends that claim a single mode, as a vendor's first version does."""

from __future__ import annotations

from enum import IntEnum

from specdec_hal.ops import MatchPolicy, Strategy
from specdec_hal.plugin.backend import Backend, Capability
from tests.conformance.mutants import ngram, verify
from tests.conformance.mutants.making import Mutant, edited_reference

_KNOWN = {mutant.name: mutant for mutant in (*ngram.MUTANTS, *verify.MUTANTS)}


def _only(name: str, attribute: str, mode: IntEnum) -> Mutant:
    known = _KNOWN[name]

    def make() -> Backend:
        backend = edited_reference(known.edits)
        claimed = Capability(attrs={attribute: frozenset({mode})})
        backend.capabilities = {**backend.capabilities, **dict.fromkeys(known.ops, claimed)}
        return backend

    return Mutant(f"{name}-{mode.name.lower()}", known.ops, f"{known.stands_for}; {mode.name} alone is claimed", make)


MUTANTS = (
    *(
        _only(name, "match_policy", MatchPolicy.LATEST)
        for name in ("budget-forgets-prefill", "budget-forgets-later-slots", "prefill-slot-cleared")
    ),
    *(
        _only(name, "strategy", mode)
        for name in ("paused-slot-emits", "stopped-slot-emits", "padding-slot-emits", "unfinished-chunk-emits")
        for mode in (Strategy.GREEDY, Strategy.TOPP, Strategy.REJECTION)
    ),
)
