"""A split server over the history model: ``split_server.py '{"http_workers": 2}'`` prints its address.

Steps take a while, so that kills hit requests under way; much longer while the file $SPECDEC_TEST_SLOW exists.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from socket import socket
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from specdec_hal.config import Config, parse
from specdec_hal.models.chat import load_chat_template
from specdec_hal.serve import listeners, server
from specdec_hal.serve.app import make_app
from specdec_hal.serve.service import Service
from specdec_hal.serve.split import addresses
from specdec_hal.serve.split.engine import EngineProcess
from specdec_hal.serve.split.remote import RemoteEngine
from specdec_hal.serve.split.supervisor import Part, Supervisor
from tests.support.history_model import HistoryModel, LetterTokenizer

STEP_S, SLOW_STEP_S = 0.005, 0.3
SLOW = Path(os.environ.get("SPECDEC_TEST_SLOW", "/nonexistent"))
TEMPLATE = load_chat_template(Path(__file__).parents[2] / "models/tiny-py-lm")


DEADLY = [23, 23, 23, 23, 22]
"""A prompt that kills the engine."""


class SlowModel(HistoryModel):
    def forward(self, batch: Any) -> Any:
        time.sleep(SLOW_STEP_S if SLOW.exists() else STEP_S)
        if list(batch.token_ids[: len(DEADLY)]) == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(batch)


def config(directory: Path, serve: dict[str, Any]) -> Config:
    return parse(
        {
            "backend": {"name": "reference"},
            "runner": {"max_num_seqs": 4, "journal": str(directory / "journal"), "journal_interval": 8},
            "speculative": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False},
            "serve": {"port": 0, "split": True, "output_queue": 4, **serve},
        }
    )


async def http(part: Part, settings: Config, listener: socket) -> None:
    tokenizer: Any = LetterTokenizer()
    engine = await RemoteEngine.connect(settings, tokenizer, part.directory, part.worker or 0)
    engine.local = service = Service(engine, "letters", settings.serve, TEMPLATE, engine)
    started = lambda: None if part.resume or part.worker else print(listeners.url(listener), flush=True)  # noqa: E731
    try:
        await server.serve(make_app(service), listener, engine.config.serve, started, service.abort_all)
    finally:
        engine.close()


def be(part: Part, serve: dict[str, Any], listeners: list[int]) -> None:
    part.watch()
    tokenizer: Any = LetterTokenizer()
    settings = config(part.directory, serve)
    if part.name == addresses.ENGINE:
        from specdec_hal.backends.reference.backend import ReferenceBackend
        from specdec_hal.runner import build_runner

        model: Any = SlowModel()
        runner = build_runner(settings, ReferenceBackend(), model, tokenizer)
        EngineProcess(runner, part.directory, settings.serve, resume=part.resume).run()
    else:
        server.run(http(part, settings, socket(fileno=listeners[part.worker or 0])))


def supervise(serve: dict[str, Any]) -> int:
    with listeners.listen(config(Path(), serve), config(Path(), serve).serve.num_http_workers) as sockets:
        fds = tuple(listener.fileno() for listener in sockets)

        def command(part: Part) -> list[str]:
            told = [part.name, str(part.directory), str(part.alive_fd), str(int(part.resume)), *map(str, fds)]
            return [sys.executable, os.path.abspath(__file__), json.dumps(serve), *told]

        return Supervisor(command, fds, len(fds)).run()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve", type=json.loads, help="keys of the section, as JSON")
    parser.add_argument("told", nargs="*")
    args = parser.parse_args()
    if not args.told:
        return supervise(args.serve)
    name, directory, alive, resume, *listeners = args.told
    be(Part(name, Path(directory), int(alive), bool(int(resume))), args.serve, list(map(int, listeners)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
