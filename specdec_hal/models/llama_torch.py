"""The Llama decoder in PyTorch on CPUs; :mod:`.llama_cuda` is the one for GPUs.

Weights are packed once for oneDNN, whose products gave a row the same bits for any number of rows (PyTorch 2.13, x86-64
with AVX-512) and take half the time of MKL's at 2 to 16 rows. The operators are those that torch.compile emits for
frozen linear layers; builds without them use ``torch.mm``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from specdec_hal.models import cpu_threads
from specdec_hal.models.batch import refused
from specdec_hal.models.checkpoint import DTYPES, LlamaConfig
from specdec_hal.models.layout import LlamaWeights
from specdec_hal.models.llama import Llama
from specdec_hal.models.primitives import ALIGNMENT, HostArray

# Elementwise CPU kernels split work between threads above this many elements (at::internal::GRAIN_SIZE), which may cut
# a row in two and compute its middle with other instructions.
_GRAIN = 32768
_UNLIMITED = 1 << 30


class LlamaTorch(Llama):
    """`dtype` is that of weights and activations; attention with its cache, hidden states and logits are float32.

    `threads`: sets PyTorch's for the whole process; None: unchanged.
    """

    framework: ClassVar[str] = "torch"

    def __init__(
        self,
        config: LlamaConfig,
        weights: LlamaWeights,
        *,
        dtype: str = "float32",
        batch_invariant: bool | None = None,
        threads: int | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise refused(
                "torch", "load_model", "dtype", f"one of {', '.join(DTYPES)}", repr(dtype), "choose one of them"
            )
        cpu_threads.check(threads, self.framework)
        if threads is not None:
            torch.set_num_threads(threads)
        self._dtype = getattr(torch, dtype)
        exact = self._dtype is torch.float32
        self._packed = exact and _has_onednn()
        super().__init__(config, weights, batch_invariant=exact if batch_invariant is None else batch_invariant)

    # ---- data

    def _inference(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.inference_mode()
        return context

    def _upload(self, array: HostArray) -> Any:
        tensor = torch.tensor(array)  # a copy, which the allocator aligns
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def _download(self, x: Any) -> npt.NDArray[np.float32]:
        return x.float().numpy()  # type: ignore[no-any-return]

    def _input(self, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return self._upload(np.asarray(x, np.float32))
        tensor = x if isinstance(x, torch.Tensor) else torch.from_dlpack(x)
        return _aligned(tensor.to(self._dtype).contiguous())

    def _output(self, x: Any) -> Any:
        return x.float()

    def _cast(self, x: Any) -> Any:
        return x.to(self._dtype)

    def _weight(self, weight: npt.NDArray[np.float32]) -> Any:
        if self._packed:
            return torch.ops.mkldnn._reorder_linear_weight(torch.tensor(weight).T.contiguous(), None)
        return self._upload(weight)

    def _row_limit(self) -> int:
        limit: int = max(1, _GRAIN // self._widest)
        return limit if torch.get_num_threads() > 1 else _UNLIMITED

    def _rows(self, x: Any, start: int, stop: int) -> Any:
        return _aligned(x[start:stop])

    def _concat(self, parts: list[Any], axis: int = 0) -> Any:
        return torch.cat(parts, axis)

    # ---- the network

    def _embed(self, table: Any, ids: Any) -> Any:
        return table[ids]

    def _matmul(self, x: Any, weight: Any) -> Any:
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        return torch.mm(x, weight)

    def _add_norm(self, residual: Any, delta: Any | None, weight: Any) -> tuple[Any, Any]:
        if delta is not None:
            residual = residual.add_(delta)
        return F.rms_norm(residual, weight.shape, weight, self.config.rms_norm_eps), residual

    def _swiglu(self, x: Any) -> Any:
        half = x.shape[1] // 2
        return F.silu(x[:, :half]).mul_(x[:, half:])

    def _host_threads(self) -> int:
        threads: int = torch.get_num_threads()
        return threads


def _aligned(x: Any) -> Any:
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
