"""LongRoPE, with the frequencies of each row's own text.

The library has two sets, and the longest position of a pass chooses one for all rows. Its `generate` uses the second
one from the first token beyond the trained positions on, and then computes the whole text again. Here a row says which
one it has, so texts on both sides share a step.

Source: Ding et al., arXiv:2402.13753.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


class LongRope:
    """Replaces the `forward` of a rotary embedding. `rows` bool [T]: whether each belongs to a text of more than
    `switch` tokens; None: `whole` says it for all.
    """

    def __init__(self, module: Any) -> None:
        rope, device = module.config.rope_parameters, module.inv_freq.device
        self.switch: int = rope["original_max_position_embeddings"]
        self.rows: Any = None
        self.whole = False
        init = ROPE_INIT_FUNCTIONS["longrope"]
        (short, scale), (long, long_scale) = (init(module.config, device, seq_len=n) for n in (1, 1 + self.switch))
        if "long_mscale" in rope:  # of PhiMoE, whose frequencies stay
            long, scale, long_scale = short, rope["short_mscale"], rope["long_mscale"]
        self._frequencies = torch.stack([short, long]).float()
        self._scales = torch.tensor([scale, long_scale], device=device)

    def __call__(self, x: Any, position_ids: Any) -> tuple[Any, Any]:
        """Cosines and sines [1, T, width] of positions [1, T], of the dtype of `x`."""
        which = torch.full_like(position_ids[0], self.whole) if self.rows is None else self.rows.long()
        angles = position_ids[0, :, None].float() * self._frequencies[which]
        angles, scale = torch.cat([angles, angles], -1), self._scales[which, None]
        return (angles.cos() * scale).to(x.dtype)[None], (angles.sin() * scale).to(x.dtype)[None]
