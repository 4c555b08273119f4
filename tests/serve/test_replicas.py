"""Engines on Ray Serve: one address, the same text from each of them, and one that dies is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import httpx
import pytest

from specdec_hal.config import parse
from specdec_hal.errors import ConfigError
from specdec_hal.serve.replicas import Replicas, run
from tests.support.command import serving
from tests.support.processes import descendants


def text(url: str) -> str:
    body = {"prompt": "def add(a, b):", "max_tokens": 12, "temperature": 0.7, "seed": 3}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["text"]
    return found


@pytest.mark.slow
@pytest.mark.ray
def test_a_replica_that_is_killed_is_replaced() -> None:
    environment = {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    arguments = ("--replicas", "2", "--port", "8321")
    with serving(*arguments, stderr=subprocess.DEVNULL, **environment) as (server, url):
        expected = text(url)
        assert {text(url) for _ in range(6)} == {expected}
        before = descendants(server.pid, "ServeReplica")
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        until = time.monotonic() + 60
        while len(set(descendants(server.pid, "ServeReplica")) - {before[0]}) < 2:
            assert time.monotonic() < until, "no replica came in place of the dead one"
            time.sleep(0.5)
        assert {text(url) for _ in range(6)} == {expected}
        body = {"prompt": "def add(a, b):", "max_tokens": 900, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            lines = filter(None, answer.iter_lines())
            first = next(lines)
            server.send_signal(signal.SIGTERM)
            *_, last = lines
        assert (first[:6], last) == ("data: ", "data: [DONE]"), "a running request ends"
        server.communicate(timeout=60)
        assert server.returncode == 0


def test_how_many() -> None:
    assert Replicas.read("2") == Replicas(2, 2)
    assert Replicas.read("1-4") == Replicas(1, 4)
    for wrong in ("", "0", "4-1", "-1", "a"):
        with pytest.raises(ValueError):
            Replicas.read(wrong)


@pytest.mark.parametrize(("key", "value"), [("serve.http_workers", "2"), ("runner.journal", "file")])
def test_what_replicas_do_not_have(key: str, value: str) -> None:
    """`serve.split` is true by default, and does not apply."""
    config = parse({}, [f"{key}={value}"])
    with pytest.raises(ConfigError, match=f"{key}: expected .* with --replicas"):
        run(config, Replicas.read("2"), None, print)
