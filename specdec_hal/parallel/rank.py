"""A rank other than 0: a process that repeats rank 0's calls and sends heartbeats."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from specdec_hal.config import Config, parse
from specdec_hal.errors import SpecDecError
from specdec_hal.parallel.runner import WITH_GRAMMARS, RankHook, with_grammars
from specdec_hal.runner import build_runner
from specdec_hal.tensors.group import Group, ProcessGroup

if TYPE_CHECKING:
    from specdec_hal.models import Tokenizer
    from specdec_hal.plugin.backend import Backend
    from specdec_hal.plugin.model import TargetModel

_log = logging.getLogger("specdec_hal")
_LOAD_S = 1800.0
"""How long ranks wait for each other while they load; a dead rank is noticed at once."""
_LAST_STEP_S = 2.0
"""Time for a rank to finish a step when it should end."""

Load = Callable[[Config, Group], "tuple[Backend, TargetModel, Tokenizer]"]
"""Builds a rank's runner."""
ALIVE, HERE, READY, END = b"alive", b"here", b"ready", b"end"
"""Messages on a rank's heartbeat connection: alive, waiting for others, model loaded; and rank 0's messages."""


def join(config: Config, rank: int, devices: Sequence[str], rendezvous: str) -> ProcessGroup:
    """Join the other ranks, which share this machine's cores."""
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // config.engine.tensor_parallel))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    alone = len(set(devices)) == len(devices)
    return ProcessGroup(rank, len(devices), rendezvous, _LOAD_S, devices[rank], nccl=alone)


def beat_s(config: Config) -> float:
    """Seconds between two signs of life."""
    return min(config.engine.rank_timeout_s / 8, 1.0)


class _Pulse:
    """A thread that sends heartbeats, and ends this process after rank 0 or on its request."""

    def __init__(self, connection: Connection, interval_s: float) -> None:
        self._connection, self._interval_s = connection, interval_s
        self._lock = threading.Lock()
        threading.Thread(target=self._beat, name="specdec-hal pulse", daemon=True).start()

    def say(self, what: bytes) -> None:
        """From any thread."""
        with self._lock:
            self._connection.send_bytes(what)

    def _beat(self) -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        try:
            while not multiprocessing.connection.wait([self._connection, parent.sentinel], self._interval_s):
                self.say(ALIVE)
            if self._connection.poll() and self._connection.recv_bytes() == END:
                time.sleep(_LAST_STEP_S)  # the main thread may be blocked in a collective
        except (EOFError, OSError):
            pass  # rank 0 has ended
        os._exit(1)


def follow(
    settings: dict[str, Any],
    rank: int,
    devices: Sequence[str],
    rendezvous: str,
    commands: Connection,
    pulse: Connection,
    load: Load,
) -> None:
    """Repeat rank 0's calls until it stops. `load`, a module-level function, returns this rank's model."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 fails too, and ends the others
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # rank 0 shows them, and an exit leaves their semaphore behind
    status = 1
    try:
        config = _own(settings, devices[rank])
        living = _Pulse(pulse, beat_s(config))
        living.say(HERE)
        group = join(config, rank, devices, rendezvous)
        loaded = load(config, group)
        group.set_timeout(config.engine.rank_timeout_s)
        living.say(READY)
        _obey(commands, devices[rank], loaded, group)
        group.close()
        status = 0
    except SpecDecError as error:
        _log.error("tensor-parallel rank %d ends: %s", rank, error)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # at once, without waiting for a GPU or communicator


def _obey(commands: Connection, device: str, loaded: tuple[Any, Any, Any], group: Group) -> None:
    runner: Any = None
    while True:
        try:
            name, args = commands.recv()
        except EOFError:
            break
        if name == "runner":
            if runner is not None:
                runner.close()
            config = _own(args[0], device)
            runner = build_runner(config, *loaded, hook=RankHook(config, group))
        elif name == WITH_GRAMMARS:
            with_grammars(runner, *args)
        else:
            getattr(runner, name)(*args)
    if runner is not None:
        runner.close()


def _own(settings: dict[str, Any], device: str) -> Config:
    """A rank's configuration: its device, and no files, which only rank 0 writes."""
    runner = {name: value for name, value in settings.get("runner", {}).items() if not name.startswith("journal")}
    own = {**settings, "runner": runner, "shadow": {}}
    if device := device.partition(":")[2]:
        backend = settings.get("backend", {})
        own["backend"] = {**backend, "options": {**backend.get("options", {}), "device": int(device)}}
        own["engine"] = {**settings["engine"], "rank_devices": None}
    return parse(own, source="tensor-parallel rank")
