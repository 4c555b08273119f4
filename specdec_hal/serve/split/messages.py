"""What the processes tell each other besides frames, and where they listen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import zmq

from specdec_hal.engine.async_engine import EngineInfo
from specdec_hal.runner import Counts, Request, SamplingParams
from specdec_hal.runner.request import FinishReason
from specdec_hal.serve.metrics import Observed
from specdec_hal.serve.stream import frame
from specdec_hal.serve.stream.processor import OutputDelta

HTTP, ENGINE, TOKENS = "http", "engine", "tokens"
_OWNED = re.compile(r"[a-z]+-(\d{1,3})-")


def http(worker: int) -> str:
    """The name of one of the processes that speak HTTP; the first is 0."""
    return f"{HTTP}-{worker}" if worker else HTTP


def worker_of(part: str) -> int | None:
    """Which of the processes that speak HTTP a name is; None: another."""
    kind, _, number = part.partition("-")
    return int(number or 0) if kind == HTTP else None


def parts(http_workers: int) -> list[str]:
    """The processes, each with a socket of its name that it alone reads."""
    return [*map(http, range(http_workers)), ENGINE, TOKENS]


def owned(worker: int) -> str:
    """What the part of an id after its kind begins with, so that everybody knows whose request it is."""
    return f"{worker}-" if worker else ""


def owner(request_id: str) -> int:
    """The HTTP process that a request, or an answer, belongs to."""
    found = _OWNED.match(request_id)
    return int(found[1]) if found else 0


def endpoint(directory: Path, part: str) -> str:
    """Where a process listens."""
    return f"ipc://{directory / part}"


# ---- to the engine


class SubmittedRequest(msgspec.Struct, array_like=True):
    """A request, as HTTP has it."""

    request_id: str
    prompt_token_ids: list[int]
    params: dict[str, Any]
    timeout_s: float | None
    ttft_timeout_s: float | None

    @classmethod
    def of(cls, request: Request) -> SubmittedRequest:
        """Its callback stays after."""
        late = request.timeout_s, request.ttft_timeout_s
        return cls(request.request_id, list(request.prompt_token_ids), request.params.model_dump(), *late)

    def request(self) -> Request:
        """What the engine's runner takes."""
        params = SamplingParams(**self.params)
        return Request(self.request_id, self.prompt_token_ids, params, None, self.timeout_s, self.ttft_timeout_s)


class Submit(msgspec.Struct, array_like=True, tag="submit"):
    """Queue these, all or none. Those that the engine has already stay as they are."""

    number: int
    requests: list[SubmittedRequest]
    worker: int = 0
    """The HTTP process that asks."""


class Abort(msgspec.Struct, array_like=True, tag="abort"):
    """End a request with what it has."""

    request_id: str


class Release(msgspec.Struct, array_like=True, tag="release"):
    """A request's end has arrived, or nobody waits for it: end it if it goes on, for this reason, and forget it."""

    request_id: str
    reason: FinishReason


class Keep(msgspec.Struct, array_like=True, tag="keep"):
    """The answer to Hello: somebody waits for these; other requests of this HTTP process can be forgotten."""

    request_ids: list[str]
    worker: int = 0


class Attach(msgspec.Struct, array_like=True, tag="attach"):
    """A token processor knows nothing, or no longer trusts what it knows: begin a session."""


class Adopt(msgspec.Struct, array_like=True, tag="adopt"):
    """This HTTP process is new: nobody waits for its requests. Answered by Hello, and by the token processor's Up."""

    worker: int = 0


class AskCounts(msgspec.Struct, array_like=True, tag="counts"):
    """Answered by CountsAre."""

    number: int
    worker: int = 0


ToEngine = Submit | Abort | Release | Keep | Attach | Adopt | AskCounts

# ---- to HTTP


class Hello(msgspec.Struct, array_like=True, tag="hello"):
    """The engine works, and has these requests. Answered by Keep."""

    info: EngineInfo
    request_ids: list[str]


class Queued(msgspec.Struct, array_like=True, tag="queued"):
    """A Submit was carried out."""

    number: int


class Refused(msgspec.Struct, array_like=True, tag="refused"):
    """A Submit was not; `retry_after_s` where it is only too early."""

    number: int
    message: str
    retry_after_s: float | None


class CountsAre(msgspec.Struct, array_like=True, tag="counts are"):
    """The engine's."""

    number: int
    counts: Counts


class Update(msgspec.Struct, array_like=True, tag="news"):
    """From the token processor: what requests gained."""

    news: list[OutputDelta]


class AskPeer(msgspec.Struct, array_like=True, tag="ask peer"):
    """From another HTTP process, which PeerSays goes to; `abort`: an answer of this process to end, if any."""

    number: int
    worker: int
    abort: str | None = None


class PeerSays(msgspec.Struct, array_like=True, tag="peer says"):
    """What an HTTP process has observed, and whether it had the answer that should end."""

    number: int
    observed: Observed
    aborted: bool


class Up(msgspec.Struct, array_like=True, tag="up"):
    """A process works."""

    part: str


class Down(msgspec.Struct, array_like=True, tag="down"):
    """From the supervisor: a process has died, and another is being started."""

    part: str


ToHttp = Hello | Queued | Refused | CountsAre | Update | AskPeer | PeerSays | Up | Down

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_to_http: msgspec.msgpack.Decoder[ToHttp] = msgspec.msgpack.Decoder(ToHttp)


def for_engine(data: bytes) -> ToEngine:
    """The message; FrameError if it is none."""
    return frame.decode(_to_engine, data, "a message to the engine")


def for_http(data: bytes) -> ToHttp:
    """The message; FrameError if it is none."""
    return frame.decode(_to_http, data, "a message to HTTP")


class Outbox:
    """Where messages to one process go. They wait there while it restarts.

    `limit`: messages that may wait before :meth:`send` waits too; 0: any number, for what is bounded elsewhere.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, part: str, limit: int = 0) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, limit)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint(directory, part))

    def send(self, message: ToEngine | ToHttp) -> None:
        """Send one."""
        self._socket.send(_encoder.encode(message))

    def close(self) -> None:
        """Forget what was not sent."""
        self._socket.close()
