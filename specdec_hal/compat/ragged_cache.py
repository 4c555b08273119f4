"""A KV cache for `transformers` in which each row of a batch grows by itself.

Rows accept different numbers of drafts. A `DynamicCache` keeps one length for all; here each row's next tokens are
written behind its own, over what was rejected before.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from specdec_hal.errors import UnsupportedError


class _Place:
    """Where the next tokens go, the same in all layers: row b's at columns starts[b], starts[b] + 1, ..."""

    starts: list[int]
    width: int
    index: tuple[torch.Tensor, slice, torch.Tensor] | None


class RaggedLayer(DynamicLayer):  # type: ignore[misc]  # transformers may be absent when types are checked
    """Keys and values [B, H, capacity, D] of one layer, of which `place` says how much counts."""

    def __init__(self, layer: DynamicLayer, place: _Place) -> None:
        super().__init__()
        self.place = place
        self.keys, self.values = layer.keys, layer.values
        self.dtype, self.device = layer.keys.dtype, layer.keys.device
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Write the new tokens' states and give all that count; a row's columns behind its own are never looked at."""
        starts, width, index = self.place.starts, self.place.width, self.place.index
        end = max(starts) + width
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
        return max(self.place.starts)


def _widened(states: Any, columns: int) -> Any:
    """The same with room for at least twice as many columns."""
    batch, heads, held, size = states.shape
    wide = states.new_zeros((batch, heads, max(columns, 2 * held), size))
    wide[:, :, :held] = states
    return wide


class RaggedCache(Cache):  # type: ignore[misc]
    """Takes over a dynamic cache that holds the prompts, `pads[b]` of row b's columns being left padding."""

    def __init__(self, cache: Any, pads: list[int]) -> None:
        layers = getattr(cache, "layers", [])
        other = {type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer}
        if other or not layers:
            raise UnsupportedError(
                f"expected a dynamic cache with full attention in every layer, got {type(cache).__name__} of "
                f"{', '.join(sorted(other)) or 'no layers'}; use a model without sliding windows or recurrent layers, "
                "and no cache_implementation"
            )
        self.place = _Place()
        super().__init__(layers=[RaggedLayer(layer, self.place) for layer in layers])
        self._pads = torch.tensor(pads, device=layers[0].device)[:, None, None, None]

    def feed(self, starts: list[int], width: int) -> Any:
        """Say where each row's next `width` tokens go; the mask they need, bool [B, 1, width, columns], or None."""
        place, device = self.place, self._pads.device
        place.starts, place.width, place.index = starts, width, None
        even, padded = min(starts) == max(starts), bool(self._pads.any())
        if even and not padded:  # one mask for all rows
            end = starts[0] + width
            return None if width == 1 else torch.ones(1, 1, width, end, dtype=torch.bool, device=device).tril(starts[0])
        first = torch.tensor(starts, device=device)[:, None]
        columns = first + torch.arange(width, device=device)
        if not even:
            place.index = (torch.arange(len(starts), device=device)[:, None], slice(None), columns)
        every = torch.arange(max(starts) + width, device=device)
        return (every <= columns[:, None, :, None]) & (every >= self._pads)

    def keep(self, rows: list[int]) -> None:
        """Drop the other rows."""
        index = torch.tensor(rows, device=self._pads.device)
        self._pads = self._pads[index]
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[index], layer.values[index]
