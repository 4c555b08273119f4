"""HTTP's side of an engine in another process: every request ends, whichever process dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import zmq
import zmq.asyncio

from specdec_hal.config import Config
from specdec_hal.engine.async_engine import EngineInfo, RequestStream, arriving
from specdec_hal.errors import EngineDeadError, FrameError, QueueFullError, RequestError, WorkerError
from specdec_hal.models import Tokenizer
from specdec_hal.request import NO_COUNTS, Drafts, FinishReason, TokenLogprobs
from specdec_hal.runner import Counts, Request, RequestOutput, SamplingParams, StreamDelta
from specdec_hal.serve.metrics import Observed
from specdec_hal.serve.request_limit import RequestLimit
from specdec_hal.serve.split import addresses, messages
from specdec_hal.serve.split.addresses import ENGINE, Outbox
from specdec_hal.serve.split.messages import ToEngine, ToHttp
from specdec_hal.serve.split.text import TextThread, end_process
from specdec_hal.serve.stream import OutputDelta
from specdec_hal.serve.stream.processor import RequestSummary

_log = logging.getLogger("specdec_hal")

MAX_DEATHS = 5
"""Engine deaths during a request before it is given up as their possible cause."""
_ANSWER_S = 10.0
"""Time limit of quick questions to the engine."""


@dataclass(eq=False)
class _Live:
    """A running request and its output so far."""

    request: Request
    stream: RequestStream
    number: int
    """Its submission."""
    tokens: list[int] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    drafts: list[Drafts] = field(default_factory=list)
    chars: int = 0
    """Of the texts."""
    aborted: bool = False
    deaths: int = 0

    def gained(self, update: OutputDelta) -> StreamDelta | None:
        """Its new output, or None; a new session repeats everything.

        EngineDeadError if something is missing.
        """
        delta, had = update.delta, len(self.tokens)
        old_tokens, old_chars = had - update.token_start, self.chars - update.char_start
        if old_tokens < 0 or old_chars < 0:
            raise EngineDeadError("a part of the output is missing")
        if old_tokens or old_chars:
            drafts = tuple(one for one in delta.drafts if one.start >= had)
            delta = _after(delta, old_tokens, old_chars)._replace(drafts=drafts)
        if not (delta.token_ids or delta.spans or delta.finish_reason):
            return None
        self.tokens += delta.token_ids
        self.flags += delta.accepted_draft
        for text, _ in delta.spans:
            self.texts.append(text)
            self.chars += len(text)
        if delta.logprobs:
            self.logprobs += delta.logprobs
        if delta.drafts:
            self.drafts += delta.drafts
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        return delta

    def output(self, reason: FinishReason, ended: RequestSummary) -> RequestOutput:
        """The whole output after the end."""
        steps, drafted, accepted, num_drafts = ended.counts
        return RequestOutput(
            self.request.request_id, ended.prompt_tokens, tuple(self.tokens), tuple(self.flags), "".join(self.texts),
            reason, ended.error, tuple(self.logprobs), steps, drafted, accepted, ended.queue_s, self.prompt_logprobs,
            tuple(self.drafts), self.request.params.seed, num_drafts, ended.num_cached_tokens,
        )  # fmt: skip


class Local(Protocol):
    """State of an HTTP process that others query."""

    def observed(self) -> Observed:
        """See :class:`~specdec_hal.serve.metrics.ServerMetrics`."""

    def abort_here(self, answer_id: str) -> bool:
        """End an answer with its output so far; False for an unknown id."""


class RemoteEngine:
    """What AsyncEngine is to a server, in other processes. Made by :meth:`connect`.

    `worker`: this process's number among `serve.http_workers`.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer, directory: Path, worker: int = 0) -> None:
        self.config, self.tokenizer, self.worker = config, tokenizer, worker
        self.info = EngineInfo("", 0, [], "", 0)
        context = zmq.asyncio.Context()
        self._inbox = context.socket(zmq.PULL)
        self._inbox.bind(addresses.endpoint(directory, addresses.http(worker)))
        out: zmq.Context[zmq.Socket[bytes]] = zmq.Context(context)
        self._engine = Outbox(out, directory, ENGINE)
        workers, most = config.serve.num_http_workers, config.serve.max_concurrent_requests
        self.request_limit = RequestLimit(most, directory / "places", worker, workers)
        others = set(range(workers)) - {worker}
        self._peers = {other: Outbox(out, directory, addresses.http(other)) for other in others}
        self.local: Local | None = None
        """State queried by other HTTP processes."""
        self._live: dict[str, _Live] = {}
        self._submitted: dict[int, asyncio.Future[None]] = {}
        """Unanswered submissions; their OutputDeltas may arrive before the answer."""
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """Quick questions to the engine and to other HTTP processes."""
        self._numbers = count()
        self._down = True
        self._greeted = asyncio.Event()
        self._late = ""
        """That the engine's step does not return."""
        self._reading: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._text: TextThread | None = None

    @classmethod
    async def connect(cls, config: Config, tokenizer: Tokenizer, directory: Path, worker: int = 0) -> RemoteEngine:
        """Connect, once the engine answers."""
        engine = cls(config, tokenizer, directory, worker)
        attach = partial(engine._engine.send, messages.Attach())
        engine._text = TextThread(tokenizer, directory, config.serve, worker, engine.take, attach)
        engine._engine.send(messages.Adopt(worker))
        engine._reading = asyncio.create_task(engine._read())
        engine._reading.add_done_callback(_reader_ended)
        await engine._greeted.wait()
        if (limit_s := config.runner.watchdog_s) is not None:
            engine._watching = asyncio.create_task(engine.watch(limit_s))
        return engine

    def close(self) -> None:
        """Stop reading."""
        for task in (self._reading, self._watching):
            if task is not None:
                task.cancel()
        if self._text is not None:
            self._text.close()
        self._inbox.close(linger=0)
        for outbox in (self._engine, *self._peers.values()):
            outbox.close()

    # ---- for the server

    @cached_property
    def default_params(self) -> SamplingParams:
        """Default parameters: see :meth:`SamplingParams.default`."""
        return SamplingParams.default(self.config)

    @property
    def alive(self) -> bool:
        """A supervisor restarts engines, or ends this process."""
        return True

    @property
    def unready(self) -> str:
        """That the engine is restarting, or does not answer."""
        return "the engine is being started again" if self._down else self._late

    async def submit(self, requests: Sequence[Request]) -> RequestStream:
        """As :meth:`specdec_hal.engine.AsyncEngine.submit`, but waits for a restarting engine."""
        number = next(self._numbers)
        # A restarted engine must get the same seeds.
        requests = [arriving(replace(request, params=request.params.seeded())) for request in requests]
        stream = RequestStream(self, [request.request_id for request in requests])
        self._submitted[number] = queued = asyncio.get_running_loop().create_future()
        for request in requests:
            self._live[request.request_id] = _Live(request, stream, number)
        self._send(requests, number)
        try:
            await queued
        except asyncio.CancelledError:
            stream.close()
            raise
        except (RequestError, EngineDeadError, WorkerError):
            for request in requests:
                self._live.pop(request.request_id, None)
            raise
        finally:
            self._submitted.pop(number, None)
        return stream

    def abort(self, request_id: str) -> None:
        """Cancel a request; its stream ends with a delta that says so. Unknown ids are ignored."""
        live = self._live.get(request_id)
        if live is not None:
            live.aborted = True
            self._engine.send(messages.Abort(request_id))

    async def counts(self) -> Counts:
        """The engine's; EngineDeadError if it does not answer."""
        found: Counts = await self._ask(self._engine, lambda number: messages.AskCounts(number, self.worker))
        return found

    @property
    def mark(self) -> str:
        """The tag in ids of this process's answers."""
        return addresses.owned(self.worker)

    async def observed(self) -> list[Observed]:
        """Observations of the other HTTP processes; EngineDeadError if one does not answer."""
        ask = partial(messages.AskPeer, worker=self.worker)
        answers = await asyncio.gather(*(self._ask(peer, ask) for peer in self._peers.values()))
        return [one.observed for one in answers]

    async def abort_elsewhere(self, answer_id: str) -> bool:
        """End an answer of another HTTP process; False for an unknown id."""
        peer = self._peers.get(addresses.owner(answer_id))
        if peer is None:
            return False
        answers = await self._ask(peer, partial(messages.AskPeer, worker=self.worker, abort=answer_id))
        return bool(answers.aborted)

    async def watch(self, limit_s: float) -> None:
        """Ask the engine, which answers between two steps."""
        while True:
            await asyncio.sleep(limit_s / 4)
            try:
                await self._ask(self._engine, lambda number: messages.AskCounts(number, self.worker), limit_s)
                self._late = ""
            except EngineDeadError:
                self._late = f"a step has not returned for {limit_s:g} s (runner.watchdog_s)"

    async def _ask(self, whom: Outbox, question: Callable[[int], ToEngine | ToHttp], limit_s: float = _ANSWER_S) -> Any:
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            whom.send(question(number))
            return await asyncio.wait_for(self._asked[number], limit_s)
        except asyncio.TimeoutError as error:
            raise EngineDeadError(f"another process has not answered within {limit_s:g} s") from error
        finally:
            del self._asked[number]

    def _answered(self, number: int, answer: Any) -> None:
        waiting = self._asked.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _answer_peer(self, question: messages.AskPeer) -> None:
        local = self.local
        aborted = local is not None and question.abort is not None and local.abort_here(question.abort)
        observed = Observed() if local is None else local.observed()
        self._peers[question.worker].send(messages.PeerSays(question.number, observed, aborted))

    def _send(self, requests: Sequence[Request], number: int) -> None:
        self._engine.send(
            messages.Submit(number, [messages.SubmittedRequest.of(request) for request in requests], self.worker)
        )

    # ---- messages

    async def _read(self) -> None:
        while True:
            data = await self._inbox.recv()
            try:
                message = messages.for_http(data)
            except FrameError:
                _log.exception("an invalid message from another process")
                continue
            self.receive(message)

    def receive(self, message: ToHttp) -> None:
        """Handle a message to this process."""
        match message:
            case messages.Queued():
                self._answer(message.number, None)
            case messages.Refused():
                self._answer(message.number, _refusal(message))
            case messages.Hello():
                self._hello(message)
            case messages.CountsAre():
                self._answered(message.number, message.counts)
            case messages.AskPeer():
                self._answer_peer(message)
            case messages.PeerSays():
                self._answered(message.number, message)
            case addresses.Down():
                self._down = True
                self._engine_died()

    def take(self, updates: Sequence[OutputDelta]) -> None:
        """Handle output of this process's requests."""
        for update in updates:
            self._take_delta(update)

    def _answer(self, number: int, error: RequestError | EngineDeadError | WorkerError | None) -> None:
        queued = self._submitted.pop(number, None)
        if queued is not None:
            if queued.done():  # the caller has gone away
                return
            if error is None:
                queued.set_result(None)
            else:
                queued.set_exception(error)
            return
        for name, live in list(self._live.items()):  # submitted to an engine that died, and refused by this one
            if error is not None and live.number == number:
                self._fail(name, live, str(error))

    def _hello(self, hello: messages.Hello) -> None:
        """A new engine only has its journal: submit the other requests again."""
        self.info = hello.info
        self._down = False
        known = set(hello.request_ids)
        self._engine.send(messages.Keep(list(self._live), self.worker))
        lost: dict[int, list[Request]] = {}
        for name, live in self._live.items():
            if name not in known:
                waits = live.number in self._submitted  # for its first engine; other deadlines begin again
                request = live.request if waits else replace(live.request, arrived_s=None)
                lost.setdefault(live.number, []).append(request)
        for number, requests in lost.items():
            self._send(requests, number)
        for number in self._submitted.keys() - lost.keys():  # it was in the journal before it could be answered
            self._answer(number, None)
        for name, live in self._live.items():
            if live.aborted:
                self._engine.send(messages.Abort(name))
        self._greeted.set()

    def _engine_died(self) -> None:
        for name, live in list(self._live.items()):
            live.deaths += 1
            if live.deaths >= MAX_DEATHS:
                self._fail(name, live, f"{live.deaths} engines died while they computed it")

    def _fail(self, name: str, live: _Live, why: str) -> None:
        """End a request here, independently of the engine."""
        if live.number in self._submitted:
            self._answer(live.number, EngineDeadError(why))
            return
        live.stream.take(StreamDelta(name, (), (), (), "error"))
        live.stream.take(live.output("error", RequestSummary(len(live.request.prompt_token_ids), why, NO_COUNTS, None)))
        del self._live[name]
        self._engine.send(messages.Release(name, "error"))

    def _take_delta(self, update: OutputDelta) -> None:
        name = update.delta.request_id
        live = self._live.get(name)
        if live is None:  # already ended
            self._engine.send(messages.Release(name, "cancelled"))
            return
        try:
            delta = live.gained(update)
        except EngineDeadError as error:
            self._fail(name, live, str(error))
            return
        if delta is not None:
            live.stream.take(delta)
        if update.ended is not None:
            del self._live[name]
            reason = update.delta.finish_reason
            assert reason is not None
            live.stream.take(live.output(reason, update.ended))
            self._engine.send(messages.Release(name, reason))


def _refusal(message: messages.Refused) -> RequestError | WorkerError:
    if message.failed:
        return WorkerError(message.message)
    late = message.retry_after_s
    return RequestError(message.message) if late is None else QueueFullError(message.message, retry_after_s=late)


def _reader_ended(reading: asyncio.Task[None]) -> None:
    if not reading.cancelled():
        end_process(reading.exception())


def _after(delta: StreamDelta, tokens: int, chars: int) -> StreamDelta:
    """A delta without its first `tokens` tokens and `chars` characters."""
    spans = list[tuple[str, bool]]()
    for text, accepted in delta.spans:
        if chars < len(text):
            spans.append((text[chars:], accepted))
        chars = max(chars - len(text), 0)
    return delta._replace(
        token_ids=delta.token_ids[tokens:],
        accepted_draft=delta.accepted_draft[tokens:],
        spans=tuple(spans),
        logprobs=delta.logprobs[tokens:],
        prompt_logprobs=() if tokens else delta.prompt_logprobs,
    )
