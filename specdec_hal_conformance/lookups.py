"""The n-gram index: its layout is backend-specific, so it is tested by look-ups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_hal.ops import MatchPolicy, get_op
from specdec_hal_conformance.case import Inputs

if TYPE_CHECKING:
    from specdec_hal_conformance.subject import Subject

INDEX_OPS = ("ngram_index_reset", "ngram_index_update")
NEEDS = {"ngram_index_reset": (), "ngram_index_update": ("ngram_index_reset",)}
"""The index ops needed before each op; look-ups need both."""

_HISTORY = ("token_ids_all", "prompt_lens", "step_idx", "seq_lens_encoder", "seq_lens_decoder")
_SIZES = ("max_ngram_size", "min_ngram_size")


def fresh_index(subject: Subject, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An index after the backend's reset."""
    inputs = {"index": like, "reset_slots": np.ones(len(like), np.bool_)}
    return subject.run("ngram_index_reset", inputs).opaque["index"]


def with_index(subject: Subject, op: str, inputs: Inputs) -> Inputs:
    """The inputs with an index that the backend has reset and, for look-ups, updated."""
    if "index" not in inputs or op == "ngram_index_reset":
        return inputs
    ready = {**inputs, "index": fresh_index(subject, inputs["index"])}
    if "match_policy" not in get_op(op).attr_by_name:
        return ready
    update = {name: ready[name] for name in ("index", *_HISTORY, *_SIZES)}
    return {**ready, "index": subject.run("ngram_index_update", update).opaque["index"]}


def look_up(subject: Subject, update: Inputs, index: np.ndarray[Any, Any], policy: MatchPolicy) -> Inputs:
    """Inputs of an `ngram_match` over an update's history, with that index and as many drafts as fit."""
    m = len(update["prompt_lens"])
    width = 5
    return {
        **{name: update[name] for name in (*_HISTORY, *_SIZES)},
        "draft_token_num": np.full(m, width, np.int32),
        "max_dec_len": np.full(m, 2**40),
        "draft_tokens": np.full((m, width + 1), -7),
        "seq_lens_this_time": np.ones(m, np.int32),
        "index": index,
        "token_budget": 10**9,
        "match_policy": policy,
        "pad_to_max": False,
    }
