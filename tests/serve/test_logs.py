"""A server's log: a line per request, as text or JSON, without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from specdec_hal.config.schema import ServeSettings
from specdec_hal.serve import logs
from tests.serve.conftest import Running, serving


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    package, root = logging.getLogger("specdec_hal"), logging.getLogger()
    before, others = (package.handlers[:], package.level, package.propagate), root.handlers[:]
    hooks = sys.excepthook, sys.unraisablehook, threading.excepthook
    yield
    (package.handlers[:], package.level, package.propagate), root.handlers[:] = before, others
    sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
    logging.captureWarnings(False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def requested(app: Any, path: str, **headers: str) -> httpx.Response:
    async def body() -> httpx.Response:
        transport = httpx.ASGITransport(logs.AccessLog(app), client=("10.0.0.1", 99))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(body())


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 207, "headers": [(b"x-request-id", b"cmpl-7")]})
    await send({"type": "http.response.body", "body": b"x"})


def test_a_line_of_text_for_each_request(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(ServeSettings())
    assert requested(answering, "/a%20b?key=hidden").status_code == 207
    (line,) = lines(capsys)
    line, number = re.subn(r"ms=\d+\.\d", "ms=N", line)
    assert number == 1 and "hidden" not in line
    expected = 'INFO request client=10.0.0.1:99 method=GET path="/a b" status=207 ms=N request_id=cmpl-7'
    assert line[20:] == expected and re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line)


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(ServeSettings(log_format="json"))
    requested(answering, "/%22%0A")
    logging.getLogger("specdec_hal.runner").error("a step of %d requests failed", 3, exc_info=ValueError("bad\nrow"))
    first, second = map(json.loads, lines(capsys))
    assert first.pop("ms") >= 0 and first.pop("time").endswith("Z")
    assert first == {
        "level": "INFO", "logger": "specdec_hal.serve.access", "message": "request", "client": "10.0.0.1:99",
        "method": "GET", "path": '/"\n', "status": 207, "request_id": "cmpl-7",
    }  # fmt: skip
    assert (second["level"], second["message"]) == ("ERROR", "a step of 3 requests failed")
    assert "ValueError: bad\nrow" in second["exception"]


def test_no_access_log(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(ServeSettings(access_log=False))
    requested(answering, "/")
    logs.ended()
    assert [line[20:] for line in lines(capsys)] == ["INFO ended"]


def test_a_request_that_raises_is_logged_too(capsys: pytest.CaptureFixture[str]) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    logs.configure(ServeSettings())
    with pytest.raises(ZeroDivisionError):
        requested(broken, "/")
    assert "status=0" in lines(capsys)[0]


def test_what_is_served(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    logs.configure(ServeSettings(log_format="json"))
    own = {"runner": {"max_num_seqs": 4, "max_model_len": 64}, "serve": {"split": False, "port": 0}}
    with serving(model={"path": str(tmp_path)}, **own) as running:
        capsys.readouterr()
        found: Running = running
        logs.started(found.engine.config, found.engine.runner, 1.23)
        (line,) = map(json.loads, lines(capsys))
    shown = {
        key: line[key]
        for key in (
            "message",
            "model",
            "backend",
            "method",
            "max_model_len",
            "max_num_seqs",
            "http_workers",
            "end_tokens",
        )
    }
    assert shown == {
        "message": "serving", "model": tmp_path.name, "backend": "reference", "method": "ngram", "max_model_len": 64,
        "max_num_seqs": 4, "http_workers": 1, "end_tokens": sorted(found.engine.runner.end_tokens),
    }  # fmt: skip
    assert line["load_s"] == 1.2 and "kv_cache_mib" not in line  # the history model's cache grows
