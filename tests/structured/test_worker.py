"""Processes that work on what may never end: their limits, their ends, and who waits for whom."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from specdec_hal.errors import RequestError, WorkerError
from specdec_hal.structured.worker import CrashedError, TimeLimitError, Worker
from tests.support.processes import descendants, gone

_imports = os.getpid()


def answerer(setup: bytes) -> Callable[[bytes], bytes]:
    """In the processes: does what a question says."""

    def answer(question: bytes) -> bytes:
        what = json.loads(question)
        if "sleep" in what:
            time.sleep(what["sleep"])
        if "signal" in what:
            os.kill(os.getpid(), what["signal"])
        if "exit" in what:
            os._exit(what["exit"])
        return json.dumps([setup.decode(), _imports, os.getpid(), what]).encode()

    return answer


def made(**keys: Any) -> Worker:
    return Worker(__name__, b"ready", "the work", **keys)


def asked(worker: Worker, limit_s: float = 60.0, **what: Any) -> list[Any]:
    found: list[Any] = json.loads(worker.ask_here(json.dumps(what).encode(), limit_s))
    return found


def test_a_process_that_is_replaced_imports_nothing_again() -> None:
    worker = made()
    setup, imports, first, what = asked(worker, a=1)
    assert (setup, what) == ("ready", {"a": 1}) and asked(worker)[2] == first
    with pytest.raises(TimeLimitError, match=r"the work has taken more than 0\.2 s"):
        asked(worker, 0.2, sleep=60)
    _, again, second, _ = asked(worker)
    assert again == imports != os.getpid() and second != first
    assert first not in descendants(os.getpid(), __name__)


@pytest.mark.parametrize("by", [signal.SIGSEGV, signal.SIGABRT, signal.SIGPROF])
def test_who_crashes_it_is_refused(by: signal.Signals) -> None:
    worker = made()
    with pytest.raises(CrashedError, match=f"the work has failed: its process was ended by {by.name}$") as crashed:
        asked(worker, signal=by)
    assert crashed.value.signal == by
    assert asked(worker)[3] == {}


@pytest.mark.parametrize("what", [{"signal": signal.SIGKILL}, {"signal": signal.SIGTERM}, {"exit": 3}])
def test_an_end_that_no_question_causes_is_no_refusal(what: dict[str, int]) -> None:
    worker = made()
    with pytest.raises(WorkerError, match=r"; try again$") as failed:
        asked(worker, **what)
    assert not isinstance(failed.value, RequestError)
    assert asked(worker)[3] == {}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    while not gone(pid):
        time.sleep(0.01)


def test_an_idle_process_may_be_killed_and_so_may_the_one_that_imports() -> None:
    worker = made()
    for _ in range(2):
        _, imports, idle, _ = asked(worker)
        kill(idle)
        assert asked(worker)[1] == imports
        kill(imports)
        kill(asked(worker)[2])
        assert asked(worker)[1] != imports


def test_what_does_not_start_is_no_refusal() -> None:
    with pytest.raises(WorkerError, match="its process does not start"):
        asked(Worker("tests.structured.conftest", b"", "the work"))  # has no function


def test_a_quick_question_does_not_wait_for_long_ones() -> None:
    """Three long ones have all places, and more wait: the quick one has its turn when one has taken its time."""
    worker = made(processes=1, quick_s=0.1)
    asked(worker)
    with ThreadPoolExecutor(4) as threads:
        long = [threads.submit(asked, worker, 60.0, sleep=1.5) for _ in range(3)]
        while worker.long_places.acquire(blocking=False):
            worker.long_places.release()
            time.sleep(0.01)
        assert asked(worker, quick=True)[3] == {"quick": True}
        assert not any(one.done() for one in long)
        assert [one.result()[3] for one in long] == [{"sleep": 1.5}] * 3


def test_a_limit_counts_the_whole_work() -> None:
    worker = made(quick_s=0.1)
    with pytest.raises(TimeLimitError, match=r"more than 0\.3 s"):
        asked(worker, 0.3, sleep=60)
    assert asked(worker, 30.0, sleep=0.3)[3] == {"sleep": 0.3}
