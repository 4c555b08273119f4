"""What the ranks of a tensor-parallel model tell each other."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from specdec_hal.errors import RankLostError
from specdec_hal.tensors.graph_capture import Graph, current_capture
from specdec_hal.text import describe

_log = logging.getLogger("specdec_hal")
_LEAVE_S = 3.0
"""Within which a group is left."""
_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""PyTorch ends the process where it finds that a collective fails; here whoever waits hears of it first."""


class Shared(NamedTuple):
    """Memory of every rank that the kernels of all ranks reach.

    `mine` [count] is this rank's, zeros at first; `places`, int64 [size] on its device, are all ranks' addresses.
    """

    mine: Any
    places: Any


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

    def share(self, count: int, dtype: Any, *, stops: bool = False) -> Shared | None:
        """Memory of `count` elements on each rank; None where kernels of one rank cannot reach another's.

        `stops`: whoever waits there for another rank ends when the last element is not 0, which a lost rank makes it.
        """


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

        self.rank, self.size, self._distributed, self._device = rank, size, distributed, device
        self.lost = self.left = False
        self._graphs: WeakSet[Graph] = WeakSet()
        """Captured steps with gathers of this group."""
        self._aborting: threading.Thread | None = None
        self._rendezvous, self._shared = rendezvous, 0
        self._kept: list[Any] = []
        """What has to live as long as memory that is shared."""
        self._stops: list[Any] = []
        self.capturable = device != "cpu" and nccl
        # Its name from PyTorch 2.13 on, and the one before.
        self._all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
        options: dict[str, Any] = {"backend": "gloo"}
        if device != "cpu":
            torch.cuda.set_device(device)
        if self.capturable:
            for name, value in _NCCL.items():
                os.environ.setdefault(name, value)
            options = {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device(device)}
        distributed.init_process_group(
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
            **options,
        )

    def _on(self, device: str) -> Any:
        """What of PyTorch's moves tensors of a kind of device."""
        import torch

        return self._distributed.distributed_c10d._get_default_group()._get_backend(torch.device(device))

    def set_timeout(self, timeout_s: float) -> None:
        """Wait no longer from now on for what is on the host. On a GPU, NCCL waits until :meth:`abort`."""
        self._on("cpu")._set_default_timeout(timedelta(seconds=timeout_s))

    def gather(self, tensor: Any) -> Any:
        """See Group.gather. RankLostError if a rank has ended, or does not answer.

        Of tensors on a GPU it is enqueued, and can be captured in a CUDA graph; the GPU waits for a rank that has ended
        until :meth:`abort` is called.
        """
        if (capture := current_capture()) is not None:
            capture.users.append(self._graphs)
        mine = tensor.contiguous() if self.capturable else tensor.cpu().contiguous()
        parts = mine.new_empty((self.size, *mine.shape))
        self._exchange(self._all_gather, parts.flatten(0, 1), mine)
        return parts.to(tensor.device)

    def gather_objects(self, value: Any) -> list[Any]:
        """See Group.gather_objects. Errors as :meth:`gather`."""
        values: list[Any] = [None] * self.size
        self._exchange(self._distributed.all_gather_object, values, value)
        return values

    def share(self, count: int, dtype: Any, *, stops: bool = False) -> Shared | None:
        """See Group.share. On a GPU by PyTorch's symmetric memory, between GPUs that reach each other's.

        On the host for two ranks: whoever waits there takes a core.
        """
        if self.size > 2 if self._device == "cpu" else not self.capturable:
            return None
        make = self._share_files if self._device == "cpu" else self._share_gpus
        shared, error = None, ""
        try:
            shared = make(count, dtype)
        except (RuntimeError, OSError, ImportError, AttributeError) as refused:
            error = describe(refused)
        refusals = [other for other in self.gather_objects(error) if other]
        if refusals or shared is None:
            _log.warning("tensor-parallel ranks exchange by NCCL: no memory of all GPUs (%s)", refusals[0])
            return None
        if stops:
            self._stops.append(shared.mine[-1:])
        return shared

    def _share_files(self, count: int, dtype: Any) -> Shared:
        """For kernels that run on the host."""
        import torch

        self._shared += 1
        paths = [f"{self._rendezvous}.{self._shared}.{rank}" for rank in range(self.size)]
        parts = [torch.from_file(path, shared=True, size=count, dtype=dtype) for path in paths]
        self.gather_objects(None)  # all have opened it
        os.unlink(paths[self.rank])
        self._kept += parts
        return Shared(parts[self.rank], torch.tensor([part.data_ptr() for part in parts]))

    def _share_gpus(self, count: int, dtype: Any) -> Shared:
        import torch
        import torch.distributed._symmetric_memory as symmetric

        mine = symmetric.empty(count, dtype=dtype, device=torch.device(self._device)).zero_()
        handle = symmetric.rendezvous(mine, self._distributed.group.WORLD)
        parts = [handle.get_buffer(rank, (count,), dtype) for rank in range(self.size)]
        self._kept.append((handle, parts))
        places = torch.tensor([part.data_ptr() for part in parts], device=self._device)
        torch.cuda.synchronize(self._device)
        return Shared(mine, places)

    def _exchange(self, collective: Callable[[Any, Any], None], out: Any, mine: Any) -> None:
        try:
            collective(out, mine)
        except RuntimeError as error:
            raise RankLostError(
                f"tensor-parallel rank {self.rank} of {self.size}: another has ended ({describe(error)})"
            ) from error

    def abort(self) -> None:
        """End what waits for a rank on the GPU, from any thread; :attr:`lost` says so of everything that comes out.

        Returns at once: NCCL waits for captured steps with its collectives to be released.
        """
        self.lost = True
        if self.capturable and self._aborting is None:
            self._aborting = threading.Thread(target=self._abort, name="specdec-hal abort", daemon=True)
            self._aborting.start()

    def _abort(self) -> None:
        self._stop()
        try:
            self._on("cuda").abort()
        except RuntimeError as error:  # it has not ended within its time
            _log.error("tensor-parallel rank %d of %d: NCCL was not aborted (%s)", self.rank, self.size, error)

    def _stop(self) -> None:
        """By a copy, for which a GPU that is full of waiting programs has room."""
        import torch

        with torch.cuda.stream(torch.cuda.Stream(self._device)):
            for cell in self._stops:
                cell.copy_(torch.ones(1, dtype=cell.dtype).pin_memory(), non_blocking=True)

    def close(self) -> None:
        """Leave the group, within some seconds: :attr:`left` says whether NCCL has let this process go.

        Captured steps with its gathers are released first, since NCCL waits for that; twice is once.
        """
        if self.left:
            return
        leaving = threading.Thread(target=self._leave, name="specdec-hal leave", daemon=True)
        leaving.start()
        leaving.join(_LEAVE_S)
        if not self.left:
            _log.error("tensor-parallel rank %d of %d: could not leave its group", self.rank, self.size)

    def _leave(self) -> None:
        if self.capturable:
            import torch

            torch.cuda.set_device(self._device)
        for graph in list(self._graphs):
            graph.release()
        if self._aborting is not None:
            self._aborting.join()
        self._distributed.destroy_process_group()
        self.left = True
