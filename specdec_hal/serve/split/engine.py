"""The engine's process: a runner without text, between a command socket and frame sockets."""

from __future__ import annotations

import logging
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import zmq

from specdec_hal.config.schema import ServeSettings
from specdec_hal.engine.async_engine import COMPILERS, EngineInfo
from specdec_hal.engine.llm import warm_up
from specdec_hal.errors import JournalError, QueueFullError, RequestError, WorkerError
from specdec_hal.request import FinishReason
from specdec_hal.runner import ModelRunner, Request, journal
from specdec_hal.serve.split import addresses, messages
from specdec_hal.serve.split.addresses import ENGINE, Outbox
from specdec_hal.serve.split.messages import ToEngine
from specdec_hal.serve.stream import FrameWriter
from specdec_hal.serve.stream.channel import FrameSender, receiver
from specdec_hal.structured.backend import Grammar

_POLL_S = 2e-3
"""How often an idle engine polls them."""
_log = logging.getLogger("specdec_hal")


class EngineProcess:
    """Steps a runner and executes commands. `resume`: continue the requests in the previous engine's
    `runner.journal`."""

    def __init__(self, runner: ModelRunner, directory: Path, settings: ServeSettings, *, resume: bool) -> None:
        self.runner = runner
        self._context = context = zmq.Context()
        self._commands = receiver(context, addresses.endpoint(directory, ENGINE), 0)
        workers = range(settings.num_http_workers)
        self._http = [Outbox(context, directory, addresses.http(worker)) for worker in workers]
        readers = [addresses.endpoint(directory, addresses.frames(worker)) for worker in workers]
        frames = FrameSender(context, readers, settings.output_queue, drop=settings.slow_reader == "drop")
        self._writer = FrameWriter(runner, frames.send)
        self._unsettled = set(workers) if resume else set[int]()
        """HTTP processes that have not confirmed their requests; a request in the journal may have killed the previous
        engine.
        """
        if runner.config.engine.warm_up is not False:
            warm_up(runner)  # before HTTP is notified
        own = runner.config.runner.journal is None
        self._journal = journal.Journal(directory / "journal", None) if own else None
        self._compiling: dict[Future[list[Grammar]], messages.Submit] = {}
        """Submissions whose grammars are being compiled."""
        self._compilers = ThreadPoolExecutor(COMPILERS, "grammars")
        self._aborted: set[str] = set()
        """Of their requests."""
        if resume:
            self._resume(directory / "journal" if own else Path(runner.config.runner.journal or ""))
            self._writer.begin()

    def _resume(self, path: Path) -> None:
        if not path.exists():
            return
        try:
            self.runner.restore(journal.read(path))
        except (JournalError, RequestError):
            _log.exception("the journal cannot be read; HTTP submits its requests again")

    def close(self) -> None:
        """Close the sockets."""
        self._compilers.shutdown(wait=False, cancel_futures=True)
        self._context.destroy(linger=0)

    def run(self) -> None:
        """Run until the process ends."""
        for worker in range(len(self._http)):
            self._hello(worker)
        while True:
            self._obey(wait=not self.works and not self._compiling)
            if self._compiling:
                self.submit_compiled(0 if self.works else _POLL_S)
            if self.works:
                self.runner.step()
                if self._journal is not None:
                    self._journal.step(self.runner.snapshot)
            self._writer.flush()

    @property
    def works(self) -> bool:
        """Whether there is a step to do."""
        return not self._unsettled and self.runner.has_requests

    def _hello(self, worker: int) -> None:
        names = [stream.request.request_id for stream in self.runner.streams]
        self._http[worker].send(messages.Hello(EngineInfo.of(self.runner), names))

    def _obey(self, wait: bool) -> None:
        """Execute queued commands; waits for one if `wait`."""
        while wait or self._commands.poll(0):
            self.carry_out(messages.for_engine(self._commands.recv()))
            wait = False

    def carry_out(self, command: ToEngine) -> None:
        """Do what a message says."""
        match command:
            case messages.Submit():
                self._submit(command)
            case messages.Abort():
                if not self.runner.cancel(command.request_id) and self._compiling:
                    self._aborted.add(command.request_id)
            case messages.Release():
                self._release(command.request_id, command.reason)
            case messages.Keep():
                self._forget_all_but(set(command.request_ids), command.worker)
            case messages.Attach():
                self._writer.begin()
            case messages.Adopt():
                self._forget_all_but(set(), command.worker)
                self._writer.begin()
                self._hello(command.worker)
            case messages.AskCounts():
                self._http[command.worker].send(messages.CountsAre(command.number, self.runner.counts()))

    def _forget_all_but(self, wanted: set[str], worker: int) -> None:
        for stream in self.runner.streams:
            name = stream.request.request_id
            if name not in wanted and addresses.owner(name) == worker:
                self._release(name, "cancelled")
        self._unsettled.discard(worker)

    def _submit(self, command: messages.Submit) -> None:
        try:
            requests = [asked.request() for asked in command.requests if self.runner.find(asked.request_id) is None]
        except RequestError as error:
            self._refuse(command, error)
            return
        if any(request.params.structured is not None for request in requests):
            self._compiling[self._compilers.submit(self.runner.compile_grammars, requests)] = command
        else:
            self._add(command, requests)

    def submit_compiled(self, wait_s: float) -> None:
        """Submit requests with compiled grammars."""
        for future in wait(self._compiling, wait_s, FIRST_COMPLETED).done:
            command = self._compiling.pop(future)
            try:
                grammars = future.result()
            except (RequestError, WorkerError) as error:
                self._refuse(command, error)
                continue
            self._add(command, [asked.request() for asked in command.requests])
            del grammars  # now in the runner
            for asked in command.requests:
                if asked.request_id in self._aborted:
                    self.runner.cancel(asked.request_id)
        if not self._compiling:
            self._aborted.clear()

    def _add(self, command: messages.Submit, requests: list[Request]) -> None:
        new = [request for request in requests if self.runner.find(request.request_id) is None]
        try:
            self.runner.add_requests(new)
        except (RequestError, WorkerError) as error:
            self._refuse(command, error)
            return
        self._http[command.worker].send(messages.Queued(command.number))

    def _refuse(self, command: messages.Submit, error: RequestError | WorkerError) -> None:
        late = error.retry_after_s if isinstance(error, QueueFullError) else None
        refused = messages.Refused(command.number, str(error), late, isinstance(error, WorkerError))
        self._http[command.worker].send(refused)

    def _release(self, name: str, reason: FinishReason) -> None:
        self.runner.cancel(name, reason)
        if (stream := self.runner.find(name)) is not None:
            self._writer.released(stream)
        self.runner.take_finished([name])
