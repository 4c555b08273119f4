"""With `serve.log_format: json`, every line that a server writes is a JSON object."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from specdec_hal.serve import relay
from tests.support.command import serving
from tests.support.processes import descendants

ROOT = Path(__file__).parents[2]

SOURCES = """
import asyncio, logging, os, subprocess, sys, threading, warnings
from specdec_hal.config.schema import ServeSettings
from specdec_hal.serve import logs, relay

relay.start()
logs.configure(ServeSettings(log_format="json"))
logging.getLogger("uvicorn.error").warning("from a library: %s", 1)
warnings.warn("of a library")
thread = threading.Thread(target=lambda: 1 / 0, name="a-thread")
thread.start()
thread.join()

class Unraisable:
    def __del__(self):
        raise KeyError("in a destructor")

Unraisable()
os.write(2, b"native \\xff stderr\\n\\n")
os.write(1, b"native stdout\\n")
os.write(1, b'{"native": "object"}\\n')
subprocess.run([sys.executable, "-c", "import os; 1 / 0"])
print("a print")
print({"a": 1}, file=sys.stderr, end="")
sys.stderr.flush()
os.write(2, b"\\n" + b"x" * 3_000_000 + b"\\n")
raise ValueError("nobody\\ncatches")
"""


def objects(text: str) -> list[dict[str, Any]]:
    """Those of the lines, all of which must be objects."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(one, dict) for one in found)
    return found


def test_every_line_is_an_object() -> None:
    done = subprocess.run([sys.executable, "-c", SOURCES], capture_output=True, text=True, timeout=60, cwd=ROOT)
    out, err = objects(done.stdout), objects(done.stderr)
    assert done.returncode == 1
    first, native, last = out
    assert native == {"native": "object"}
    assert (first["logger"], first["message"], last["message"]) == ("stdout", "native stdout", "a print")

    def only(logger: str, part: str) -> dict[str, Any]:
        (found,) = (one for one in err if one["logger"] == logger and part in one["message"])
        return found

    assert only("uvicorn.error", "from a library: 1")["level"] == "WARNING"
    assert "UserWarning: of a library" in only("py.warnings", "")["message"]
    assert (
        "ZeroDivisionError: division by zero" in only("specdec_hal.serve", "thread 'a-thread' has ended")["exception"]
    )
    assert "KeyError: 'in a destructor'" in only("specdec_hal.serve", "Exception ignored in")["exception"]
    assert "ValueError: nobody\ncatches" in only("specdec_hal.serve", "an uncaught exception")["exception"]
    assert only("stderr", "native \\xff stderr")["level"] == "INFO"
    of_a_child = only("stderr", "Traceback (most recent call last)")["message"]
    assert "ZeroDivisionError: division by zero" in of_a_child  # one record, not one per line
    assert sum(one["message"].count("x" * 1000) for one in err) >= 2990


def test_what_a_killed_process_has_written_is_kept() -> None:
    script = (
        "import os, signal\nfrom specdec_hal.serve import relay\nrelay.start()\n"
        "os.write(2, b'last words')\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert [one["message"] for one in objects(done.stderr)] == ["last words"]


def test_a_reader_that_goes_away_does_not_stop_the_process() -> None:
    script = (
        "import os, sys\nfrom specdec_hal.serve import relay\nrelay.start()\nsys.stdin.read(1)\n"
        "for _ in range(100): os.write(2, b'y' * 65536 + b'\\n')\nprint('done')"
    )
    command = [sys.executable, "-c", script]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, cwd=ROOT, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stderr.close()
        process.stdin.write("1")
        process.stdin.flush()
        assert [one["message"] for one in objects(process.stdout.read())] == ["done"]
        assert process.wait(60) == 0


def test_lines_in_parts() -> None:
    """An object that comes in pieces stays one, and so does a long line."""
    end, target = os.pipe()
    stream = relay.Stream("stderr", target)
    for piece in (b'{"a', b'": 1}\n{"b"', b": 2}\nplain", b" text\n \n[1]\n", b'{"c": 3}\n', b"the rest"):
        stream.feed(piece)
    stream.end()
    os.close(target)
    with open(end) as lines:
        found = [json.loads(line) for line in lines]
    assert [one.get("message", one) for one in found] == [
        {"a": 1},
        {"b": 2},
        "plain text\n \n[1]",
        {"c": 3},
        "the rest",
    ]


@pytest.mark.parametrize("how", [(), pytest.param(("--no-split",), marks=pytest.mark.slow)], ids=["two", "one"])
def test_a_server(how: tuple[str, ...]) -> None:
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    with serving("--log-format", "json", *how) as (process, url):
        big = {"prompt": "x" * 70_000, "max_tokens": 1}  # in a process of its own
        assert httpx.post(f"{url}/v1/completions", json=big, timeout=60).status_code == 400
        _, worker = descendants(process.pid, "specdec_hal.structured.worker")  # the second is a fork of the first
        os.kill(worker, signal.SIGABRT)
        assert httpx.post(f"{url}/v1/completions", json=big, timeout=60).status_code in (400, 503)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stdout is not None and process.stderr is not None
        said = [one["message"] for one in objects(process.stderr.read())]
        assert not process.stdout.read()
    assert said.index("serving") < said.index("ended") and said.count("request") == 2


def test_a_server_that_cannot_start() -> None:
    command = [sys.executable, "-m", "specdec_hal.cli", "serve", "--log-format", "json", "--set", "serve.port=x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    (line,) = objects(done.stderr)
    assert done.returncode == 2 and not done.stdout
    assert "serve.port: expected an integer" in line["message"]
