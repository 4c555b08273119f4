"""A model of `transformers` on a GPU: launches over a pool of KV blocks, without host synchronisation.

The host reads nothing in a step, so it can be captured as one graph. With Triton our kernels also replace operators
around attention (see :mod:`.kernels`); loading measures whether a token then has the same bits in steps of any size.
Without Triton the library's products may give a row other bits in a larger batch, so a draft can decide a near tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.batch import check_positive, no_cache
from specdec_hal.models.drafter import Blocks
from specdec_hal.models.from_host import FromHost
from specdec_hal.models.paged import PagedStore, on_torch
from specdec_hal.models.transformers.bits import Silent, agreeing_sizes
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.mtp import ModuleFiles, TransformersMTP
from specdec_hal.models.transformers.replace import holds_experts, install, is_experts
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ModelCapabilities

# Row counts to try: tiles of products and numbers of programs differ.
_SIZES = (1, 2, 9, 40, 200)


class DeviceTransformers(FromHost):
    """See :class:`specdec_hal.plugin.model.DeviceModel`.

    `make_launcher`: of Triton's kernels for a dtype (:class:`specdec_hal.models.triton_kernels.launcher.Launcher`);
    None: PyTorch's operators. `batch_invariant`: UnsupportedError unless a token's bits are independent of its step;
    None: as measured; False: not measured. `module`: the checkpoint's MTP module, or None. On a CPU batches may be
    NumPy arrays.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        make_launcher: Callable[[Any], Any] | None = None,
        batch_invariant: bool | None = None,
        module: ModuleFiles | None = None,
    ) -> None:
        self._decoder, self.config, self.dtype = decoder, decoder.config, decoder.dtype
        self.device = next(decoder.model.parameters()).device
        self._launcher = None if make_launcher is None else make_launcher(self.dtype)
        self._module = module
        self._store: PagedStore | None = None
        parts = list(decoder.model.modules())
        for part in filter(is_experts, parts):
            part.config._experts_implementation = "batched_mm"
        self._static = not any(map(holds_experts, parts))
        self._mode: AbstractContextManager[Any] = nullcontext()
        self.batch_invariant = False
        with torch.inference_mode():
            if make_launcher is not None:
                self._use_kernels(make_launcher, batch_invariant is not False)
        if batch_invariant and not self.batch_invariant:
            reason = "its operators give a row other bits in a larger step" if make_launcher else "Triton is not there"
            raise UnsupportedError(
                f"{type(decoder.model).__name__}: a token's bits may depend on the rest of its step: {reason}; "
                "leave batch_invariant out"
            )

    def _use_kernels(self, make_launcher: Callable[[Any], Any], stable: bool) -> None:
        from specdec_hal.models.transformers.kernels import Invariant, Kernels

        decoder = self._decoder
        ids = torch.arange(1, 4, device=self.device)

        def run() -> None:
            decoder.logits(decoder.hidden(ids, ids)[FINAL_NORM])

        decoder.serve(Silent(), 8)
        decoder.modify(lambda model: install(decoder, Kernels(self._launcher), run))
        if not stable:
            return
        launchers = {self.dtype: self._launcher}

        def launcher(dtype: Any) -> Any:
            return launchers.get(dtype) or launchers.setdefault(dtype, make_launcher(dtype))

        self._mode = Invariant(launcher)
        with self._mode:
            sizes, head = agreeing_sizes(decoder, _SIZES, _SIZES)
        self.batch_invariant = sizes.sizes == head.sizes == _SIZES

    @property
    def capabilities(self) -> ModelCapabilities:
        """Every layer can be tapped. Steps can be captured unless experts are sorted on the host."""
        return ModelCapabilities(
            hidden_layers=self._decoder.hidden_layers,
            mtp_modules=int(self._module is not None),
            static_shapes=self._static,
            device_lengths=True,
            stable_row_counts=None if self.batch_invariant else (),
            hidden_dtype=str(self.dtype).removeprefix("torch."),
        )

    def describe(self) -> str:
        """A description for the log."""
        if self.batch_invariant:
            return "a token's bits are the same whatever shares its step"
        return "a token's bits may depend on what shares its step"

    def bytes_per_block(self, block_size: int) -> int:
        """See DeviceModel.bytes_per_block."""
        layers = self._decoder.survey.layers
        return block_size * sum(2 * layer.kv_heads * layer.head_dim for layer in layers) * int(self.dtype.itemsize)

    @property
    def cache_bytes(self) -> int:
        """Memory of the current pool."""
        return 0 if self._store is None else sum(layer.nbytes for layer in self._store.pool)

    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        """See DeviceModel.allocate_blocks."""
        positions = self.config.max_position_embeddings if max_model_len is None else max_model_len
        check_positive(self.framework, num_blocks=num_blocks, block_size=block_size, max_model_len=positions)
        self._slots = None
        self._store = None  # freed first: both may not fit
        self._store = PagedStore(
            self._decoder.survey.layers, num_blocks, block_size, dtype=self.dtype, device=self.device,
            launcher=self._launcher,
        )  # fmt: skip
        self._decoder.serve(self._store, positions)
        self._blocks = Blocks(1, positions, (num_blocks, block_size))

    def pool_layers(self) -> list[Any]:
        """The KV pool: see :class:`~.paged.PagedStore`."""
        if self._store is None:
            raise no_cache(self.framework, "pool_layers", "allocate_blocks")
        return self._store.pool

    def forward_device(self, batch: DeviceBatch, out: Mapping[int, Any]) -> None:
        """See DeviceModel.forward_device. Launches only, on the current stream."""
        if self._store is None:
            raise no_cache(self.framework, "forward_device", "allocate_blocks")
        here = on_torch(batch)
        with torch.inference_mode(), self._mode:
            ids, positions = self._store.begin(here, self.config.vocab_size)
            hidden = self._decoder.hidden(ids, positions, out.keys() - {FINAL_NORM})
            for layer, tensor in out.items():
                torch.as_tensor(tensor).copy_(hidden[layer])

    def mtp_bytes_per_block(self, block_size: int) -> int:
        """See MTPModel.mtp_bytes_per_block: those of one layer."""
        return self.bytes_per_block(block_size) // len(self._decoder.survey.layers)

    def mtp_module(self) -> Any:
        """See MTPModel.mtp_module."""
        assert self._module is not None  # else its capabilities have none
        return TransformersMTP(self, self._decoder, self._module, self._blocks)

    def embed(self, ids: Any) -> Any:
        """See LendingModel.embed."""
        return self._decoder.embed(ids)

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceModel.compute_logits_device."""
        with torch.inference_mode(), self._mode:
            torch.as_tensor(out).copy_(self._decoder.logits(torch.as_tensor(hidden)))
