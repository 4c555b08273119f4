"""A model of `transformers` on a GPU: a step of launches over a pool of KV blocks, which the host never waits for.

Nothing in a step reads the device, so that it can be captured as one graph; experts are computed by the "batched_mm"
implementation of `transformers`, which allows that. Bits are the library's: its products may give a row other ones in
a larger batch, so that a draft can tip a near tie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from specdec_hal.models.from_host import FromHost, refused
from specdec_hal.models.paged import PagedStore
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.packed import holds_experts, is_experts
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ModelCapabilities


class DeviceTransformers(FromHost):
    """See :class:`specdec_hal.plugin.model.DeviceModel`.

    `launcher`: of Triton's attention (:class:`specdec_hal.models.triton_kernels.launcher.Launcher`); None: PyTorch's
    operators. On a CPU batches may be NumPy arrays.
    """

    def __init__(self, decoder: Decoder, *, launcher: Any = None) -> None:
        self._decoder, self.config, self.dtype = decoder, decoder.config, decoder.dtype
        self.device = next(decoder.model.parameters()).device
        self._launcher = launcher
        self._store: PagedStore | None = None
        modules = list(decoder.model.modules())
        for module in modules:
            if is_experts(module):
                module.config._experts_implementation = "batched_mm"
        self._static = not any(map(holds_experts, modules))

    @property
    def capabilities(self) -> ModelCapabilities:
        """Every layer can be tapped. Steps can be captured unless experts are sorted on the host."""
        return ModelCapabilities(
            hidden_layers=self._decoder.hidden_layers,
            static_shapes=self._static,
            device_lengths=True,
            hidden_dtype=str(self.dtype).removeprefix("torch."),
        )

    def bytes_per_block(self, block_size: int) -> int:
        """See DeviceModel.bytes_per_block."""
        layers = self._decoder.survey.layers
        return block_size * sum(2 * layer.kv_heads * layer.head_dim for layer in layers) * int(self.dtype.itemsize)

    @property
    def cache_bytes(self) -> int:
        """Memory of the pool that it has now."""
        return 0 if self._store is None else sum(layer.nbytes for layer in self._store.pool)

    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        """See DeviceModel.allocate_blocks."""
        positions = self.config.max_position_embeddings if max_model_len is None else max_model_len
        self._check_positive(num_blocks=num_blocks, block_size=block_size, max_model_len=positions)
        self._slots = None
        self._store = None  # before the new one is made: both may not fit
        self._store = PagedStore(
            self._decoder.survey.layers, num_blocks, block_size, dtype=self.dtype, device=self.device,
            launcher=self._launcher,
        )  # fmt: skip
        self._decoder.serve(self._store, positions)

    def forward_device(self, batch: DeviceBatch, out: Mapping[int, Any]) -> None:
        """See DeviceModel.forward_device. Launches only, on the current stream."""
        if self._store is None:
            raise refused("forward_device", "batch", "a KV pool to write to", "none", "call allocate_blocks() first")
        here = DeviceBatch(
            **{name: torch.as_tensor(value) for name, value in vars(batch).items() if not isinstance(value, int)},
            max_seq_len=batch.max_seq_len,
            max_query_len=batch.max_query_len,
        )
        ids = here.token_ids[:, 0]
        # Drafts of a slot that has stopped may be no tokens.
        ids = torch.where((ids >= 0) & (ids < self.config.vocab_size), ids, 0)
        with torch.inference_mode():
            hidden = self._decoder.hidden(ids, self._store.begin(here), out.keys() - {FINAL_NORM})
            for layer, tensor in out.items():
                torch.as_tensor(tensor).copy_(hidden[layer])

    def embed(self, ids: Any) -> Any:
        """See LendingModel.embed."""
        return self._decoder.embed(ids)

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceModel.compute_logits_device."""
        with torch.inference_mode():
            torch.as_tensor(out).copy_(self._decoder.logits(torch.as_tensor(hidden)))
