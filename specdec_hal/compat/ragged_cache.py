"""A KV cache for `transformers` whose rows grow independently.

Rows accept different numbers of drafts. A `DynamicCache` keeps one length for all; here each row's next tokens follow
its own and overwrite rejected ones.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from specdec_hal.errors import UnsupportedError


class _Extent:
    """Columns of the next tokens in all layers: starts[b], starts[b] + 1, ... for row b, all below `end`."""

    starts: list[int]
    end: int
    index: tuple[torch.Tensor, slice, torch.Tensor] | None


class RaggedLayer(DynamicLayer):  # type: ignore[misc]  # transformers may be absent when types are checked
    """Keys and values [B, H, capacity, D] of one layer; `extent` bounds the valid part."""

    def __init__(self, layer: DynamicLayer, extent: _Extent) -> None:
        super().__init__()
        self.extent = extent
        self.keys, self.values = layer.keys, layer.values
        self.dtype, self.device = layer.keys.dtype, layer.keys.device
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Write the new tokens' states and return all valid ones; columns after a row's own are masked."""
        starts, end, index = self.extent.starts, self.extent.end, self.extent.index
        if end > self.keys.shape[2]:
            self.keys, self.values = _widened(self.keys, end), _widened(self.values, end)
        if index is None:
            self.keys[:, :, starts[0] : end] = key_states
            self.values[:, :, starts[0] : end] = value_states
        else:
            self.keys[index] = key_states.transpose(1, 2)
            self.values[index] = value_states.transpose(1, 2)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Columns before the next tokens'."""
        return max(self.extent.starts)


def _widened(states: Any, columns: int) -> Any:
    """The same with room for at least twice as many columns."""
    batch, heads, held, size = states.shape
    wide = states.new_zeros((batch, heads, max(columns, 2 * held), size))
    wide[:, :, :held] = states
    return wide


class RaggedCache(Cache):  # type: ignore[misc]
    """Takes over a dynamic cache that holds the prompts; `pads[b]` columns of row b are left padding.

    `end`: most columns of a row. The last one takes the filler tokens of rows with fewer drafts. `own_masks`: each row
    gets its own mask; otherwise all rows have one length and the mask of plain decoding, which the model expands.
    """

    def __init__(self, cache: Any, pads: list[int], end: int, own_masks: bool) -> None:
        # Some models have fewer layers than their cache, or share keys and values between layers.
        layers = [layer for layer in getattr(cache, "layers", []) if getattr(layer, "is_initialized", True)]
        other = {type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer}
        if type(cache) is not DynamicCache or other or not layers:
            raise UnsupportedError(
                f"expected a dynamic cache with full attention in every layer, got {type(cache).__name__} of "
                f"{', '.join(sorted(other)) or 'no layers'}; use a model without sliding windows or recurrent layers, "
                "and no cache_implementation"
            )
        self.extent = _Extent()
        self._filled = {id(layer): RaggedLayer(layer, self.extent) for layer in layers}
        super().__init__(layers=[self._filled.get(id(layer), layer) for layer in cache.layers])
        self._pads, self._end = torch.tensor(pads, device=layers[0].device), end
        self._own_masks = own_masks

    def feed(self, starts: list[int], width: int) -> Any:
        """Set the columns of each row's next `width` tokens, and return their mask.

        With `own_masks` bool [B, 1, width, columns]; else int64 [B, columns], 0 for padding.
        """
        extent, device = self.extent, self._pads.device
        extent.starts, extent.end, extent.index = starts, min(max(starts) + width, self._end), None
        every = torch.arange(extent.end, device=device)
        if not self._own_masks:
            return (every >= self._pads[:, None]).long()
        columns = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        columns = columns.clamp(max=self._end - 1)
        if min(starts) < max(starts):
            extent.index = (torch.arange(len(starts), device=device)[:, None], slice(None), columns)
        return (every <= columns[:, None, :, None]) & (every >= self._pads[:, None, None, None])

    def keep(self, rows: list[int]) -> None:
        """Drop the other rows; the tensors of the original cache are unchanged."""
        index = torch.tensor(rows, device=self._pads.device)
        self._pads = self._pads[index]
        for layer in self._filled.values():
            layer.keys, layer.values = layer.keys[index], layer.values[index]
