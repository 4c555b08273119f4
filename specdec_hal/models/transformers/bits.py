"""Row counts that give a token the same bits, measured with one decoder layer of each kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_hal.models.attention import Layer
from specdec_hal.models.rows import RowSizes, agreeing
from specdec_hal.models.states import Recurrence
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.survey import kind_of, only
from specdec_hal.plugin.model import FINAL_NORM

_TRIED = (11, 7)  # ids
_VALUES = 128  # of an operator: PyTorch computes the last few of a tensor without vectors, mostly with the same bits
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.linear.default)
_POSITION = 37  # not 0, where rotary embeddings change nothing


class Silent:
    """A store whose attention and recurrences return a value independent of other rows."""

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None, bias: Any | None = None) -> Any:
        """See Store.attend."""
        return query[..., : layer.value_dim].contiguous()

    def choose(self, layer: Layer, choose: Any) -> Any:
        """See Store.choose."""
        return ()

    def attend_chosen(self, layer: Layer, query: Any, key: Any, value: Any, chosen: Any) -> Any:
        """See Store.attend_chosen."""
        return self.attend(layer, query, key, value, None)

    def attend_joined(self, layer: Layer, qkv: Any) -> Any:
        """See HostStore.attend_joined."""
        return qkv[:, : layer.heads * layer.head_dim].contiguous()

    def convolve(self, layer: Recurrence, x: Any, weight: Any, bias: Any, silu: bool) -> Any:
        """See States."""
        return x.contiguous()

    def delta_rule(self, layer: Recurrence, query: Any, key: Any, value: Any, decay: Any, beta: Any) -> Any:
        """See States."""
        return value.contiguous()

    def mamba2(self, layer: Recurrence, x: Any, decay: Any, dt: Any, b: Any, c: Any, skip: Any) -> Any:
        """See States."""
        return x.contiguous()


class _Narrow(TorchDispatchMode):  # type: ignore[misc]
    """Context that also computes operators of few values per row with other values, again the same in all rows.

    `narrow`: the dimension of rows in such an operator's input, by the number of its call and the input's dimensions.
    `inputs`: their shapes, and the dimensions of `rows` along which they do not change, of tensors with few values.
    """

    def __init__(self, rows: int, narrow: Mapping[tuple[int, int], int]) -> None:
        super().__init__()
        self._rows, self._narrow = rows, narrow
        self.inputs, self.results = list[tuple[tuple[int, ...], set[int]]](), list[Any]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # PyTorch's: True imports the compiler, which takes a second
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x, kwargs = next((x for x in args if isinstance(x, torch.Tensor)), None), kwargs or {}
        if x is not None and x.is_floating_point() and (torch.Tag.pointwise in func.tags or func in _PRODUCTS):
            dim = self._narrow.get((len(self.inputs), x.ndim))
            if dim is not None and x.numel() and 0 not in x.stride():
                at = next(i for i, value in enumerate(args) if value is x)
                for turn in range(1, 1 + _VALUES * x.shape[dim] // x.numel()):
                    other = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
                    torch.mul(x, 1 + turn / 8, out=other)
                    made = func(*args[:at], other, *args[at + 1 :], **kwargs)
                    self.results.append(made.clone().movedim(dim, 0))
            dims = () if self._narrow or x.numel() >= self._rows * _VALUES else range(x.ndim)
            same = {i for i in dims if x.shape[i] == self._rows and _same(x.movedim(i, 0))}
            self.inputs.append((tuple(x.shape), same))
        return func(*args, **kwargs)


def agreeing_sizes(decoder: Decoder, sizes: Iterable[int], head_sizes: Iterable[int]) -> tuple[RowSizes, RowSizes]:
    """Agreeing row counts of passes and of logits: see :mod:`..rows`."""
    position = min(_POSITION, decoder.config.max_position_embeddings - 1)
    silent = Silent()
    decoder.serve(silent, 1 + position, silent)
    device = next(decoder.model.parameters()).device

    generator = torch.Generator().manual_seed(0)
    states = torch.randn((len(_TRIED), decoder.config.hidden_size), generator=generator).to(device, decoder.dtype)

    narrow = dict[tuple[int, int], int]()

    def passes(rows: int) -> list[_Narrow]:
        at = torch.zeros(rows, dtype=torch.int64, device=device)
        contexts = []
        for token in _TRIED:
            with _Narrow(rows, narrow) as seen:
                ids = at + token % decoder.survey.vocab_size
                final = decoder.hidden(ids, at + position)[FINAL_NORM]
            seen.results.append(final)
            contexts.append(seen)
        return contexts

    def hidden(rows: int) -> bytes | None:
        return _common([result for one in passes(rows) for result in one.results])

    def logits(rows: int) -> bytes | None:
        return _common([decoder.logits(x.repeat(rows, 1)) for x in states])

    with torch.inference_mode(), only(decoder.model, decoder.survey.blocks, of_each_kind(decoder)):
        inputs = zip(passes(3)[0].inputs, passes(5)[0].inputs, strict=False)
        for call, ((few, same), (many, still)) in enumerate(inputs):
            dims = [dim for dim, sizes in enumerate(zip(few, many, strict=False)) if sizes == (3, 5)]
            if len(dims) == 1 and dims[0] in same & still:
                narrow[call, len(few)] = dims[0]
        return agreeing(hidden, sizes), agreeing(logits, head_sizes)


def of_each_kind(decoder: Decoder) -> list[int]:
    """The first decoder layers that compute something else than those before them, and those whose keys they use."""
    survey, kinds = decoder.survey, dict[Any, int]()
    for i, block in enumerate(survey.blocks):
        attentions, mixers = survey.within([i])
        inside: list[Any] = [*(survey.layers[j] for j in attentions), *(survey.recurrences[j] for j in mixers)]
        kinds.setdefault((kind_of(block), *(replace(layer, index=0) for layer in inside)), i)
    kept, first = {*kinds.values()}, dict[int, int]()  # `first`: the block of each index of the cache
    for i in range(len(survey.blocks)):
        for j in survey.within([i])[0]:
            first.setdefault(survey.layers[j].index, i)
    return sorted(kept | {first[survey.layers[j].index] for j in survey.within([*kept])[0]})


def _same(rows: Any) -> bool:
    return bool(torch.equal(rows, rows[:1].expand_as(rows)))


def _common(results: Sequence[Any]) -> bytes | None:
    """The bytes of the first rows, if all rows of each result are equal."""
    if not all(map(_same, results)):
        return None
    return bytes(torch.cat([rows[0].reshape(-1) for rows in results]).view(torch.uint8).cpu().numpy())
