"""The server as a command, and a client of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

ROOT = Path(__file__).parents[2]
KEY = "open sesame"
START_S = 120.0
"""Until a server listens: ranks load their model, and compile on a GPU."""


@contextmanager
def serving(
    *arguments: str, stderr: Any = subprocess.PIPE, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command and its address, once it listens. `stderr`: a file for its log."""
    command = [sys.executable, "-m", "specdec_hal.cli", "serve", "--json", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT, env={**os.environ, **environment}
    ) as process:
        stuck = threading.Timer(START_S, process.send_signal, [signal.SIGABRT])
        stuck.start()
        try:
            assert process.stdout is not None
            shown = ""
            while not shown.endswith("}\n"):  # one line with --log-format json, else several
                line = process.stdout.readline()
                assert line, f"the server has not started:\n{_logged(process, stderr)}"
                shown += line
            stuck.cancel()
            yield process, json.loads(shown[shown.index("{") :])["url"]
        finally:
            stuck.cancel()
            process.kill()


def _logged(process: subprocess.Popen[str], stderr: Any) -> str:
    if process.stderr is not None:
        return process.stderr.read()
    return Path(stderr.name).read_text() if hasattr(stderr, "name") else "(no log)"


@contextmanager
def serve(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI]]:
    """The command with a key, and a client that has it."""
    with (
        serving(*arguments, SPECDEC_HAL_API_KEY=KEY) as (process, url),
        openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=120) as client,
    ):
        yield process, client
