"""A model of `transformers` on a GPU: launches over a pool of KV blocks, without host synchronisation.

The host reads nothing in a step, so it can be captured as one graph. With Triton our kernels also replace operators
around attention (see :mod:`.kernels`); loading measures whether a token then has the same bits in steps of any size.
Without Triton the library's products may give a row other bits in a larger batch, so a draft can decide a near tie.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.attention import cached
from specdec_hal.models.batch import check_positive, no_cache
from specdec_hal.models.from_host import FromHost
from specdec_hal.models.mtp import ModuleFiles
from specdec_hal.models.paged import PagedStore, on_torch
from specdec_hal.models.transformers.bits import Silent, agreeing_sizes, of_each_kind
from specdec_hal.models.transformers.decoder import Decoder, WithStates
from specdec_hal.models.transformers.fp8 import EXPERTS
from specdec_hal.models.transformers.mtp import ModuleDecoder, TransformersMTP, WithModules
from specdec_hal.models.transformers.replace import (
    Linear,
    Parts,
    holds_experts,
    install,
    is_experts,
    is_standard,
    rehearsing,
    tabulate,
)
from specdec_hal.models.transformers.sparse import SparseStore
from specdec_hal.models.transformers.survey import only
from specdec_hal.models.transformers.tensor_parallel import Gathered
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ModelCapabilities
from specdec_hal.tensors.group import Group
from specdec_hal.text import describe

_log = logging.getLogger("specdec_hal")
# Row counts to try: tiles of products and numbers of programs differ.
SIZES = (1, 2, 9, 40, 200)
_SLOTS = 1 << 16
"""More than a runner has."""


class DeviceTransformers(WithStates, WithModules, FromHost):
    """See :class:`specdec_hal.plugin.model.DeviceModel`.

    `make_launcher`: of Triton's kernels for a dtype (:class:`specdec_hal.models.triton_kernels.launcher.Launcher`);
    None: PyTorch's operators. `batch_invariant`: UnsupportedError unless a token's bits are independent of its step;
    None: as measured; False: not measured. `replace`: whether kernels replace operators other than attention, and
    experts run without the host. `module`: the checkpoint's MTP module, or None. On a CPU batches may be
    NumPy arrays. `group`: of the ranks that share the model.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        make_launcher: Callable[[Any], Any] | None = None,
        batch_invariant: bool | None = None,
        replace: bool = True,
        module: ModuleFiles | None = None,
        group: Group | None = None,
    ) -> None:
        self._decoder, self.config, self.dtype = decoder, decoder.config, decoder.dtype
        self.device = next(decoder.model.parameters()).device
        self._make_launcher = make_launcher
        self._launcher: Any = None if make_launcher is None else make_launcher(self.dtype)
        self._module, self._group = module, group
        self._exchange: Any = None
        self._store: PagedStore | None = None
        parts = list(decoder.model.modules())
        for part in filter(is_experts, parts if replace else ()):
            if part.config._experts_implementation != EXPERTS:
                part.config._experts_implementation = "batched_mm"
        self._static = not decoder.sparse and not any(map(holds_experts, parts)) and (group is None or group.capturable)
        self._mode: AbstractContextManager[Any] = nullcontext()
        self._kinds = of_each_kind(decoder)
        self._recording = False
        self.batch_invariant = False
        self._head: Any = None
        self._standard = False
        with torch.inference_mode():
            if make_launcher is not None and replace:
                self._use_kernels(make_launcher, batch_invariant is not False)
        if batch_invariant and not self.batch_invariant:
            reason = "its operators give a row other bits in a larger step" if make_launcher else "Triton is not there"
            raise UnsupportedError(
                f"{type(decoder.model).__name__}: a token's bits may depend on the rest of its step: {reason}; "
                "leave batch_invariant out"
            )

    def _use_kernels(self, make_launcher: Callable[[Any], Any], stable: bool) -> None:
        from specdec_hal.models.transformers.kernels import Invariant, Kernels

        decoder, launchers = self._decoder, {self.dtype: self._launcher}

        def launcher(dtype: Any) -> Any:
            return launchers.get(dtype) or launchers.setdefault(dtype, make_launcher(dtype))

        def run(decoder: Decoder) -> None:
            ids = torch.arange(1, 4, device=self.device)
            decoder.logits(decoder.hidden(ids, ids)[FINAL_NORM])

        def replace(decoder: Decoder) -> list[Parts | None]:
            decoder.serve(silent := Silent(), 8, silent)
            return decoder.modify(lambda model: install(decoder, Kernels(self._launcher), lambda: run(decoder)))

        def measure(decoder: Decoder) -> bool:
            with Invariant(launcher):
                sizes, head = agreeing_sizes(decoder, SIZES, SIZES)
            return sizes.sizes == head.sizes == SIZES

        instead: list[tuple[Any, Any]] = []  # in a rehearsal, whose launches compute nothing, ranks do not meet
        if self._group is not None:
            from specdec_hal.models.transformers.exchange import Exchange, connect

            decoder.serve(silent := Silent(), 8, silent)
            self._exchange = Exchange(self._group, self._launcher)
            connect(decoder.model, self._exchange, lambda: run(decoder))
            alone = self._exchange.alone()
            instead = [(self._exchange, alone), (self._group, alone.group)]
        if self.compiles:
            try:
                short = decoder.shortened(self._kinds, instead)
                with self.compiling(), rehearsing():
                    replace(short)
                    if stable:
                        measure(short)
            except Exception as error:  # such as of a model that cannot be copied
                _log.info("kernels of trials are compiled one by one: %s", describe(error))
            self._launcher.pending = None
        parts = replace(decoder)
        self._standard = is_standard(decoder.base, parts)
        self._find_head()
        if stable:
            self.batch_invariant = not decoder.sparse and measure(decoder)
            self._mode = Invariant(launcher)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """See DeviceModel. Layers that compute the same need the same kernels."""
        self._recording = True
        try:
            with only(self._decoder.model, self._decoder.survey.blocks, self._kinds), super().compiling():
                yield
        finally:
            self._recording = False

    def _find_head(self) -> None:
        """Let our product write the logits, if they are only that."""
        head = self._decoder.head
        if isinstance(getattr(head, "part", head), Linear):
            self._head = head

    @property
    def capabilities(self) -> ModelCapabilities:
        """Every layer can be tapped. Steps can be captured unless experts are sorted on the host."""
        return ModelCapabilities(
            hidden_layers=self._decoder.hidden_layers,
            mtp_modules=int(self._module is not None),
            static_shapes=self._static,
            device_lengths=True,
            recurrent=bool(self._decoder.survey.recurrences),
            stable_row_counts=None if self.batch_invariant else (),
            rope_switch=self._decoder.rope_switch,
            hidden_dtype=str(self.dtype).removeprefix("torch."),
        )

    def describe(self) -> str:
        """A description for the log."""
        if self.batch_invariant:
            return "a token's bits are the same whatever shares its step"
        return "a token's bits may depend on what shares its step"

    def bytes_per_block(self, block_size: int) -> int:
        """See DeviceModel.bytes_per_block."""
        layers = cached(self._decoder.survey.layers)
        return block_size * sum(2 * layer.kv_heads * layer.head_dim for layer in layers) * int(self.dtype.itemsize)

    @property
    def cache_bytes(self) -> int:
        """Memory of the current pool."""
        return 0 if self._store is None else sum(layer.nbytes for layer in self._store.pool)

    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        """See DeviceModel.allocate_blocks."""
        positions = self.config.max_position_embeddings if max_model_len is None else max_model_len
        check_positive(self.framework, num_blocks=num_blocks, block_size=block_size, max_model_len=positions)
        self.slots = None
        self._store = None  # freed first: both may not fit
        kind = SparseStore if self._decoder.sparse else PagedStore
        self._store = kind(
            self._decoder.survey.layers, num_blocks, block_size, dtype=self.dtype, device=self.device,
            launcher=self._launcher,
        )  # fmt: skip
        self._decoder.serve(self._store, positions)
        if self._standard:
            with torch.inference_mode():
                tabulate(self._decoder.base, positions)
        self._blocks = num_blocks, block_size, positions
        self._long = torch.full((_SLOTS,), positions > (self._decoder.rope_switch or positions), device=self.device)

    def set_long(self, slot: int, long: bool) -> None:
        """See LongRopeModel.set_long. A launch on the current stream."""
        self._long[slot] = long

    def pool_layers(self) -> list[Any]:
        """The KV pool: see :class:`~.paged.PagedStore`."""
        if self._store is None:
            raise no_cache(self.framework, "pool_layers", "allocate_blocks")
        return self._store.pool

    def forward_device(self, batch: DeviceBatch, out: Mapping[int, Any]) -> None:
        """See DeviceModel.forward_device. Launches only, on the current stream."""
        if self._store is None:
            raise no_cache(self.framework, "forward_device", "allocate_blocks")
        if self._decoder.survey.recurrences and self._states is None:
            raise no_cache(self.framework, "forward_device", "allocate_states")
        here, wanted = on_torch(batch), {} if self._recording else out  # not all layers are there while recording
        with torch.inference_mode(), self._mode:
            ids, positions = self._store.begin(here, self.config.vocab_size)
            if self._decoder.rope_switch is not None:
                self._decoder.set_long(self._long[here.batch_id_per_token.long().clamp(min=0)])
            if self._states is not None:
                self._states.begin(here.cu_seqlens_q, here.seq_lens_decoder)
            with self._using(len(ids), here.cu_seqlens_q[-1:]):
                hidden = self._decoder.hidden(ids, positions, wanted.keys() - {FINAL_NORM})
            if self._states is not None:
                self._states.end(len(ids))
            for layer, tensor in wanted.items():
                torch.as_tensor(tensor).copy_(hidden[layer])

    @contextmanager
    def _using(self, rows: int, count: Any) -> Iterator[None]:
        """Context of a step of `rows` rows: kernels skip those after the first `count`."""
        if self._launcher is not None:
            self._launcher.step = rows, count
        try:
            yield
        finally:
            if self._launcher is not None:
                self._launcher.step = self._launcher.quantised = None

    def mtp_bytes_per_block(self, block_size: int) -> int:
        """See MTPModel.mtp_bytes_per_block: those of one layer."""
        return self.bytes_per_block(block_size) // len(cached(self._decoder.survey.layers))

    def _made(self, module: ModuleFiles) -> Any:
        decoder = ModuleDecoder(self._decoder, module, self._group)
        served = DeviceTransformers(decoder, make_launcher=self._make_launcher, group=self._group)
        served.allocate_blocks(*self._blocks)
        served.slots = self.slots
        return TransformersMTP(self, served, decoder)

    def embed(self, ids: Any) -> Any:
        """See LendingModel.embed."""
        return self._decoder.embed(ids)

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceModel.compute_logits_device."""
        head, hidden, out = self._head, torch.as_tensor(hidden), torch.as_tensor(out)
        with torch.inference_mode(), self._mode:
            if head is None:
                out.copy_(self._decoder.logits(hidden))
            elif isinstance(head, Gathered):
                self._exchange.logits(head, hidden, out, num_rows)
            else:
                self._launcher.linear(hidden, head.weight, out, num_rows, bias=head.bias)
