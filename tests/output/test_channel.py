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
