"""Check that a head reads its trained inputs, by comparing variants on text of the target.

A head loaded with a wrong convention drafts badly without an error (layer ids one too low reduced a public head's
acceptance from 45 % to 10 %). So the configured head is compared with variants: taps one layer lower and higher, and
`norm_output` and `norm_before_residual` inverted. Each drafts DEPTH tokens at many positions of the target's text, with
true tokens as input, and is scored by agreement of best tokens. A variant is better if it leads by SIGMAS standard
errors of the paired difference; a barely trained head does not differ from its variants and passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.drafter import Eagle3Config, target_of
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment, TargetModel
from specdec_hal.tensors.views import download

Ids = npt.NDArray[np.int64]

TEXTS = (
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n",
    "The first step of the algorithm is to sort the list. After that, ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n",
    "Question: what is the capital of France, and what is it known for?\nAnswer:",
)
LENGTH, STRIDE, DEPTH, SIGMAS = 96, 2, 3, 3.0
"""Tokens generated per text; stride of positions; drafts per position; see above."""


@dataclass(frozen=True)
class Variant:
    """Changes of a drafter's configuration, and agreement with the target by depth."""

    changes: dict[str, Any]
    agreement: tuple[float, ...]
    sigmas: float
    """Its lead over the configured one, in standard errors."""
    method: str = "eagle3"

    @property
    def shares(self) -> str:
        """The agreement by depth."""
        return ", ".join(f"{share:.3f}" for share in self.agreement)

    @property
    def key(self) -> str:
        """The settings of this variant."""
        return " and ".join(
            f"speculative.{self.method}.{name}={str(value).lower()}" for name, value in self.changes.items()
        )


def shifted(taps: tuple[int, ...], layers: int) -> Iterator[tuple[int, ...]]:
    """Taps as they are, and one layer lower and higher where a target with this many layers has these."""
    for offset in (0, -1, 1):
        if taps[0] + offset >= 1 and taps[-1] + offset <= layers:
            yield tuple(tap + offset for tap in taps)


def variants(config: Eagle3Config, layers: int) -> Iterator[dict[str, Any]]:
    """Changes of a head, none first. `layers`: of its target."""
    for taps in shifted(config.taps, layers):
        for output in (config.norm_output, not config.norm_output):
            for residual in (config.norm_before_residual, not config.norm_before_residual):
                changes: dict[str, Any] = {}
                if taps != config.taps:
                    changes["layers"] = list(taps)
                if output != config.norm_output:
                    changes["norm_output"] = output
                if residual != config.norm_before_residual:
                    changes["norm_before_residual"] = residual
                yield changes


def calibrate(model: TargetModel, head: Any, prompts: list[list[int]], length: int = LENGTH) -> list[Variant]:
    """All variants, starting with the configured head (:func:`~specdec_hal.models.eagle3.eagle3_head`).

    `prompts`: token ids that the target continues, one by one.

    Model and head have caches already, whose slot 0 is overwritten. UnsupportedError for a parallel head.
    """
    if head.config.mask_token_id is not None:
        raise UnsupportedError("calibration: expected a head that chains its drafts, got a parallel one (peagle)")
    tried = list(variants(head.config, target_of(model, "eagle3").num_hidden_layers))
    taps = {tap for changes in tried for tap in _changed(head.config, changes).taps}
    hits: list[list[npt.NDArray[np.bool_]]] = [[] for _ in tried]
    for number, prompt in enumerate(prompts):
        text = _continued(model, prompt, length, np.random.default_rng(number))
        given = model.forward(ForwardBatch(text, [Segment(0, 0, len(text), 0)], tuple(tap - 1 for tap in taps)))
        best = download(model.compute_logits(given[FINAL_NORM])).argmax(-1)
        features = {tap: given[tap - 1] for tap in taps}
        for found, changes in zip(hits, tried, strict=True):
            found.append(_hits(head.variant(_changed(head.config, changes)), text, features, best, len(prompt)))
    scores = [np.concatenate(found) for found in hits]
    return [
        Variant(changes, tuple(score.mean(0).tolist()), sigmas(score, scores[0]))
        for changes, score in zip(tried, scores, strict=True)
    ]


def better(found: list[Variant]) -> Variant | None:
    """The best variant, if significantly better than the configured head."""
    best = max(found, key=lambda one: sum(one.agreement))
    return best if best.sigmas > SIGMAS else None


def _changed(config: Eagle3Config, changes: dict[str, Any]) -> Eagle3Config:
    own = {name: value for name, value in changes.items() if name != "layers"}
    return replace(config, taps=tuple(changes.get("layers", config.taps)), **own)


def _continued(model: TargetModel, prompt: list[int], length: int, generator: np.random.Generator) -> Ids:
    """The prompt and a sampled continuation, which avoids repetition."""
    text, position = list(prompt), 0
    while len(text) < len(prompt) + length:
        new = np.array(text[position:], np.int64)
        hidden = model.forward(ForwardBatch(new, [Segment(0, 0, len(new), position, outputs=1)]))[FINAL_NORM]
        logits = download(model.compute_logits(hidden[len(new) - 1 : len(new)]))[0].astype(np.float64)
        position = len(text)
        text.append(int((logits + generator.gumbel(size=len(logits))).argmax()))
    return np.array(text, np.int64)


def _hits(head: Any, text: Ids, features: dict[int, Any], best: Ids, start: int) -> npt.NDArray[np.bool_]:
    """[positions, DEPTH]: whether draft d after each position is the target's best token there.

    Rows with the target's features come first; then the head's own, from the last position backwards, so that rows
    before a position are still the target's.
    """
    tried = range(start, len(text) - DEPTH, STRIDE)
    states = head.fuse(features)
    rows = head.forward(ForwardBatch(text[1:], [Segment(0, 0, len(text) - 1, 0)]), states[: len(text) - 1])
    found = np.zeros((len(tried), DEPTH), bool)
    first = _best(head, rows) == best[1:]
    for number, at in reversed(list(enumerate(tried))):
        found[number, 0], state = first[at], rows[at : at + 1]
        for depth in range(1, DEPTH):
            batch = ForwardBatch(text[at + 1 + depth : at + 2 + depth], [Segment(0, 0, 1, at + depth)])
            state = head.forward(batch, state)
            found[number, depth] = _best(head, state)[0] == best[at + 1 + depth]
    return found


def _best(head: Any, rows: Any) -> Ids:
    """The target's ids of the head's best tokens."""
    ids: Ids = download(head.compute_logits(rows)).argmax(-1)
    return ids if head.draft_ids is None else np.asarray(head.draft_ids)[ids]


def sigmas(score: npt.NDArray[np.bool_], reference: npt.NDArray[np.bool_]) -> float:
    """The lead in agreement [positions, DEPTH] over that at the same positions, in standard errors."""
    difference = score.mean(1) - reference.mean(1)
    spread = float(difference.std() / np.sqrt(len(difference)))
    return float(difference.mean()) / spread if spread else 0.0
