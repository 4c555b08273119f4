"""Join a Ray cluster, or start a local one."""

from __future__ import annotations

import os
import socket
from importlib import import_module
from typing import Any

from specdec_hal.errors import ClusterError
from specdec_hal.text import describe

LOCAL = "local"


def connect(library: str, address: str, cpus: float) -> Any:
    """The module `ray`, connected; `library` ("ray.data") is imported too.

    `address`: of a cluster, or "local" for one on this machine that ends with this process, with at least `cpus`
    (virtual) processors, so that engines do not wait forever. ClusterError if Ray is not installed or the cluster
    cannot be reached.
    """
    try:
        ray: Any = import_module("ray")
        import_module(library)
    except ImportError as error:
        raise ClusterError(f"{library} is not installed; pip install 'specdec-hal[ray]'") from error
    try:
        if address == LOCAL:
            ray.init(num_cpus=max(os.cpu_count() or 1, int(cpus) + 1), include_dashboard=False, logging_level="warning")
        else:
            _knock(address)
            ray.init(address=address, logging_level="warning")
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(f"--ray {address}: no such cluster can be reached ({describe(error)})") from error
    return ray


def _knock(address: str) -> None:
    """OSError if nothing listens at HOST:PORT or ray://HOST:PORT; Ray would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()
