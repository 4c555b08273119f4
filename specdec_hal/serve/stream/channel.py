"""Frames between processes over ZeroMQ, with bounded queues."""

from __future__ import annotations

import zmq


class FrameSender:
    """Connects to a reader and sends it frames, in order.

    At most `limit` frames wait on each side of the socket. Then :meth:`send` waits for the reader or its successor;
    with `drop` it returns False at once.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, limit: int, *, drop: bool) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, limit)
        self._socket.connect(endpoint)
        self._flags = zmq.NOBLOCK if drop else 0

    def send(self, data: bytes) -> bool:
        """Send one frame; False if it was not taken."""
        try:
            self._socket.send(data, self._flags)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Drop unsent frames."""
        self._socket.close(linger=0)


def receiver(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, limit: int) -> zmq.Socket[bytes]:
    """The receiving socket; at most `limit` frames wait in it."""
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, limit)
    socket.bind(endpoint)
    return socket
