"""The interface of a framework to :class:`specdec_hal.models.llama.Llama`.

Tensors are float32 and two-dimensional, [rows, columns], unless said otherwise, on one device. On a CPU a row of a
result depends bit for bit only on the same row of the first argument, not on row numbers or counts. It may also depend
on alignment, so all tensors start at a multiple of 64 bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_hal.models.checkpoint import LlamaConfig

HostArray = npt.NDArray[Any]

ALIGNMENT = 64  # bytes


class Primitives(ABC):
    """One method per framework call or small group of calls."""

    config: LlamaConfig

    # ---- data

    @abstractmethod
    def _inference(self) -> AbstractContextManager[Any]:
        """Within it nothing is recorded for gradients."""

    @abstractmethod
    def _upload(self, array: HostArray) -> Any:
        """A tensor of a NumPy array, of its dtype."""

    @abstractmethod
    def _input(self, x: Any) -> Any:
        """An aligned tensor of any DLPack tensor or NumPy array."""

    @abstractmethod
    def _weight(self, weight: npt.NDArray[np.float32]) -> Any:
        """A weight [in, out] prepared for `_matmul`."""

    @abstractmethod
    def _rows(self, x: Any, start: int, stop: int) -> Any:
        """x[start:stop], without a copy where the start is aligned."""

    @abstractmethod
    def _concat(self, parts: list[Any], axis: int = 0) -> Any:
        """A new tensor: concatenated rows, or with `axis` 1 columns."""

    # ---- the network

    @abstractmethod
    def _embed(self, table: Any, ids: Any) -> Any:
        """table[ids], for int64 ids [rows]."""

    @abstractmethod
    def _matmul(self, x: Any, weight: Any) -> Any:
        """x times a weight from `_weight`."""

    @abstractmethod
    def _add_norm(self, residual: Any, delta: Any | None, weight: Any) -> tuple[Any, Any]:
        """(rms_norm(r) * weight, r) for r = residual + delta; with a delta it may overwrite `residual`.

        rms_norm(r) = r / sqrt(mean(r^2) + eps) (Zhang and Sennrich, arXiv:1910.07467).
        """

    @abstractmethod
    def _swiglu(self, x: Any) -> Any:
        """silu(left half) * right half (Shazeer, arXiv:2002.05202)."""

    @abstractmethod
    def _host_threads(self) -> int:
        """Most threads of attention on a CPU."""
