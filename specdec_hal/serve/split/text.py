"""HTTP's text: a thread that turns the engine's frames into deltas."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from specdec_hal.config.schema import ServeSettings
from specdec_hal.errors import FrameError
from specdec_hal.models import Tokenizer
from specdec_hal.serve.split import addresses
from specdec_hal.serve.stream import FrameReader, OutputDelta, TokenProcessor
from specdec_hal.serve.stream.channel import receiver

_log = logging.getLogger("specdec_hal")
_APART_S = 2e-3
"""Least time from one hand-over to the next: steps that are faster share an event."""
_FRAME_S = 1e-4
"""The same per frame that may wait, so that a short queue does not stop the engine."""


class TextThread:
    """Reads the frames for an HTTP process and makes the deltas of its own requests.

    `take` and `attach` are called on the running event loop: with the deltas of all waiting frames, and when a new
    session is needed. One call at a time waits for the loop; then frames wait in their socket, and at last the engine.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        directory: Path,
        settings: ServeSettings,
        worker: int,
        take: Callable[[list[OutputDelta]], None],
        attach: Callable[[], None],
    ) -> None:
        self._take, self._attach = take, attach
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        endpoint = addresses.endpoint(directory, addresses.frames(worker))
        self._frames = receiver(self._context, endpoint, settings.output_queue)
        self._most = settings.output_queue
        self._apart_s, self._due = min(_APART_S, _FRAME_S * settings.output_queue), 0.0
        """The latter: of the next hand-over, at the earliest."""
        self._reader = FrameReader()
        self._processor = TokenProcessor(
            tokenizer.detokenizer, lambda name: settings.num_http_workers == 1 or addresses.owner(name) == worker
        )
        self._room = threading.Semaphore()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="specdec-text", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading, on the event loop."""
        self._closed = True
        self._room.release()
        self._context.term()  # once the thread has closed its socket
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._merge()
        except zmq.ContextTerminated:
            pass
        except BaseException as error:
            end_process(error)
        finally:
            self._frames.close(linger=0)

    def _merge(self) -> None:
        """Hand over the deltas of the next frame and all further waiting ones."""
        for data in self._waiting():
            try:
                frame = self._reader.feed(data)
                if frame is not None:
                    self._processor.add(frame)
            except FrameError:
                _log.exception("the engine's output is out of order; requesting a new session")
                self._reader = FrameReader()
                self._processor.deltas()  # of a part of the frame: all of it comes again
                self._loop.call_soon_threadsafe(self._begin_again)
        if deltas := self._processor.deltas():
            self._room.acquire()
            if not self._closed:
                self._loop.call_soon_threadsafe(self._hand_over, deltas)
            self._due = time.monotonic() + self._apart_s

    def _hand_over(self, deltas: list[OutputDelta]) -> None:
        self._room.release()
        if not self._closed:
            self._take(deltas)

    def _begin_again(self) -> None:
        if not self._closed:
            self._attach()

    def _waiting(self) -> Iterator[bytes]:
        yield self._frames.recv()
        if (early := self._due - time.monotonic()) > 0:
            time.sleep(early)
        for _ in range(self._most - 1):
            try:
                yield self._frames.recv(zmq.NOBLOCK)
            except zmq.Again:
                return


def end_process(error: BaseException | None) -> None:
    """Without a reader every request would hang: exit, so that the supervisor restarts this process."""
    _log.critical("HTTP's reader has failed; the process ends", exc_info=error)
    os._exit(1)
