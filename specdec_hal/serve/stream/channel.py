"""Frames between processes over ZeroMQ, with bounded queues."""

from __future__ import annotations

from collections.abc import Sequence

import zmq


class FrameSender:
    """Connects to readers and sends each of them every frame, in order.

    At most `limit` frames wait on each side of a socket. Then :meth:`send` waits for the reader or its successor; with
    `drop` it returns False at once, and no reader gets the frame.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoints: Sequence[str], limit: int, *, drop: bool
    ) -> None:
        self._sockets = [_sender(context, endpoint, limit) for endpoint in endpoints]
        self._drop = drop

    def send(self, data: bytes) -> bool:
        """Send one frame; False if it was not taken."""
        if self._drop and not all(socket.poll(0, zmq.POLLOUT) for socket in self._sockets):
            return False
        for socket in self._sockets:
            socket.send(data)
        return True

    def close(self) -> None:
        """Drop unsent frames."""
        for socket in self._sockets:
            socket.close(linger=0)


def _sender(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, limit: int) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, limit)
    socket.connect(endpoint)
    return socket


def receiver(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, limit: int) -> zmq.Socket[bytes]:
    """The receiving socket; at most `limit` frames wait in it."""
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, limit)
    socket.bind(endpoint)
    return socket
