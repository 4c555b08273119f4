"""Communication between the ranks of a tensor-parallel model."""

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
"""Time limit to leave a group."""
_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""Keep PyTorch from ending the process after a failed collective, so that callers are notified."""


class Shared(NamedTuple):
    """Memory of every rank, accessible to all ranks' kernels.

    `mine` [count] is this rank's, zeros at first; `places`, int64 [size] on its device, are all ranks' addresses.
    """

    mine: Any
    places: Any


class Group(Protocol):
    """One rank's view of its group. All ranks make the same calls in the same order."""

    rank: int
    size: int
    capturable: bool
    """Whether gathers of GPU tensors only launch work, so that CUDA graphs can capture them."""

    def gather(self, tensor: Any) -> Any:
        """The ranks' tensors, of one shape and dtype, in new memory: [size, ...]."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Values of all ranks, by rank; for rare exchanges."""

    def share(self, count: int, dtype: Any, *, stops: bool = False) -> Shared | None:
        """Shared memory of `count` elements per rank; None if kernels cannot access other ranks' memory.

        `stops`: a nonzero last element, set for a lost rank, ends all waiting.
        """


class ProcessGroup:
    """A group of processes by torch.distributed: gloo on the host, NCCL for GPU tensors."""

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

        `device`: where this rank's tensors are, "cpu" or "cuda:N". `nccl`: false if ranks share a GPU, which NCCL
        refuses; gathers then go through the host.
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
        """Objects that must outlive shared memory."""
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
        """PyTorch's process group for a kind of device."""
        import torch

        return self._distributed.distributed_c10d._get_default_group()._get_backend(torch.device(device))

    def set_timeout(self, timeout_s: float) -> None:
        """Stop waiting for host collectives. On a GPU, NCCL waits until :meth:`abort`."""
        self._on("cpu")._set_default_timeout(timedelta(seconds=timeout_s))

    def gather(self, tensor: Any) -> Any:
        """See Group.gather. RankLostError if a rank has ended, or does not answer.

        For GPU tensors it is enqueued and can be captured in a CUDA graph; the GPU waits for a dead rank until
        :meth:`abort`.
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

        On the host only for two ranks, as waiting occupies a core.
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
        self.gather_objects(None)  # all ranks have opened it
        os.unlink(paths[self.rank])
        self._kept += parts
        return Shared(parts[self.rank], torch.tensor([part.data_ptr() for part in parts]))

    def _share_gpus(self, count: int, dtype: Any) -> Shared:
        import torch
        import torch.distributed._symmetric_memory as symmetric
        from torch._C import _distributed_c10d as c10d

        from specdec_hal.tensors.memory_store import MemoryStore

        # Not the default group's name: PyTorch keeps the store of the first group with a name.
        memory, name = symmetric._SymmetricMemory, self._rendezvous
        self._shared += 1
        if self._shared == 1:
            store = MemoryStore(self._distributed.distributed_c10d._get_default_store())
            memory.set_group_info(name, self.rank, self.size, store)
            group = c10d.ProcessGroup(store, self.rank, self.size)
            c10d._register_process_group(name, group)  # where PyTorch 2.11 looks for it
            self._kept += [group, store]  # PyTorch keeps neither Python object
        mine = symmetric.empty(count, dtype=dtype, device=torch.device(self._device)).zero_()
        handle = memory.rendezvous(mine, name)
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
        """Abort GPU waits for a rank, from any thread; :attr:`lost` marks later results as invalid.

        Returns at once; NCCL waits for the release of captured steps with its collectives.
        """
        self.lost = True
        if self.capturable and self._aborting is None:
            self._aborting = threading.Thread(target=self._abort, name="specdec-hal abort", daemon=True)
            self._aborting.start()

    def _abort(self) -> None:
        self._stop()
        try:
            self._on("cuda").abort()
        except RuntimeError as error:  # not ended in time
            _log.error("tensor-parallel rank %d of %d: NCCL was not aborted (%s)", self.rank, self.size, error)

    def _stop(self) -> None:
        """By a copy, which works even if waiting programs fill the GPU."""
        import torch

        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream(self._device)):  # as the cells were made
            for cell in self._stops:
                cell.copy_(torch.ones(1, dtype=cell.dtype).pin_memory(), non_blocking=True)

    def close(self) -> None:
        """Leave the group within some seconds; :attr:`left`: whether NCCL has released this process.

        Releases captured steps with its gathers first, which NCCL waits for. Idempotent.
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
