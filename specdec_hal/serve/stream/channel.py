"""Frames between processes, by ZeroMQ: a bounded queue, and what to do when it is full."""

from __future__ import annotations

import zmq


class FrameSender:
    """Connects to a reader and sends it frames, in order.

    At most `limit` frames wait on each side of the socket. Then :meth:`send` waits for the reader, or for the next one
    if that has died; with `drop` it returns False at once.
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
        """Forget what was not sent."""
        self._socket.close(linger=0)


def receiver(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, limit: int) -> zmq.Socket[bytes]:
    """The socket that frames come out of; at most `limit` wait in it."""
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, limit)
    socket.bind(endpoint)
    return socket
