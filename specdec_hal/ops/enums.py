"""Enumerated attributes of the ops. The integer values are part of the contract: compiled backends receive them."""

from __future__ import annotations

from enum import IntEnum


class Purpose(IntEnum):
    """Purpose of a random number: the third word of the Philox counter (contracts, section 0)."""

    SAMPLE = 0
    ACCEPT = 1
    RESIDUAL = 2
    CANDIDATE = 3
    DRAFT = 4


class LogprobMode(IntEnum):
    """Log-probabilities of RAW logits, at temperature 1 and without filters, or of the PROCESSED distribution."""

    RAW = 0
    PROCESSED = 1


class Strategy(IntEnum):
    """How `verify_draft_tokens` compares a draft with the target model."""

    GREEDY = 0
    TARGET_MATCH = 1
    TOPP = 2
    REJECTION = 3


class AcceptPolicy(IntEnum):
    """NORMAL verifies; ACCEPT_ALL (warm-up, benchmarks) and REJECT_ALL do not look at the drafts."""

    NORMAL = 0
    ACCEPT_ALL = 1
    REJECT_ALL = 2


class MatchPolicy(IntEnum):
    """Which occurrence of the query an n-gram look-up continues from."""

    LEFTMOST = 0
    LATEST = 1


class TokenOrder(IntEnum):
    """The order in which a backend wants the packed tokens of a step."""

    SLOT = 0
    PREFILL_FIRST = 1


class SlotAction(IntEnum):
    """What `schedule_slots` does to a slot: the values of the tensor `slot_actions`."""

    KEEP = 0
    PREFILL = 1
    WAIT = 2
    STOP = 3


class Activation(IntEnum):
    """What `causal_conv1d` applies to its sums: nothing, or SILU, x / (1 + exp(-x))."""

    NONE = 0
    SILU = 1


class Storage(IntEnum):
    """What recurrent layers keep: STATES after each position, or a checkpoint and what to REPLAY, with equal bits."""

    STATES = 0
    REPLAY = 1


ENUMERATIONS = (Strategy, AcceptPolicy, MatchPolicy, TokenOrder, SlotAction, Purpose, LogprobMode, Activation, Storage)
"""All of them, for the contracts page and the C++ headers."""
