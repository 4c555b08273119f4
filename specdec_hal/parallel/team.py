"""The processes of a tensor-parallel model on one machine; this one, rank 0, controls the others.

A thread monitors the heartbeats of all ranks, independently of collectives. All ranks are killed once one has ended or
has been silent for `engine.rank_timeout_s`, or the GPU has waited for that long. Observers are notified, and pending
collectives aborted.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.connection
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from weakref import WeakSet

from specdec_hal.config import Config
from specdec_hal.errors import EngineDeadError, RankLostError
from specdec_hal.parallel.rank import END, HERE, READY, Load, beat_s, follow, join
from specdec_hal.parallel.runner import LeadingHook, LeadingRunner
from specdec_hal.runner.build import build_parts
from specdec_hal.tensors.group import ProcessGroup

_log = logging.getLogger("specdec_hal")
_PATIENCE_S = 3.0
"""Time for ranks to end by themselves."""
_REASON_S = 1.0
"""How long a failed collective waits for its cause."""


@dataclass(eq=False)
class _Rank:
    """Another rank. `silent_s`: time since its last heartbeat; `said`: its progress."""

    number: int
    process: BaseProcess
    commands: Connection
    pulse: Connection
    silent_s: float = 0.0
    said: bytes = b""


class Team:
    """Starts the other ranks, and ends them on close or with this process.

    `devices`: one per rank, "cpu" or "cuda:N". `load`: a module-level function, called by each rank.
    """

    def __init__(self, config: Config, devices: Sequence[str], load: Load) -> None:
        self._timeout_s, self._beat_s = config.engine.rank_timeout_s, beat_s(config)
        self._folder = tempfile.TemporaryDirectory(prefix="specdec-hal-ranks-")
        self.error: EngineDeadError | None = None
        """Why the ranks have stopped."""
        self._changed = threading.Condition()
        self._closing = False
        self._watchers: list[Callable[[EngineDeadError], None]] = []
        self._runners: WeakSet[LeadingRunner] = WeakSet()
        self._group: ProcessGroup | None = None
        self._ranks: list[_Rank] = []
        atexit.register(self._at_exit)  # before multiprocessing's own, which waits forever for a stopped process
        rendezvous = str(Path(self._folder.name, "rendezvous"))
        try:
            for rank in range(1, len(devices)):
                self._ranks.append(_start(config, rank, devices, rendezvous, load))
            threading.Thread(target=self._watch, name="specdec-hal ranks", daemon=True).start()
            self._until_all_said(HERE, READY)
            self._group = join(config, 0, devices, rendezvous)
        except BaseException:
            self.close()
            raise

    @property
    def group(self) -> ProcessGroup:
        """The ranks' communication group."""
        assert self._group is not None
        return self._group

    @property
    def processes(self) -> list[BaseProcess]:
        """Those of the other ranks, by rank."""
        return [rank.process for rank in self._ranks]

    def runner(self, config: Config, *args: Any, **options: Any) -> LeadingRunner:
        """A runner of rank 0, and one on every other rank."""
        self._until_all_said(READY)
        self.group.set_timeout(self._timeout_s)
        self.send("runner", config.as_json())
        hook = LeadingHook(config, self.group, self)
        runner = LeadingRunner(build_parts(config, *args, hook=hook, **options), self)
        self._runners.add(runner)
        return runner

    def send(self, name: str, *args: Any) -> None:
        """Send a command to every other rank. RankLostError if they have stopped."""
        for rank in self._ranks:
            if self.error is not None:
                raise self.error
            try:
                rank.commands.send((name, args))
            except OSError as error:
                raise self.failed(error) from error

    def watch(self, ended: Callable[[EngineDeadError], None]) -> None:
        """Register `ended`, called from any thread when the ranks have stopped."""
        with self._changed:
            if self.error is None:
                self._watchers.append(ended)
                return
        ended(self.error)

    def failed(self, error: Exception) -> EngineDeadError:
        """Handle a failed collective: wait until all have ended, and return the reason."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None, _REASON_S)
        return self.lose(str(error))

    def lose(self, why: str) -> EngineDeadError:
        """End all ranks and notify observers. The first reason counts."""
        with self._changed:
            if self.error is not None or self._closing:
                return self.error or RankLostError(why)
            self.error = RankLostError(f"{why}; start the engine again")
            self._changed.notify_all()
        _log.error("%s", self.error)
        for rank in self._ranks:
            rank.process.kill()
        for ended in self._watchers:
            ended(self.error)
        if self._group is not None:
            self._group.abort()
        return self.error

    # ---- heartbeats

    def _until_all_said(self, *what: bytes) -> None:
        """EngineDeadError if a rank ends before."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or all(rank.said in what for rank in self._ranks))
            if self.error is not None:
                raise self.error

    def _watch(self) -> None:
        heard: list[Connection | int] = [rank.pulse for rank in self._ranks]
        heard += [rank.process.sentinel for rank in self._ranks]
        before = time.monotonic()
        while self.error is None and not self._closing:
            ready = multiprocessing.connection.wait(heard, self._beat_s)
            now = time.monotonic()
            # This process and the others may all have been suspended.
            passed, before = min(now - before, 2 * self._beat_s), now
            for rank in self._ranks:
                self._hear(rank, ready, passed)
            for runner in list(self._runners):
                if runner.device_wait_s > self._timeout_s:
                    self.lose(f"the GPU has waited for tensor-parallel ranks for {self._timeout_s:g} s")

    def _hear(self, rank: _Rank, ready: Sequence[Any], passed: float) -> None:
        name = f"tensor-parallel rank {rank.number} of {len(self._ranks) + 1}"
        try:
            if rank.pulse in ready:
                rank.silent_s = 0.0
                while rank.pulse.poll():
                    said = rank.pulse.recv_bytes()
                    if said in (HERE, READY):
                        with self._changed:
                            rank.said = said
                            self._changed.notify_all()
            else:
                rank.silent_s += passed
        except (EOFError, OSError):
            rank.process.join(_REASON_S)
        if not rank.process.is_alive():
            self.lose(f"{name} has ended (status {rank.process.exitcode})")
        elif rank.said == READY and rank.silent_s >= self._timeout_s:
            self.lose(f"{name} has not answered for {self._timeout_s:g} s (engine.rank_timeout_s)")

    # ---- the end

    def close(self) -> None:
        """End the other ranks and leave their group, within some seconds. Idempotent."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        end = time.monotonic() + _PATIENCE_S
        for rank in self._ranks:
            rank.commands.close()
            with suppress(OSError):  # it has ended
                rank.pulse.send_bytes(END)
        if self._group is not None:
            self._group.close()
        for rank in self._ranks:
            rank.process.join(max(0.0, end - time.monotonic()))
            rank.process.kill()
            rank.process.join(_PATIENCE_S)
        self._folder.cleanup()
        if self._left:
            atexit.unregister(self._at_exit)

    @property
    def _left(self) -> bool:
        return self.error is None and (self._group is None or self._group.left)

    def _at_exit(self) -> None:
        self.close()
        if not self._left:
            # Pending NCCL work would block the exit, beyond Python's control.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)


def _start(config: Config, rank: int, devices: Sequence[str], rendezvous: str, load: Load) -> _Rank:
    context = multiprocessing.get_context("spawn")
    (mine, theirs), (pulse, their_pulse) = context.Pipe(), context.Pipe()
    args = (config.as_json(), rank, devices, rendezvous, theirs, their_pulse, load)
    process = context.Process(target=follow, args=args, name=f"specdec-hal rank {rank}", daemon=True)
    process.start()
    theirs.close()
    their_pulse.close()
    return _Rank(rank, process, mine, pulse)
