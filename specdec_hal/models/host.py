"""A decoder on the host interface, over the tensors of any framework: batches as blocks of measured numbers of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from specdec_hal.models.batch import Limits, blocks, check_hidden_layers, check_positive, check_rows, no_cache
from specdec_hal.models.rows import RowSizes
from specdec_hal.plugin.model import ForwardBatch, ModelCapabilities, ModelConfig, Segment

# Row counts to try; fewer for logits, as few rows need them and a head is large.
SIZES = (*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 256)
HEAD_SIZES = (*range(1, 9), 12, 16, 32)


class HostModel(ABC):
    """See :class:`specdec_hal.plugin.model.TargetModel`.

    `_decoder` computes hidden states [T, D] by layer (`hidden(ids, positions, layers)`) and logits [R, V]
    (`logits(hidden)`); its attention layers call `_store`, which keeps keys and values by slot and position
    (`reserve`, `begin`: see :class:`~specdec_hal.models.attention.HostStore`). Steps and logits are padded to `_sizes`
    and `_head_sizes`.
    """

    framework: ClassVar[str]
    config: ModelConfig
    batch_invariant: bool
    _decoder: Any
    _store: Any
    _limits: Limits | None = None

    def __init__(self) -> None:
        self._sizes = self._head_sizes = RowSizes(range(1, SIZES[-1] + 1))
        self.batch_invariant = False

    @property
    def windows(self) -> list[int]:
        """Positions that each attention layer looks back, with its own; 0: all."""
        return [layer.window for layer in self._decoder.survey.layers]

    @property
    @abstractmethod
    def capabilities(self) -> ModelCapabilities:
        """See TargetModel."""

    @abstractmethod
    def _inference(self) -> AbstractContextManager[Any]:
        """Within it nothing is recorded for gradients."""

    @abstractmethod
    def _upload(self, array: npt.NDArray[Any]) -> Any:
        """A tensor of a NumPy array, of its dtype, on the model's device."""

    @abstractmethod
    def _input(self, x: Any) -> Any:
        """A tensor of the model's dtype and device of any DLPack tensor or NumPy array."""

    @abstractmethod
    def _concat(self, parts: Sequence[Any]) -> Any:
        """Concatenated rows."""

    @abstractmethod
    def _new_store(self, slots: int, positions: int) -> Any:
        """A store of so many slots and positions in each, which the attention layers call from now on."""

    def _checked(self, batch: ForwardBatch) -> tuple[npt.NDArray[np.int64], frozenset[int]]:
        """Token ids and layers of a batch; ArgumentError for one that cannot be computed."""
        if self._limits is None:
            raise no_cache(self.framework, "forward")
        return self._limits.check(batch), check_hidden_layers(batch, self.capabilities, self.framework)

    def _begin(self, segments: Sequence[Segment], first: int, rows: int) -> None:
        """Prepare for a block of `rows` rows, starting at token `first` of the batch."""
        self._store.begin(segments, first, rows)

    @property
    def _whole(self) -> int:
        """Rows of a slot up to this many belong into one block."""
        return 0

    def describe(self) -> str:
        """A description for the log."""
        if not self.batch_invariant:
            return "a token's bits may depend on what shares its step"
        return f"a token's bits are the same in passes of {_spans(self._sizes)} rows, which steps are padded to"

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """See TargetModel.allocate. Calling it again replaces the cache."""
        check_positive(self.framework, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self._store = self._new_store(max_num_seqs, max_model_len)
        self._limits = Limits(self.framework, self.config.vocab_size, max_num_seqs, max_model_len)

    def forward(self, batch: ForwardBatch) -> Mapping[int, Any]:
        """See TargetModel.forward."""
        ids, layers = self._checked(batch)
        if not len(ids):
            return {layer: self._upload(np.zeros((0, self.config.hidden_size), np.float32)) for layer in layers}
        with self._inference():
            for segment in batch.segments:
                self._store.reserve(segment.slot, segment.position + segment.length)
            groups = blocks(batch.segments, self._sizes.largest, self._whole)
            parts = [self._run(ids, group, layers) for group in groups]
            return {n: self._concat([part[n] for part in parts]) if len(parts) > 1 else parts[0][n] for n in layers}

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
        self._begin(group, first, rows)
        hidden = self._decoder.hidden(self._upload(padded), self._upload(positions), layers)
        return {layer: hidden[layer][:tokens].float() for layer in layers}

    def compute_logits(self, hidden: Any) -> Any:
        """See TargetModel.compute_logits."""
        check_rows(self.framework, "compute_logits", hidden, self.config.hidden_size)
        if not len(hidden):
            return self._upload(np.zeros((0, self.config.vocab_size), np.float32))
        with self._inference():
            x, most = self._input(hidden), self._head_sizes.largest
            parts = [self._logits(x[start : start + most]) for start in range(0, len(x), most)]
            return self._concat(parts) if len(parts) > 1 else parts[0]

    def embed(self, ids: Any) -> Any:
        """See LendingModel.embed."""
        with self._inference():
            return self._decoder.embed(self._upload(np.asarray(ids, np.int64))).float()

    def _logits(self, x: Any) -> Any:
        rows = len(x)
        if missing := self._head_sizes.fit(rows) - rows:
            x = self._concat([x, self._input(np.zeros((missing, x.shape[1]), np.float32))])
        else:  # a separate tensor, since kernels may depend on alignment
            x = x.clone()
        return self._decoder.logits(x)[:rows]


def _spans(sizes: RowSizes) -> str:
    """Sizes as ranges: 1..16, 20, 24."""
    found: list[list[int]] = []
    for size in sizes.sizes:
        if found and size == found[-1][1] + 1:
            found[-1][1] = size
        else:
            found.append([size, size])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in found)
