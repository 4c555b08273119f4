"""A server over the history model, on a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from specdec_hal.config import parse
from specdec_hal.engine import AsyncEngine
from specdec_hal.models.chat import ChatTemplate, load_chat_template
from specdec_hal.serve import listeners, server
from specdec_hal.serve.app import make_app
from specdec_hal.serve.service import Service
from tests.support.history_model import HistoryModel, LetterTokenizer

MODEL = "letters"
ROOT = Path(__file__).parents[2]


class GatedModel(HistoryModel):
    """Computes while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def forward(self, batch: Any) -> dict[int, Any]:
        assert self.gate.wait(60)
        return super().forward(batch)


class Running:
    """A server, and clients for it."""

    def __init__(self, service: Service, url: str, key: str) -> None:
        self.service, self.engine, self.url, self.key = service, service.engine, url, key
        self.model: Any = service.engine.runner.model
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self.http = httpx.Client(base_url=url, timeout=60, headers=headers)
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)

    def async_openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=60)

    def post(self, body: Any, path: str = "/v1/completions") -> httpx.Response:
        return self.http.post(path, json=body)

    def until(self, what: Callable[[], bool]) -> None:
        """Wait for what another thread does."""
        for _ in range(6000):
            if what():
                return
            threading.Event().wait(0.01)
        raise AssertionError("it has not happened within a minute")


@contextmanager
def serving(
    key: str | None = None, template: ChatTemplate | None = None, name: str = MODEL, **sections: Any
) -> Iterator[Running]:
    config = parse(
        {
            "backend": {"name": "reference"},
            "speculative": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False},
            "serve": {"port": 0},
            **sections,
        }
    )
    model = GatedModel()
    engine = AsyncEngine(model, config, tokenizer=LetterTokenizer())  # type: ignore[arg-type]
    with served(engine, name, template or load_chat_template(ROOT / "models/tiny-py-lm"), key) as running:
        try:
            yield running
        finally:
            model.gate.set()


@contextmanager
def served(engine: AsyncEngine, name: str, template: ChatTemplate | None, key: str | None = None) -> Iterator[Running]:
    """A server over an engine, which it closes."""
    config = engine.runner.config
    service = Service(engine, name, config.serve, template)
    listening = uvicorn.Server(server.uvicorn_config(make_app(service, key), config.serve))
    with listeners.listen(config) as (listener,):
        thread = threading.Thread(target=lambda: asyncio.run(listening.serve([listener])))
        thread.start()
        running = Running(service, listeners.url(listener), key or "none")
        try:
            yield running
        finally:
            running.http.close()
            running.openai.close()
            listening.should_exit = True
            thread.join()
            engine.close()
    assert not service.live and not engine.runner.has_requests


@pytest.fixture
def running() -> Iterator[Running]:
    """For a test that changes its server."""
    with serving(runner={"max_num_seqs": 4}) as found:
        yield found


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """For tests that only ask."""
    with serving(runner={"max_num_seqs": 4}) as found:
        yield found
