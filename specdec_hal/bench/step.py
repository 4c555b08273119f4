"""The token plane of a whole decode step as one CUDA graph: everything that is neither the model nor sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_hal.bench.case import Case, OpCall
from specdec_hal.bench.decode_step import BATCHES, DRAFTS, DecodeStep
from specdec_hal.bench.step_calls import StepCalls, hidden_rows

_NGRAM: dict[str, Any] = {
    "max_ngram_size": 3, "min_ngram_size": 1, "token_budget": 8192, "match_policy": "LATEST", "pad_to_max": False
}  # fmt: skip


def cases(quick: bool) -> Iterator[Case]:
    """The batch of the target first."""
    headline = DecodeStep(256, 5, 151_936, mixed=False)
    yield _plane(headline, target=18.0)
    yield _plane(headline, hidden=4096)
    if quick:
        return
    for b in BATCHES:
        yield _plane(DecodeStep(b, 5, 151_936))
    for k in DRAFTS:
        if k != headline.drafts:
            yield _plane(DecodeStep(256, k, 151_936, mixed=False))


def _plane(step: DecodeStep, *, hidden: int = 0, target: float | None = None) -> Case:
    """In the runner's order. `hidden`: width of the model's hidden rows, if they are gathered too."""

    def calls(seed: int) -> Sequence[OpCall]:
        made = StepCalls(replace(step, seed=seed))
        plane = [made.call("prepare_inputs")]
        if hidden:
            x = hidden_rows(made.size["T_cap"], hidden, seed)
            out = np.zeros((made.size["R_cap"], hidden), np.uint16)
            plane.append(made.call("gather_next_token", x=x, out=out, is_speculative=True))
        plane.append(made.call("build_sampling_params"))
        plane.append(made.verify("TARGET_MATCH"))
        plane.append(made.call("update_model_status"))
        plane.append(made.call("ngram_match", **_NGRAM))
        return plane

    kind = "a third prefills, a tenth is idle" if step.mixed else "all decode"
    label = f"token plane, B {step.slots}, K {step.drafts}, {kind}" + (f", hidden rows of {hidden:,}" if hidden else "")
    params: dict[str, Any] = {"B": step.slots, "K": step.drafts, "mixed": step.mixed, "hidden": hidden}
    moved = 4 * step.slots * step.width * hidden
    return Case(label, "token plane", calls, moved, target=(target, None), params=params)
