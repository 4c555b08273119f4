"""Frames between processes: a queue that is bounded, and nothing that is lost without a word."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from specdec_hal.serve.stream.channel import FrameSender, receiver


@pytest.fixture
def context() -> Iterator[Any]:
    found = zmq.Context()
    yield found
    found.destroy(linger=0)


def test_with_drop_a_full_queue_refuses_and_keeps_what_it_took(context: Any, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path / 'frames'}"
    reader = receiver(context, endpoint, 2)
    sender = FrameSender(context, [endpoint], 2, drop=True)
    frames = [b"%03d" % at + b"x" * (1 << 20) for at in range(200)]
    taken = [frame for frame in frames if sender.send(frame)]
    assert 2 <= len(taken) < 100, "bounded"
    assert [reader.recv() for _ in taken] == taken
    assert reader.poll(50) == 0
    sender.close()


def test_with_drop_every_reader_gets_the_same_frames(context: Any, tmp_path: Path) -> None:
    """A frame that one of them has no room for goes to none: a gap would cost it its session."""
    endpoints = [f"ipc://{tmp_path / name}" for name in "ab"]
    quick, slow = (receiver(context, endpoint, 2) for endpoint in endpoints)
    sender = FrameSender(context, endpoints, 2, drop=True)
    taken, got = list[bytes](), list[bytes]()
    for frame in [b"%03d" % at + b"x" * (1 << 20) for at in range(100)]:
        if sender.send(frame):
            taken.append(frame)
            got.append(quick.recv())
    assert 2 <= len(taken) < 100, "bounded by the slower one"
    assert got == taken == [slow.recv() for _ in taken]
    assert not quick.poll(50) and not slow.poll(0)
    sender.close()


def test_without_drop_the_sender_waits_for_the_reader_or_the_next_one(context: Any, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path / 'frames'}"
    sender = FrameSender(context, [endpoint], 2, drop=False)
    frames = [b"%03d" % at for at in range(50)]
    done = threading.Thread(target=lambda: [sender.send(frame) for frame in frames])
    done.start()
    done.join(0.2)
    assert done.is_alive(), "nobody reads yet"
    reader = receiver(context, endpoint, 2)
    assert [reader.recv() for _ in frames] == frames
    done.join()
    sender.close()
