"""The page at /: it stands alone, and what its script reads is what the server sends."""

from __future__ import annotations

import re

import httpx

from specdec_hal.serve.app import PAGE
from tests.serve.conftest import Running, serving

TEXT = PAGE.read_text()
SCRIPT = re.findall(r"<script>\n(.*)</script>", TEXT, re.S)[0]


def test_it_needs_no_key_and_loads_nothing() -> None:
    with serving("sesame") as running:
        answer = httpx.get(running.url)
        assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.text == TEXT
    assert not re.findall(r"https?:|\bsrc=|@import|<link", TEXT)


def test_every_metric_of_the_script_exists(running: Running) -> None:
    running.post({"prompt": [3, 5], "max_tokens": 5})
    shown = set(re.findall(r'"(vllm:\w+)"', SCRIPT))
    assert len(shown) > 5 and shown <= set(re.findall(r"^([\w:]+)\{", running.http.get("/metrics").text, re.M))
