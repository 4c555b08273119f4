"""Online decoding: a runner on its own thread, and a stream per request."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from specdec_hal.config import Config
from specdec_hal.engine.llm import Prompt, encoded, make_runner, requests_of, warm_up
from specdec_hal.errors import EngineDeadError, RequestError
from specdec_hal.output.processor import TextProcessor
from specdec_hal.request import FinishReason
from specdec_hal.runner import Counts, ModelRunner, Request, RequestOutput, SamplingParams, StreamDelta

if TYPE_CHECKING:
    from specdec_hal.engine.runtime import Runtime
    from specdec_hal.models import Tokenizer
    from specdec_hal.plugin.model import TargetModel
    from specdec_hal.plugin.registry import Registry

_log = logging.getLogger("specdec_hal")

COMPILERS = 64
"""Most submissions whose grammars are compiled or wait for that."""
LAST_STEP_S = 5.0
"""Time for a step to end in a failed engine; a step that waits for a device may never end."""

Command = Callable[[ModelRunner], None]


class _Closed(Exception):
    """The engine was closed while it warmed up."""


class EngineInfo(NamedTuple):
    """Public properties of an engine. `method`: source of drafts, with "auto" resolved. `cache`: of the KV cache, by
    vLLM's names.
    """

    backend: str
    max_model_len: int
    end_tokens: list[int]
    method: str
    num_speculative_tokens: int
    cache: dict[str, str] = {}  # noqa: RUF012

    @classmethod
    def of(cls, runner: ModelRunner) -> EngineInfo:
        """The info of an engine with this runner."""
        method, k = runner.config.speculative.method, runner.config.speculative.num_speculative_tokens
        return cls(runner.backend.name, runner.max_model_len, sorted(runner.end_tokens), method, k, runner.cache_config)


class Aborts(Protocol):
    """The engine of a stream's requests."""

    def abort(self, request_id: str) -> None:
        """Cancel a request; unknown ids are ignored."""


Item = StreamDelta | RequestOutput | BaseException | None
"""Events of a stream: tokens, an end, the engine's failure, or None once all requests are queued."""


class RequestStream:
    """The deltas of requests that were submitted together.

    :meth:`read` waits for deltas, :attr:`outputs` has the finished requests, :meth:`close` cancels the others.
    """

    def __init__(self, engine: Aborts, names: Sequence[str]) -> None:
        self.outputs: dict[str, RequestOutput] = {}
        self.loop = asyncio.get_running_loop()
        self._engine, self._names = engine, names
        self._gained: dict[str, list[StreamDelta]] = {}
        self._submitted = False
        self._error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        """Resolved by the next event."""
        self.texts: TextProcessor | None = None
        """Makes their text here, if the engine does not, and ends them at stop strings."""
        self.stop: Callable[[str], None] = engine.abort
        """Called with the id of a request that it ends."""

    @property
    def ended(self) -> bool:
        """Whether every request has ended, and :meth:`read` has returned all deltas."""
        return not self._gained and len(self.outputs) == len(self._names)

    async def read(self) -> list[StreamDelta]:
        """New deltas since the last call, one per request; empty once every request has ended.

        EngineDeadError if the engine has stopped.
        """
        while not self._gained and len(self.outputs) < len(self._names):
            if self._error is not None:
                raise self._error
            await self._something()
        gained, self._gained = self._gained, {}
        return [deltas[0] if len(deltas) == 1 else StreamDelta.joined(deltas) for deltas in gained.values()]

    def take(self, item: Item) -> None:
        """Handle an event, on the thread of the event loop."""
        if isinstance(item, StreamDelta):
            for delta in [item] if self.texts is None else self.texts.take([item]):
                self._gained.setdefault(item.request_id, []).append(delta)
                if delta.finish_reason is not None and item.finish_reason is None:
                    self.stop(item.request_id)
        elif isinstance(item, RequestOutput):
            self.outputs[item.request_id] = item if self.texts is None else self.texts.output(item)
        elif item is None:
            self._submitted = True
        else:
            self._error = item
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def close(self) -> None:
        """Cancel unfinished requests; :meth:`read` remains usable."""
        for name in self._names:
            if name not in self.outputs:
                self._engine.abort(name)

    async def _queued(self) -> None:
        """Wait until the engine has queued the requests; raises its refusal."""
        while not self._submitted:
            if self._error is not None:
                raise self._error
            await self._something()

    async def _something(self) -> None:
        self._reader = self.loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def fail(self, error: BaseException) -> None:
        """Notify the reader from any thread; a closed event loop is ignored."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.take, error)


class AsyncEngine:
    """Decodes requests of many tasks together.

    ::

        async with AsyncEngine("models/tiny-py-lm", "configs/reference.yaml") as engine:
            async for delta in engine.generate("def add(a, b):", SamplingParams(max_new_tokens=16)):
                print(delta.text, end="")

    `model`, `config`, `tokenizer`, `registry` and `overrides` are those of :class:`~specdec_hal.engine.LLM`. One thread
    owns the runner. Every stream ends with a delta whose `finish_reason` is set, or raises. Closing a stream early
    cancels its request. Unless ``engine.warm_up`` is false, the thread warms the runner up first: :attr:`unready` says
    so, and requests wait.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | TargetModel | None = None,
        config: str | os.PathLike[str] | Mapping[str, Any] | Config | Runtime | None = None,
        *,
        tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
        registry: Registry | None = None,
        **overrides: Any,
    ) -> None:
        self.runner = make_runner(model, config, tokenizer, registry, overrides)
        self._commands: queue.SimpleQueue[Callable[[ModelRunner | None], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, RequestStream] = {}
        self._mail: list[tuple[RequestStream, Item]] = []
        """Events not yet sent to event loops: one wake-up per step instead of per request."""
        self._numbers = count()
        self._compilers = ThreadPoolExecutor(COMPILERS, "grammars")
        self._lock = threading.Lock()
        self._ended = ""  # the reason for refusing commands
        self.failed = threading.Event()
        self._unready = "" if self.config.engine.warm_up is False else "warming up"
        self._closing = threading.Event()
        self._waiting: list[Callable[[], None]] = []
        """Called after the end."""
        self.runner.when_lost(self.fail)
        self._thread = threading.Thread(target=self._work, name="specdec-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Cancel every request, stop the thread and close the runner; waits for the running step.

        If the engine has failed, it waits only some seconds.
        """
        self._closing.set()
        self._commands.put(None)
        while self._thread.is_alive() and not self.failed.is_set():
            self._thread.join(0.1)
        self._thread.join(LAST_STEP_S)
        self._compilers.shutdown(wait=False, cancel_futures=True)
        self.runner.close()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        add_special_tokens: bool = True,
        timeout_s: float | None = None,
        ttft_timeout_s: float | None = None,
        **sampling: Any,
    ) -> AsyncIterator[StreamDelta]:
        """Stream a request's deltas.

        `prompt`: a text, token ids, or a dictionary of either, as :meth:`LLM.generate` takes them. `params`, or
        `sampling_params` as in vLLM; None: :attr:`default_params`. `sampling`: values of :class:`SamplingParams` that
        replace those. With `n` choices, deltas of all are interleaved; choice i has the id `request_id`-i.
        `add_special_tokens`: add the tokenizer's special tokens, such as a BOS, to a text. `timeout_s`,
        `ttft_timeout_s`: see :class:`~specdec_hal.runner.Request`. RequestError if the request cannot be served,
        EngineDeadError if the engine has stopped.
        """
        if params is not None and sampling_params is not None:
            raise RequestError("sampling_params: another name of 'params', which is given too; give one of them")
        name = f"async-{next(self._numbers)}" if request_id is None else request_id
        tokens = encoded(prompt, self.runner.tokenizer, add_special_tokens)
        wanted = (params or sampling_params or self.default_params).updated(**sampling)
        requests = requests_of(name, tokens, wanted, timeout_s=timeout_s, ttft_timeout_s=ttft_timeout_s)
        stream = await self.submit(requests)
        try:
            while deltas := await stream.read():
                for delta in deltas:
                    yield delta
        finally:
            stream.close()

    @property
    def default_params(self) -> SamplingParams:
        """Parameters of requests without any: see :meth:`SamplingParams.default`."""
        return self.runner.default_params

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.runner.config

    @property
    def info(self) -> EngineInfo:
        """What the engine is."""
        return EngineInfo.of(self.runner)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """That of the model."""
        return self.runner.tokenizer

    @property
    def pending(self) -> int:
        """How many commands, such as new requests, wait for the engine's thread."""
        return self._commands.qsize()

    @property
    def unready(self) -> str:
        """Why requests must wait for the engine itself, or ""."""
        return self._unready or self.runner.late

    async def counts(self) -> Counts:
        """The engine's counts so far."""
        return self.runner.counts()

    @property
    def alive(self) -> bool:
        """Whether requests are served."""
        return not self._ended

    @property
    def failure(self) -> str:
        """Why the engine has stopped by itself, or ""."""
        return self._ended if self.failed.is_set() else ""

    async def until_ended(self) -> None:
        """Wait until the engine has stopped."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        with self._lock:
            if self._ended:
                return
            self._waiting.append(notify)
        await ended.wait()

    async def submit(self, requests: Sequence[Request]) -> RequestStream:
        """Queue requests, all or none; returns once they are queued. Their callbacks are not called.

        They arrive now: their deadlines count while a step, a warm-up or the compiler of their grammars runs.
        RequestError if one of them cannot be served, QueueFullError if too many wait, EngineDeadError if the engine has
        stopped.
        """
        names, arrived = [request.request_id for request in requests], list(map(arriving, requests))
        grammars: object = None  # held until the runner has them, to avoid compiling again
        if any(request.params.structured is not None for request in requests):
            loop = asyncio.get_running_loop()
            grammars = await loop.run_in_executor(self._compilers, self.runner.compile_grammars, requests)
        stream = RequestStream(self, names)

        def add(runner: ModelRunner) -> None:
            for name in names:
                if name in self._streams:
                    raise RequestError(f"request '{name}': the id is in use; choose another")
            mail, make = self._mail, None if runner.tokenizer is None else runner.tokenizer.detokenizer
            runner.add_requests(
                replace(request, callback=lambda delta: mail.append((stream, delta)), detokenize=False)
                for request in arrived
            )
            stream.texts, stream.stop = TextProcessor(make, runner.end_tokens), partial(self.abort, reason="stop")
            for request in requests:
                stream.texts.begin(request.request_id, request.params, request.prompt_token_ids)
            self._streams.update(dict.fromkeys(names, stream))
            self._mail.append((stream, None))

        self._send(add, stream.fail)
        try:
            await stream._queued()
        except asyncio.CancelledError:
            stream.close()
            raise
        finally:
            del grammars
        return stream

    def abort(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """End a request; its stream ends with a delta that gives the reason. Unknown ids are ignored."""

        def cancel(runner: ModelRunner) -> None:
            runner.cancel(request_id, reason)

        self._send(cancel, lambda error: None)

    def _send(self, command: Command, fail: Callable[[BaseException], None]) -> None:
        def run(runner: ModelRunner | None) -> None:
            try:
                if runner is None:
                    raise self._dead()
                command(runner)
            except Exception as error:
                fail(error)

        with self._lock:
            if not self._ended:
                self._commands.put(run)
                return
        fail(self._dead())

    def _dead(self) -> EngineDeadError:
        return EngineDeadError(f"the engine has stopped: {self._ended}; start another")

    # ---- the engine's thread

    def _work(self) -> None:
        runner = self.runner
        try:
            if self._unready:
                with suppress(_Closed):
                    warm_up(runner, self._warming)
                self._unready = ""
            while self._obey(block=not runner.has_requests):
                runner.step()
                self._hand_out(runner)
                self._post(runner)
        except BaseException as error:
            _log.exception("the engine stops")
            self.fail(error)
            self._post(runner)
            return
        self._end("it was closed")
        for name in list(self._streams):
            runner.cancel(name)
        self._hand_out(runner)
        self._post(runner)
        self._refuse_the_rest()

    def _warming(self, done: int, steps: int) -> None:
        self._unready = f"warming up: {done} of {steps} steps"
        if self._closing.is_set() and self.config.engine.tensor_parallel == 1:  # other ranks cannot be stopped
            raise _Closed

    def _end(self, why: str) -> None:
        """Take no more commands. The first reason counts."""
        with self._lock:
            self._ended = self._ended or why
            waiting, self._waiting = self._waiting, []
        for notify in waiting:
            notify()

    def fail(self, error: BaseException) -> None:
        """Fail every stream and later caller. Runs on any thread, as the engine's may hang."""
        self._end(f"{type(error).__name__}: {error}")
        self.failed.set()
        for stream in list(self._streams.values()):
            stream.fail(self._dead())
        self._refuse_the_rest()

    def _hand_out(self, runner: ModelRunner) -> None:
        """Pass finished outputs to their streams."""
        for name, output in runner.take_finished().items():
            stream = self._streams.pop(name, None)
            if stream is not None:
                self._mail.append((stream, output))

    def _post(self, runner: ModelRunner) -> None:
        """Send queued events to the streams."""
        loops: dict[asyncio.AbstractEventLoop, list[tuple[RequestStream, Item]]] = {}
        for stream, item in self._mail:
            loops.setdefault(stream.loop, []).append((stream, item))
        self._mail.clear()
        for loop, mail in loops.items():
            try:
                loop.call_soon_threadsafe(_take_all, mail)
            except RuntimeError:  # the loop is closed: these have no reader
                for name in {name for stream, _ in mail for name in stream._names}:
                    if not self._ended:
                        runner.cancel(name)

    def _obey(self, block: bool) -> bool:
        """Execute queued commands; waits for one if `block`. False once the engine is closed."""
        try:
            while True:
                command: Any = self._commands.get(block=block)
                if command is None:
                    return False
                command(self.runner)
                block = False
        except queue.Empty:
            self._post(self.runner)
            return True

    def _refuse_the_rest(self) -> None:
        """Fail streams whose commands arrived while the engine stopped."""
        with suppress(queue.Empty):
            while True:
                command = self._commands.get_nowait()
                if command is not None:
                    command(None)


def arriving(request: Request) -> Request:
    """The request, which arrives now, unless it says when it arrived."""
    return request if request.arrived_s is not None else replace(request, arrived_s=time.monotonic())


def _take_all(mail: list[tuple[RequestStream, Item]]) -> None:
    for stream, item in mail:
        stream.take(item)
