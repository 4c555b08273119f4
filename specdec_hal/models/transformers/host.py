"""A model of `transformers` on a CPU: slots with caches that grow, and the native attention over them.

In float32, products and norms are the native library's (see :mod:`.packed`). Loading measures row counts that give a
token the same bits, with one decoder layer of each kind; steps are padded to them: see :mod:`specdec_hal.models.rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import torch

from specdec_hal.models import host
from specdec_hal.models.attention import HostStore
from specdec_hal.models.batch import check_threads
from specdec_hal.models.host import HostModel
from specdec_hal.models.mtp import ModuleFiles
from specdec_hal.models.transformers.bits import Silent, agreeing_sizes
from specdec_hal.models.transformers.decoder import Decoder, WithStates
from specdec_hal.models.transformers.mtp import ModuleDecoder, TransformersMTP, WithModules
from specdec_hal.models.transformers.packed import Packed, Products, fuse, rotary_table
from specdec_hal.models.transformers.replace import holds_experts, install, is_experts
from specdec_hal.models.transformers.sparse import SlotStore
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, Segment
from specdec_hal.tensors.group import Group


class HostTransformers(WithStates, WithModules, HostModel):
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
        super().__init__()
        self._fused = False
        with torch.inference_mode():
            if exact and replace:
                self._replace()
            if exact if batch_invariant is None else batch_invariant:
                self._measure()
        self._limits = None  # of the trial's cache

    def _replace(self) -> None:
        decoder, ids = self._decoder, torch.arange(1, 4)

        def run() -> None:
            decoder.logits(decoder.hidden(ids, ids)[FINAL_NORM])

        decoder.serve(silent := Silent(), 8, silent)
        parts = decoder.modify(lambda model: install(decoder, self._operators, run))
        with Products(decoder.model, self._operators) as products:
            run()
        products.settle()
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
            rope_switch=self._decoder.rope_switch,
        )

    def _inference(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.inference_mode()
        return context

    def _upload(self, array: Any) -> Any:
        return torch.from_numpy(array)

    def _input(self, x: Any) -> Any:
        return (torch.from_numpy(x) if isinstance(x, np.ndarray) else torch.from_dlpack(x)).to(self._decoder.dtype)

    def _concat(self, parts: Sequence[Any]) -> Any:
        return torch.cat(parts)

    def _new_store(self, slots: int, positions: int) -> Any:
        layers = self._decoder.survey.layers
        store: Any
        if self._decoder.sparse:
            store = SlotStore(layers, slots, positions, self._decoder.dtype)
        else:
            store = HostStore(layers, slots, positions, torch.get_num_threads(), self._operators)
        self._decoder.serve(store, positions)
        self._long = np.full(slots, positions > (self._decoder.rope_switch or positions))
        if self._fused:
            with torch.inference_mode():
                self._operators.rotary = rotary_table(self._decoder.base, positions)
        return store

    def _checked(self, batch: ForwardBatch) -> tuple[Any, frozenset[int]]:
        ids, layers = super()._checked(batch)
        if len(ids) and self._limits is not None:
            self._check_states(batch.segments, self._limits.max_num_seqs)
        return ids, layers

    def set_long(self, slot: int, long: bool) -> None:
        """See LongRopeModel.set_long."""
        self._long[slot] = long

    def _begin(self, segments: Sequence[Segment], first: int, rows: int) -> None:
        super()._begin(segments, first, rows)
        self._operators.pending = None  # of a trial, or of a step that failed
        if self._decoder.rope_switch is not None:
            long = np.zeros(rows, np.bool_)
            for one in segments:
                long[one.start - first : one.start - first + one.length] = self._long[one.slot]
            self._decoder.set_long(torch.from_numpy(long))
        if self._states is not None:
            self._states.begin_segments(segments, first, rows)

    def _run(self, ids: Any, group: Sequence[Segment], layers: frozenset[int]) -> dict[int, Any]:
        found = super()._run(ids, group, layers)
        if self._states is not None:
            self._states.end(self._sizes.fit(sum(segment.length for segment in group)))
        return found

    @property
    def _whole(self) -> int:
        return 0 if self._states is None else self._states.whole

    def _made(self, module: ModuleFiles) -> Any:
        assert self._limits is not None
        decoder = ModuleDecoder(self._decoder, module, self._group)
        served = HostTransformers(decoder, batch_invariant=self.batch_invariant)
        served.allocate(self._limits.max_num_seqs, self._limits.max_model_len)
        return TransformersMTP(self, served, decoder)

    # ---- agreeing row counts

    def _measure(self) -> None:
        """Choose sizes of passes, unless a part of the model runs experts over rows that it sorts by value."""
        if self._decoder.sparse:
            return
        packed = self._decoder.dtype is torch.float32
        if any(holds_experts(part) or (is_experts(part) and not packed) for part in self._decoder.model.modules()):
            return
        sizes, head = agreeing_sizes(self._decoder, host.SIZES, host.HEAD_SIZES)
        if sizes.sizes and head.sizes:
            self._sizes, self._head_sizes, self.batch_invariant = sizes, head, True
