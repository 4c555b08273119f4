"""A model of `transformers` on a CPU: slots with caches that grow, and the native attention over them.

In float32, products and norms are the native library's (see :mod:`.packed`). Loading measures row counts that give a
token the same bits, with one decoder layer of each kind; steps are padded to them: see :mod:`specdec_hal.models.rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from specdec_hal.models.attention import HostAttention
from specdec_hal.models.batch import (
    Limits,
    blocks,
    check_hidden_layers,
    check_positive,
    check_rows,
    check_threads,
    no_cache,
)
from specdec_hal.models.paged import Layer
from specdec_hal.models.rows import RowSizes
from specdec_hal.models.transformers.bits import Silent, agreeing_sizes
from specdec_hal.models.transformers.decoder import Decoder, WithStates
from specdec_hal.models.transformers.mtp import ModuleDecoder, ModuleFiles, TransformersMTP
from specdec_hal.models.transformers.packed import Packed, fuse, rotary_table
from specdec_hal.models.transformers.replace import holds_experts, install, is_experts
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, Segment
from specdec_hal.tensors.group import Group

# Row counts to try; fewer for logits, as few rows need them and a head is large.
SIZES = (*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 256)
HEAD_SIZES = (*range(1, 9), 12, 16, 32)


@dataclass
class _Group:
    """The native attention of layers with the same heads, and its current block."""

    attention: HostAttention
    block: Any = None


class HostStore:
    """Keys and values of all slots, float32."""

    def __init__(self, layers: Sequence[Layer], slots: int, positions: int, threads: int, operators: Packed) -> None:
        self._operators = operators
        groups: dict[tuple[int, int, int], list[int]] = {}
        for layer in layers:
            groups.setdefault((layer.heads, layer.kv_heads, layer.head_dim), []).append(layer.index)
        self._groups: list[_Group] = []
        self._of: dict[int, tuple[_Group, int]] = {}
        for shape, members in groups.items():
            width = shape[0] * shape[2]
            attention = HostAttention(
                *shape, layers=len(members), slots=slots, positions=positions, threads=threads,
                buffer=partial(_buffer, width),
            )  # fmt: skip
            group = _Group(attention)
            self._groups.append(group)
            self._of |= {index: (group, i) for i, index in enumerate(members)}

    def reserve(self, slot: int, positions: int) -> None:
        """See HostAttention."""
        for group in self._groups:
            group.attention.reserve(slot, positions)

    def begin(self, segments: Sequence[Segment], first: int, rows: int) -> None:
        """See HostAttention."""
        for group in self._groups:
            group.block = group.attention.begin(segments, first, rows)

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None) -> Any:
        """See Store."""
        group, index = self._of[layer.index]
        qkv = self._operators.qkv(layer, query, key, value)
        out = group.attention.attend(
            index, qkv, group.block, scale=layer.scale, window=layer.window, softcap=layer.softcap,
            sinks=None if sinks is None else sinks.float(),
        ).view(len(query), layer.heads, layer.head_dim)  # fmt: skip
        return (out if layer.value_dim == layer.head_dim else out[..., : layer.value_dim]).to(query.dtype)

    def attend_joined(self, layer: Layer, qkv: Any) -> Any:
        """Attention [T, heads * head_dim] of rows that `packed.fuse` computes: float32, which it rotates."""
        group, index = self._of[layer.index]
        return group.attention.attend(
            index, qkv, group.block, scale=layer.scale, window=layer.window, softcap=layer.softcap,
            rotary=self._operators.rotary,
        )  # fmt: skip


def _buffer(width: int, rows: int) -> Any:
    return torch.empty((rows, width))


class HostTransformers(WithStates):
    """See :class:`specdec_hal.plugin.model.TargetModel`. `decoder`: of a model on a CPU.

    `batch_invariant` None: in float32. `replace`: whether the native library's operators replace the model's in
    float32. `threads`: sets PyTorch's for the whole process; None: unchanged. `module`: the checkpoint's MTP module, or
    None. `group`: of the ranks that share the model.
    """

    framework: ClassVar[str] = "torch"

    def __init__(
        self,
        decoder: Decoder,
        *,
        batch_invariant: bool | None = None,
        replace: bool = True,
        threads: int | None = None,
        module: ModuleFiles | None = None,
        group: Group | None = None,
    ) -> None:
        check_threads(self.framework, threads)
        if threads is not None:
            torch.set_num_threads(threads)
        self._decoder, self.config, self._module, self._group = decoder, decoder.config, module, group
        exact, self._operators = decoder.dtype is torch.float32, Packed()
        self._sizes = self._head_sizes = RowSizes(range(1, SIZES[-1] + 1))
        self.batch_invariant = self._fused = False
        with torch.inference_mode():
            if exact and replace:
                self._replace()
            if exact if batch_invariant is None else batch_invariant:
                self._measure()
        self._limits: Limits | None = None

    def _replace(self) -> None:
        decoder, ids = self._decoder, torch.arange(1, 4)

        def run() -> None:
            decoder.logits(decoder.hidden(ids, ids)[FINAL_NORM])

        decoder.serve(silent := Silent(), 8, silent)
        parts = decoder.modify(lambda model: install(decoder, self._operators, run))
        undo = fuse(decoder, parts)
        if undo is None:
            return
        self._fused, (text, wanted) = True, (decoder.survey.ids.numpy(), decoder.survey.hidden)
        self.allocate(1, len(text))
        got = self.forward(ForwardBatch(text, [Segment(0, 0, len(text), 0)]))[FINAL_NORM]
        if not (got - wanted).norm() <= 1e-3 * wanted.norm():
            self._fused = False
            return undo()
        for part in filter(None, parts):
            part.qkv.weight = None  # its rows are there in another order

    @property
    def capabilities(self) -> ModelCapabilities:
        """Every layer can be tapped; shapes follow the batch."""
        return ModelCapabilities(
            hidden_layers=self._decoder.hidden_layers,
            mtp_modules=int(self._module is not None),
            recurrent=bool(self._decoder.survey.recurrences),
            stable_row_counts=None if self.batch_invariant else (),
        )

    def describe(self) -> str:
        """A description for the log."""
        if not self.batch_invariant:
            return "a token's bits may depend on what shares its step"
        return f"a token's bits are the same in passes of {_spans(self._sizes)} rows, which steps are padded to"

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """See TargetModel.allocate. Calling it again replaces the cache."""
        check_positive(self.framework, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        layers, threads = self._decoder.survey.layers, torch.get_num_threads()
        self._store = HostStore(layers, max_num_seqs, max_model_len, threads, self._operators)
        self._decoder.serve(self._store, max_model_len)
        if self._fused:
            with torch.inference_mode():
                self._operators.rotary = rotary_table(self._decoder.base, max_model_len)
        self._limits = Limits(self.framework, self.config.vocab_size, max_num_seqs, max_model_len)

    def forward(self, batch: ForwardBatch) -> Mapping[int, Any]:
        """See TargetModel.forward."""
        if self._limits is None:
            raise no_cache(self.framework, "forward")
        ids = self._limits.check(batch)
        layers = check_hidden_layers(batch, self.capabilities, self.framework)
        if not len(ids):
            return {layer: torch.zeros((0, self.config.hidden_size)) for layer in layers}
        self._check_states(batch.segments, self._limits.max_num_seqs)
        with torch.inference_mode():
            for segment in batch.segments:
                self._store.reserve(segment.slot, segment.position + segment.length)
            whole = 0 if self._states is None else self._states.whole
            parts = [self._run(ids, group, layers) for group in blocks(batch.segments, self._sizes.largest, whole)]
            return {n: torch.cat([part[n] for part in parts]) if len(parts) > 1 else parts[0][n] for n in layers}

    def _run(self, ids: Any, group: Sequence[Segment], layers: frozenset[int]) -> dict[int, Any]:
        """Hidden states of one block's tokens, by layer."""
        first, last = group[0].start, group[-1].start + group[-1].length
        tokens = last - first
        rows = self._sizes.fit(tokens)
        padded, positions = np.zeros((2, rows), np.int64)
        padded[:tokens] = ids[first:last]
        for segment in group:
            start = segment.start - first
            positions[start : start + segment.length] = range(segment.position, segment.position + segment.length)
        self._store.begin(group, first, rows)
        if self._states is not None:
            self._states.begin_segments(group, first, rows)
        hidden = self._decoder.hidden(torch.from_numpy(padded), torch.from_numpy(positions), layers)
        if self._states is not None:
            self._states.end(rows)
        return {layer: hidden[layer][:tokens].float() for layer in layers}

    def compute_logits(self, hidden: Any) -> Any:
        """See TargetModel.compute_logits."""
        x = torch.from_numpy(hidden) if isinstance(hidden, np.ndarray) else torch.from_dlpack(hidden)
        check_rows(self.framework, "compute_logits", x, self.config.hidden_size)
        if not len(x):
            return torch.zeros((0, self.config.vocab_size))
        with torch.inference_mode():
            x = x.to(self._decoder.dtype)
            parts = [self._logits(part) for part in x.split(self._head_sizes.largest)]
            return torch.cat(parts) if len(parts) > 1 else parts[0]

    def mtp_module(self) -> Any:
        """See MTPModel.mtp_module."""
        assert self._module is not None and self._limits is not None  # else its capabilities have none
        decoder = ModuleDecoder(self._decoder, self._module, self._group)
        served = HostTransformers(decoder, batch_invariant=self.batch_invariant)
        served.allocate(self._limits.max_num_seqs, self._limits.max_model_len)
        return TransformersMTP(self, served, decoder)

    def embed(self, ids: Any) -> Any:
        """See LendingModel.embed."""
        return self._decoder.embed(torch.as_tensor(ids)).float()

    def _logits(self, x: Any) -> Any:
        missing = self._head_sizes.fit(len(x)) - len(x)
        # A separate tensor, since kernels may depend on alignment.
        padded = torch.cat([x, x.new_zeros((missing, x.shape[1]))]) if missing else x.clone()
        return self._decoder.logits(padded)[: len(x)]

    # ---- agreeing row counts

    def _measure(self) -> None:
        """Choose sizes of passes, unless a part of the model runs experts over rows that it sorts by value."""
        packed = self._decoder.dtype is torch.float32
        if any(holds_experts(part) or (is_experts(part) and not packed) for part in self._decoder.model.modules()):
            return
        sizes, head = agreeing_sizes(self._decoder, SIZES, HEAD_SIZES)
        if sizes.sizes and head.sizes:
            self._sizes, self._head_sizes, self.batch_invariant = sizes, head, True


def _spans(sizes: RowSizes) -> str:
    """Sizes as ranges: 1..16, 20, 24."""
    found: list[list[int]] = []
    for size in sizes.sizes:
        if found and size == found[-1][1] + 1:
            found[-1][1] = size
        else:
            found.append([size, size])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in found)
