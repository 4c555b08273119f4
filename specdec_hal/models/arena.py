"""Scratch memory on a device, for launches in sequence on one stream and their CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from specdec_hal.models.batch import refused


class Arena:
    """Named buffers that grow. Memory used by a captured graph lives as long as the arena."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._held: dict[tuple[str, Any], Any] = {}
        self._outgrown: list[Any] = []

    def take(self, name: str, shape: Sequence[int], dtype: Any) -> Any:
        """The buffer of that name and dtype as a tensor of that shape; all shapes share its memory, zeros at first.

        ArgumentError for growth during a capture: the graph's memory pool is not ours.
        """
        size, key = prod(shape), (name, dtype)
        held = self._held.get(key)
        if held is None or held.numel() < size:
            self.refuse_in_capture(name, shape)
            if held is not None:
                self._outgrown.append(held)
            self._held[key] = held = torch.zeros(size, dtype=dtype, device=self.device)
        return held[:size].view(*shape)

    def refuse_in_capture(self, name: str, shape: Sequence[int]) -> None:
        """The ArgumentError for an allocation during a capture."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            expected = f"scratch memory for {list(shape)}, made before the capture"
            hint = "run a step of these shapes once before it is captured"
            raise refused("torch", "forward_device", name, expected, "none, or less", hint)
