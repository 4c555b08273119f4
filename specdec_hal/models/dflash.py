"""DFlash drafters (z-lab): fill in a block of masked tokens at once, from features of the target.

The target's features at a few depths are fused, one row c for each verified position. Every layer projects keys and
values from c, its only view of the text. A block is the last emitted token, at position P, followed by mask tokens,
embedded by the target's table. Its rows attend to all of the context and the block, in both directions. Slot i predicts
the token at its own position P + i::

    c = hidden_norm(fc(features))       context: k = rope(k_norm(k_proj c)), v = v_proj c, the same c in all layers
    n = input_layernorm(x)              x += o_proj(attention(rope(q_norm(q_proj n)); context ++ block))
                                        x += mlp(post_attention_layernorm(x))
    logits = lm_head(norm(x))           the target's head, or the checkpoint's own over a draft vocabulary

Nothing of a block is kept. Layer ids: ``target_layer_ids`` (z-lab) are outputs of layers, so the tap is i + 1;
``aux_hidden_state_layer_ids`` (speculators) are taps as :mod:`specdec_hal.models.drafter` counts them. Without ids a
drafter of L layers taps round(1 + i (N - 4) / (L - 1)) + 1, or N // 2 + 1 if it has one.

DSpark (arXiv:2607.05147) has, with ``sample_from_anchor`` (its default), no slot without a draft: slot i gives the
token at P + i + 1. Its drafts depend on each other: with h_i the row and w the embedding ``markov_w1`` of the previous
token, ``markov_w2`` m is added to the logits::

    vanilla   m = w                                     gated   m = sigmoid(gate_proj [h_i, w]) w
    rnn       g, c, o = joint_proj [s, w, h_i]          s = sigmoid(g) s + (1 - sigmoid(g)) tanh(c);  m = tanh(o)
    confidence_i = sigmoid(proj h_i), or of [h_i, w] with ``confidence_head_with_markov``

:mod:`specdec_hal.models.draft_pass` computes both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from specdec_hal.models.checkpoint import CONFIG, Fields, LlamaConfig, checkpoint_error, llama_config, read_json
from specdec_hal.models.drafter import OTHER, TAPS, Target, check_keys, drafter_kind, layer_fields
from specdec_hal.models.weights import Shapes, layer_shapes

_IDS = TAPS.removeprefix("eagle_")
_MARKOV = ("vanilla", "gated", "rnn")
_DSPARK = {"markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"}
_READ = {"dflash_config", "block_size", "sample_from_anchor", _IDS}
_NESTED = {
    "use_aux_hidden_state": True, "causal": False, "use_swa": False, "sample_from_anchor": None,
    "attention_sink_bias": False, "attention_value_scale": 1.0, "num_target_layers": None, "mask_token_id": None,
    "target_layer_ids": None, "block_size": None, "mask_token": None,
}  # fmt: skip
"""Keys of dflash_config and their only supported value; None: any."""


@dataclass(frozen=True, kw_only=True)
class DFlashConfig(LlamaConfig):
    """A drafter's config.json. `block_size`: rows of a block, including the emitted token.

    `markov_rank`: of DSpark, 0 for DFlash; the others as in this module.
    """

    block_size: int
    sample_from_anchor: bool
    markov_rank: int
    markov_head_type: Literal["vanilla", "gated", "rnn"]
    confidence: bool
    confidence_with_markov: bool
    mask_token_id: int
    draft_vocab_size: int
    taps: tuple[int, ...]
    numbering: str

    @property
    def drafts(self) -> int:
        """Most drafts of a block."""
        return self.block_size - (not self.sample_from_anchor)


def read_dflash(folder: str | Path, target: Target) -> DFlashConfig:
    """config.json of a drafter for this target. CheckpointError for unsupported ones."""
    file = Path(folder) / CONFIG
    if (kind := drafter_kind(folder)) not in ("dflash", "dspark"):
        raise checkpoint_error(file, "a DFlash or DSpark drafter", f"a checkpoint of the kind '{kind}'", OTHER)
    top = Fields(file, read_json(folder, CONFIG))
    layer, nested = layer_fields(top), top.section("dflash_config")
    chained = kind == "dspark"
    check_keys(top, layer, _READ | (_DSPARK if chained else set()))
    known: dict[str, Any] = {**_NESTED, **(dict.fromkeys(_DSPARK) | {"projector_type": "dspark"} if chained else {})}
    for key in sorted(nested.keys()):
        if key not in known:
            raise nested.error(key, "no such key, since it may change what is computed", OTHER)
        if (value := known[key]) is not None:
            nested.only(key, value)

    def where(key: str) -> Fields:
        return nested if key in nested else top

    own = llama_config(layer, layer.token_ids(), ("qwen3",))
    for key, size in (("vocab_size", target.vocab_size), ("hidden_size", target.hidden_size)):
        if getattr(own, key) != size:
            raise layer.error(key, f"the target's {size}", "use a drafter that was trained for it")
    if own.num_hidden_layers > 64:
        raise layer.error("num_hidden_layers", "at most 64")
    where("num_target_layers").only("num_target_layers", target.num_hidden_layers)
    mask = where("mask_token_id").integer("mask_token_id", minimum=0)
    draft_vocab_size = top.integer("draft_vocab_size", own.vocab_size)
    for section, key, value in ((top, "mask_token_id", mask + 1), (top, "draft_vocab_size", draft_vocab_size)):
        if value > own.vocab_size:
            raise section.error(key, f"within the target's vocabulary of {own.vocab_size}")
    taps, numbering = _taps(top, nested, own.num_hidden_layers, target.num_hidden_layers)
    return DFlashConfig(
        **{field.name: getattr(own, field.name) for field in fields(own)},
        block_size=where("block_size").integer("block_size", minimum=2),
        sample_from_anchor=where("sample_from_anchor").boolean("sample_from_anchor", chained),
        markov_rank=where("markov_rank").integer("markov_rank", 256) if chained else 0,
        markov_head_type=where("markov_head_type").one_of("markov_head_type", _MARKOV, "vanilla", OTHER),  # type: ignore[arg-type]
        confidence=where("enable_confidence_head").boolean("enable_confidence_head", False),
        confidence_with_markov=where("confidence_head_with_markov").boolean("confidence_head_with_markov", False),
        mask_token_id=mask,
        draft_vocab_size=draft_vocab_size,
        taps=taps,
        numbering=numbering,
    )


def _taps(top: Fields, nested: Fields, own: int, layers: int) -> tuple[tuple[int, ...], str]:
    source, key = top, _IDS
    if (ids := top.integers(_IDS)) is not None:
        taps, numbering = ids, f"{_IDS} {list(ids)}, residuals after so many layers"
    else:
        key = "target_layer_ids"
        source = nested if key in nested else top
        ids = source.integers(key)
        if ids is None:
            ids = tuple(round(1 + i * (layers - 4) / (own - 1)) for i in range(own)) if own > 1 else (layers // 2,)
            numbering = f"no ids in config.json: outputs of the layers {list(ids)}"
        else:
            numbering = f"target_layer_ids {list(ids)}, outputs of these layers"
        taps = tuple(i + 1 for i in ids)
    if taps != tuple(sorted(set(taps))) or not 1 <= taps[0] <= taps[-1] <= layers:
        raise source.error(key, f"ascending residuals after 1 to {layers} layers of the target")
    return taps, numbering


def dflash_shapes(config: DFlashConfig) -> tuple[Shapes, Shapes]:
    """Required and optional weights of a drafter."""
    d = config.hidden_size
    shapes: Shapes = {"fc.weight": (d, len(config.taps) * d), "hidden_norm.weight": (d,), "norm.weight": (d,)}
    for i in range(config.num_hidden_layers):
        shapes |= layer_shapes(f"layers.{i}", config, d, head_norms=True)
    maps: Shapes = {"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)}
    head: Shapes = {"lm_head.weight": (config.draft_vocab_size, d)}
    optional: Shapes = {"embed_tokens.weight": (config.vocab_size, d), **maps}
    if rank := config.markov_rank:
        named = "markov_head.markov_w"
        shapes |= {f"{named}1.weight": (config.vocab_size, rank), f"{named}2.weight": (config.draft_vocab_size, rank)}
        products = {"gated": ("gate_proj", rank, d + rank), "rnn": ("joint_proj", 3 * rank, 2 * rank + d)}
        if (found := products.get(config.markov_head_type)) is not None:
            product, out, width = found
            shapes[f"markov_head.{product}.weight"] = (out, width)
            optional[f"markov_head.{product}.bias"] = (out,)
        if config.confidence:
            shapes["confidence_head.proj.weight"] = (1, d + rank * config.confidence_with_markov)
            optional["confidence_head.proj.bias"] = (1,)
    if config.draft_vocab_size == config.vocab_size:
        return shapes, {**optional, **head}
    return {**shapes, **head, "d2t": maps["d2t"]}, optional
