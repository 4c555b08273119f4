"""What observers see of a runner's steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class StepRecord:
    """One step of the runner, as observers see it (`specdec_step_finished`).

    `drafted` and `accepted` by draft position (0 = the first draft): slots with a draft there, and with an accepted and
    kept one. Drafts after the end of a request, at a stop string or its length limit, do not count. `decode_slots` and
    `decode_tokens` exclude prefill. `dropped_drafts` counts invalid draft lists: too long, or a token outside the
    vocabulary. `seconds` is by stage. `bucket`: what the step was padded to, as slots, tokens and context. `method`:
    what drafts for the next step.
    """

    input_tokens: int = 0
    output_rows: int = 0
    prefill_slots: int = 0
    decode_slots: int = 0
    decode_tokens: int = 0
    emitted: int = 0
    dropped_drafts: int = 0
    bucket: tuple[int, int, int] = (0, 0, 0)
    method: str = ""
    drafted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
