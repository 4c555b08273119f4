"""Row counts that give a token the same bits, measured with one decoder layer of each kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from specdec_hal.models.attention import Layer
from specdec_hal.models.rows import RowSizes, agreeing
from specdec_hal.models.states import Recurrence
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.survey import kind_of, only
from specdec_hal.plugin.model import FINAL_NORM

_TRIED = (11, 7)  # ids
_GATES = 128  # values of a layer's gates: PyTorch computes the last few of a tensor without vectors, with other bits
_POSITION = 37  # not 0, where rotary embeddings change nothing


class Silent:
    """A store whose attention and recurrences return a value independent of other rows, and keep their `gates`."""

    def __init__(self) -> None:
        self.gates: list[Any] = []

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
        self.gates += decay, beta
        return value.contiguous()

    def mamba2(self, layer: Recurrence, x: Any, decay: Any, dt: Any, b: Any, c: Any, skip: Any) -> Any:
        """See States."""
        self.gates += decay, dt
        return x.contiguous()


def agreeing_sizes(decoder: Decoder, sizes: Iterable[int], head_sizes: Iterable[int]) -> tuple[RowSizes, RowSizes]:
    """Agreeing row counts of passes and of logits: see :mod:`..rows`."""
    position = min(_POSITION, decoder.config.max_position_embeddings - 1)
    silent = Silent()
    decoder.serve(silent, 1 + position, silent)
    device = next(decoder.model.parameters()).device

    generator = torch.Generator().manual_seed(0)
    states = torch.randn((len(_TRIED), decoder.config.hidden_size), generator=generator).to(device, decoder.dtype)

    heads = min((one.state[0] for one in decoder.survey.recurrences if one.state), default=_GATES)
    tried = (*_TRIED, *range(13, 13 + _GATES // heads - len(_TRIED)))

    def hidden(rows: int) -> bytes | None:
        at = torch.zeros(rows, dtype=torch.int64, device=device)
        results = []
        for token in tried:
            silent.gates.clear()
            ids = at + token % decoder.survey.vocab_size
            results += [decoder.hidden(ids, at + position)[FINAL_NORM], *silent.gates]
        return _common(results)

    def logits(rows: int) -> bytes | None:
        return _common([decoder.logits(x.repeat(rows, 1)) for x in states])

    with torch.inference_mode(), only(decoder.model, decoder.survey.blocks, of_each_kind(decoder)):
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


def _common(results: Sequence[Any]) -> bytes | None:
    """The bytes of the first rows, if all rows of each result are equal."""
    if not all(torch.equal(rows, rows[:1].expand_as(rows)) for rows in results):
        return None
    return b"".join(rows[0].contiguous().view(torch.uint8).cpu().numpy().tobytes() for rows in results)
