"""A server of three processes over the history model: ``python tests/support/split_server.py`` prints its address.

Steps take a while, so that kills hit requests under way.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from socket import create_server, socket
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


def config(directory: Path) -> Config:
    return parse(
        {
            "backend": {"name": "reference"},
            "runner": {"max_num_seqs": 4, "journal": str(directory / "journal"), "journal_interval": 8},
            "speculative": {"method": "ngram", "num_speculative_tokens": 3},
            "serve": {"split": True, "output_queue": 4},
        }
    )


async def http(part: Part, listener: socket) -> None:
    tokenizer: Any = LetterTokenizer()
    engine = await RemoteEngine.connect(config(part.directory), tokenizer, part.directory)
    service = Service(engine, "letters", engine.config.serve, ChatTemplate())
    started = lambda: None if part.resume else print(server.url(listener), flush=True)  # noqa: E731
    await server.serve(make_app(service), listener, engine.config.serve, started, service.abort_all)


def be(part: Part, listener: int) -> None:
    part.watch()
    tokenizer: Any = LetterTokenizer()
    settings = config(part.directory)
    if part.name == messages.ENGINE:
        from specdec_hal.backends.reference.backend import ReferenceBackend
        from specdec_hal.runner import ModelRunner

        model: Any = SlowModel()
        runner = ModelRunner(settings, ReferenceBackend(), model, tokenizer)
        EngineProcess(runner, part.directory, settings.serve, resume=part.resume).run()
    elif part.name == messages.TOKENS:
        tokens.run(tokenizer, part.directory, settings.serve)
    else:
        asyncio.run(http(part, socket(fileno=listener)))


def supervise() -> int:
    with create_server(("127.0.0.1", 0)) as listener:

        def command(part: Part) -> list[str]:
            told = [part.name, str(part.directory), str(part.alive_fd), str(int(part.resume)), str(listener.fileno())]
            return [sys.executable, os.path.abspath(__file__), *told]

        return Supervisor(command, (listener.fileno(),)).run()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("told", nargs="*")
    told = parser.parse_args().told
    if not told:
        return supervise()
    name, directory, alive, resume, listener = told
    be(Part(name, Path(directory), int(alive), bool(int(resume))), int(listener))
    return 0


if __name__ == "__main__":
    sys.exit(main())
