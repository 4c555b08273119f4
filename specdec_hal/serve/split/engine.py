"""The engine's process: a runner that makes no text, between a socket with commands and one for frames."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import zmq

from specdec_hal.config.schema import ServeSettings
from specdec_hal.engine.async_engine import EngineInfo
from specdec_hal.errors import JournalError, QueueFullError, RequestError
from specdec_hal.output import FrameWriter
from specdec_hal.output.channel import FrameSender, receiver
from specdec_hal.runner import ModelRunner, journal
from specdec_hal.runner.request import FinishReason
from specdec_hal.serve.split import messages
from specdec_hal.serve.split.messages import ENGINE, HTTP, TOKENS, Outbox, ToEngine

_log = logging.getLogger("specdec_hal")


class EngineProcess:
    """Steps a runner and obeys. `resume`: go on with the requests of `runner.journal`, which a former engine wrote."""

    def __init__(self, runner: ModelRunner, directory: Path, settings: ServeSettings, *, resume: bool) -> None:
        self.runner = runner
        self._context = context = zmq.Context()
        self._commands = receiver(context, messages.endpoint(directory, ENGINE), 0)
        self._http = Outbox(context, directory, HTTP)
        frames = FrameSender(
            context, messages.endpoint(directory, TOKENS), settings.output_queue, drop=settings.slow_reader == "drop"
        )
        self._writer = FrameWriter(runner, frames.send)
        self._settled = not resume
        """Whether somebody waits for each request. What the journal has may be what killed the engine before."""
        if resume:
            self._resume()
            self._writer.begin()

    def _resume(self) -> None:
        path = self.runner.config.runner.journal
        if path is None or not os.path.exists(path):
            return
        try:
            self.runner.restore(journal.read(path))
        except (JournalError, RequestError):
            _log.exception("the journal cannot be read; HTTP submits its requests again")

    def close(self) -> None:
        """Hear and say no more."""
        self._context.destroy(linger=0)

    def run(self) -> None:
        """Until the process is ended."""
        self._hello()
        while True:
            self._obey(wait=not self.works)
            if self.works:
                self.runner.step()
            self._writer.flush()

    @property
    def works(self) -> bool:
        """Whether there is a step to do."""
        return self._settled and self.runner.has_requests

    def _hello(self) -> None:
        runner = self.runner
        info = EngineInfo(runner.backend.name, runner.max_model_len, sorted(runner.end_tokens))
        self._http.send(messages.Hello(info, [stream.request.request_id for stream in runner.streams]))

    def _obey(self, wait: bool) -> None:
        """Carry out what was asked meanwhile; waits for something if `wait`."""
        try:
            while True:
                self._carry_out(messages.for_engine(self._commands.recv(0 if wait else zmq.NOBLOCK)))
                wait = False
        except zmq.Again:
            return

    def _carry_out(self, command: ToEngine) -> None:
        match command:
            case messages.Submit():
                self._submit(command)
            case messages.Abort():
                self.runner.cancel(command.request_id)
            case messages.Release():
                self._release(command.request_id, command.reason)
            case messages.Keep():
                self._forget_all_but(set(command.request_ids))
            case messages.Attach():
                self._writer.begin()
            case messages.Adopt():
                self._forget_all_but(set())
                self._writer.begin()  # so that HTTP hears of the token processor
                self._hello()
            case messages.AskCounts():
                self._http.send(messages.CountsAre(command.number, self.runner.counts()))

    def _forget_all_but(self, wanted: set[str]) -> None:
        for stream in self.runner.streams:
            if stream.request.request_id not in wanted:
                self._release(stream.request.request_id, "cancelled")
        self._settled = True

    def _submit(self, command: messages.Submit) -> None:
        known = {stream.request.request_id for stream in self.runner.streams}
        queued = list[str]()
        try:
            for asked in command.requests:
                if asked.request_id not in known:
                    self.runner.add_request(asked.request())
                    queued.append(asked.request_id)
        except RequestError as error:
            for name in queued:
                self._release(name, "cancelled")
            late = error.retry_after_s if isinstance(error, QueueFullError) else None
            self._http.send(messages.Refused(command.number, str(error), late))
            return
        self._http.send(messages.Queued(command.number))

    def _release(self, name: str, reason: FinishReason) -> None:
        self.runner.cancel(name, reason)
        for stream in self.runner.streams:
            if stream.request.request_id == name:
                self._writer.released(stream)
        self.runner.take_finished([name])
