"""Run units in parallel child processes, so that a crash does not end the suite."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_hal.errors import SpecDecError
from specdec_hal.ops.inputs.files import save_inputs
from specdec_hal.plugin import registry
from specdec_hal.tensors.memory import as_text
from specdec_hal_conformance.distributions import SAMPLES
from specdec_hal_conformance.report import FAILED, Result
from specdec_hal_conformance.suite import Settings, Unit, cases_of

Task = tuple[Unit, int]
"""A unit and its seed."""


@dataclass
class Job:
    """Settings for every child. `save`: folder for the inputs of cases that crash the backend.

    `seconds`: time limit of a case, shrinking included; `memory`: most bytes of a child (None: any). Beyond either the
    child is killed and the case fails.
    """

    backend: str
    level: str = "quick"
    device: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    save: Path = Path()
    samples: int = SAMPLES
    seconds: float = 900
    memory: int | None = None

    def document(self) -> dict[str, Any]:
        """For the child."""
        return {
            "backend": self.backend,
            "level": self.level,
            "device": self.device,
            "options": dict(self.options),
            "samples": self.samples,
            "parent": os.getpid(),
        }


_START = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from specdec_hal_conformance.child import main
main()
"""


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


class _Child:
    """One process; starts again after a crash."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.process: subprocess.Popen[str] | None = None
        self.killed = False
        self.ended = ""
        self._busy = False
        self._heard = time.monotonic()

    def watch(self, stop: threading.Event) -> None:
        """Kill the child if a case takes too long or too much memory, until `stop` is set."""
        while not stop.wait(0.5):
            process = self.process
            if process is None or process.poll() is not None or not self._busy:
                continue
            if time.monotonic() - self._heard > self.job.seconds:
                self.ended = f"was ended: it took more than {self.job.seconds:g} s"
            elif self.job.memory is not None and (held := resident(process.pid)) > self.job.memory:
                self.ended = f"was ended: it held {as_text(held)} of memory, more than {as_text(self.job.memory)}"
            else:
                continue
            process.kill()

    def run(self, task: Task) -> Iterator[Result]:
        """The unit's results; if the process dies, a failure that names the running case."""
        unit, seed = task
        process = self._alive()
        assert process.stdin is not None and process.stdout is not None
        case = "(before the first case)"
        self._heard, self._busy = time.monotonic(), True
        try:
            process.stdin.write(json.dumps({"unit": list(unit), "seed": seed}) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                self._heard = time.monotonic()
                if "start" in message:
                    case = message["start"]
                elif "result" in message:
                    yield Result(**{**message["result"], "rules": tuple(message["result"]["rules"])})
                else:
                    self._busy = False
                    return
        except BrokenPipeError:
            pass  # it died before it could read; its exit status says how
        if self.killed:
            return
        self.process, self._busy = None, False
        yield self._crash(unit, seed, case, process.wait())

    def close(self) -> None:
        """End the process."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def kill(self) -> None:
        """Kill it without reporting a crash."""
        self.killed = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _alive(self) -> subprocess.Popen[str]:
        if self.process is None:
            # The parent's path, so that the child imports the same package.
            command = [sys.executable, "-c", _START, json.dumps([os.path.abspath(folder) for folder in sys.path])]
            # Leave nothing in the user's folder.
            cache = os.path.join(tempfile.gettempdir(), "specdec-hal-hypothesis")
            environment = {"OMP_NUM_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": cache, **os.environ}
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which ends the children
            )
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(self.job.document()) + "\n")
        return self.process

    def _crash(self, unit: Unit, seed: int, case_id: str, status: int) -> Result:
        how, self.ended = self.ended, ""
        how = how or (f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}")
        name = case_id.removeprefix(f"{unit.op}/")
        detail = f"the process {how} while it ran this case{self._saved(unit, seed, case_id)}"
        return Result(unit.op, "", name, "survival", FAILED, detail)

    def _saved(self, unit: Unit, seed: int, case_id: str) -> str:
        """Save the case's inputs, regenerated in this process without running the backend."""
        try:
            workspace = registry.get_backend(self.job.backend, options=self.job.options).workspace
            for case, _ in cases_of(unit, Settings(self.job.level, seed)):
                if case.id == case_id:
                    safe = "".join(letter if letter.isalnum() else "-" for letter in case_id)
                    path = self.job.save / f"conformance-crash-{safe}-seed{seed}.npz"
                    save_inputs(path, case.make(workspace))
                    return f"; its inputs are in {path}"
        except (OSError, SpecDecError) as error:
            return f"; its inputs could not be saved ({error})"
        return ""


def run_tasks(
    job: Job, tasks: Iterable[Task], jobs: int, finished: Callable[[Task], None] = lambda task: None
) -> Iterator[Result]:
    """Results of all tasks as they complete. `finished` is called for each task, from another thread."""
    todo: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[Result | Exception | None] = queue.SimpleQueue()
    for task in tasks:
        todo.put(task)
    children = [_Child(job) for _ in range(jobs)]
    for _ in children:
        todo.put(None)

    def serve(child: _Child) -> None:
        try:
            while (task := todo.get()) is not None:
                for result in child.run(task):
                    done.put(result)
                finished(task)
            child.close()
        except Exception as error:
            done.put(error)
        done.put(None)

    threads = [threading.Thread(target=serve, args=(child,), daemon=True) for child in children]
    stop = threading.Event()
    threads += [threading.Thread(target=child.watch, args=(stop,), daemon=True) for child in children]
    for thread in threads:
        thread.start()
    left = len(children)
    try:
        while left:
            item = done.get()
            if item is None:
                left -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        stop.set()
        for child in children:
            child.kill()
