"""DFlash drafters (z-lab): a block of masked tokens is filled in at once, over features of the target.

The target's features at a few depths are fused, one row c for each verified position. Every layer projects keys and
values from c; they are all that it knows of the text. A block is the last token that was emitted, at position P, and
mask tokens after it, embedded by the target's table; its rows see all of the context and of the block, in both
directions, and slot i gives the token at its own position P + i::

    c = hidden_norm(fc(features))       context: k = rope(k_norm(k_proj c)), v = v_proj c, the same c in all layers
    n = input_layernorm(x)              x += o_proj(attention(rope(q_norm(q_proj n)); context ++ block))
                                        x += mlp(post_attention_layernorm(x))
    logits = lm_head(norm(x))           the target's head, or the checkpoint's own over a draft vocabulary

Nothing of a block is kept. Layer ids: ``target_layer_ids`` (z-lab) are outputs of layers, so the tap is i + 1;
``aux_hidden_state_layer_ids`` (speculators) are taps as :mod:`specdec_hal.models.drafter` counts them. Without ids a
drafter of L layers taps round(1 + i (N - 4) / (L - 1)) + 1, or N // 2 + 1 if it has one.

The pass is float32 in NumPy, beside a target on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_hal.models.checkpoint import CONFIG, Fields, LlamaConfig, checkpoint_error, llama_config, read_json
from specdec_hal.models.drafter import OTHER, TAPS, check_keys, draft_ids, drafter_kind, layer_fields, read_tensors
from specdec_hal.models.eagle3 import lender
from specdec_hal.models.layout import Array, round_up
from specdec_hal.models.rope import rotations
from specdec_hal.models.weights import Shapes, layer_shapes
from specdec_hal.plugin.model import TargetModel
from specdec_hal.tensors.device import download

_IDS = TAPS.removeprefix("eagle_")
_READ = {"dflash_config", "block_size", _IDS}
_NESTED = {
    "use_aux_hidden_state": True, "causal": False, "use_swa": False, "sample_from_anchor": False,
    "attention_sink_bias": False, "attention_value_scale": 1.0, "num_target_layers": None, "mask_token_id": None,
    "target_layer_ids": None, "block_size": None, "mask_token": None,
}  # fmt: skip
"""Keys of dflash_config, and the only value that can be computed; None: any."""


@dataclass(frozen=True, kw_only=True)
class DFlashConfig(LlamaConfig):
    """A drafter's config.json. `block_size`: rows of a block, of which one is the emitted token."""

    block_size: int
    mask_token_id: int
    draft_vocab_size: int
    taps: tuple[int, ...]
    numbering: str


def read_dflash(folder: str | Path, target: LlamaConfig) -> DFlashConfig:
    """config.json of a drafter for this target. CheckpointError for what cannot be computed."""
    file = Path(folder) / CONFIG
    if (kind := drafter_kind(folder)) != "dflash":
        raise checkpoint_error(file, "a DFlash drafter", f"a checkpoint of the kind '{kind}'", OTHER)
    top = Fields(file, read_json(folder, CONFIG))
    layer, nested = layer_fields(top), top.section("dflash_config")
    check_keys(top, layer, _READ)
    for key in sorted(nested.keys()):
        if key not in _NESTED:
            raise nested.error(key, "no such key, since it may change what is computed", OTHER)
        if (value := _NESTED[key]) is not None:
            nested.only(key, value)
    own = llama_config(layer, layer.token_ids(), ("qwen3",))
    for key, size in (("vocab_size", target.vocab_size), ("hidden_size", target.hidden_size)):
        if getattr(own, key) != size:
            raise layer.error(key, f"the target's {size}", "use a drafter that was trained for it")
    if own.num_hidden_layers > 64:
        raise layer.error("num_hidden_layers", "at most 64")
    counted = nested if "num_target_layers" in nested else top
    counted.only("num_target_layers", target.num_hidden_layers)
    mask = (nested if "mask_token_id" in nested else top).integer("mask_token_id", minimum=0)
    draft_vocab_size = top.integer("draft_vocab_size", own.vocab_size)
    for section, key, value in ((top, "mask_token_id", mask + 1), (top, "draft_vocab_size", draft_vocab_size)):
        if value > own.vocab_size:
            raise section.error(key, f"within the target's vocabulary of {own.vocab_size}")
    taps, numbering = _taps(top, nested, own.num_hidden_layers, target.num_hidden_layers)
    return DFlashConfig(
        **{field.name: getattr(own, field.name) for field in fields(own)},
        block_size=(nested if "block_size" in nested else top).integer("block_size", minimum=2),
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
        source, key, ids = nested, "target_layer_ids", nested.integers("target_layer_ids")
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
    """The weights that a drafter has, and those that it may have."""
    d = config.hidden_size
    shapes: Shapes = {"fc.weight": (d, len(config.taps) * d), "hidden_norm.weight": (d,), "norm.weight": (d,)}
    for i in range(config.num_hidden_layers):
        shapes |= layer_shapes(f"layers.{i}", config, d)
        shapes |= {f"layers.{i}.self_attn.{name}_norm.weight": (config.head_dim,) for name in "qk"}
    maps: Shapes = {"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)}
    head: Shapes = {"lm_head.weight": (config.draft_vocab_size, d)}
    optional: Shapes = {"embed_tokens.weight": (config.vocab_size, d), **maps}
    if config.draft_vocab_size == config.vocab_size:
        return shapes, {**optional, **head}
    return {**shapes, **head, "d2t": maps["d2t"]}, optional


class DFlash:
    """A drafter beside its target, with the context of every slot. UnsupportedError for a target that is no lender."""

    def __init__(self, folder: str | Path, model: TargetModel, config: DFlashConfig, slots: int) -> None:
        stored = read_tensors(Path(folder), *dflash_shapes(config))
        self.config, self._model = config, lender(model, "dflash")
        self._weights: dict[str, Array] = {name: array for name, (_, array) in stored.items()}
        self._draft_ids = draft_ids(stored, config.vocab_size)
        self._rotations = np.empty((0, config.head_dim // 2), np.complex64)
        self._contexts: list[_Context] = [_Context(config) for _ in range(slots)]

    def fuse(self, features: Mapping[int, Any]) -> Array:
        """Rows c [T, D], from the residuals [T, D] of the target, by the number of decoder layers before them."""
        x = np.concatenate([download(features[tap]) for tap in self.config.taps], 1, dtype=np.float32)
        return self._norm(x @ self._weights["fc.weight"].T, "hidden_norm")

    def extend(self, slot: int, position: int, rows: Array) -> None:
        """Put rows c from `position` on into a slot's context, which ends behind them."""
        context, stop = self._contexts[slot], position + len(rows)
        context.reserve(stop)
        for i in range(self.config.num_hidden_layers):
            keys, values = self._keys(f"layers.{i}.self_attn", rows, position)
            context.keys[i, position:stop], context.values[i, position:stop] = keys, values
        context.length = stop

    def block(self, slot: int, token: int, drafts: int) -> Array:
        """Rows [drafts, D] for `compute_logits`, of the tokens after `token`, which follows the slot's context."""
        config, context = self.config, self._contexts[slot]
        ids = np.full(1 + drafts, config.mask_token_id, np.int64)
        ids[0] = token
        if (own := self._weights.get("embed_tokens.weight")) is not None:
            x = own[ids]
        else:
            with self._model._inference():
                x = self._model._download(self._model._embed(self._model._embedding, self._model._upload(ids)))
        start = context.length
        for i in range(config.num_hidden_layers):
            layer = f"layers.{i}"
            n = self._norm(x, f"{layer}.input_layernorm")
            keys, values = self._keys(f"{layer}.self_attn", n, start)
            keys, values = (
                np.concatenate([known[i, :start], new])
                for known, new in ((context.keys, keys), (context.values, values))
            )
            x = x + self._attend(f"{layer}.self_attn", n, start, keys, values)
            n = self._norm(x, f"{layer}.post_attention_layernorm")
            gate, up = (n @ self._weights[f"{layer}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self._weights[f"{layer}.mlp.down_proj.weight"].T
        return self._norm(x[1:], "norm")

    def compute_logits(self, hidden: Any) -> Any:
        """Float32 [R, V] of rows of `block`, -inf outside the draft vocabulary."""
        head = self._weights.get("lm_head.weight")
        if head is None:
            return self._model.compute_logits(hidden)
        logits = download(hidden) @ head.T
        if self._draft_ids is None:
            return logits
        spread = np.full((len(logits), self.config.vocab_size), -np.inf, np.float32)
        spread[:, self._draft_ids] = logits
        return spread

    def _norm(self, x: Array, name: str) -> Array:
        scale = np.sqrt(np.square(x).mean(-1, keepdims=True) + self.config.rms_norm_eps)
        normed: Array = (x / scale * self._weights[f"{name}.weight"]).astype(np.float32)
        return normed

    def _heads(self, name: str, kind: str, x: Array, position: int) -> Array:
        """Normed and turned queries or keys [rows, heads, head_dim]."""
        width, half = self.config.head_dim, self.config.head_dim // 2
        stop = position + len(x)
        if stop > len(self._rotations):
            self._rotations = rotations(self.config, round_up(stop, 256)).astype(np.complex64)
        heads = self._norm(
            (x @ self._weights[f"{name}.{kind}_proj.weight"].T).reshape(len(x), -1, width), f"{name}.{kind}_norm"
        )
        turned = (heads[..., :half] + 1j * heads[..., half:]) * self._rotations[position:stop, None]
        return np.concatenate([turned.real, turned.imag], -1).astype(np.float32)

    def _keys(self, name: str, x: Array, position: int) -> tuple[Array, Array]:
        values = (x @ self._weights[f"{name}.v_proj.weight"].T).reshape(len(x), -1, self.config.head_dim)
        return self._heads(name, "k", x, position), values

    def _attend(self, name: str, x: Array, position: int, keys: Array, values: Array) -> Array:
        queries = self._heads(name, "q", x, position)
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        keys, values = (np.repeat(part, group, 1).transpose(1, 2, 0) for part in (keys, values))
        scores = queries.transpose(1, 0, 2) @ keys * np.float32(self.config.head_dim**-0.5)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended: npt.NDArray[np.float32] = (shares @ values.transpose(0, 2, 1)).transpose(1, 0, 2).reshape(len(x), -1)
        return attended @ self._weights[f"{name}.o_proj.weight"].T


class _Context:
    """Keys and values of a slot: [layers, positions, kv_heads, head_dim]; `length` positions count."""

    def __init__(self, config: DFlashConfig) -> None:
        shape = (config.num_hidden_layers, 0, config.num_key_value_heads, config.head_dim)
        self.keys, self.values, self.length = np.zeros(shape, np.float32), np.zeros(shape, np.float32), 0

    def reserve(self, positions: int) -> None:
        """Room for so many, by doubling."""
        missing = positions - self.keys.shape[1]
        if missing > 0:
            more = ((0, 0), (0, max(missing, self.keys.shape[1], 64)), (0, 0), (0, 0))
            self.keys, self.values = np.pad(self.keys, more), np.pad(self.values, more)
