"""Messages between the processes besides frames."""

from __future__ import annotations

from typing import Any

import msgspec

from specdec_hal.engine.async_engine import EngineInfo
from specdec_hal.request import FinishReason
from specdec_hal.runner import Counts, Request, SamplingParams
from specdec_hal.serve.metrics import Observed
from specdec_hal.serve.split.addresses import Down
from specdec_hal.serve.stream import frame

# ---- to the engine


class SubmittedRequest(msgspec.Struct, array_like=True):
    """A request from HTTP."""

    request_id: str
    prompt_token_ids: list[int]
    params: dict[str, Any]
    """Those that are not defaults of :class:`SamplingParams`."""
    timeout_s: float | None
    ttft_timeout_s: float | None
    arrived_s: float | None
    """Processes of a machine share the clock."""

    @classmethod
    def of(cls, request: Request) -> SubmittedRequest:
        """Without its callback."""
        late = request.timeout_s, request.ttft_timeout_s, request.arrived_s
        return cls(
            request.request_id, list(request.prompt_token_ids), request.params.model_dump(exclude_defaults=True), *late
        )

    def request(self) -> Request:
        """The request for the engine's runner."""
        params = SamplingParams(**self.params)
        late = self.timeout_s, self.ttft_timeout_s
        return Request(self.request_id, self.prompt_token_ids, params, None, *late, arrived_s=self.arrived_s)


class Submit(msgspec.Struct, array_like=True, tag="submit"):
    """Queue these, all or none, except those that the engine already has."""

    number: int
    requests: list[SubmittedRequest]
    worker: int = 0
    """The requesting HTTP process."""


class Abort(msgspec.Struct, array_like=True, tag="abort"):
    """End a request with its output so far."""

    request_id: str


class Release(msgspec.Struct, array_like=True, tag="release"):
    """Forget a request whose end has arrived or whose client is gone; end it with this reason if it still runs."""

    request_id: str
    reason: FinishReason


class Keep(msgspec.Struct, array_like=True, tag="keep"):
    """The answer to Hello: keep these requests of this HTTP process and forget others."""

    request_ids: list[str]
    worker: int = 0


class Attach(msgspec.Struct, array_like=True, tag="attach"):
    """From HTTP, whose frames are out of order: start a session."""


class Adopt(msgspec.Struct, array_like=True, tag="adopt"):
    """A new HTTP process without requests. Answered by Hello and a session."""

    worker: int = 0


class AskCounts(msgspec.Struct, array_like=True, tag="counts"):
    """Answered by CountsAre."""

    number: int
    worker: int = 0


ToEngine = Submit | Abort | Release | Keep | Attach | Adopt | AskCounts

# ---- to HTTP


class Hello(msgspec.Struct, array_like=True, tag="hello"):
    """The engine runs and has these requests. Answered by Keep."""

    info: EngineInfo
    request_ids: list[str]


class Queued(msgspec.Struct, array_like=True, tag="queued"):
    """A Submit was carried out."""

    number: int


class Refused(msgspec.Struct, array_like=True, tag="refused"):
    """A Submit was refused; `retry_after_s` if it may be retried. `failed`: the engine's side has failed, as by
    WorkerError.
    """

    number: int
    message: str
    retry_after_s: float | None
    failed: bool = False


class CountsAre(msgspec.Struct, array_like=True, tag="counts are"):
    """The engine's."""

    number: int
    counts: Counts


class AskPeer(msgspec.Struct, array_like=True, tag="ask peer"):
    """From another HTTP process, answered by PeerSays; `abort`: an answer of this process to end, if any."""

    number: int
    worker: int
    abort: str | None = None


class PeerSays(msgspec.Struct, array_like=True, tag="peer says"):
    """An HTTP process's observations, and whether it had the answer to abort."""

    number: int
    observed: Observed
    aborted: bool


ToHttp = Hello | Queued | Refused | CountsAre | AskPeer | PeerSays | Down

_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_to_http: msgspec.msgpack.Decoder[ToHttp] = msgspec.msgpack.Decoder(ToHttp)


def for_engine(data: bytes) -> ToEngine:
    """Decode a message; FrameError if it is invalid."""
    return frame.decode(_to_engine, data, "a message to the engine")


def for_http(data: bytes) -> ToHttp:
    """Decode a message; FrameError if it is invalid."""
    return frame.decode(_to_http, data, "a message to HTTP")
