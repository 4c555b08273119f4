"""One limit for several processes, whichever is killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from specdec_hal.serve.request_limit import RequestLimit

TAKES = """
import os, signal, sys
from pathlib import Path
from specdec_hal.serve.request_limit import RequestLimit
limit = RequestLimit(int(sys.argv[2]), Path(sys.argv[1]), int(sys.argv[3]), 3)
print(flush=True)
input()
print(sum(limit.take() for _ in range(2000)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("shared", [False, True])
def test_no_more_than_there_are(tmp_path: Path, shared: bool) -> None:
    limit = RequestLimit(2, tmp_path / "places" if shared else None)
    assert [limit.take() for _ in range(3)] == [True, True, False] and limit.full
    limit.give()
    assert not limit.full and limit.take() and not limit.take()


def test_one_process_takes_at_a_time(tmp_path: Path) -> None:
    limit = RequestLimit(1, tmp_path / "places")
    other = os.open(tmp_path / "places", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    taking = threading.Thread(target=limit.take)
    taking.start()
    taking.join(0.2)
    assert taking.is_alive() and not limit.full
    os.close(other)  # as when it is killed
    taking.join(60)
    assert limit.full


def test_processes_that_take_at_the_same_time_and_are_killed(tmp_path: Path) -> None:
    path, most = tmp_path / "places", 4000
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TAKES, str(path), str(most), str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    taken = [int(process.communicate()[0]) for process in started]
    assert sum(taken) == most, "all of them, and none twice"
    successor = RequestLimit(most, path, 0, 3)  # the others keep their counts until a successor starts
    assert not successor.full
    assert sum(successor.take() for _ in range(most)) == taken[0] and successor.full
