"""Models of `transformers` over a :class:`RaggedCache`, and a trial that they compute the same with it.

The trial precedes the first token. It decodes two tokens as `generate` does, and again like rows of a batch with
drafts: over rejected tokens and beside a row of the greatest length. A model that counts positions itself, masks by
columns, or keeps more state than keys and values gives other logits then. A rotary embedding that depends on the length
of the text changes its frequencies.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from specdec_hal.compat.ragged_cache import RaggedCache
from specdec_hal.errors import UnsupportedError
from specdec_hal.text import describe

_CACHE_NAMES = ("cache", "past_key_values")
"""Names of the argument and output with keys and values: since 5.24, and before."""
_USUAL = {*_CACHE_NAMES, "attention_mask", "position_ids", "use_cache", "logits_to_keep"}
"""Arguments of :meth:`generate` that also apply to rows of a :class:`RaggedCache`."""
_FREQUENCIES = 1 << 16
"""Most elements of a buffer that may be a rotary embedding's."""
_NOISE = {torch.float64: 1e-5, torch.float32: 6e-3, torch.float16: 2.5e-2, torch.bfloat16: 0.1}
"""Rounding of logits relative to their spread; of float32, on tensor cores (TF32)."""


def check_keys_and_values(model: Any) -> str:
    """The model's name for its cache of keys and values; UnsupportedError if it has none."""
    names = [name for name in _CACHE_NAMES if name in inspect.signature(model.forward).parameters]
    if not names or getattr(model, "_is_stateful", False):
        raise UnsupportedError(
            f"generate: {type(model).__name__} has no cache, or one that cannot drop a rejected draft; "
            "expected keys and values of each token in every layer; leave custom_generate out"
        )
    return names[0]


def check_rotary(model: Any, input_ids: Any, end: int) -> None:
    """UnsupportedError for a rotary embedding that changes between the prompt `input_ids` and the `end` of its text.

    Drafts would be fed with frequencies other than those of plain decoding. Two passes of one token find that out.
    """
    types = [module.rope_type for module in model.modules() if hasattr(module, "rope_type")]
    kinds = {kind for one in types for kind in (one.values() if isinstance(one, dict) else [one])}
    prompt, token = input_ids.shape[1], input_ids[:1, :1]
    if end - 1 <= prompt or not any("dynamic" in kind or kind == "longrope" for kind in kinds):
        return
    before: dict[str, Any] = {}
    for position in (prompt - 1, end - 2):
        model(input_ids=token, position_ids=torch.full_like(token, position), use_cache=False)
        before = before or _frequencies(model)
    _check_frequencies(model, before, token, prompt, end)


def _frequencies(model: Any) -> dict[str, Any]:
    """The model's small buffers of floats, by name."""
    buffers = model.named_buffers()
    return {name: b.clone() for name, b in buffers if b.is_floating_point() and b.numel() <= _FREQUENCIES}


def _check_frequencies(model: Any, before: dict[str, Any], token: Any, prompt: int, end: int) -> None:
    """UnsupportedError if :func:`_frequencies` are others than before; `token` [1, 1] is fed to change them back."""
    after = _frequencies(model)
    if changed := [name for name, values in before.items() if not torch.equal(values, after[name])]:
        model(input_ids=token, use_cache=False)
        raise UnsupportedError(
            f"generate: the rotary embedding of {type(model).__name__} ({', '.join(changed)}) changes with the length "
            f"of the text between its tokens {prompt} and {end}, which changes the logits of drafts; keep the "
            "whole batch on one side of the switch (max_new_tokens), or leave custom_generate out"
        )


class CachedModel:
    """A model after the prompts of a batch, whose rows continue in a :class:`RaggedCache`.

    `kwargs`: the arguments of :meth:`generate` for the model. `pads[b]`: columns of left padding among the `prompt`
    columns of row b's prompt. `end`: the most columns that the texts get. UnsupportedError for a model that keeps no
    keys and values.
    """

    def __init__(self, model: Any, kwargs: dict[str, Any], pads: list[int], prompt: int, end: int) -> None:
        self._model, self._kwargs, self._pads, self._prompt, self._end = model, dict(kwargs), pads, prompt, end
        self._name = type(model).__name__
        self._extra = sorted({name for name, value in kwargs.items() if value is not None} - _USUAL)
        self._cache_name, positions = check_keys_and_values(model), kwargs.get("position_ids")
        # Usually [B]; [3, B] or [4, B] of models with positions in time, height and width.
        self._next = None if positions is None else (positions[..., -1] + 1).expand(*positions.shape[:-2], len(pads))

    def start(self, input_ids: Any, outputs: Any) -> RaggedCache:
        """The cache that continues the model's `outputs` for the prompts `input_ids` [B, prompt].

        UnsupportedError for a model whose tokens would differ from plain decoding.
        """
        cache = next((outputs[name] for name in _CACHE_NAMES if name in outputs), None)
        if cache is None:
            raise UnsupportedError(f"generate: {self._name} returned no keys and values; leave custom_generate out")
        try:
            return self._checked(input_ids, outputs, cache, own_masks=len(self._pads) > 1)
        except UnsupportedError:
            if len(self._pads) > 1:
                raise
            return self._checked(input_ids, outputs, cache, own_masks=True)

    def logits(self, cache: RaggedCache, tokens: Any, rows: list[int], starts: list[int]) -> Any:
        """Logits [R, width, V] after the next `tokens` [R, width] of the `rows`, at the columns from `starts` on."""
        columns = torch.tensor(starts)[:, None] + torch.arange(tokens.shape[1])
        return self._feed(cache, tokens, self._positions(rows, columns), starts)

    def _positions(self, rows: list[int], columns: Any) -> Any:
        """Of tokens in these columns [R, width], as plain decoding counts them; never more than it needs."""
        if self._next is None:
            return None
        offset = columns.clamp(max=self._end - 2) - self._prompt
        return self._next[..., rows, None] + offset.to(self._next.device)

    def _feed(self, cache: RaggedCache, tokens: Any, positions: Any, starts: list[int]) -> Any:
        mask = cache.feed(starts, tokens.shape[1])
        if mask.dtype == torch.bool and self._model.config._attn_implementation == "eager":
            lowest = torch.finfo(self._model.dtype).min
            mask = torch.zeros_like(mask, dtype=self._model.dtype).masked_fill(~mask, lowest)
        arguments = {"position_ids": positions, self._cache_name: cache}
        given = {name: value for name, value in arguments.items() if value is not None}
        return self._model(input_ids=tokens, attention_mask=mask, use_cache=True, **given).logits

    # ---- the check

    def _checked(self, input_ids: Any, outputs: Any, cache: Any, own_masks: bool) -> RaggedCache:
        prompt, end, pads = self._prompt, self._end, self._pads
        ragged = RaggedCache(cache, pads, end, own_masks)
        if cache.get_seq_length() != prompt:
            raise UnsupportedError(
                f"generate: expected the whole text in input_ids, got {self._prompt} tokens and a cache of "
                f"{cache.get_seq_length()}; pass those that the cache holds, too"
            )
        first = prompt - torch.tensor(pads) if self._next is None else self._next.reshape(-1, len(pads))[0].cpu()
        low, high = int(first.min()), int(first.max()) + end - 2 - prompt
        config = self._model.config._attn_implementation, self._model.dtype
        kind = min(len(pads), 2), any(pads), own_masks, *config, self._next is None, *self._extra
        extent = _Extent(kind, prompt, end, low, high)
        known = _right.setdefault(self._model, [])
        # Nothing to check if only the prompts' logits are needed.
        if end - 1 > prompt and not any(one.covers(extent) for one in known):
            # The rows with the most and the fewest columns fall back.
            longest, shortest = pads.index(min(pads)), pads.index(max(pads))
            rows = [longest, shortest if shortest != longest else len(pads) - 1][: len(pads)]
            part = _part(cache, rows)
            tokens, expected = self._plain(input_ids, outputs, part, rows)
            for order in ([0, 1], [1, 0])[: len(rows)]:
                own = RaggedCache(part, [pads[row] for row in rows], end, own_masks)
                chosen = order[: len(rows)]
                own.keep(chosen)
                self._compare(
                    own, [rows[at] for at in chosen], int(first.argmin()), tokens[chosen], expected[chosen[0]]
                )
            known[:] = [one for one in known if not extent.covers(one)] + [extent]
        return ragged

    def _compare(self, own: RaggedCache, rows: list[int], earliest: int, tokens: Any, expected: Any) -> None:
        """UnsupportedError unless the first of the `rows` gets the `expected` logits [n, V] for its `tokens` [R, n].

        It lags behind, and the other one, if any, has the greatest length. `earliest`: the row with
        the lowest positions.
        """
        few, width = tokens.shape[1], 3
        starts = [self._prompt, self._end - 2][: len(rows)]
        columns = torch.tensor(starts)[:, None] + torch.arange(width)
        low = self._positions([earliest], torch.full((1, width), self._prompt))
        low = None if low is None else low.expand(*low.shape[:-2], len(rows), width)
        columns[0, -1] = self._end  # no token sees the last one, at the end of the texts
        high = self._positions(rows, columns)
        fed = torch.cat([tokens, tokens[:, -1:].expand(-1, width - few)], dim=1)
        try:
            self._feed(own, tokens[:, :1].expand(-1, width), low, starts)  # which is rejected
            before = _frequencies(self._model)
            logits = self._feed(own, fed, high, starts)[0, :few]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise UnsupportedError(
                f"generate: {self._name} does not take a cache and a mask of one row per text: "
                f"{describe(error)}; {self._hint()}"
            ) from error
        _check_frequencies(self._model, before, tokens[:1, :1], self._prompt, self._end)
        if self._differ(logits, expected):
            needs = f", or needs {', '.join(self._extra)}" if self._extra else ""
            raise UnsupportedError(
                f"generate: {self._name} gives other logits than plain decoding if rows differ in length and tokens "
                f"are rejected: they do not depend on position_ids, mask and cache alone{needs}; {self._hint()}"
            )

    def _hint(self) -> str:
        return f"{'give it one prompt at a time, or ' if len(self._pads) > 1 else ''}leave custom_generate out"

    def _plain(self, input_ids: Any, outputs: Any, cache: Any, rows: list[int]) -> tuple[Any, Any]:
        """At most two tokens [R, n] after the prompts, and their logits [R, n, V] in plain decoding."""
        model, ids, kwargs = self._model, input_ids[rows], dict(self._kwargs)
        for name, value in kwargs.items():
            if torch.is_tensor(value) and value.dim() > 1:
                at = value.dim() - 2 if name == "position_ids" else 0
                kwargs[name] = (
                    value.index_select(at, _index(rows, value)) if value.shape[at] == len(self._pads) else value
                )
        branch, logits = _part(cache, None), list[Any]()
        for _ in range(min(self._end - 1 - self._prompt, 2)):
            kwargs = model._update_model_kwargs_for_generation(outputs, kwargs)
            kwargs[self._cache_name] = branch
            following = outputs.logits[:, -1:].argmax(-1) if logits else ids[:, -1:]
            ids = torch.cat([ids, following], dim=1)
            inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=1, **kwargs)
            outputs = model(**inputs, return_dict=True)
            logits.append(outputs.logits[:, -1:])
        return ids[:, self._prompt :], torch.cat(logits, dim=1)

    def _differ(self, logits: Any, expected: Any) -> bool:
        """Whether any row of logits differs by more than rounding.

        In half precision, all rows: rounding may choose another expert for one of them.
        """
        finite = expected.isfinite() & logits.isfinite()
        zero = torch.zeros((), device=logits.device)
        off = torch.where(finite, logits.float() - expected.float(), zero).square().mean(-1).sqrt()
        spread = torch.where(finite, expected.float(), zero).std(-1)
        wrong = off > _NOISE[self._model.dtype] * spread
        return bool(wrong.any() if torch.finfo(self._model.dtype).bits > 16 else wrong.all())


def _index(rows: list[int], like: Any) -> Any:
    return torch.tensor(rows, device=like.device)


def _part(cache: Any, rows: list[int] | None) -> Any:
    """A copy of a dynamic cache with these rows, in which every token sees the older half of the columns equally well.

    Otherwise a token that attends to other columns would not show that they are hidden. None: an independent copy of
    the same cache.
    """
    part = copy.copy(cache)
    part.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in part.layers if rows is not None else ():
        if getattr(layer, "is_initialized", True):
            index = _index(rows or [], layer.keys)
            layer.keys, layer.values = layer.keys[index], layer.values[index]
            layer.keys[:, :, : layer.keys.shape[2] // 2] = 0
    return part


@dataclass(frozen=True)
class _Extent:
    """The extent of a run: columns [prompt, end) at positions from `low` to `high`; `kind`: other conditions."""

    kind: tuple[Any, ...]
    prompt: int
    end: int
    low: int
    high: int

    def covers(self, other: _Extent) -> bool:
        """Whether a model that is correct in this extent is correct in the other."""
        within = self.prompt <= other.prompt and other.end <= self.end
        return self.kind == other.kind and within and self.low <= other.low and other.high <= self.high


_right: WeakKeyDictionary[Any, list[_Extent]] = WeakKeyDictionary()
"""Extents in which models passed the trial."""
