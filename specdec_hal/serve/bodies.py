"""JSON bodies of requests; long ones are parsed in a separate process.

Parsing and validation hold the GIL for up to 300 ms per megabyte, which would block the event loop and the engine's
thread. Template inputs of a long chat stay in that process, which renders the prompt.
"""

from __future__ import annotations

import gc
import json
import logging
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from specdec_hal.engine.rendering import RENDER_S, packed, unpacked
from specdec_hal.errors import RequestError
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.serve.forms import WrongKeyError
from specdec_hal.serve.protocol import Body, first_problem
from specdec_hal.structured.worker import MEMORY, Worker
from specdec_hal.text import clip, describe, one_line

LONG = 1 << 16
"""Bytes from which another process parses a body. Shorter ones take at most some milliseconds."""
_BYTE_S = 5e-6
"""Time limit per byte of a body, some 20 times the slowest on an idle core."""
_BYTE_MEMORY = 64
"""Most memory per byte of a body while parsing; `{},` takes 24 bytes each."""
_Body = TypeVar("_Body", bound=Body)
_log = logging.getLogger("specdec_hal")


class BodyError(HTTPException):
    """An invalid body; `param`: the wrong key."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(status, message)
        self.param = param


def read(kind: type[_Body], raw: bytes) -> _Body:
    """Parse a body; BodyError for its first fault."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        got = error.msg if isinstance(error, json.JSONDecodeError) else one_line(error)
        raise BodyError(f"expected JSON, got {got}") from error
    return validated(kind, data)


def validated(kind: type[_Body], data: Any) -> _Body:
    """A body of parsed JSON; BodyError for its first fault."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise BodyError(*first_problem(error.errors(include_url=False), data)) from error
    except MemoryError:
        raise
    except Exception as error:  # a validator's own, which would end the process that reads long bodies
        raise _failed(error) from error


def _failed(error: Exception) -> BodyError:
    _log.error("reading a body has failed", exc_info=error)
    return BodyError(f"body: expected one that can be read, got {clip(describe(error), 300)}")


class Bodies:
    """Parses bodies of at most `longest` bytes. `template`: renders chats, if there is one."""

    def __init__(self, template: ChatTemplate | None, longest: int) -> None:
        self.worker = Worker(__name__, packed(template), "body: reading it", MEMORY + _BYTE_MEMORY * longest)

    async def read(self, kind: type[_Body], raw: bytes) -> _Body:
        """Parse a body; a long one is :meth:`~Body.settled`.

        BodyError for its first fault; RequestError beyond the limits of time or memory.
        """
        if len(raw) < LONG:
            return read(kind, raw)
        answer = await self.worker.ask(pickle.dumps((kind, raw)), RENDER_S + _BYTE_S * len(raw))
        body, *error = pickle.loads(answer)
        if error:
            raise BodyError(*error)
        found: _Body = body
        return found


def answerer(setup: bytes) -> Callable[[bytes], bytes]:
    """In the process: parses a kind and bytes to a body, or to None, a message and a key."""
    template = unpacked(setup)
    gc.disable()  # it would visit the growing values repeatedly

    def answer(question: bytes) -> bytes:
        kind, raw = pickle.loads(question)
        try:
            return pickle.dumps((read(kind, raw).settled(template),))
        except BodyError as error:
            return pickle.dumps((None, error.detail, error.param))
        except (RequestError, RecursionError) as error:
            return pickle.dumps((None, str(error), error.param if isinstance(error, WrongKeyError) else None))
        except MemoryError:
            return pickle.dumps((None, "body: expected values that take less memory", None))
        except Exception as error:  # while settling
            return pickle.dumps((None, _failed(error).detail, None))

    return answer
