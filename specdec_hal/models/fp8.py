"""Weights in FP8 (float8_e4m3fn, 4 bits of exponent and 3 of mantissa, Micikevicius et al., arXiv:2209.05433) with
float32 scales, in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest number of the format."""
GROUP = 128
"""Elements of a row that share a scale, in weights with scales by group."""


class Fp8Weight(torch.nn.Module):  # type: ignore[misc]
    """A weight [out, in] of `values` in FP8 and float32 `scales`: of rows, [out], or of groups, [in / GROUP, out].

    Weights of experts have another dimension before these. `by_row`: activations are multiplied in FP8 too, with a
    scale per row; else in their own dtype.
    """

    def __init__(self, values: Any, scales: Any, by_row: bool) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(values, requires_grad=False)
        self.scales = torch.nn.Parameter(scales, requires_grad=False)
        self.by_row = by_row

    @property
    def by_group(self) -> bool:
        """Whether each group of a row has a scale."""
        return bool(self.scales.ndim == self.values.ndim)

    @property
    def shape(self) -> Any:
        """[out, in]."""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)


def quantised(weight: Any) -> tuple[Any, Any]:
    """Values [out, in] and scales [out] of a weight [out, in]: the largest of a row becomes :data:`LARGEST`."""
    weight = weight.float().contiguous()
    scales = weight.abs().amax(-1) / LARGEST
    scales = torch.where(scales > 0, scales, 1.0)
    return (weight / scales[..., None]).clamp(-LARGEST, LARGEST).to(DTYPE), scales


def widened(values: Any, scales: Any) -> Any:
    """The weight in float32 [out, in]."""
    if scales.ndim < values.ndim:
        return values.float() * scales[..., None]
    return values.float() * scales.mT.repeat_interleave(GROUP, -1)[..., : values.shape[-1]]


def stacked(weights: Sequence[Fp8Weight]) -> Fp8Weight:
    """Rows of several weights, one after the other."""
    values, scales = _alike(weights)
    return Fp8Weight(torch.cat(values), torch.cat(scales, -1), weights[0].by_row)


def in_turns(weights: Sequence[Fp8Weight]) -> Fp8Weight:
    """Rows of several weights of one shape in turns: the first of each, the second of each, and so on."""
    values, scales = _alike(weights)
    return Fp8Weight(torch.stack(values, 1).flatten(0, 1), torch.stack(scales, -1).flatten(-2), weights[0].by_row)


def _alike(weights: Sequence[Fp8Weight]) -> tuple[list[Any], list[Any]]:
    """Values and scales, those of groups if any weight has these. Bytes are joined as such: see torch.cat."""
    scales = [weight.scales for weight in weights]
    if any(weight.by_group for weight in weights):
        groups = -(-weights[0].shape[1] // GROUP)
        scales = [one if one.ndim == 2 else one.expand(groups, -1) for one in scales]
    return [weight.values for weight in weights], scales
