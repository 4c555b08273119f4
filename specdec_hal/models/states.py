"""Recurrent layers' convolution inputs and states by position, in a ring per slot, and a backend's ops over them.

The entry of position p is `p % R`: a step that starts at p reads what position p - 1 left, whatever was written after
it. So nothing is committed, copied or reset when drafts are rejected or a slot gets another request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.batch import refused
from specdec_hal.ops import Activation
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.model import Segment
from specdec_hal.plugin.registry import Registry, or_default

CONVOLUTION, DELTA_RULE, MAMBA2 = "causal_conv1d", "gated_delta_rule", "mamba2_step"
"""Names of the ops."""
DRAFTS = 16
"""Most drafts of a step where no runner states their number."""


@dataclass(frozen=True)
class Recurrence:
    """A layer's convolution over `taps` inputs of `channels`, and the `state` [heads, d_k, d_v] that it feeds and `op`
    updates; () and "" for none.

    `index`: its number among the model's recurrent layers.
    """

    index: int
    channels: int
    taps: int
    state: tuple[int, ...] = ()
    op: str = ""

    def rings(self, drafts: int) -> tuple[int, int]:
        """Positions kept of inputs and of states, for steps of up to so many drafts."""
        return drafts + max(self.taps, 2), drafts + 2

    def nbytes(self, drafts: int, itemsize: int) -> int:
        """Bytes of a slot; inputs have `itemsize`, states are float32."""
        inputs, states = self.rings(drafts)
        return inputs * self.channels * itemsize + (4 * states * prod(self.state) if self.state else 0)


def backend_of(device: Any, registry: Registry | None = None) -> Backend:
    """The backend that computes on a device's tensors where no runner has chosen one. Errors: see get_backend."""
    if device.type == "cuda":
        return or_default(registry).get_backend("cuda", options={"device": device.index or 0})
    return or_default(registry).get_backend("cpu")


class StateStore:
    """Rings of `slots` slots, for steps of up to `drafts` drafts, and what `backend` computes with them.

    UnsupportedError, by name, if it lacks an op.
    """

    def __init__(
        self, layers: Sequence[Recurrence], slots: int, drafts: int, backend: Backend, *, dtype: Any, device: Any
    ) -> None:
        self.slots, self.drafts, self._backend = slots, drafts, backend
        has = {status.op for status in backend.explain() if status.available}
        needed = {CONVOLUTION, *(layer.op for layer in layers if layer.op)}
        if missing := sorted(needed - has):
            raise UnsupportedError(
                f"backend '{backend.name}' lacks {', '.join(missing)}, which the model's recurrent layers need; choose "
                "another backend, or allow one that has it under 'fallback: {allow: [...]}'"
            )
        self._inputs, self._states = list[Any](), list[Any]()
        for layer in layers:
            inputs, states = layer.rings(drafts)
            self._inputs.append(torch.zeros((slots, inputs, layer.channels), dtype=dtype, device=device))
            shape = (slots, states, *layer.state) if layer.state else (0,)
            self._states.append(torch.zeros(shape, dtype=torch.float32, device=device))
        self._ends = torch.zeros(1, dtype=torch.int32, device=device)
        self._positions = torch.zeros(slots, dtype=torch.int32, device=device)
        self._order: Any = None
        self._last, self._newest = np.full((2, slots), -1)  # positions: of the last step's end, and of all steps'

    @property
    def nbytes(self) -> int:
        """Their memory."""
        return sum(int(tensor.nbytes) for tensor in (*self._inputs, *self._states))

    def begin(self, cu_seqlens_q: Any, seq_lens_decoder: Any) -> None:
        """Begin a step: rows by slot [B + 1], positions [M], int32 on the device, where the host reads nothing."""
        self._ends, self._positions, self._order = cu_seqlens_q, seq_lens_decoder, None

    def begin_segments(self, segments: Sequence[Segment], first: int, rows: int) -> None:
        """Begin a step of `rows` rows on the host, which starts at token `first` of the batch."""
        lengths, positions = np.zeros((2, self.slots), np.int32)
        for one in segments:
            lengths[one.slot], positions[one.slot] = one.length, one.position
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.begin(torch.from_numpy(ends), torch.from_numpy(positions))
        if any(a.slot > b.slot for a, b in pairwise(segments)):  # ops take rows in slot order
            order = np.arange(rows)
            for one in segments:
                order[ends[one.slot] : ends[one.slot + 1]] = range(one.start - first, one.start - first + one.length)
            self._order = torch.from_numpy(order), torch.from_numpy(np.argsort(order))

    def check(self, framework: str, segments: Sequence[Segment]) -> None:
        """ArgumentError for a step on the host that starts after a position whose state is not kept; notes its end."""
        for one in segments:
            least, most = max(int(self._newest[one.slot]) - self.drafts, 0), int(self._last[one.slot]) + 1
            if one.position and not least <= one.position <= most:
                expected = f"0, or one of {least}..{most}, whose states before are kept"
                hint = "feed texts in order; allocate_states() for more drafts to take more tokens back"
                raise refused(framework, "forward", f"position of slot {one.slot}", expected, one.position, hint)
        for one in segments:
            self._last[one.slot] = end = one.position + one.length - 1
            self._newest[one.slot] = max(end, self._newest[one.slot]) if one.position else end

    def convolve(self, layer: Recurrence, x: Any, weight: Any, bias: Any, silu: bool) -> Any:
        """Of `x` [T, channels] by `weight` [channels, taps], with SILU or without: [T, channels]."""
        x = self._in_order(x)
        out = torch.empty_like(x)
        activation = Activation.SILU if silu else Activation.NONE
        self._backend.causal_conv1d(
            conv_x=x, conv_weight=weight.contiguous(), conv_bias=bias, conv_ring=self._inputs[layer.index],
            conv_out=out, activation=activation, **self._step,
        )  # fmt: skip
        return self._as_given(out)

    def delta_rule(self, layer: Recurrence, query: Any, key: Any, value: Any, g: Any, beta: Any) -> Any:
        """The gated delta rule: [T, heads, d_v]. It normalises `query` and `key` [T, heads, d_k]. `beta`: [T, heads];
        `g` [T, heads] or [T, heads, d_k]: the logarithm of the decay.
        """
        query, key, value, decay, beta = map(self._in_order, (query, key, value, *delta_gates(g, beta)))
        out = torch.empty_like(value)
        self._backend.gated_delta_rule(
            q=query, k=key, v=value, decay=decay, beta=beta, states=self._states[layer.index], core_out=out,
            qk_l2norm=True, decay_per_channel=decay.ndim == 3, **self._step,
        )  # fmt: skip
        return self._as_given(out)

    def mamba2(
        self, layer: Recurrence, x: Any, dt: Any, a: Any, b: Any, c: Any, skip: Any, dt_bias: Any, limits: Any
    ) -> Any:
        """Mamba-2's recurrence over `x` [T, heads, width]: as it. `dt` [T, heads] before softplus, `a` and `skip`
        [heads], `b` and `c` [T, groups, size], `limits`: the least and largest `dt`, None for none.
        """
        x, decay, dt, b, c = map(self._in_order, (x, *mamba2_gates(dt, a, dt_bias, limits), b, c))
        out = torch.empty_like(x)
        self._backend.mamba2_step(
            q=c, k=b, v=x, decay=decay, dt=dt, skip=None if skip is None else skip.float(),
            states=self._states[layer.index], core_out=out, **self._step,
        )  # fmt: skip
        return self._as_given(out)

    @property
    def _step(self) -> dict[str, Any]:
        return {"cu_seqlens_q": self._ends, "seq_lens_decoder": self._positions}

    def _in_order(self, x: Any) -> Any:
        return x.contiguous() if self._order is None else x[self._order[0]]

    def _as_given(self, out: Any) -> Any:
        return out if self._order is None else out[self._order[1]]


def delta_gates(g: Any, beta: Any) -> tuple[Any, Any]:
    """The decay and the share of the correction of `delta_rule`, float32."""
    return g.float().exp(), beta.float()


def mamba2_gates(dt: Any, a: Any, dt_bias: Any, limits: Any) -> tuple[Any, Any]:
    """The decay and the step size of `mamba2` [T, heads], float32."""
    dt = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    # Not PyTorch's softplus, whose last elements on a CPU have other bits, by the number of rows.
    dt = torch.where(dt > 20, dt, dt.exp().log1p())
    dt = dt if limits is None else dt.clamp(*limits)
    return (dt * a.float()).exp(), dt
