"""Examine a model's attention layers in a trial; unsupported models are refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from specdec_hal.models.attention import Layer
from specdec_hal.models.paged import PagedStore
from specdec_hal.models.states import Recurrence, StateStore, backend_of
from specdec_hal.models.survey import (
    LAYER_TYPES,
    TRIED,
    LayerRecorder,
    Survey,
    blocks_of,
    check_config,
    check_in_parts,
    compare,
    refused,
)
from specdec_hal.models.transformers import interface, own_attention, recurrent, sparse
from specdec_hal.models.transformers.interface import NAME, TRIAL
from specdec_hal.plugin.model import DeviceBatch

_RECURRENT_TYPES = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mlp", "moe"}  # beside recurrent layers
NO_INTERFACE = "its attention does not go through the attention interface of transformers"
_MASKS = {"chunked_attention"}
_OTHER, _FUTURE, _CHUNKED = -1, -2, -2  # instead of a window: other masks; less than _CHUNKED by a chunk's size


def check_class(config: Any, architecture: Any) -> None:
    """UnsupportedError for a class of `transformers` whose attributes exclude our cache."""
    name, text = architecture.__name__, config.get_text_config()
    types = {*(getattr(text, "layer_types", None) or ())}
    state = recurrent.unsupported(architecture)
    more = _MASKS if state else _RECURRENT_TYPES | _MASKS
    if sparse.is_known(architecture):
        more = {*more, *sparse.LAYER_TYPES}
    if state and (types - LAYER_TYPES - _MASKS or not types) and getattr(architecture, "_is_stateful", False):
        raise refused(name, f"it keeps a state besides keys and values ({state}), which cannot forget rejected drafts")
    check_config(name, text, more)
    if not (own_attention.through_interface(architecture) or own_attention.is_known(architecture)):
        raise refused(name, NO_INTERFACE)


class _Recorder(LayerRecorder):
    """Serves attention layers and records their arguments."""

    REPEATED = True

    def __init__(self, model: Any, positions: int) -> None:
        super().__init__(model)
        self.positions = positions
        self.recurrences: dict[Any, Recurrence] = {}
        self.indexers: list[Any] = []

    def mask(self, mask_function: Any) -> Any:
        """The window equivalent to a mask, as a mask of one number."""
        return torch.full((1, 1, 1, 1), _window(mask_function, self.positions))

    def record(self, module: Any, query: Any, key: Any, value: Any, mask: Any, arguments: dict[str, Any]) -> Any:
        """See Recorder."""
        window, chunked = self._window(type(module).__name__, mask, arguments.get("sliding_window"))
        layer = self.layer(module, query, key, value, window, arguments, chunked)
        if (chosen := arguments.get("indices")) is not None:
            seen = sparse.causal(len(key), len(key), key.device)
            return sparse.attention(layer, query, key, value, chosen, seen)
        here = Layer(**{**vars(layer), "index": 0})
        store = PagedStore([here], 1, len(query), dtype=query.dtype, device=query.device)
        store.begin(text_batch(query.device, [(0, len(query))], len(query)))
        return store.attend(here, query, key, value, arguments.get("s_aux"), vars(module).get(interface.BIAS))

    def index(self, module: Any, width: int, rows: int, choose: sparse.Choose) -> Any:
        """See Recorder."""
        self.keys_alone(module, width)
        self.indexers.append(module)
        return choose(slice(0, rows), lambda keys: keys, sparse.causal(rows, rows, next(module.parameters()).device))

    def convolution(self, module: Any, x: Any, weight: Any, activation: Any, arguments: dict[str, Any]) -> None:
        """See Recorder."""
        name = type(module).__name__
        if module in self.recurrences:
            raise refused(self.model, f"a layer ({name}) calls its convolution twice in one pass")
        if activation not in (None, "silu", "swish"):
            raise refused(self.model, f"its convolution ({name}) is followed by {activation}; silu is supported")
        self.check_others(f"its convolution ({name})", arguments)
        self.recurrences[module] = Recurrence(len(self.recurrences), x.shape[1], weight.shape[1])

    def recurrence(
        self,
        module: Any,
        op: str,
        state: tuple[int, ...],
        key_heads: int,
        arguments: dict[str, Any],
        known: dict[str, Any],
        by_channel: bool = False,
    ) -> None:
        """See Recorder."""
        what = f"its recurrence ({type(module).__name__})"
        layer = self.recurrences.get(module)
        if layer is None or layer.state:
            raise refused(self.model, f"{what} does not follow one convolution")
        for argument, value in known.items():
            if arguments.get(argument, value) != value:
                raise refused(self.model, f"{what} needs '{argument}', which is not supported")
        served = {*known, "chunk_size", "D", "dt_bias", "dt_limit"}
        self.check_others(what, {name: value for name, value in arguments.items() if name not in served})
        self.recurrences[module] = replace(layer, state=state, op=op, key_heads=key_heads, by_channel=by_channel)

    def _window(self, name: str, mask: Any, named: int | None) -> tuple[int, bool]:
        """Layer.window and Layer.chunked."""
        windows = {named} if named else set()
        if mask is not None:
            if mask.numel() != 1:
                raise refused(self.model, f"it masks its attention ({name}) itself")
            seen = int(mask)
            if seen == _FUTURE:
                raise refused(self.model, f"its attention ({name}) is not causal")
            if seen == _OTHER or (seen < _CHUNKED and named):
                raise refused(
                    self.model,
                    f"its attention ({name}) attends neither to all keys nor to a sliding window nor to chunks",
                )
            if seen < _CHUNKED and not named:
                return _CHUNKED - seen, True
            windows |= {seen} if seen else set()
        return int(min(windows, default=0)), False


def _window(mask_function: Any, positions: int) -> int:
    """Number of keys that a query sees by a mask, itself included; 0: all up to its own. For chunks of some size:
    _CHUNKED less that size."""
    zero = torch.tensor(0)

    def first(query: int) -> int:
        """The first key that a query sees."""
        seen = mask_function(zero, zero, torch.tensor(query), torch.arange(positions + 8)).expand(positions + 8)
        if seen[query + 1 :].any():
            return _FUTURE
        count = int(seen.sum())
        return query + 1 - count if seen[query + 1 - count : query + 1].all() else _OTHER

    last = positions - 1
    starts = {query: first(query) for query in (last, last - 1)}
    if (begin := starts[last]) < 0:
        return begin
    counts = {query + 1 - start if start else 0 for query, start in starts.items()}
    if len(counts) == 1:
        return counts.pop()
    size = begin - first(begin - 1) if begin else last
    starts |= {query: first(query) for query in (begin, begin - 1, begin // 2) if query > 0}
    chunks = all(start == query // size * size for query, start in starts.items())
    return _CHUNKED - size if chunks else _OTHER


def text_batch(device: Any, parts: Sequence[tuple[int, int]], size: int) -> DeviceBatch:
    """Position and length of each slot's tokens, as a batch without ids; each slot has one block of `size`."""
    lengths = [length for _, length in parts]

    def ints(values: Any) -> Any:
        return torch.as_tensor(values, dtype=torch.int32).to(device)

    return DeviceBatch(
        token_ids=None,
        batch_id_per_token=ints([slot for slot, length in enumerate(lengths) for _ in range(length)]),
        cu_seqlens_q=ints([sum(lengths[:i]) for i in range(len(lengths) + 1)]),
        seq_lens_decoder=ints([position for position, _ in parts]),
        block_tables=ints([[slot] for slot in range(len(parts))]),
        max_seq_len=size,
        max_query_len=max(lengths),
    )


def set_attention(model: Any, name: str) -> None:
    """Let every layer use that attention function."""
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation"):
            module.config._attn_implementation = name


def base_of(model: Any) -> Any:
    """A model's part up to the final norm."""
    found = model.get_decoder()
    if found is model:
        found = model.model  # Llama 4's base_model_prefix is that of another class
    return found if model.get_input_embeddings() in found.modules() else model.base_model  # ModernBERT's is its head


def survey(model: Any, base: Any, positions: int) -> Survey:
    """Try a loaded model; `base`: see :func:`base_of`, `positions`: of its longest context.

    Its layers then call :data:`.interface.NAME` and need a store. UnsupportedError for unsupported models.
    """
    with torch.inference_mode():
        return _survey(model, base, positions)


def _survey(model: Any, base: Any, positions: int) -> Survey:
    recurrent.attach(model)
    device = next(model.parameters()).device
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = torch.arange(1, 2 * TRIED, device=device)[None] * 7919 % vocabulary
    first, second = ids[:, :TRIED], ids[:, TRIED:]
    tapped: list[Any] = []
    # With a given mask, `transformers` does not detect packed texts.
    text = {
        "input_ids": first, "attention_mask": torch.ones_like(first), "use_cache": False,
        "position_ids": torch.arange(TRIED, device=device)[None],
    }  # fmt: skip
    theirs = None
    if own_attention.is_known(type(model)):
        theirs = base(**text)[0]
    elif sparse.is_known(type(model)):
        set_attention(model, "eager")
        theirs = base(**text)[0]
    own_attention.attach(model)
    sparse.attach(model)
    own_attention.tabulate(model, TRIED)
    interface.trial.recorder = recorder = _Recorder(model, min(positions, 1 << 17))
    try:
        set_attention(model, TRIAL)
        hidden = base(**text)[0]
    finally:
        interface.trial.recorder = None
        set_attention(model, NAME)
    if theirs is not None:
        compare(model, theirs, hidden, "its attention computes something else than ours")
    if not recorder.found:
        raise refused(model, "none of its layers called its attention")
    attentions, layers = zip(*recorder.found, strict=True)
    mixers, recurrences = tuple(recorder.recurrences), tuple(recorder.recurrences.values())
    names = {module: name for name, module in model.named_modules()}
    attending = [module for module in attentions if module not in recorder.indexers]
    found = blocks_of(model, names, torch.nn.ModuleList, attending, mixers)
    blocks = torch.nn.ModuleList([base]) if found is None else found

    kind = sparse.SparseStore if recorder.indexers else PagedStore
    store = kind(layers, 2, TRIED, dtype=hidden.dtype, device=device)
    interface.bind_calls(attentions, layers, store)
    states: StateStore | None = None
    if recurrences:
        # All slots take part in a step: the texts of the first pass are in slot 0.
        states = StateStore(recurrences, 2, TRIED, backend_of(device), dtype=hidden.dtype, device=device)
        for module, recurrence in recorder.recurrences.items():
            interface.bind(module, recurrence, states)

    texts = first, second

    def run(*parts: tuple[int, int, int], numbered: bool = True) -> list[Any]:
        """Hidden states of `length` tokens of a text from `start` on, with all parts in one pass.

        `numbered`: whether the model is given their positions.
        """
        batch = text_batch(device, [(start, length) for _, start, length in parts], TRIED)
        _, position = store.begin(batch)
        if states is not None:
            idle = 2 - len(parts)
            states.begin(batch.cu_seqlens_q, torch.nn.functional.pad(batch.seq_lens_decoder, (0, idle)))
        packed = torch.cat([texts[i][:, start : start + length] for i, start, length in parts], 1)
        given = {"position_ids": position[None]} if numbered else {}
        rows = base(input_ids=packed, **given, use_cache=False)[0][0]
        return list(rows.split([length for *_, length in parts]))

    def tap(module: Any, args: Any, output: Any) -> None:
        tapped.append(output[0] if isinstance(output, tuple) else output)

    hooks = [block.register_forward_hook(tap) for block in blocks]
    try:
        (whole,) = run((0, 0, TRIED))
    finally:
        for hook in hooks:
            hook.remove()
    (other,) = run((1, 0, second.shape[1]))
    compare(model, hidden[0], whole, "it masks attention in a way that was not understood")
    compare(model, whole, run((0, 0, TRIED), numbered=False)[0], "its own positions do not begin at 0")
    besides = f" and {recurrent.KINDS}" if recurrences else ""
    check_in_parts(model, run, (TRIED, second.shape[1]), (whole, other), torch.cat, besides)
    tappable = found is not None and len(tapped) == len(blocks) and all(x.shape == hidden.shape for x in tapped)
    return Survey(
        layers, attentions, recurrences, mixers, blocks, tappable, first[0], hidden[0], hidden.shape[-1], vocabulary
    )


def kind_of(block: Any) -> Any:
    """A key that is equal for decoder layers of the same modules and weights."""
    tensors = (*block.named_parameters(), *block.named_buffers())  # not `state_dict`, for which bitsandbytes repacks
    return repr(block), tuple((name, tuple(tensor.shape)) for name, tensor in tensors)


@contextmanager
def only(model: Any, blocks: Any, kept: Sequence[int]) -> Iterator[None]:
    """Context in which the model has only these decoder layers."""
    held, attributes = blocks._modules, model.config.get_text_config().__dict__  # not `setattr`, which checks lengths
    kinds = attributes.get("layer_types")
    blocks._modules = {str(i): held[str(index)] for i, index in enumerate(kept)}
    if kinds:
        attributes["layer_types"] = [kinds[index] for index in kept]
    try:
        yield
    finally:
        blocks._modules = held
        if kinds:
            attributes["layer_types"] = kinds
