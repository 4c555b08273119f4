"""System V message queues between FastDeploy's runner and token processor: :class:`MessageQueue`."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

from numpy.typing import NDArray

from specdec_hal.errors import QueueError

_IPC_CREAT, _IPC_RMID, _IPC_STAT, _IPC_NOWAIT = 0o1000, 0, 2, 0o4000
_STATUS_BYTES, _CAPACITY_AT = 120, 88
"""Of C's msqid_ds on 64-bit Linux, and its msg_qbytes."""
_TYPE_BYTES = 8
"""A message begins with its type, a long, which is not counted as part of it."""


def queue_key(path: str, number: int) -> int:
    """FastDeploy's key of a queue (PR #6822): device, inode and 20 bits of `number`; libc's ftok keeps 8 of them."""
    status = os.stat(path)
    key = (status.st_dev & 0xF) << 28 | (status.st_ino & 0xFF) << 20 | (number & 0xFFFFF)
    return key - (1 << 32) if key >> 31 else key  # key_t is a signed int


class MessageQueue:
    """The queue of a key, created if missing. Messages are NumPy arrays of bytes that begin with the type.

    QueueError if the system refuses.
    """

    def __init__(self, key: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.msgsnd.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc.msgrcv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long, ctypes.c_int]
        self._libc.msgrcv.restype = ctypes.c_ssize_t
        self.key = key
        self._id = self._libc.msgget(ctypes.c_int(key), _IPC_CREAT | 0o666)
        if self._id < 0:
            raise self._error("cannot be opened", "raise kernel.msgmni, or remove unused queues (ipcrm)")
        status = ctypes.create_string_buffer(_STATUS_BYTES)
        if self._libc.msgctl(self._id, _IPC_STAT, status) < 0:
            raise self._error("cannot be asked for its capacity", "see its permissions (ipcs -q)")
        self._capacity = int.from_bytes(status.raw[_CAPACITY_AT : _CAPACITY_AT + 8], "little")

    def send(self, message: NDArray[Any]) -> None:
        """Add a message; waits while the queue is full. An array of one element, or bytes."""
        size = message.nbytes - _TYPE_BYTES
        if size > self._capacity:  # the system would wait forever
            ctypes.set_errno(errno.EINVAL)
            raise self._too_long(size)
        while self._libc.msgsnd(self._id, message.ctypes.data, size, 0) < 0:
            if ctypes.get_errno() != errno.EINTR:
                raise self._too_long(size)

    def receive(self, message: NDArray[Any], *, wait: bool) -> int:
        """The oldest message into `message`: its bytes after the type; -1 if there is none and `wait` is false."""
        flags, size = (0 if wait else _IPC_NOWAIT), message.nbytes - _TYPE_BYTES
        while (got := self._libc.msgrcv(self._id, message.ctypes.data, size, 0, flags)) < 0:
            if ctypes.get_errno() == errno.ENOMSG:
                return -1
            if ctypes.get_errno() != errno.EINTR:
                raise self._error(f"gives no message of at most {size} bytes", "see that sender and reader agree")
        return int(got)

    def remove(self) -> None:
        """Remove the queue and its messages; waiting senders and readers get an error."""
        self._libc.msgctl(self._id, _IPC_RMID, None)

    def _too_long(self, size: int) -> QueueError:
        limits = f"sysctl -w kernel.msgmax={size} kernel.msgmnb={16 * size}"
        renew = f"remove the queue, which keeps its capacity of {self._capacity} bytes (ipcrm -Q {self.key:#x})"
        return self._error(f"takes no message of {size} bytes", f"{limits} and {renew}, or lower max_num_seqs")

    def _error(self, what: str, hint: str) -> QueueError:
        number = ctypes.get_errno()
        return QueueError(f"message queue {self.key:#x}: {what} ({os.strerror(number)}); {hint}")
