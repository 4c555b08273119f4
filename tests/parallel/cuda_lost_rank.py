"""A rank whose only other one is lost: the cell that says so ends the wait. Argument: the place."""

from __future__ import annotations

import sys
from typing import Any

import torch

from specdec_hal.models.transformers.exchange import Exchange
from specdec_hal.models.triton_kernels.launcher import Launcher
from specdec_hal.tensors.group import Shared


class Lost:
    """A group of two whose other rank never arrives."""

    rank, size, capturable = 0, 2, False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.made: list[Any] = []

    def share(self, count: int, dtype: Any, *, stops: bool = False) -> Shared:
        """In one process."""
        both = torch.zeros(2, count, dtype=dtype, device=self._device)
        self.made.append(both)
        return Shared(both[0], torch.tensor([part.data_ptr() for part in both], device=self._device))


def main(device: str) -> None:
    """The lost rank's last values are added: zeros."""
    device = torch.device(device)
    group: Any = Lost(device)
    launcher = Launcher(device, torch.float32)
    exchange = Exchange(group, launcher)
    group.made[0][0, -1] = 1
    mine = exchange.take("summand", (3, 8), torch.float32).fill_(2)
    residual, out = (torch.zeros(3, 8, device=device) for _ in range(2))
    count = torch.tensor([2], dtype=torch.int32, device=device)
    parts, weight = exchange.parts("summand", mine), torch.ones(8, device=device)
    launcher.sum_norm(parts, residual, residual, count, weight=weight, out=out, epsilon=1e-5)
    assert residual[:, 0].tolist() == [2, 2, 0]
    assert out[:, 0].tolist()[2] == 0 and out[0, 0] > 0.9


if __name__ == "__main__":
    main(sys.argv[1])
