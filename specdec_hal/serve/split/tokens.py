"""The token processor's process: frames in, deltas for HTTP out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import zmq

from specdec_hal.config.schema import ServeSettings
from specdec_hal.errors import FrameError
from specdec_hal.models import Tokenizer
from specdec_hal.serve.split import messages
from specdec_hal.serve.split.messages import ENGINE, TOKENS, Outbox
from specdec_hal.serve.stream import FrameReader, OutputDelta, TokenProcessor
from specdec_hal.serve.stream.channel import receiver

_log = logging.getLogger("specdec_hal")

_MOST = 8
"""Most waiting frames merged into one message."""


def run(tokenizer: Tokenizer, directory: Path, settings: ServeSettings) -> None:
    """Run until the process ends. Slow HTTP readers block the engine through two bounded queues."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    frames = receiver(context, messages.endpoint(directory, TOKENS), settings.output_queue)
    workers = range(settings.http_workers)
    http = [Outbox(context, directory, messages.http(worker), settings.output_queue) for worker in workers]
    engine = Outbox(context, directory, ENGINE)
    reader, processor = FrameReader(), TokenProcessor(tokenizer.detokenizer)
    engine.send(messages.Attach())
    while True:
        began = False
        for data in _waiting(frames):
            try:
                frame = reader.feed(data)
                if frame is None:
                    continue
                processor.add(frame)
            except FrameError:
                _log.exception("the engine's output is out of order; requesting a new session")
                reader = FrameReader()
                processor.deltas()  # of a part of the frame: all of it comes again
                engine.send(messages.Attach())
                continue
            began |= frame.sequence == 0
        if began:
            for outbox in http:
                outbox.send(messages.Up(TOKENS))
        shares = [processor.deltas()] if len(http) == 1 else _shared_out(processor.deltas(), len(http))
        for outbox, deltas in zip(http, shares, strict=True):
            if deltas:
                outbox.send(messages.Update(deltas))


def _shared_out(deltas: list[OutputDelta], workers: int) -> list[list[OutputDelta]]:
    """Deltas by owning HTTP process."""
    shares: list[list[OutputDelta]] = [[] for _ in range(workers)]
    for one in deltas:
        shares[messages.owner(one.delta.request_id)].append(one)
    return shares


def _waiting(frames: zmq.Socket[bytes]) -> Iterator[bytes]:
    """The next frame and all further waiting ones."""
    yield frames.recv()
    for _ in range(_MOST - 1):
        try:
            yield frames.recv(zmq.NOBLOCK)
        except zmq.Again:
            return
