"""The host interface of a model over device tensors: lists become tensors, and each slot has its own blocks."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np
import torch

from specdec_hal.models.batch import Limits, check_hidden_layers, check_positive, check_rows, no_cache, refused
from specdec_hal.plugin.model import DeviceBatch, ForwardBatch, ModelCapabilities, ModelConfig

# Positions of a block where the host interface makes the pool.
_BLOCK_SIZE = 64


@dataclass(frozen=True)
class Slots:
    """Where each slot's positions are."""

    limits: Limits
    block_tables: np.ndarray[Any, np.dtype[np.int32]]


class FromHost(ABC):
    """Mixin that completes a DeviceModel to a :class:`~specdec_hal.plugin.model.TargetModel`."""

    framework: ClassVar[str] = "torch"
    config: ModelConfig
    device: Any
    dtype: Any
    slots: Slots | None = None
    """Their limits and blocks, once allocated."""

    @property
    @abstractmethod
    def capabilities(self) -> ModelCapabilities:
        """See TargetModel."""

    @abstractmethod
    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        """See DeviceModel."""

    @abstractmethod
    def forward_device(self, batch: DeviceBatch, out: Mapping[int, Any]) -> None:
        """See DeviceModel."""

    @abstractmethod
    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceModel."""

    @property
    def compiles(self) -> bool:
        """Whether launches need compiled kernels: Triton's interpreter, on a CPU, has none."""
        return bool(self.device.type == "cuda")

    @property
    def compilations(self) -> int:
        """See DeviceModel."""
        if not self.compiles:
            return 0
        from specdec_hal.models.triton_kernels.compiling import compilations

        return compilations()

    def compiling(self) -> AbstractContextManager[object]:
        """See DeviceModel."""
        if not self.compiles:
            return nullcontext()
        from specdec_hal.models.triton_kernels.compiling import compiling

        return compiling()

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """See TargetModel.allocate. Each slot gets blocks of its own."""
        check_positive(self.framework, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        width = -(-max_model_len // _BLOCK_SIZE)
        self.allocate_blocks(max_num_seqs * width, _BLOCK_SIZE, width * _BLOCK_SIZE)
        limits = Limits(self.framework, self.config.vocab_size, max_num_seqs, max_model_len)
        self.slots = Slots(limits, np.arange(max_num_seqs * width, dtype=np.int32).reshape(max_num_seqs, width))

    def forward(self, batch: ForwardBatch) -> Mapping[int, Any]:
        """See TargetModel.forward."""
        if self.slots is None:
            raise no_cache(self.framework, "forward")
        ids = self.slots.limits.check(batch)
        layers = check_hidden_layers(batch, self.capabilities, self.framework)
        shape = (len(ids), self.config.hidden_size)
        hidden = {layer: torch.empty(shape, dtype=self.dtype, device=self.device) for layer in layers}
        if len(ids):
            slots = len(self.slots.block_tables)
            if self.capabilities.recurrent:
                cast(Any, self)._check_states(batch.segments, slots)
            segments = sorted(batch.segments, key=lambda one: one.slot)
            lengths, positions = np.zeros((2, slots), np.int64)
            for one in segments:
                lengths[one.slot], positions[one.slot] = one.length, one.position
            order = np.concatenate([np.arange(one.start, one.start + one.length) for one in segments])
            used = 1 + segments[-1].slot
            with self._here():
                self.forward_device(
                    DeviceBatch(
                        token_ids=self._upload(ids[order], torch.int64)[:, None],
                        batch_id_per_token=self._upload(np.repeat(np.arange(slots), lengths), torch.int32),
                        cu_seqlens_q=self._upload(np.concatenate([[0], np.cumsum(lengths[:used])]), torch.int32),
                        seq_lens_decoder=self._upload(positions, torch.int32),
                        block_tables=self._upload(self.slots.block_tables, torch.int32),
                        max_seq_len=int((positions + lengths).max()),
                        max_query_len=int(lengths.max()),
                    ),
                    hidden,
                )
            if (order[1:] < order[:-1]).any():
                back = self._upload(np.argsort(order), torch.int64)
                hidden = {layer: tensor[back] for layer, tensor in hidden.items()}
        return {layer: tensor.float() for layer, tensor in hidden.items()}

    def compute_logits(self, hidden: Any) -> Any:
        """See TargetModel.compute_logits."""
        tensor = torch.from_numpy(hidden) if isinstance(hidden, np.ndarray) else torch.from_dlpack(hidden)
        x = tensor.to(self.device, self.dtype).contiguous()
        check_rows(self.framework, "compute_logits", x, self.config.hidden_size)
        logits = torch.empty((len(x), self.config.vocab_size), dtype=torch.float32, device=self.device)
        if len(x):
            with self._here():
                self.compute_logits_device(x, logits)
        return logits

    def _here(self) -> AbstractContextManager[Any]:
        """Make the model's device current, for Triton's launches."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _upload(self, array: Any, dtype: Any) -> Any:
        return torch.as_tensor(array, dtype=dtype).to(self.device, non_blocking=True)


def gpu(device: str) -> str:
    """The name of a GPU, "cuda:N"; ArgumentError if PyTorch does not see it."""
    index = torch.device(device).index
    count = torch.cuda.device_count()
    if not count or (index or 0) >= count:
        expected = f"one of the {count} CUDA GPUs that PyTorch sees"
        raise refused("torch", "load_model", "device", expected, repr(device), "use another")
    return f"cuda:{torch.cuda.current_device() if index is None else index}"


@cache
def wake(device: str) -> None:
    """Make CUDA's context on a GPU in another thread, without the interpreter's lock."""
    threading.Thread(target=_multiply, args=(device,), daemon=True).start()


def _multiply(device: str) -> None:
    with suppress(RuntimeError, AssertionError):  # the loader finds it too
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones((16, 16), dtype=dtype, device=device)
            x @ x
        torch.cuda.synchronize(device)
