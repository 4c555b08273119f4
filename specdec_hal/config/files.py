"""Read user-named files (regular ones, up to a size), and replace files atomically."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from weakref import finalize

from specdec_hal.config import hub
from specdec_hal.text import did_you_mean

_DRAFT = ".tmp"
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, open for reading.

    Raises OSError with a readable `strerror` for anything else; FIFOs do not block and devices are not read.
    """
    try:
        # Do not wait for a FIFO's writer; check the opened file, not its path.
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


def missing_folder(path: str | os.PathLike[str]) -> str:
    """A hint for a checkpoint folder that does not exist, to append to a message.

    The most similar name in its parent folder, or how to download a model that `path` may name on a hub.
    """
    folder = Path(os.path.abspath(path))
    near = did_you_mean(folder.name, [entry.name for entry in folder.parent.glob("*")])
    if near or not hub.is_name(name := "/".join(folder.parts[-2:])) or not folder.parent.parent.is_dir():
        return near
    if folder.parent.is_dir() and folder.parent.parent != Path.cwd():
        return ""
    return f"; for a model of a hub that is not in its cache: {hub.command(name)}, or --download (model.download)"


def sweep(folder: Path, name: str = "*") -> None:
    """Remove temporary files of killed processes that replaced files of this name (a pattern)."""
    for draft in folder.glob(f"{name}.*.*{_DRAFT}"):
        if not draft.name.endswith(_draft_suffix()):
            draft.unlink(missing_ok=True)


def _draft_suffix() -> str:
    return f".{socket.gethostname()}.{os.getpid()}{_DRAFT}"


class Lock:
    """A lock file for one process at a time; it ends with its holder or :meth:`close`.

    BlockingIOError if another process has it, which its `strerror` names; OSError if it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                    break
            except BlockingIOError as error:
                holder = os.pread(descriptor, 256, 0).decode("utf-8", "replace") or "another process"
                os.close(descriptor)
                raise BlockingIOError(errno.EWOULDBLOCK, f"{holder} uses it", str(path)) from error
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its holder has just removed it
        with suppress(OSError):  # a full disk: the holder stays unnamed
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        self.close = finalize(self, _release, descriptor, path, os.getpid())


def _release(descriptor: int, path: Path, holder: int) -> None:
    if os.getpid() == holder:  # not a fork of it
        path.unlink(missing_ok=True)
    os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that atomically replaces `path` when the block ends. OSError leaves the old one."""
    draft = path.with_name(f"{path.name}{_draft_suffix()}")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
