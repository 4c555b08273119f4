"""Child process that runs units for `parallel`.

Reads one JSON document a line from stdin: first the job (backend, options, device, level), then units and seeds. Writes
one a line to stdout: {"start": case}, {"result": ...}, {"done": unit}. A crash of the backend ends this process only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from specdec_hal.plugin import registry
from specdec_hal_conformance.guarded import device_for
from specdec_hal_conformance.subject import Subject
from specdec_hal_conformance.suite import Settings, Unit, run_unit

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Ask the kernel to end this process with its parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended meanwhile
        sys.exit(1)


def main() -> None:
    """Serve until stdin ends."""
    # The backend's output must not mix with the protocol.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")

    job = json.loads(sys.stdin.readline())
    end_with(job["parent"])
    backend = registry.get_backend(job["backend"], options=job["options"])
    subject = Subject(backend, device_for(backend, job["device"]))
    for line in sys.stdin:
        message = json.loads(line)
        unit = Unit(*message["unit"])
        settings = Settings(
            job["level"],
            message["seed"],
            job["options"],
            samples=job["samples"],
            started=lambda case: send(start=case),
        )
        for result in run_unit(subject, unit, settings):
            send(result=asdict(result))
        send(done=list(unit))


if __name__ == "__main__":
    main()
