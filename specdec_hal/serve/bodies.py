"""JSON bodies of requests: long ones are read in a process of their own.

To parse and to validate are C calls that hold the interpreter's lock, for up to 300 ms per megabyte: neither the event
loop nor the engine's thread would go on meanwhile. What a long chat has for its template alone stays in that process,
which renders its prompt.
"""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from specdec_hal.errors import RequestError
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.serve.protocol import Body, first_problem
from specdec_hal.serve.rendering import RENDER_S, packed, unpacked
from specdec_hal.structured.worker import MEMORY, Worker
from specdec_hal.text import one_line

LONG = 1 << 16
"""Bytes of a body from which another process reads it. Shorter ones take some milliseconds, mostly far less."""
_BYTE_S = 5e-6
"""How long a byte of a body may take to read, some 20 times what the slowest take on an idle processor."""
_BYTE_MEMORY = 64
"""Bytes that a byte of a body may take while it is read; `{},` takes 24 each."""
_Body = TypeVar("_Body", bound=Body)


class BodyError(HTTPException):
    """A body that is no request; `param`: the key that is wrong."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(400, message)
        self.param = param


def read(kind: type[_Body], raw: bytes) -> _Body:
    """A body from its bytes; BodyError for the first thing that is wrong."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        got = error.msg if isinstance(error, json.JSONDecodeError) else one_line(error)
        raise BodyError(f"expected JSON, got {got}") from error
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise BodyError(*first_problem(error.errors(include_url=False), data)) from error


class Bodies:
    """Reads bodies of at most `longest` bytes. `template`: renders chats, if there is one."""

    def __init__(self, template: ChatTemplate | None, longest: int) -> None:
        self._worker = Worker(__name__, packed(template), "body: reading it", MEMORY + _BYTE_MEMORY * longest)

    async def read(self, kind: type[_Body], raw: bytes) -> _Body:
        """A body from its bytes, a long one :meth:`~Body.settled`.

        BodyError for the first thing that is wrong; RequestError for one that takes too long, or too much memory.
        """
        if len(raw) < LONG:
            return read(kind, raw)
        answer = await self._worker.ask(pickle.dumps((kind, raw)), RENDER_S + _BYTE_S * len(raw))
        body, *error = pickle.loads(answer)
        if error:
            raise BodyError(*error)
        found: _Body = body
        return found


def answerer(setup: bytes) -> Callable[[bytes], bytes]:
    """Of the process: answers a kind of body and bytes with a body, or with None, a message and a key."""
    template = unpacked(setup)
    gc.disable()  # it would visit the values of a body again and again while they are made

    def answer(question: bytes) -> bytes:
        kind, raw = pickle.loads(question)
        try:
            return pickle.dumps((read(kind, raw).settled(template),))
        except BodyError as error:
            return pickle.dumps((None, error.detail, error.param))
        except (RequestError, RecursionError) as error:
            return pickle.dumps((None, str(error), None))
        except MemoryError:
            return pickle.dumps((None, "body: expected values that take less memory", None))

    return answer
