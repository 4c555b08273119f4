"""The server as a command, and a client of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import openai

KEY = "open sesame"


@contextmanager
def serve(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI]]:
    """The command, once it listens."""
    command = [sys.executable, "-m", "specdec_hal.cli", "serve", "--json", "--port", "0", *arguments]
    environ = {**os.environ, "SPECDEC_HAL_API_KEY": KEY}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            document = process.stdout.readline()
            while not document.endswith("}\n"):  # one line with --log-format json, else several
                document += process.stdout.readline()
            url = json.loads(document)["url"]
            with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
                yield process, client
        finally:
            process.kill()
