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
              s is 0 before slot 0, which goes through it even if it has no draft
    confidence_i = sigmoid(proj h_i), or of [h_i, w] with ``confidence_head_with_markov``

Domino (SpecForge) runs a GRU over the embeddings of the tokens before a draft. From draft
``pure_draft_prefix_len`` on, ``embed_proj.2`` silu(``embed_proj.0`` [h_i, state]) is added to the logits. With
``shift_label`` slot i gives the token at P + i + 1, as with ``sample_from_anchor``.

XPress (speculators) refines the rows of a block. With w the embedding of the previous token and c the mean of all
rows h_j, readout(z_i) is added to the logits::

    a_i = in_proj [down_h h_i, down_g c, w]             y_i = a_i + sum over j <= i of mix_l[:, i, j] a_j
    z_i = y_i + mlp_down (silu(mlp_gate y_i) mlp_up y_i)

A slot 0 without a draft reads the token at P - 1. The pass has not seen it at the start of a text, and where one row
follows a shared prefix, and then reads the one at P. speculators computes a block in ``num_jacobi_passes``. After n
passes its first n greedy drafts are these.

DFlash 2 has two additions. A convolution over the rows of a block goes around each sublayer, with a kernel that
depends on the row: for n = norm(x), c = kernel_projection(n) as [2, T, groups], taps before the block are zero::

    x += conv(sublayer(conv(n; base[0], c[0])); base[1], c[1])
    conv(y; b, c)[i, channel] = sum over t < T of (b[t, channel] + c[i, t, group of channel]) y[i - t, channel]

And a selector: of the ``selector_top_k`` best tokens of a row, a draft is drawn by the logit plus
sum(predecessor_codebook[previous token] * hidden_projection(h_i) * successor_codebook[token]). Other tokens have
probability 0.

:mod:`specdec_hal.models.draft_pass` computes both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal

from specdec_hal.models.checkpoint import CONFIG, Fields, LlamaConfig, checkpoint_error, read_json
from specdec_hal.models.drafter import TAPS, Mask, Target, drafter_kind, drafter_layers, layer_fields, layer_windows
from specdec_hal.models.drafter_keys import OTHER, refuse_unread
from specdec_hal.models.weights import Shapes, layer_shapes
from specdec_hal.ops.vocabulary import SERVED

_IDS = TAPS.removeprefix("eagle_")
_MARKOV = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, kw_only=True)
class DFlashConfig(LlamaConfig):
    """A drafter's config.json. `block_size`: rows of a block, including the emitted token.

    0 without the part: `markov_rank` (DSpark), `gru_hidden_dim` (Domino), `xpress_rank`, `conv_kernel_size` (T) and
    `selector_rank` (DFlash 2). `output_multiplier`, then `final_logit_softcapping` (0: none): of logits;
    `input_embedding_scale`: of a block's embeddings. The others as in this module.
    """

    block_size: int
    sample_from_anchor: bool
    markov_rank: int
    markov_head_type: Literal["vanilla", "gated", "rnn"]
    confidence: bool = False
    confidence_with_markov: bool = False
    mask_token_id: int
    draft_vocab_size: int
    taps: tuple[int, ...]
    numbering: str
    masks: tuple[Mask, ...]
    gru_hidden_dim: int = 0
    emb_dim: int = 0
    pure_draft_prefix_len: int = 0
    xpress_rank: int = 0
    xpress_mlp_ratio: int = 0
    conv_kernel_size: int = 0
    conv_group_size: int = 1
    selector_rank: int = 0
    selector_top_k: int = 0
    output_multiplier: float = 1.0
    final_logit_softcapping: float = 0.0
    input_embedding_scale: float = 1.0

    @property
    def drafts(self) -> int:
        """Most drafts of a block."""
        return self.block_size - (not self.sample_from_anchor)


def read_dflash(folder: str | Path, target: Target, check_taps: bool = True) -> DFlashConfig:
    """config.json of a drafter for this target. CheckpointError for unsupported ones. `check_taps`: see read_eagle3."""
    file = Path(folder) / CONFIG
    if (kind := drafter_kind(folder)) not in ("dflash", "dspark"):
        raise checkpoint_error(file, "a DFlash or DSpark drafter", f"a checkpoint of the kind '{kind}'", OTHER)
    top = Fields(file, read_json(folder, CONFIG), other=OTHER)
    layer, nested = layer_fields(top), top.section("dflash_config")
    chained = kind == "dspark"

    def where(*keys: str) -> tuple[Fields, str]:
        """The section and the name of a key, which trainers write here or there."""
        return next(((part, key) for key in keys for part in (nested, top) if key in part), (top, keys[0]))

    def flag(*keys: str, default: bool) -> bool:
        part, key = where(*keys)
        return part.boolean(key, default)

    def count(key: str, default: int | None = None, minimum: int = 1) -> int:
        part, key = where(key)
        return part.integer(key, default, minimum)

    own = drafter_layers(top, layer, ("qwen3",))
    for key, size in (("vocab_size", target.vocab_size), ("hidden_size", target.hidden_size)):
        if getattr(own, key) != size:
            raise layer.error(key, f"the target's {size}", "use a drafter that was trained for it")
    part, key = where("num_target_layers")
    part.only(key, target.num_hidden_layers)
    top.only("target_hidden_size", target.hidden_size)
    mask = count("mask_token_id", minimum=0)
    draft_vocab_size = top.integer("draft_vocab_size", own.vocab_size)
    for section, key, value in ((top, "mask_token_id", mask + 1), (top, "draft_vocab_size", draft_vocab_size)):
        if value > own.vocab_size:
            raise section.error(key, f"within the target's vocabulary of {own.vocab_size}")
    taps, numbering = _taps(top, nested, own.num_hidden_layers, target.num_hidden_layers, check_taps)
    markov: dict[str, Any] = {"markov_rank": 0, "markov_head_type": "vanilla"}
    if chained:
        nested.only("projector_type", "dspark")
        part, key = where("markov_head_type")
        markov = {
            "markov_rank": count("markov_rank", 256, minimum=0),
            "markov_head_type": part.one_of(key, _MARKOV, "vanilla", OTHER),
            "confidence": flag(
                "enable_confidence_head", "use_confidence_head",
                default=nested.number("confidence_head_alpha", 0.0) > 0,
            ),
            # ModelOpt's head, which has its own key, reads both.
            "confidence_with_markov": flag(
                "confidence_head_with_markov", default="use_confidence_head" in nested
            ),
        }  # fmt: skip
        if markov["confidence"] and not markov["markov_rank"]:
            part, key = where("markov_rank")
            raise part.error(key, "an integer >= 1 with a confidence head", OTHER)
    if domino := top.value("architectures") == ["DominoDraftModel"] or nested.value("projector_type") == "domino":
        nested.only("projector_type", "domino")
        markov |= {name: nested.integer(name) for name in ("gru_hidden_dim", "emb_dim")}
        markov["pure_draft_prefix_len"] = nested.integer("pure_draft_prefix_len", 0, minimum=0)
    if top.value("speculators_model_type") == "xpress":
        markov |= {
            name: top.integer(name, default) for name, default in (("xpress_rank", 256), ("xpress_mlp_ratio", 2))
        }
    config = DFlashConfig(
        **{field.name: getattr(own, field.name) for field in fields(own)},
        block_size=count("block_size", minimum=2),
        # `shift_label`: of a label, by ModelOpt and SpecForge.
        sample_from_anchor=flag("sample_from_anchor", *(["shift_label"] if chained or domino else []), default=chained),
        mask_token_id=mask,
        draft_vocab_size=draft_vocab_size,
        taps=taps,
        numbering=numbering,
        masks=_masks(top, nested, layer, own.num_hidden_layers),
        **markov,
        **_second(where, own, draft_vocab_size),
    )
    refuse_unread(top, layer)
    refuse_unread(nested, every=True)
    return config


def _second(where: Callable[..., tuple[Fields, str]], own: LlamaConfig, draft_vocab_size: int) -> dict[str, Any]:
    """DFlash 2's keys, if any."""
    found: dict[str, Any] = {}
    for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        part, key = where(key)
        if key in part:
            found[key] = part.integer(key, minimum=0 if key in ("conv_kernel_size", "selector_rank") else 1)
    for key in ("output_multiplier", "final_logit_softcapping", "input_embedding_scale"):
        part, key = where(key)
        if key in part:
            found[key] = part.positive(key)
    if found.get("conv_kernel_size"):
        found.setdefault("conv_group_size", 16)
        if own.hidden_size % found["conv_group_size"]:
            part, key = where("conv_group_size")
            raise part.error(key, f"a divisor of hidden_size ({own.hidden_size})")
    if found.get("selector_rank"):
        found.setdefault("selector_top_k", 16)
        part, key = where("selector_top_k")
        most = min(own.vocab_size, SERVED["C_draft"])
        if found["selector_top_k"] > most:
            raise part.error(key, f"at most {most}, of the target's vocabulary of {own.vocab_size}")
        if draft_vocab_size != own.vocab_size:
            raise part.error(key, f"a drafter of the target's whole vocabulary of {own.vocab_size}, or no such key")
    return found


def _masks(top: Fields, nested: Fields, layer: Fields, layers: int) -> tuple[Mask, ...]:
    """By layer. `speculators` counts the window from the block's first row, the others from each."""
    windows = layer_windows(layer, layers)
    if nested.boolean("use_swa", False):
        windows = (nested.integer("swa_window_size", top.value("sliding_window")),) * layers
    anchored = layer is not top
    sliding = not top.boolean("sliding_window_non_causal", False)
    part, key = (nested, "causal") if "causal" in nested else (top, "is_causal")
    if key in part:
        return tuple(Mask(window, part.boolean(key, False), anchored and window > 0) for window in windows)
    return tuple(Mask(window, window > 0 and sliding, anchored and window > 0) for window in windows)


def _taps(top: Fields, nested: Fields, own: int, layers: int, check: bool) -> tuple[tuple[int, ...], str]:
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
    if check and (taps != tuple(sorted(set(taps))) or not 1 <= taps[0] <= taps[-1] <= layers):
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
            head_name, out, width = found
            shapes[f"markov_head.{head_name}.weight"] = (out, width)
            optional[f"markov_head.{head_name}.bias"] = (out,)
        if config.confidence:
            shapes["confidence_head.proj.weight"] = (1, d + rank * config.confidence_with_markov)
            optional["confidence_head.proj.bias"] = (1,)
    if hidden := config.gru_hidden_dim:
        shapes |= {"prefix_gru.weight_ih_l0": (3 * hidden, d), "prefix_gru.weight_hh_l0": (3 * hidden, hidden)}
        shapes["embed_proj.0.weight"] = (config.emb_dim, d + hidden)
        shapes["embed_proj.2.weight"] = (config.draft_vocab_size, config.emb_dim)
    if rank := config.xpress_rank:
        head_of, wide = "refiner_head.", rank * config.xpress_mlp_ratio
        shapes |= {
            f"{head_of}token_embed.weight": (config.vocab_size, rank),
            f"{head_of}in_proj.weight": (rank, 3 * rank),
            f"{head_of}mix_l": (rank, config.block_size, config.block_size),
            f"{head_of}mlp_down.weight": (rank, wide),
            f"{head_of}readout.weight": (config.draft_vocab_size, rank),
            **{f"{head_of}down_{name}.weight": (rank, d) for name in "hg"},
            **{f"{head_of}mlp_{name}.weight": (wide, rank) for name in ("gate", "up")},
        }
    if taps := config.conv_kernel_size:
        groups = d // config.conv_group_size
        for i, part in product(range(config.num_hidden_layers), ("attention_conv", "mlp_conv")):
            shapes[f"layers.{i}.{part}.base_kernel"] = (2, taps, d)
            shapes[f"layers.{i}.{part}.kernel_projection.weight"] = (2 * taps * groups, d)
    if rank := config.selector_rank:
        for name in ("predecessor_codebook", "successor_codebook"):
            shapes[f"candidate_selector.{name}"] = (config.vocab_size, rank)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, d)
    if config.draft_vocab_size < config.vocab_size:
        shapes["d2t"] = maps["d2t"]
    return shapes, {**optional, **head}
