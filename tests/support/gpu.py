"""Run ops on a GPU on copies of NumPy inputs, in guarded memory, through any framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_hal.ops import get_op
from specdec_hal.ops.spec import Role
from specdec_hal_conformance.guarded import MARGIN, SENTINEL

FRAMEWORKS = ("torch", "cupy")


def _buffer(bytes_: np.ndarray, framework: str, device: int) -> Any:
    if framework == "torch":
        import torch

        return torch.from_numpy(bytes_).to(f"cuda:{device}")
    import cupy

    with cupy.cuda.Device(device):
        return cupy.asarray(bytes_)


def _typed(part: Any, array: np.ndarray, framework: str) -> Any:
    if framework == "torch":
        import torch

        dtype = torch.bfloat16 if array.dtype == np.uint16 else getattr(torch, str(array.dtype))
        return part.view(dtype).reshape(array.shape)
    return part.view(array.dtype).reshape(array.shape)


def to_torch(array: np.ndarray) -> Any:
    """On the first device; bfloat16 for uint16."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _typed(_buffer(flat, "torch", 0), array, "torch")


def from_torch(tensor: Any, like: np.ndarray) -> np.ndarray:
    """As an array of the dtype of `like`."""
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().view(like.dtype).reshape(tensor.shape)


class GpuCall:
    """A call's arrays in one buffer on a device, each between marked margins and aligned to its elements only, unless
    `aligned`."""

    def __init__(
        self, op: str, inputs: dict[str, Any], framework: str = "torch", device: int = 0, aligned: bool = False
    ) -> None:
        self.spec = get_op(op)
        self.arrays = {n: v for n, v in inputs.items() if isinstance(v, np.ndarray)}
        self.offsets: dict[str, int] = {}
        end = MARGIN
        for number, (name, array) in enumerate(self.arrays.items()):
            # Not always on 16 bytes, but for the index, which must be.
            start = -(-end // 16) * 16 + (0 if aligned or name == "index" else array.itemsize * (number % 4))
            self.offsets[name] = start
            end = start + array.nbytes + MARGIN
        host = np.full(-(-end // 16) * 16, SENTINEL, np.uint8)
        for name, array in self.arrays.items():
            start = self.offsets[name]
            host[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.before = host
        self.buffer = _buffer(host, framework, device)
        self.call = dict(inputs)
        for name, array in self.arrays.items():
            start = self.offsets[name]
            self.call[name] = _typed(self.buffer[start : start + array.nbytes], array, framework)

    def results(self) -> dict[str, np.ndarray]:
        """The op's outputs. Fails if it wrote to an input or outside its tensors."""
        after = self.buffer.cpu().numpy() if hasattr(self.buffer, "cpu") else self.buffer.get()
        allowed = np.zeros(len(after), np.bool_)
        outputs = {}
        for name, array in self.arrays.items():
            part = slice(self.offsets[name], self.offsets[name] + array.nbytes)
            operand = self.spec.by_name.get(name)
            if operand is not None and operand.role is not Role.IN:
                allowed[part] = True
                outputs[name] = after[part].copy().view(array.dtype).reshape(array.shape)
        wrong = np.flatnonzero((after != self.before) & ~allowed)
        assert not wrong.size, f"{self.spec.name} wrote {self._at(int(wrong[0]))}"
        return outputs

    def _at(self, byte: int) -> str:
        ends = {name: (offset, offset + self.arrays[name].nbytes) for name, offset in self.offsets.items()}
        name, (first, last) = min(ends.items(), key=lambda item: max(item[1][0] - byte, byte - item[1][1], 0))
        if first <= byte < last:
            return f"byte {byte - first} of its input '{name}'"
        return (
            f"{first - byte} bytes before '{name}'"
            if byte < first
            else f"{byte - last} bytes after the end of '{name}'"
        )


def run_on_gpu(
    op: str, inputs: dict[str, Any], backend: Any, framework: str = "torch", device: int = 0, aligned: bool = False
) -> dict[str, np.ndarray]:
    """The op's outputs for these inputs."""
    gpu = GpuCall(op, inputs, framework, device, aligned)
    getattr(backend, op)(**gpu.call)
    return gpu.results()
