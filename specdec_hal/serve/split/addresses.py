"""Names and addresses of the processes, and what sends to one. The supervisor starts others sooner without the rest."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import zmq

HTTP, ENGINE = "http", "engine"
_OWNED = re.compile(r"[a-z]+-(\d{1,3})-")


def http(worker: int) -> str:
    """The name of an HTTP process, counted from 0."""
    return f"{HTTP}-{worker}" if worker else HTTP


def worker_of(part: str) -> int | None:
    """The number of an HTTP process's name; None for others."""
    kind, _, number = part.partition("-")
    return int(number or 0) if kind == HTTP else None


def parts(http_workers: int) -> list[str]:
    """The processes; each reads the socket of its name."""
    return [*map(http, range(http_workers)), ENGINE]


def frames(worker: int) -> str:
    """The name of an HTTP process's second socket, for the engine's frames."""
    return f"{http(worker)}.frames"


def owned(worker: int) -> str:
    """The owner's tag after the kind in an id."""
    return f"{worker}-" if worker else ""


def owner(request_id: str) -> int:
    """The HTTP process that owns a request or answer."""
    found = _OWNED.match(request_id)
    return int(found[1]) if found else 0


def endpoint(directory: Path, part: str) -> str:
    """The address of a process."""
    return f"ipc://{directory / part}"


encode = msgspec.msgpack.Encoder().encode


class Down(msgspec.Struct, array_like=True, tag="down"):
    """From the supervisor: the engine has died and is being restarted."""


class Outbox:
    """A sender to one process; messages wait while it restarts. Their number is bounded elsewhere."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, part: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint(directory, part))

    def send(self, message: msgspec.Struct) -> None:
        """Send one."""
        self._socket.send(encode(message))

    def close(self) -> None:
        """Drop unsent messages."""
        self._socket.close()
