"""Check that a drafter reads its trained inputs, by comparing variants on text of the target.

A head loaded with a wrong convention drafts badly without an error (layer ids one too low reduced a public head's
acceptance from 45 % to 10 %). So the configured drafter is compared with variants: taps one layer lower and higher,
`norm_output` and `norm_before_residual` of an EAGLE-3 head inverted, and what its config.json leaves open. Each drafts
DEPTH tokens at many positions of the target's text, with true tokens as input, and is scored by agreement of best
tokens. A variant is better if it leads by SIGMAS standard errors of the paired difference; a barely trained drafter
does not differ from its variants and passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from specdec_hal.models.drafter import Blocks, target_of
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment, TargetModel
from specdec_hal.plugin.proposer import ProposerContext, Settings, Tokenizer
from specdec_hal.tensors.views import download

Ids = npt.NDArray[np.int64]
Load: TypeAlias = Callable[[Settings, TargetModel, Blocks, int], Any]
Tried: TypeAlias = Callable[[Any, int], Iterator[dict[str, Any]]]
_log = logging.getLogger("specdec_hal")

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
    method: str

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


def variants(config: Any, layers: int) -> Iterator[dict[str, Any]]:
    """Changes of a drafter, none first. `layers`: of its target."""
    options = [name for name in ("norm_output", "norm_before_residual") if hasattr(config, name)]
    for taps in shifted(config.taps, layers):
        for flips in product((False, True), repeat=len(options)):
            moved = {} if taps == config.taps else {"layers": list(taps)}
            flipped = {name: not getattr(config, name) for name, flip in zip(options, flips, strict=True) if flip}
            yield moved | flipped
    if getattr(config, "old_norm_output", None) is False:
        yield {"norm_before_head": False}
    yield from islice(masks(config, layers), 1, None)


def masks(config: Any, layers: int) -> Iterator[dict[str, Any]]:
    """No change, and other mask tokens of a parallel EAGLE-3 head that does not name its own."""
    yield {}
    for token in getattr(config, "mask_candidates", ())[1:]:
        yield {"mask_token_id": token}


def check(
    config: Settings,
    model: TargetModel,
    tokenizer: Tokenizer | None,
    load: Load,
    longest: int | None = None,
    tried: Tried = variants,
) -> tuple[Any, list[Variant]]:
    """The configured drafter, and its variants, it first. `longest`: the longest context, None for any.

    `load`: makes a drafter over a cache, for so many drafts at most. The model gets a cache of one slot.
    """
    if tokenizer is None:
        generator = np.random.default_rng(0)
        prompts = [generator.integers(0, model.config.vocab_size, 8).tolist() for _ in TEXTS]
    else:
        prompts = [tokenizer.encode(text) for text in TEXTS]
    most = max(map(len, prompts))
    length = LENGTH if longest is None else min(LENGTH, longest - most)
    if length < LENGTH // 4:
        message = f"expected runner.max_model_len >= {most + LENGTH // 4} with it, got {longest}"
        raise config.error("speculative.calibrate", message)
    drafts = max(DEPTH, config.speculative.num_speculative_tokens)
    model.allocate(1, most + length)
    drafter = load(config, model, Blocks(1, most + length + drafts), drafts)
    return drafter, calibrate(model, drafter, prompts, length, config.speculative.method, tried)


def refuse_worse(context: ProposerContext, load: Load) -> None:
    """Log the agreement of a drafter and its variants with the target; ConfigError if a variant is better."""
    found = compare(context, load)
    best = better(found)
    if best is not None:
        message = (
            f"the drafter agrees with its target on {best.shares} of its drafts by depth with other settings, on "
            f"{found[0].shares} with these; set {best.key}"
        )
        raise context.config.error("speculative.calibrate", message)


def compare(context: ProposerContext, load: Load, tried: Tried = variants) -> list[Variant]:
    """The variants of a drafter, the configured one first, with a line in the log for each."""
    config, model, longest = context.config, cast(Any, context.model), context.state.symbols["L"]
    try:
        _, found = check(config, model, context.tokenizer, load, longest, tried)
    finally:
        if model.capabilities.device_lengths:
            model.allocate_blocks(context.kv_blocks, config.runner.block_size, longest)
        else:
            model.allocate(context.state.symbols["M"], longest)
    for one in found:
        _log.info("speculative.calibrate: agreement %s %s", one.shares, one.key or "as configured")
    return found


def calibrate(
    model: TargetModel,
    drafter: Any,
    prompts: list[list[int]],
    length: int,
    method: str = "eagle3",
    tried_by: Tried = variants,
) -> list[Variant]:
    """All variants, starting with the configured one.

    `prompts`: token ids that the target continues, one by one. Model and drafter have caches already, whose slot 0 is
    overwritten.
    """
    tried = list(tried_by(drafter.config, target_of(model, method).num_hidden_layers))
    taps = {tap for changes in tried for tap in _changed(drafter.config, changes).taps}
    hits: list[list[npt.NDArray[np.bool_]]] = [[] for _ in tried]
    block = getattr(drafter, "block", None) is not None
    for number, prompt in enumerate(prompts):
        text = _continued(model, prompt, length, np.random.default_rng(number))
        given = model.forward(ForwardBatch(text, [Segment(0, 0, len(text), 0)], tuple(tap - 1 for tap in taps)))
        best = download(model.compute_logits(given[FINAL_NORM])).argmax(-1)
        features = {tap: given[tap - 1] for tap in taps}
        tried_at = range(len(prompt), len(text) - DEPTH, STRIDE)
        if block:
            best = _greedy(model, best, tried_at)
        for found, changes in zip(hits, tried, strict=True):
            variant = drafter.variant(_changed(drafter.config, changes))
            found.append((_block_hits if block else _hits)(variant, text, features, best, tried_at))
    scores = [np.concatenate(found) for found in hits]
    return [
        Variant(changes, tuple(score.mean(0).tolist()), sigmas(score, scores[0]), method)
        for changes, score in zip(tried, scores, strict=True)
    ]


def better(found: list[Variant]) -> Variant | None:
    """The best variant, if significantly better than the configured head."""
    best = max(found, key=lambda one: sum(one.agreement))
    return best if best.sigmas > SIGMAS else None


def _changed(config: Any, changes: dict[str, Any]) -> Any:
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


def _greedy(model: TargetModel, best: Ids, tried: range) -> Ids:
    """[positions, DEPTH + 1]: the target's best tokens after these positions, each after the previous one."""
    found = np.zeros((len(tried), DEPTH + 1), np.int64)
    for number, at in reversed(list(enumerate(tried))):  # so that the cache before a position is still the text's
        found[number, 0] = best[at]
        for depth in range(DEPTH):
            batch = ForwardBatch(found[number, depth : depth + 1], [Segment(0, 0, 1, at + 1 + depth)])
            found[number, depth + 1] = download(model.compute_logits(model.forward(batch)[FINAL_NORM]))[0].argmax()
    return found


def _hits(head: Any, text: Ids, features: dict[int, Any], best: Ids, tried: range) -> npt.NDArray[np.bool_]:
    """[positions, DEPTH]: whether draft d after each position is the target's best token there.

    Rows with the target's features come first; then the head's own, from the last position backwards, so that rows
    before a position are still the target's.
    """
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


def _block_hits(drafter: Any, text: Ids, features: dict[int, Any], greedy: Ids, tried: range) -> npt.NDArray[np.bool_]:
    """[positions, drafts]: whether a parallel drafter's draft and those before it are the target's greedy tokens.

    Each pass extends its context by a few rows and makes all drafts after a greedy token. It is given what the op
    `prepare_block_inputs` computes.
    """
    depth, first = min(DEPTH, drafter.drafts), 0
    states, found = drafter.fuse(features), np.zeros((len(tried), depth), bool)
    kept, masks = slice(-drafter.block["anchor_only"], None), drafter.block["num_masks"]
    for number, at in enumerate(tried):
        tokens = np.concatenate([text[first + 1 : at + 1], greedy[number, :1]])
        ids = np.concatenate([tokens[kept], np.full(masks, drafter.block["mask_token_id"])])
        source = np.concatenate([np.arange(len(tokens))[kept], np.full(masks, -1)]).astype(np.int32)
        block = ForwardBatch(ids, [Segment(0, 0, len(ids), at + 1 if kept.start else first)])
        fed = ForwardBatch(tokens, [Segment(0, 0, len(tokens), first)])
        rows = drafter.forward_block(fed, states[first : at + 1], block, source)
        for draft in range(depth):
            if draft:
                before = ForwardBatch(greedy[number, draft : draft + 1], [Segment(0, 0, 1, at + draft)])
                rows = drafter.forward_further(draft, before)
            best = _of_target(drafter, drafter.host_draft_logits(draft, [0], rows[-1:]))
            found[number, draft] = best[0] == greedy[number, draft + 1]
        first = at  # whose row had another token after it
    return np.logical_and.accumulate(found, 1)


def _best(head: Any, rows: Any) -> Ids:
    """The target's ids of the head's best tokens."""
    return _of_target(head, head.compute_logits(rows))


def _of_target(drafter: Any, logits: Any) -> Ids:
    ids: Ids = download(logits).argmax(-1)
    return ids if drafter.draft_ids is None else np.asarray(drafter.draft_ids)[ids]


def sigmas(score: npt.NDArray[np.bool_], reference: npt.NDArray[np.bool_]) -> float:
    """The lead in agreement [positions, DEPTH] over that at the same positions, in standard errors."""
    difference = score.mean(1) - reference.mean(1)
    spread = float(difference.std() / np.sqrt(len(difference)))
    return float(difference.mean()) / spread if spread else 0.0
