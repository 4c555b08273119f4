"""What the ranks of a tensor-parallel model tell each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from specdec_hal.errors import EngineDeadError
from specdec_hal.wording import describe


class Group(Protocol):
    """One rank's view of its group. Every call is made by all ranks, in the same order."""

    rank: int
    size: int
    capturable: bool
    """Whether a gather of tensors on a GPU only launches work, which a CUDA graph can hold."""

    def gather(self, tensor: Any) -> Any:
        """The tensors of all ranks, which are of one shape and dtype, in memory of their own: [size, ...], by rank."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Values of all ranks, by rank; for what is seldom told."""


class ProcessGroup:
    """A group of processes, by torch.distributed: gloo for what is on the host, NCCL for tensors of a GPU."""

    def __init__(
        self,
        rank: int,
        size: int,
        rendezvous: str,
        timeout_s: float,
        device: str = "cpu",
        *,
        nccl: bool = True,
    ) -> None:
        """`rendezvous`: a path where no file is, the same for all ranks. `timeout_s`: the longest wait for a rank.

        `device`: where this rank's tensors are, "cpu" or "cuda:N". `nccl`: false where ranks share a GPU, which NCCL
        refuses; gathered tensors then go through the host.
        """
        import torch
        import torch.distributed as distributed

        self.rank, self.size, self._distributed = rank, size, distributed
        self.lost = False
        self.capturable = device != "cpu" and nccl
        # Its name from PyTorch 2.13 on, and the one before.
        self._all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        options: dict[str, Any] = {"backend": "gloo"}
        if device != "cpu":
            torch.cuda.set_device(device)
        if self.capturable:
            options = {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device(device)}
        distributed.init_process_group(
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
            **options,
        )

    def gather(self, tensor: Any) -> Any:
        """See Group.gather. EngineDeadError if a rank has ended, or does not answer.

        Of tensors on a GPU it is enqueued, and can be captured in a CUDA graph; NCCL ends the process if a rank has.
        """
        mine = tensor.contiguous() if self.capturable else tensor.cpu().contiguous()
        parts = mine.new_empty((self.size, *mine.shape))
        try:
            self._all_gather(parts.flatten(0, 1), mine)
        except RuntimeError as error:
            raise self._lost(error) from error
        return parts.to(tensor.device)

    def gather_objects(self, value: Any) -> list[Any]:
        """See Group.gather_objects. Errors as :meth:`gather`."""
        values: list[Any] = [None] * self.size
        try:
            self._distributed.all_gather_object(values, value)
        except RuntimeError as error:
            raise self._lost(error) from error
        return values

    def _lost(self, error: RuntimeError) -> EngineDeadError:
        return EngineDeadError(
            f"tensor-parallel rank {self.rank} of {self.size}: another has ended ({describe(error)})"
        )

    def abort(self) -> None:
        """End what waits for a rank on the GPU, from any thread; :attr:`lost` says so of everything that comes out."""
        self.lost = True
        if self.capturable:
            import torch

            group = self._distributed.distributed_c10d._get_default_group()
            group._get_backend(torch.device("cuda")).abort()

    def close(self) -> None:
        """Leave the group."""
        self._distributed.destroy_process_group()
