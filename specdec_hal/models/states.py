"""Recurrent layers' convolution inputs and states by position, in a ring per slot, and a backend's ops over them.

The entry of position p is `p % R`: a step that starts at p reads what position p - 1 left, whatever was written after
it. So nothing is committed, copied or reset when drafts are rejected or a slot gets another request. With
:attr:`Storage.REPLAY` a slot has one state and a ring of the updates since; its bits are the same.
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
from specdec_hal.models.arena import Arena
from specdec_hal.models.batch import refused
from specdec_hal.ops import Activation, Storage
from specdec_hal.plugin.backend import Backend, BoundOp
from specdec_hal.plugin.model import Segment
from specdec_hal.plugin.registry import Registry, or_default

CONVOLUTION, DELTA_RULE, MAMBA2 = "causal_conv1d", "gated_delta_rule", "mamba2_step"
ADVANCE = "advance_checkpoints"
"""Names of the ops."""
DRAFTS = 16
"""Most drafts of a step where no runner states their number."""
REPLAYED = 12
"""Least entries of a ring of updates: in layers of 4 B models, one state and these are less than 1.3 states."""


@dataclass(frozen=True)
class Recurrence:
    """A layer's convolution over `taps` inputs of `channels`, and the `state` [heads, d_k, d_v] that it feeds and `op`
    updates; () and "" for none.

    `index`: its number among the model's recurrent layers. `key_heads`: heads of keys, which `state`'s heads share;
    0 where there is no state. `by_channel`: each key channel has a decay of its own.
    """

    index: int
    channels: int
    taps: int
    state: tuple[int, ...] = ()
    op: str = ""
    key_heads: int = 0
    by_channel: bool = False

    def inputs(self, drafts: int) -> int:
        """Positions whose inputs are kept, for steps of up to so many drafts."""
        return drafts + max(self.taps, 2)

    def kept(self, drafts: int, storage: Storage) -> dict[str, tuple[int, ...]]:
        """Shapes, of a slot, of the op's float32 operands that hold states."""
        if not self.state:
            return {}
        if storage is Storage.STATES:
            return {"states": (drafts + 2, *self.state)}
        ring, (heads, d_k, d_v) = replay_ring(drafts), self.state
        decay = (ring, heads, d_k) if self.by_channel else (ring, heads)
        return {
            "checkpoint": self.state, "replay_k": (ring, self.key_heads, d_k), "replay_u": (ring, heads, d_v),
            "replay_decay": decay,
        }  # fmt: skip

    def nbytes(self, drafts: int, itemsize: int, storage: Storage = Storage.STATES) -> int:
        """Bytes of a slot; inputs have `itemsize`."""
        inputs = self.inputs(drafts) * self.channels * itemsize
        return inputs + 4 * sum(map(prod, self.kept(drafts, storage).values()))

    def prefix_nbytes(self, itemsize: int) -> int:
        """Bytes of what a text is continued from: the last inputs, and the state."""
        return (self.taps - 1) * self.channels * itemsize + (4 * prod(self.state) if self.state else 0)


def replay_ring(drafts: int) -> int:
    """Entries of a ring of updates for steps of up to so many drafts."""
    return max(REPLAYED, 2 * (drafts + 1))


def backend_of(device: Any, registry: Registry | None = None) -> Backend:
    """The backend that computes on a device's tensors where no runner has chosen one. Errors: see get_backend."""
    if device.type == "cuda":
        return or_default(registry).get_backend("cuda", options={"device": device.index or 0})
    return or_default(registry).get_backend("cpu")


class StateStore:
    """Rings of `slots` slots, for steps of up to `drafts` drafts, and what `backend` computes with them.

    `prefixes`: how many states at ends of known texts are kept besides, for :meth:`keep` and :meth:`resume`.
    UnsupportedError, by name, if the backend lacks an op.
    """

    def __init__(
        self,
        layers: Sequence[Recurrence],
        slots: int,
        drafts: int,
        backend: Backend,
        *,
        dtype: Any,
        device: Any,
        storage: Storage = Storage.STATES,
        prefixes: int = 0,
    ) -> None:
        self.slots, self.drafts, self.storage, self._backend = slots, drafts, storage, backend
        has = {status.op for status in backend.explain() if status.available}
        needed = {CONVOLUTION, *(layer.op for layer in layers if layer.op)}
        self._replays = storage is Storage.REPLAY and any(layer.state for layer in layers)
        if self._replays:
            needed.add(ADVANCE)
        if missing := sorted(needed - has):
            raise UnsupportedError(
                f"backend '{backend.name}' lacks {', '.join(missing)}, which the model's recurrent layers need; choose "
                "another backend, or allow one that has it under 'fallback: {allow: [...]}'"
            )
        self.whole = replay_ring(drafts) // 2 if self._replays else 0
        """Rows of a slot up to this many belong into one step: its last ones may be rejected together."""
        self._inputs, self._states = list[Any](), list[dict[str, Any]]()
        self._prefixes = list[tuple[Any, Any]]()
        for layer in layers:
            inputs = layer.inputs(drafts)
            self._inputs.append(torch.zeros((slots, inputs, layer.channels), dtype=dtype, device=device))
            self._states.append(
                {
                    name: torch.zeros((slots, *shape), dtype=torch.float32, device=device)
                    for name, shape in layer.kept(drafts, storage).items()
                }
            )
            last = torch.zeros((prefixes, layer.taps - 1, layer.channels), dtype=dtype, device=device)
            shape = (prefixes, *layer.state) if layer.state else (0,)
            self._prefixes.append((last, torch.zeros(shape, dtype=torch.float32, device=device)))
        self._ends = torch.zeros(1, dtype=torch.int32, device=device)
        self._positions = torch.zeros(slots, dtype=torch.int32, device=device)
        self._checkpoints = torch.zeros(slots if self._replays else 0, dtype=torch.int32, device=device)
        self._order: Any = None
        self._last, self._newest = np.full((2, slots), -1)  # positions: of the last step's end, and of all steps'
        self._binds = False
        """Whether ops are bound once, over kept buffers: in steps on the host."""
        self._arena, self._bound = Arena(self._ends.device), dict[Any, tuple[list[Any], Any, BoundOp]]()

    @property
    def nbytes(self) -> int:
        """Their memory."""
        states = [tensor for kept in self._states for tensor in kept.values()]
        prefixes = [tensor for pair in self._prefixes for tensor in pair]
        return sum(int(tensor.nbytes) for tensor in (*self._inputs, *states, *prefixes))

    def begin(self, cu_seqlens_q: Any, seq_lens_decoder: Any) -> None:
        """Begin a step: rows by slot [B + 1], positions [M], int32 on the device, where the host reads nothing."""
        self._ends, self._positions, self._order, self._binds = cu_seqlens_q, seq_lens_decoder, None, False

    def begin_segments(self, segments: Sequence[Segment], first: int, rows: int) -> None:
        """Begin a step of `rows` rows on the host, which starts at token `first` of the batch."""
        lengths, positions = np.zeros((2, self.slots), np.int32)
        for one in segments:
            lengths[one.slot], positions[one.slot] = one.length, one.position
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self._order = None
        if not self._binds:
            self._ends, self._positions = (torch.zeros(self.slots + i, dtype=torch.int32) for i in (1, 0))
            self._bound.clear()
            self._binds = True
        self._ends.numpy()[:], self._positions.numpy()[:] = ends, positions
        if any(a.slot > b.slot for a, b in pairwise(segments)):  # ops take rows in slot order
            order = np.arange(rows)
            for one in segments:
                order[ends[one.slot] : ends[one.slot + 1]] = range(one.start - first, one.start - first + one.length)
            self._order = torch.from_numpy(order), torch.from_numpy(np.argsort(order))

    def end(self, rows: int) -> None:
        """End a step of `rows` rows, after its last layer."""
        if self._replays:
            self._backend.advance_checkpoints(
                checkpoint_lens=self._checkpoints, ring=2 * self.whole, num_rows=rows, **self._step
            )

    # ---- states of known texts

    def keeps(self, rows: int) -> bool:
        """Whether the state after a step's last row is there to :meth:`keep`, if so many rows of a prompt were its."""
        return not self._replays or rows > self.whole

    def keep(self, slot: int, position: int, entry: int) -> None:
        """Copy what a slot's text before `position` left, right after the step that ended there. Launches only."""
        for inputs, kept, (last, state) in zip(self._inputs, self._states, self._prefixes, strict=True):
            for i in range(last.shape[1]):
                last[entry, i].copy_(inputs[slot, (position - 1 - i) % inputs.shape[1]])
            if kept:
                state[entry].copy_(self._before(kept, slot, position))

    def resume(self, entry: int, slot: int, position: int) -> None:
        """Let a slot's next step start at `position`, after the text that :meth:`keep` copied to `entry`."""
        for inputs, kept, (last, state) in zip(self._inputs, self._states, self._prefixes, strict=True):
            for i in range(last.shape[1]):
                inputs[slot, (position - 1 - i) % inputs.shape[1]].copy_(last[entry, i])
            if kept:
                self._before(kept, slot, position).copy_(state[entry])
        if self._replays:
            self._checkpoints[slot].fill_(position)
        self._last[slot] = self._newest[slot] = position - 1

    def _before(self, kept: dict[str, Any], slot: int, position: int) -> Any:
        """The state of a slot before `position`."""
        if self._replays:
            return kept["checkpoint"][slot]
        states = kept["states"]
        return states[slot, (position - 1) % states.shape[1]]

    # ---- a step

    def check(self, framework: str, segments: Sequence[Segment]) -> None:
        """ArgumentError for a step on the host that starts after a position whose state is not kept; notes its end."""
        for one in segments:
            least, most = max(int(self._newest[one.slot]) - self.drafts, 0), int(self._last[one.slot]) + 1
            if self._replays:
                least = max(least, int(self._checkpoints[one.slot]))
            if one.position and not least <= one.position <= most:
                expected = f"0, or one of {least}..{most}, whose states before are kept"
                hint = "feed texts in order; allocate_states() for more drafts to take more tokens back"
                raise refused(framework, "forward", f"position of slot {one.slot}", expected, one.position, hint)
        for one in segments:
            self._last[one.slot] = end = one.position + one.length - 1
            self._newest[one.slot] = max(end, self._newest[one.slot]) if one.position else end

    def convolve(self, layer: Recurrence, x: Any, weight: Any, bias: Any, silu: bool) -> Any:
        """Of `x` [T, channels] by `weight` [channels, taps], with SILU or without: [T, channels]."""
        activation = Activation.SILU if silu else Activation.NONE
        constants = {"conv_weight": weight, "conv_bias": bias, "conv_ring": self._inputs[layer.index]}
        return self._run(CONVOLUTION, layer, {"conv_x": x}, x, "conv_out", activation=activation, **constants)

    def delta_rule(self, layer: Recurrence, query: Any, key: Any, value: Any, decay: Any, beta: Any) -> Any:
        """The gated delta rule: [T, heads, d_v]. It normalises `query` and `key` [T, key_heads, d_k]. float32: `beta`
        [T, heads], `decay` [T, heads] or [T, heads, d_k].
        """
        inputs = {"q": query, "k": key, "v": value, "decay": decay, "beta": beta}
        attrs = {"qk_l2norm": True, "decay_per_channel": layer.by_channel}
        return self._run(DELTA_RULE, layer, inputs, value, "core_out", **attrs, **self._operands(layer))

    def mamba2(self, layer: Recurrence, x: Any, decay: Any, dt: Any, b: Any, c: Any, skip: Any) -> Any:
        """Mamba-2's recurrence over `x` [T, heads, width]: as it. `b` and `c` [T, groups, size], `skip` [heads] or
        None; float32 [T, heads]: `decay` and the step size `dt` (:func:`mamba2_gates`).
        """
        inputs = {"q": c, "k": b, "v": x, "decay": decay, "dt": dt}
        skip = None if skip is None else skip.float()
        return self._run(MAMBA2, layer, inputs, x, "core_out", skip=skip, **self._operands(layer))

    def _operands(self, layer: Recurrence) -> dict[str, Any]:
        """Of a recurrence: what holds its states."""
        kept = self._states[layer.index]
        return {**kept, "storage": self.storage, **({"checkpoint_lens": self._checkpoints} if self._replays else {})}

    def _run(self, op: str, layer: Recurrence, inputs: dict[str, Any], like: Any, out: str, **others: Any) -> Any:
        """Launch a layer's op over the rows of `inputs`, by operand; its output has the shape of `like`.

        Bound ops keep `others` of the layer's first call, its weights among them, and write where the next layer's
        calls write too.
        """
        if not self._binds:
            result = torch.empty(like.shape, dtype=like.dtype, device=like.device)
            tensors = {name: x.contiguous() for name, x in inputs.items()} | {out: result}
            getattr(self._backend, op)(**tensors, **_contiguous(others), **self._step)
            return result
        key = op, layer.index, len(like)
        if (known := self._bound.get(key)) is None:
            known = self._bound[key] = self._bind(op, inputs, like, out, others)
        buffers, result, launch = known
        for buffer, x in zip(buffers, inputs.values(), strict=True):
            buffer.copy_(x if self._order is None else x[self._order[0]])
        launch()
        return result if self._order is None else result[self._order[1]]

    def _bind(
        self, op: str, inputs: dict[str, Any], like: Any, out: str, others: dict[str, Any]
    ) -> tuple[list[Any], Any, BoundOp]:
        buffers = {name: self._arena.take(f"{op} {name}", x.shape, x.dtype) for name, x in inputs.items()}
        result = self._arena.take(f"{op} {out}", like.shape, like.dtype)
        bound = self._backend.bind(op, **buffers, **{out: result}, **_contiguous(others), **self._step)
        return list(buffers.values()), result, bound

    @property
    def _step(self) -> dict[str, Any]:
        return {"cu_seqlens_q": self._ends, "seq_lens_decoder": self._positions}


def _contiguous(operands: dict[str, Any]) -> dict[str, Any]:
    return {name: x.contiguous() if isinstance(x, torch.Tensor) else x for name, x in operands.items()}


def mamba2_gates(dt: Any, a: Any, dt_bias: Any, limits: Any) -> tuple[Any, Any]:
    """The decay and the step size of `mamba2` [T, heads], float32.

    `dt` [T, heads] before softplus, `a` and `dt_bias` (or None) [heads], `limits`: the least and largest step size,
    None for none.
    """
    dt = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    # Not PyTorch's softplus, whose last elements on a CPU have other bits, by the number of rows.
    dt = torch.where(dt > 20, dt, dt.exp().log1p())
    dt = dt if limits is None else dt.clamp(*limits)
    return (dt * a.float()).exp(), dt
