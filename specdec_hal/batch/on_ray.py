"""Replicas as actors of Ray Data, which places, feeds and restarts them and repeats unfinished work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specdec_hal.batch.blocks import Block
from specdec_hal.batch.replica import Replica
from specdec_hal.errors import BatchError, BatchWriteError
from specdec_hal.serve.ray_cluster import connect
from specdec_hal.text import describe


@dataclass(frozen=True)
class Placement:
    """The cluster of the replicas (:func:`specdec_hal.serve.ray_cluster.connect`), their number, and the resources of
    each.
    """

    address: str
    replicas: int
    cpus: float
    gpus: float


def run(blocks: Sequence[Block], placement: Placement, **settings: Any) -> Iterator[dict[str, Any]]:
    """Answer blocks; yields the report of :class:`Replica` (built with `settings`) on each, in any order.

    BatchError if a replica cannot start; ClusterError without Ray or for an unknown cluster.
    """
    ray = connect("ray.data", placement.address, placement.replicas * placement.cpus)
    try:
        items = ray.data.from_items([asdict(block) for block in blocks], override_num_blocks=len(blocks))
        decoded = items.map(
            Replica,  # a class, so that an actor builds it once
            fn_constructor_kwargs=settings,
            compute=ray.data.ActorPoolStrategy(size=min(placement.replicas, len(blocks))),
            num_cpus=placement.cpus,
            num_gpus=placement.gpus,
        )
        yield from decoded.iter_rows()
    except ray.exceptions.RayError as error:
        if isinstance(error.__cause__, BatchWriteError):
            raise error.__cause__ from error
        raise BatchError(
            f"a replica failed ({describe(error.__cause__ or error)}); finished blocks are kept"
        ) from error
    finally:
        ray.shutdown()
