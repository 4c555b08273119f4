"""Reading files that users name (regular ones only, and no more of them than expected), and replacing files whole."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, open for reading.

    Raises OSError for anything else, its `strerror` in words. A FIFO does not block, and nothing of a device is read.
    """
    try:
        # Opened without waiting for a FIFO's writer; the check looks at what was opened, not at what has its name now.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return open(descriptor, "rb")
    os.close(descriptor)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    what = f"expected a regular file, got {_KINDS.get(kind, 'a special file')}"
    raise OSError(errno.EINVAL, what, os.fspath(path))


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """All bytes of a regular file of at most `limit` bytes; OSError as :func:`open_regular`, and for a larger file."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
        if len(data) > limit:
            size = max(os.fstat(file.fileno()).st_size, len(data))  # files in /proc have the size 0
            raise OSError(errno.EFBIG, f"expected at most {limit} bytes, got {size}", os.fspath(path))
    return data


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends, whole or not at all. OSError leaves the old one."""
    draft = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
