"""The path of a step's tokens from the engine to a client, by stage: no model, one thread, microseconds of work.

Each stage runs the processes' code on the previous stage's output. `frame`: collected and encoded. `zeromq`.
`processor`: decoding, detokenization, stop strings. `update`: deltas encoded and decoded. `stream`: HTTP's side, up to
a client's stream. `event`: the bytes of an event. `http`: ASGI and HTTP/1.1, without the kernel.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import zmq
from serving_load import ROOT

STAGES = ("frame", "zeromq", "processor", "update", "stream", "event", "http")


class Stub:
    """A request under way, as a frame writer sees it."""

    def __init__(self, name: str) -> None:
        from specdec_hal.runner import SamplingParams

        self.request = SimpleNamespace(request_id=name, params=SamplingParams(max_new_tokens=1 << 20))
        self.prompt_len, self.max_new_tokens, self.queue_s, self.finish_reason = 3, 1 << 20, 0.0, None
        self.token_ids, self.accepted_draft, self.logprobs = list[int](), list[bool](), list[Any]()
        self.prompt_logprobs, self.drafts = list[Any](), list[Any]()
        self.steps = self.drafted = self.accepted = 0


def frames_of(requests: list[Any], text: list[int], tokens: int, steps: int, took: list[float]) -> list[bytes]:
    """The frames of so many steps; the seconds that telling and encoding took are added to `took`."""
    from specdec_hal.serve.stream import FrameWriter

    slots = len(requests)
    sizes = SimpleNamespace(symbols={"S": tokens, "M": slots})
    sent = list[bytes]()
    runner: Any = SimpleNamespace(state=sizes, streams=requests, end_tokens=[])
    writer = FrameWriter(runner, lambda data: not sent.append(data))
    writer.flush()
    counts, flags = np.full(slots, tokens, np.int32), [True] * tokens
    for step in range(steps):
        start = step * tokens % (len(text) - tokens)
        emitted = np.tile(np.array(text[start : start + tokens]), (slots, 1))
        report: Any = SimpleNamespace(emitted=emitted, counts=counts, scores=None)
        began = time.perf_counter()
        for slot, request in enumerate(requests):
            writer.gained(request, slot, flags, tokens - 1)
        writer.stepped(report)
        took.append(time.perf_counter() - began)
        for request in requests:
            request.token_ids += text[start : start + tokens]
    return sent


@contextmanager
def timed(took: list[float]) -> Iterator[None]:
    """Add the seconds of a block."""
    began = time.perf_counter()
    yield
    took.append(time.perf_counter() - began)


class Wire:
    """A connection that nobody reads."""

    def __init__(self) -> None:
        self.sent = 0

    def write(self, data: bytes) -> None:
        """As a transport has it."""
        self.sent += len(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As a transport has it."""
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def is_closing(self) -> bool:
        """As a transport has it."""
        return False

    def __getattr__(self, name: str) -> Callable[..., None]:  # what a transport can do besides
        return lambda *args: None


async def http(events: int) -> float:
    """Seconds to write so many events of one stream, in the protocol that the server takes."""
    import uvicorn
    from uvicorn.server import ServerState

    took = list[float]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        event = b"data: " + b"x" * 300 + b"\n\n"
        with timed(took):
            for _ in range(events):
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    config.load()
    protocol: Any = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})  # type: ignore[call-arg]
    protocol.connection_made(Wire())
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    while len(took) < 1:
        await asyncio.sleep(0)
    return took[0]


async def remote_stages(
    updates: list[bytes], requests: list[Any], tokenizer: Any, took: dict[str, list[float]]
) -> None:
    """HTTP's end: streams that read updates, and the events made of what they read."""
    import specdec_hal as sd
    from specdec_hal.engine.async_engine import RequestStream
    from specdec_hal.runner import Request
    from specdec_hal.serve.answers import CompletionAnswer
    from specdec_hal.serve.protocol import CompletionRequest
    from specdec_hal.serve.split import messages
    from specdec_hal.serve.split.remote import RemoteEngine, _Live

    with tempfile.TemporaryDirectory() as folder:
        engine = RemoteEngine(sd.load(ROOT / "configs/serve.yaml").config, tokenizer, Path(folder))
        streams, answers = [], []
        for request in requests:
            stream = RequestStream(engine, [request.request.request_id])
            asked = Request(request.request.request_id, [1, 2, 3], request.request.params)
            engine._live[request.request.request_id] = _Live(asked, stream, 0)
            body = CompletionRequest(prompt=[1, 2, 3], stream=True, return_token_ids=True)
            streams.append(stream)
            answers.append(CompletionAnswer(body, "model", tokenizer, body.prompts))
        for data in updates:
            with timed(took["update_decode"]):
                update: Any = messages.for_http(data)
            began = time.perf_counter()
            engine.receive(update)
            gained = [await stream.read() for stream in streams]
            took["stream"].append(time.perf_counter() - began)
            with timed(took["event"]):
                for answer, deltas in zip(answers, gained, strict=True):
                    for delta in deltas:
                        answer.chunk(0, delta)
        engine.close()


def stages(requests: int, tokens: int, steps: int = 200) -> dict[str, Any]:
    """Microseconds of each stage by request and step, and the tokens that one core takes through it in a second."""
    import specdec_hal as sd
    from specdec_hal.serve.split import messages
    from specdec_hal.serve.stream import FrameReader, TokenProcessor

    runtime = sd.load(ROOT / "configs/serve.yaml")
    tokenizer = runtime.load_tokenizer()
    text = tokenizer.encode((ROOT / "examples/prompts/edit_function.txt").read_text())
    many = [Stub(f"cmpl-{at:032x}-0") for at in range(requests)]
    took: dict[str, list[float]] = {name: [] for name in (*STAGES, "update_decode")}
    sent = frames_of(many, text, tokens, steps, took["frame"])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with tempfile.TemporaryDirectory() as folder:
        reader, writer = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        reader.bind(f"ipc://{folder}/x")
        writer.connect(f"ipc://{folder}/x")
        for data in sent:
            with timed(took["zeromq"]):
                writer.send(data)
                reader.recv()
        context.destroy(linger=0)
    follow, processor = FrameReader(), TokenProcessor(tokenizer.detokenizer)
    updates = list[bytes]()
    for data in sent:
        with timed(took["processor"]):
            frame = follow.feed(data)
            assert frame is not None
            deltas = processor.take(frame)
        with timed(took["update"]):
            updates.append(messages.encode(messages.Update(deltas)))
    asyncio.run(remote_stages([data for data in updates[1:]], many, tokenizer, took))
    took["http"] = [asyncio.run(http(1000)) * requests / 1000 for _ in range(5)]
    took["update"] = [one + other for one, other in zip(took["update"][1:], took["update_decode"], strict=True)]
    micro = {name: 1e6 * statistics.median(took[name]) / requests for name in STAGES}
    figures = {name: {"us": us, "tokens_per_second": 1e6 * tokens / us} for name, us in micro.items()}
    return {"requests": requests, "tokens": tokens, **figures}
