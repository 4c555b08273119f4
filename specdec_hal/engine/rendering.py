"""Chat templates rendered in a separate process.

A template is a program from the model's author. Jinja's sandbox does not prevent endless loops or unbounded strings,
which only a killed process stops.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from specdec_hal.errors import RequestError
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.structured.worker import Worker
from specdec_hal.text import clip, describe, short

RENDER_S = 5.0
"""Time limit per prompt."""
MAX_PROMPT = 16 << 20
"""Most characters of a prompt."""


class Renderer:
    """Renders prompts of a template, one at a time, in a process started on first use."""

    def __init__(self, template: ChatTemplate, render_s: float = RENDER_S) -> None:
        self.template, self._render_s = template, render_s
        self.worker = Worker(__name__, packed(template), "messages: rendering the chat template")

    async def render(self, arguments: dict[str, Any]) -> str:
        """:meth:`render_here` on another thread."""
        return _text(await self.worker.ask(_question(arguments), self._render_s))

    def render_here(self, arguments: dict[str, Any]) -> str:
        """The result of :meth:`ChatTemplate.render` for `arguments`.

        RequestError as there, and beyond `render_s` or the memory limit.
        """
        return _text(self.worker.ask_here(_question(arguments), self._render_s))


def packed(template: ChatTemplate | None) -> bytes:
    """Serialise a template for another process."""
    return json.dumps(template and [template.sources, template.tokens]).encode()


def unpacked(data: bytes) -> ChatTemplate | None:
    """The template from :func:`packed`."""
    parts = json.loads(data)
    return parts and ChatTemplate(*parts)


def rendered(template: ChatTemplate, arguments: dict[str, Any]) -> str:
    """Render a prompt, in the killable process; RequestError for any failure of the template."""
    try:
        text = template.render(**arguments)
    except RequestError:
        raise
    except Exception as error:  # any exception, such as RecursionError and MemoryError
        what = f"messages: the chat template fails on them: {clip(describe(error), 300)}"
        raise RequestError(what) from error
    if len(text) > MAX_PROMPT:
        raise RequestError(f"messages: expected a prompt of at most {MAX_PROMPT} characters, got {len(text)}")
    return text


def answerer(setup: bytes) -> Callable[[bytes], bytes]:
    """In the process: renders arguments to a text or an error."""
    template = unpacked(setup)
    assert template is not None

    def answer(question: bytes) -> bytes:
        try:
            return json.dumps({"text": rendered(template, json.loads(question))}).encode()
        except RequestError as error:
            return json.dumps({"error": str(error)}).encode()

    return answer


def _question(arguments: dict[str, Any]) -> bytes:
    try:
        return json.dumps(arguments, default=_as_builtin).encode()
    except (RecursionError, TypeError, ValueError) as error:
        raise RequestError(f"messages: expected values that JSON can hold ({describe(error)})") from error


def _as_builtin(value: Any) -> Any:
    """Mappings of any type as dictionaries."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"got {short(value)}")


def _text(answer: bytes) -> str:
    found = json.loads(answer)
    if "error" in found:
        raise RequestError(found["error"])
    return str(found["text"])
