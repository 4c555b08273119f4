"""A message queue for the runners."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("paddle") else ["test_*.py"]  # buffers are Paddle's


@pytest.fixture(scope="module")
def queue() -> Iterator[int]:
    """A queue of the module's own, gone after it."""
    from specdec_hal.compat.fastdeploy import output
    from specdec_hal.compat.fastdeploy.sysv import MessageQueue, queue_key

    number = 0x60000 + os.getpid() % 0x10000
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(output.QUEUE_VARIABLE, str(number))
        yield number
    MessageQueue(queue_key(output.PLAIN_PATH, number)).remove()
    output.queue.cache_clear()
