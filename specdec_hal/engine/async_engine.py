"""Online decoding: a runner on a thread of its own, and a stream for each request."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from specdec_hal.config import Config
from specdec_hal.engine.llm import Prompt, make_runner
from specdec_hal.errors import EngineDeadError, RequestError
from specdec_hal.runner import ModelRunner, Request, SamplingParams, StreamDelta

if TYPE_CHECKING:
    from specdec_hal.models import TargetModel, Tokenizer
    from specdec_hal.registry import Registry

_log = logging.getLogger("specdec_hal")

Command = Callable[[ModelRunner], None]


class AsyncEngine:
    """Decodes requests of any number of tasks together.

    ::

        async with AsyncEngine("models/tiny-py-lm", "configs/reference.yaml") as engine:
            async for delta in engine.generate("def add(a, b):", SamplingParams(max_new_tokens=16)):
                print(delta.text, end="")

    One thread owns the runner. Every stream ends with a delta whose `finish_reason` is set, or raises. A stream that is
    closed early cancels its request.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | TargetModel | None = None,
        config: str | os.PathLike[str] | Config | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.runner = make_runner(model, config, tokenizer, registry)
        self._commands: queue.SimpleQueue[Callable[[ModelRunner | None], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, Callable[[StreamDelta | BaseException], None]] = {}
        self._numbers = count()
        self._lock = threading.Lock()
        self._ended = ""  # why the engine takes no more commands
        self._thread = threading.Thread(target=self._work, name="specdec-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End every request as cancelled and stop the thread; waits for the step that runs."""
        self._commands.put(None)
        self._thread.join()

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, request_id: str | None = None
    ) -> AsyncIterator[StreamDelta]:
        """What each step adds to a request, as it comes.

        `params` None: the configuration's. RequestError if the request cannot be served, EngineDeadError if the engine
        has stopped.
        """
        name = f"async-{next(self._numbers)}" if request_id is None else request_id
        loop, deltas = asyncio.get_running_loop(), asyncio.Queue[StreamDelta | BaseException]()

        def push(item: StreamDelta | BaseException) -> None:
            loop.call_soon_threadsafe(deltas.put_nowait, item)

        def add(runner: ModelRunner) -> None:
            if name in self._streams:
                raise RequestError(f"request '{name}': the id is in use; choose another")
            tokens = prompt
            if isinstance(tokens, str):
                if runner.tokenizer is None:
                    raise RequestError(f"request '{name}': text needs a tokenizer; pass token ids")
                tokens = runner.tokenizer.encode(tokens)
            wanted = SamplingParams(**dict(runner.config.sampling)) if params is None else params
            runner.add_request(Request(name, tokens, wanted, push))
            self._streams[name] = push

        self._send(add, push)
        ended = False
        try:
            while not ended:
                item = await deltas.get()
                ended = isinstance(item, BaseException) or item.finish_reason is not None
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            if not ended:
                self.abort(name)

    def abort(self, request_id: str) -> None:
        """Cancel a request; its stream ends with a delta that says so. Unknown ids are ignored."""

        def cancel(runner: ModelRunner) -> None:
            runner.cancel(request_id)

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
        runner, why, failed = self.runner, "it was closed", False
        try:
            while self._obey(block=not runner.has_requests):
                runner.step()
                for name in runner.take_finished():
                    self._streams.pop(name, None)
        except BaseException as error:
            _log.exception("the engine stops")
            why, failed = f"{type(error).__name__}: {error}", True
        with self._lock:
            self._ended = why
        for name, push in list(self._streams.items()):
            if failed:
                push(self._dead())
            else:
                runner.cancel(name)
        self._refuse_the_rest()

    def _obey(self, block: bool) -> bool:
        """Carry out what was asked meanwhile; waits for something if `block`. False once the engine is closed."""
        try:
            while True:
                command: Any = self._commands.get(block=block)
                if command is None:
                    return False
                command(self.runner)
                block = False
        except queue.Empty:
            return True

    def _refuse_the_rest(self) -> None:
        """Streams whose commands came while the engine stopped get an error."""
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command(None)
