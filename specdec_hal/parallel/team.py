"""The processes of a tensor-parallel model on one machine: this one is rank 0, the others do what it tells them."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal.config import Config, parse
from specdec_hal.errors import EngineDeadError, SpecDecError
from specdec_hal.parallel.group import Group, ProcessGroup
from specdec_hal.parallel.runner import LeadingRunner, RankRunner

if TYPE_CHECKING:
    from specdec_hal.backend import Backend
    from specdec_hal.models import TargetModel, Tokenizer

_log = logging.getLogger("specdec_hal")
_PATIENCE_S = 5.0

Load = Callable[[Config, Group], "tuple[Backend, TargetModel, Tokenizer]"]
"""Gives a rank what its runner needs."""


class Team:
    """Starts the other ranks, and ends them when it is closed or this process ends.

    `places`: where each rank works, "cpu" or "cuda:N". `load`, a function of a module, is called by each of them.
    """

    def __init__(self, config: Config, places: Sequence[str], load: Load) -> None:
        settings = config.engine
        self._folder = tempfile.TemporaryDirectory(prefix="specdec-hal-ranks-")
        rendezvous = str(Path(self._folder.name, "rendezvous"))
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._ranks: list[Any] = []
        for rank in range(1, settings.tensor_parallel):
            mine, theirs = context.Pipe()
            args = (config.as_json(), rank, places, rendezvous, theirs, load)
            process = context.Process(target=_follow, args=args, name=f"specdec-hal rank {rank}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._ranks.append(process)
        self.group = join(config, 0, places, rendezvous)
        self._closing = False
        threading.Thread(target=self._watch, name="specdec-hal ranks", daemon=True).start()

    def _watch(self) -> None:
        """A GPU waits for a rank that has ended, and this process for the GPU, unless somebody ends that."""
        multiprocessing.connection.wait([process.sentinel for process in self._ranks])
        if not self._closing:
            self.group.abort()

    def runner(self, config: Config, *args: Any, **options: Any) -> LeadingRunner:
        """A runner of rank 0, and one on every other rank."""
        self.tell("runner", config.as_json())
        return LeadingRunner(config, *args, tell=self.tell, lost=lambda: self.group.lost, group=self.group, **options)

    def tell(self, name: str, *args: Any) -> None:
        """Have every other rank do something. EngineDeadError if one has ended; then all are ended."""
        for rank, (pipe, process) in enumerate(zip(self._pipes, self._ranks, strict=True), 1):
            try:
                if not process.is_alive():
                    raise BrokenPipeError
                pipe.send((name, args))
            except OSError as error:
                process.join(_PATIENCE_S)
                self.close()
                message = f"tensor-parallel rank {rank} of {len(self._ranks) + 1} has ended (status {process.exitcode})"
                raise EngineDeadError(f"{message}; start the engine anew") from error

    def close(self) -> None:
        """End the other ranks."""
        self._closing = True
        for pipe in self._pipes:
            pipe.close()
        for process in self._ranks:
            process.join(_PATIENCE_S)
            process.kill()
        self._folder.cleanup()


def join(config: Config, rank: int, places: Sequence[str], rendezvous: str) -> ProcessGroup:
    """Meet the other ranks, with which this process shares the machine's processors."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // config.engine.tensor_parallel))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    alone = len(set(places)) == len(places)
    return ProcessGroup(rank, len(places), rendezvous, config.engine.rank_timeout_s, places[rank], nccl=alone)


def _follow(
    settings: dict[str, Any], rank: int, places: Sequence[str], rendezvous: str, pipe: Connection, load: Load
) -> None:
    """The life of a rank: do what rank 0 does, until it says no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets it too, and ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config = _own(settings, places[rank])
    group = join(config, rank, places, rendezvous)
    backend, model, tokenizer = load(config, group)
    runner: RankRunner | None = None
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        if name == "runner":
            runner = RankRunner(_own(args[0], places[rank]), backend, model, tokenizer, group=group)
            continue
        try:
            getattr(runner, name)(*args)
        except SpecDecError as error:
            _log.error("tensor-parallel rank %d ends: %s", rank, error)
            raise SystemExit(1) from error


def _end_with_parent() -> None:
    """Where rank 0 was killed while this process waits for it in a collective."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    time.sleep(_PATIENCE_S)
    os._exit(1)


def _own(settings: dict[str, Any], place: str) -> Config:
    """A rank's configuration: its own device; what rank 0 writes, the others do not."""
    runner = {name: value for name, value in settings.get("runner", {}).items() if not name.startswith("journal")}
    own = {**settings, "runner": runner, "shadow": {}}
    if device := place.partition(":")[2]:
        backend = settings.get("backend", {})
        own["backend"] = {**backend, "options": {**backend.get("options", {}), "device": int(device)}}
        own["engine"] = {**settings["engine"], "rank_devices": None}
    return parse(own, source="tensor-parallel rank")
