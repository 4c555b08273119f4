"""A split server over the history model: ``python tests/support/split_server.py 1`` prints its address; 1 speaks HTTP.

Steps take a while, so that kills hit requests under way.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from socket import socket
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from specdec_hal.config import Config, parse
from specdec_hal.serve import server
from specdec_hal.serve.app import make_app
from specdec_hal.serve.chat import ChatTemplate
from specdec_hal.serve.service import Service
from specdec_hal.serve.split import messages, tokens
from specdec_hal.serve.split.engine import EngineProcess
from specdec_hal.serve.split.remote import RemoteEngine
from specdec_hal.serve.split.supervisor import Part, Supervisor
from tests.support.history_model import HistoryModel, LetterTokenizer

STEP_S = 0.005


DEADLY = [23, 23, 23, 23, 22]
"""A prompt that kills the engine."""


class SlowModel(HistoryModel):
    def forward(self, batch: Any) -> Any:
        time.sleep(STEP_S)
        if list(batch.token_ids[: len(DEADLY)]) == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(batch)


def config(directory: Path, http_workers: int) -> Config:
    return parse(
        {
            "backend": {"name": "reference"},
            "runner": {"max_num_seqs": 4, "journal": str(directory / "journal"), "journal_interval": 8},
            "speculative": {"method": "ngram", "num_speculative_tokens": 3},
            "serve": {"port": 0, "split": True, "output_queue": 4, "http_workers": http_workers},
        }
    )


async def http(part: Part, settings: Config, listener: socket) -> None:
    tokenizer: Any = LetterTokenizer()
    engine = await RemoteEngine.connect(settings, tokenizer, part.directory, part.worker or 0)
    engine.local = service = Service(engine, "letters", settings.serve, ChatTemplate(), engine)
    started = lambda: None if part.resume or part.worker else print(server.url(listener), flush=True)  # noqa: E731
    await server.serve(make_app(service), listener, engine.config.serve, started, service.abort_all)


def be(part: Part, listeners: list[int]) -> None:
    part.watch()
    tokenizer: Any = LetterTokenizer()
    settings = config(part.directory, len(listeners))
    if part.name == messages.ENGINE:
        from specdec_hal.backends.reference.backend import ReferenceBackend
        from specdec_hal.runner import ModelRunner

        model: Any = SlowModel()
        runner = ModelRunner(settings, ReferenceBackend(), model, tokenizer)
        EngineProcess(runner, part.directory, settings.serve, resume=part.resume).run()
    elif part.name == messages.TOKENS:
        tokens.run(tokenizer, part.directory, settings.serve)
    else:
        server.run(http(part, settings, socket(fileno=listeners[part.worker or 0])))


def supervise(http_workers: int) -> int:
    with server.listen(config(Path(), http_workers)) as listeners:
        fds = tuple(listener.fileno() for listener in listeners)

        def command(part: Part) -> list[str]:
            told = [part.name, str(part.directory), str(part.alive_fd), str(int(part.resume)), *map(str, fds)]
            return [sys.executable, os.path.abspath(__file__), *told]

        return Supervisor(command, fds, http_workers).run()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("told", nargs="*")
    told = parser.parse_args().told
    if len(told) == 1:
        return supervise(int(told[0]))
    name, directory, alive, resume, *listeners = told
    be(Part(name, Path(directory), int(alive), bool(int(resume))), list(map(int, listeners)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
