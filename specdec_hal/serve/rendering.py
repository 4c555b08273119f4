"""Chat templates rendered in a process of their own, which is ended when one takes too long or too much memory.

A template is a program that came with a model. Jinja's sandbox keeps it from the interpreter, not from a loop without
an end or a string without bounds, which nothing inside the process can stop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any
from weakref import finalize

from specdec_hal.errors import RequestError
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.wording import clip, describe

RENDER_S = 5.0
"""How long one prompt may take."""
MAX_PROMPT = 16 << 20
"""Characters of a prompt."""
_MEMORY = 512 << 20
"""Bytes that the process may take beyond those that it starts with."""
_START_S = 60.0
_log = logging.getLogger("specdec_hal")


class Renderer:
    """Renders the prompts of a template, one at a time. Its process starts with the first of them."""

    def __init__(self, template: ChatTemplate, render_s: float = RENDER_S) -> None:
        self.template, self._render_s = template, render_s
        self._thread = ThreadPoolExecutor(1, "chat-template")
        self._pipe: Connection | None = None
        self._end: Callable[[], object] = _nothing

    async def render(self, arguments: dict[str, Any]) -> str:
        """:meth:`render_here` on a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.render_here, arguments)

    def render_here(self, arguments: dict[str, Any]) -> str:
        """What :meth:`ChatTemplate.render` gives for `arguments`.

        RequestError as from there, and for a prompt that takes more than `render_s`, or too much memory.
        """
        try:
            question = json.dumps(arguments).encode()
        except (RecursionError, ValueError) as error:
            raise RequestError(f"messages: expected values that JSON can hold ({describe(error)})") from error
        try:
            pipe = self._started()
            pipe.send_bytes(question)
            if pipe.poll(self._render_s):
                answer = json.loads(pipe.recv_bytes())
                if "error" in answer:
                    raise RequestError(answer["error"])
                return str(answer["text"])
            wrong = f"messages: the chat template has not rendered them within {self._render_s:g} s"
        except (EOFError, OSError) as error:
            wrong = f"messages: the process that renders the chat template has ended ({describe(error)})"
        _log.error("%s; another process is started", wrong)
        self._end()
        self._pipe = None
        raise RequestError(wrong)

    def _started(self) -> Connection:
        if self._pipe is None:
            pipe, theirs = Pipe()
            with theirs:
                command = [sys.executable, "-m", __name__, str(theirs.fileno())]
                process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
            self._end = finalize(self, _end, process, pipe)
            pipe.send_bytes(json.dumps([self.template.sources, self.template.tokens]).encode())
            if not pipe.poll(_START_S):
                self._end()
                raise OSError(f"it has not started within {_START_S:g} s")
            pipe.recv_bytes()
            self._pipe = pipe
        return self._pipe


def _nothing() -> None:
    """There is no process."""


def _end(process: subprocess.Popen[bytes], pipe: Connection) -> None:
    pipe.close()
    process.kill()
    process.wait()


def main(descriptor: int) -> None:
    """The process: templates first, then arguments of prompts, each answered with a text or an error."""
    with Connection(descriptor) as pipe:
        sources, tokens = json.loads(pipe.recv_bytes())
        _limit_memory()
        template = ChatTemplate(sources, tokens)
        pipe.send_bytes(b"")
        while True:
            try:
                question = pipe.recv_bytes()
            except EOFError:
                return
            pipe.send_bytes(json.dumps(_answer(template, json.loads(question))).encode())


def _answer(template: ChatTemplate, arguments: dict[str, Any]) -> dict[str, str]:
    try:
        text = template.render(**arguments)
    except RequestError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever a program may do, such as RecursionError and MemoryError
        return {"error": f"messages: the chat template fails on them: {clip(describe(error), 300)}"}
    if len(text) > MAX_PROMPT:
        return {"error": f"messages: expected a prompt of at most {MAX_PROMPT} characters, got {len(text)}"}
    return {"text": text}


def _limit_memory() -> None:
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = taken + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(int(sys.argv[1]))
