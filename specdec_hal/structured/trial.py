"""Masks of a new grammar, made on some texts before it is served.

A short grammar may take a library seconds or years for one mask, without a limit, where few of its texts take long.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np

from specdec_hal.structured.backend import Matcher, Vocabulary

MASK_S = 0.25
"""Default of `structured.mask_budget_s`."""
_TEXTS = 3
_TOKENS = 64
_WHOLE_S = 0.25
"""Processor time after which the trial ends, if each mask stays within its budget."""
_FORCED = 8


def try_masks(
    make: Callable[[], Matcher], vocabulary: Vocabulary, begins: Callable[[], object], *, forced: bool
) -> None:
    """Make masks along some texts of a grammar; `begins()` is called before the work for each token. `forced`: look for
    forced tokens too.

    The texts are equal for equal grammars: of tokens drawn at random, and of one token repeated where allowed, which
    is the worst for many ambiguous grammars.
    """
    row, draw, began = np.zeros(-(-vocabulary.size // 32), np.int32), random.Random(0), time.thread_time()
    for number in range(_TEXTS):
        matcher, last = make(), -1
        for _ in range(_TOKENS):
            begins()
            if forced:
                matcher.forced(_FORCED)
            matcher.mask(row)
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
            choice = [token for token in allowed if token not in vocabulary.end_ids]
            if not choice:
                break
            if not number or last not in choice:
                last = draw.choice(choice)
            if not matcher.advance(last) or time.thread_time() - began > _WHOLE_S:
                break


def too_slow(library: str, mask_s: float) -> str:
    """The refusal of a grammar by its masks."""
    budget = f"{mask_s:g} s of processor time (structured.mask_budget_s)"
    other = "llguidance" if library == "xgrammar" else "xgrammar"
    return f"{library} takes more than {budget} for a mask; simplify the grammar, or use the backend {other}"
