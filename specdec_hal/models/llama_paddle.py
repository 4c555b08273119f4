"""The Llama decoder in PaddlePaddle (3.3 or newer).

Operators whose public function takes over half a microsecond longer are called through ``paddle._C_ops``, as in
Paddle's own layers: a decode step of a small model has some 200 operators and spends much of its time in dispatch.

On a CPU products are those of :mod:`.linear`, and one thread computes everything except them and attention in large
steps. On a GPU (untested) attention is :mod:`.paddle_attention`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import paddle
from paddle import _C_ops as ops
from paddle.base.core import set_num_threads
from paddle.incubate.nn.functional import fused_rms_norm

from specdec_hal.errors import BackendUnavailableError
from specdec_hal.models import linear
from specdec_hal.models.attention import Attention
from specdec_hal.models.batch import check_threads, refused
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import LlamaWeights
from specdec_hal.models.llama import Llama
from specdec_hal.models.paddle_attention import DeviceAttention
from specdec_hal.models.primitives import ALIGNMENT, HostArray
from specdec_hal.tensors import cpu_threads

_OLDEST = (3, 3)


class LlamaPaddle(Llama):
    """`device` is cpu, or cuda:N or gpu:N; all tensors are float32.

    `threads` on a CPU: the most for attention and products. None: one per core (`cpu_threads`).
    `batch_invariant` None: on a CPU; unavailable elsewhere.
    """

    framework: ClassVar[str] = "paddle"

    def __init__(
        self,
        config: LlamaConfig,
        weights: LlamaWeights,
        *,
        device: str = "cpu",
        batch_invariant: bool | None = None,
        threads: int | None = None,
    ) -> None:
        self._place = check_place(self.framework, device, batch_invariant, threads)
        on_host = isinstance(self._place, paddle.CPUPlace)
        self._on_host = on_host
        self._weights = linear.Weights()
        self._asked_threads = threads
        self._product_threads = cpu_threads.available() if threads is None else threads
        self._inside = one_thread() if on_host else paddle.no_grad
        super().__init__(config, weights, batch_invariant=on_host if batch_invariant is None else batch_invariant)

    # ---- data

    def _inference(self) -> AbstractContextManager[Any]:
        return self._inside()

    def _upload(self, array: HostArray) -> Any:
        return paddle.Tensor(array, self._place)

    def _input(self, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return self._upload(np.asarray(x, np.float32))
        tensor = x if isinstance(x, paddle.Tensor) else paddle.from_dlpack(x)
        return aligned(tensor.to(self._place, paddle.float32).contiguous())

    def _weight(self, weight: npt.NDArray[np.float32]) -> Any:
        return self._weights.pack(weight.T) if self._on_host else self._upload(weight)

    def _rows(self, x: Any, start: int, stop: int) -> Any:
        return aligned(ops.slice(x, [0], [start], [stop], [1], []))

    def _concat(self, parts: list[Any], axis: int = 0) -> Any:
        return ops.concat(parts, axis)

    # ---- the network

    def _embed(self, table: Any, ids: Any) -> Any:
        return ops.gather(table, ids, 0)

    def _matmul(self, x: Any, weight: Any) -> Any:
        if not self._on_host:
            return ops.matmul(x, weight, False, False)
        out = ops.empty([x.shape[0], weight.outputs], paddle.float32, self._place)
        return linear.multiply(x, weight, None, None, self._product_threads, out)

    def _add_norm(self, residual: Any, delta: Any | None, weight: Any) -> tuple[Any, Any]:
        normed, total = fused_rms_norm(residual, weight, None, self.config.rms_norm_eps, 1, residual=delta)
        return normed, residual if delta is None else total

    def _swiglu(self, x: Any) -> Any:
        return ops.swiglu(x, None)

    def _host_threads(self) -> int:
        return self._asked_threads or cpu_threads.cores()

    def new_attention(self, layers: int, slots: int, positions: int) -> Attention:
        """See Llama."""
        if isinstance(self._place, paddle.CPUPlace):
            return super().new_attention(layers, slots, positions)
        return DeviceAttention(self.config, layers=layers, slots=slots, positions=positions, place=self._place)


def check_place(framework: str, device: str, batch_invariant: bool | None, threads: int | None) -> Any:
    """The place of a model of `framework`; ArgumentError for options that it has none of.
    BackendUnavailableError for an old Paddle."""
    if tuple(int(part) for part in paddle.__version__.split(".")[:2]) < _OLDEST:
        raise BackendUnavailableError(
            f"expected PaddlePaddle >= 3.3, got {paddle.__version__}; pip install -U 'specdec-hal[paddle]'"
        )
    place = _place(framework, device)
    if not isinstance(place, paddle.CPUPlace):
        if batch_invariant:
            hint = "leave it out: Paddle's attention is no such"
            raise refused(framework, "load_model", "batch_invariant", "False on a GPU", "True", hint)
        if threads is not None:
            raise refused(framework, "load_model", "threads", "none on a GPU", str(threads), "leave it out")
    check_threads(framework, threads)
    return place


def one_thread() -> Callable[[], AbstractContextManager[Any]]:
    """Contexts without gradients, and with Paddle on one thread."""
    # Importing Paddle sets the latter to 1 if it is not set.
    given = os.environ.get("MKL_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or "1"
    otherwise = int(given.split(",")[0])

    @contextmanager
    def inside() -> Iterator[None]:
        set_num_threads(1)
        try:
            with paddle.no_grad():
                yield
        finally:
            set_num_threads(otherwise)

    return paddle.no_grad if otherwise == 1 else inside


def aligned(x: Any) -> Any:
    """The tensor, or a copy that starts at a multiple of :data:`ALIGNMENT`."""
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def _place(framework: str, device: str) -> Any:
    kind, _, index = device.partition(":")
    if kind == "cpu" and not index:
        return paddle.CPUPlace()
    if kind in ("cuda", "gpu") and (not index or index.isdigit()) and paddle.is_compiled_with_cuda():
        return paddle.CUDAPlace(int(index or 0))
    built = "has" if paddle.is_compiled_with_cuda() else "has no"
    hint = f"choose one of them (this build {built} GPU support)"
    raise refused(framework, "load_model", "device", "cpu, or cuda:N with a GPU build of Paddle", repr(device), hint)
