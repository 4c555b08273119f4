"""Rows of `compare` pooled over prompts, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Row = Mapping[str, Any]
"""A row of `compare --method`: one prompt, one method."""
_RESAMPLES = 2000
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t for 95 % at 1, 2, ... degrees of freedom; above them its limit is near enough."""


def prompt_label(prompt: str) -> str:
    """A prompt's name without folders."""
    return Path(prompt).name if Path(prompt).suffix else prompt


def pooled(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each method, plain decoding first.

    `tokens_per_step`: decoded tokens of all prompts over decode steps. `speedup`: plain seconds over seconds.
    `break_even`: the tokens per step at which the method, with steps as long as measured, is as fast as plain decoding.
    `accepted_lengths`: fractions of drafts with 0, 1, ... accepted tokens, empty if drafts were not counted. The
    intervals (`..._95`) are percentiles of a bootstrap over prompts; None for a single prompt.
    """
    plain = {row["prompt"]: row["seconds"] for row in rows if row["method"] == "naive"}
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        some = [row for row in rows if row["method"] == method]
        # The prompt, not a decode step, yields the first token.
        counted = [row for row in some if row["tokens_per_step"]]
        decoded = [row["tokens"] - 1 for row in counted]
        steps = [tokens / row["tokens_per_step"] for tokens, row in zip(decoded, counted, strict=True)]
        drafts, rates = pooled_acceptance(some)
        reached = [1.0, *rates, 0.0]
        per_step = _ratio("tokens_per_step", decoded, steps)
        speedup = _ratio("speedup", [plain[row["prompt"]] for row in some], [row["seconds"] for row in some])
        tokens = per_step["tokens_per_step"]
        found.append(
            {
                "method": method,
                **({"k": some[0]["k"]} if "k" in some[0] else {}),
                "prompts": len(some),
                "tokens": sum(row["tokens"] for row in some),
                **per_step,
                **speedup,
                "break_even": tokens and tokens / speedup["speedup"],
                "num_drafts": drafts,
                "mean_acceptance_length": 1 + sum(rates) if rates else None,
                "acceptance_by_position": rates,
                "accepted_lengths": [a - b for a, b in pairwise(reached)] if drafts else [],
            }
        )
    return found


def pooled_acceptance(rows: Sequence[Row]) -> tuple[int, list[float]]:
    """Number of drafts, and acceptance by position. A position beyond a draft's end counts as not accepted."""
    rates = [(row["num_drafts"], row["acceptance_by_position"]) for row in rows]
    drafts = sum(count for count, _ in rates)
    positions = range(max((len(one) for _, one in rates), default=0))
    return drafts, [sum(count * one[at] for count, one in rates if len(one) > at) / drafts for at in positions]


def interval_of_turns(ratios: Sequence[float]) -> list[float] | None:
    """The 95 % interval of the geometric mean of ratios that were measured in turns; None for a single turn."""
    if len(ratios) < 2:
        return None
    logs = np.log(np.asarray(ratios, np.float64))
    student = _STUDENT[min(len(logs), len(_STUDENT) + 1) - 2]
    half = student * logs.std(ddof=1) / np.sqrt(len(logs))
    return [float(value) for value in np.exp(logs.mean() + np.array([-half, half]))]


def _ratio(name: str, above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    if not above:
        return {name: None, f"{name}_95": None}
    tops, bottoms = np.asarray(above, np.float64), np.asarray(below, np.float64)
    interval = None
    if len(tops) > 1:
        drawn = np.random.default_rng(0).integers(len(tops), size=(_RESAMPLES, len(tops)))
        interval = np.percentile(tops[drawn].sum(1) / bottoms[drawn].sum(1), (2.5, 97.5)).tolist()
    return {name: float(tops.sum() / bottoms.sum()), f"{name}_95": interval}
