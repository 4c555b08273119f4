"""The token processor's process: frames in, news for HTTP out."""

from __future__ import annotations

import logging
from pathlib import Path

import zmq

from specdec_hal.config.schema import ServeSettings
from specdec_hal.errors import FrameError
from specdec_hal.models import Tokenizer
from specdec_hal.output import FrameReader, TokenProcessor
from specdec_hal.output.channel import receiver
from specdec_hal.serve.split import messages
from specdec_hal.serve.split.messages import ENGINE, HTTP, TOKENS, Outbox

_log = logging.getLogger("specdec_hal")


def run(tokenizer: Tokenizer, directory: Path, settings: ServeSettings) -> None:
    """Until the process is ended. HTTP that reads slowly holds up the engine, through two bounded queues."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    frames = receiver(context, messages.endpoint(directory, TOKENS), settings.output_queue)
    http = Outbox(context, directory, HTTP, settings.output_queue)
    engine = Outbox(context, directory, ENGINE)
    reader, processor = FrameReader(), TokenProcessor(tokenizer.detokenizer)
    engine.send(messages.Attach())
    while True:
        data = frames.recv()
        try:
            frame = reader.feed(data)
            if frame is None:
                continue
            news = processor.take(frame)
        except FrameError:
            _log.exception("the engine's output cannot be followed; it is asked to begin again")
            reader = FrameReader()
            engine.send(messages.Attach())
            continue
        if frame.sequence == 0:
            http.send(messages.Up(TOKENS))
        if news:
            http.send(messages.Update(news))
