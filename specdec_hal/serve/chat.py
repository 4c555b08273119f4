"""Messages to a prompt, by the chat template of a checkpoint (Jinja, as `transformers` has it)."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec_hal.errors import CheckpointError, RequestError
from specdec_hal.files import read_regular
from specdec_hal.wording import one_line, short

MAX_TEMPLATE = 1 << 20
"""Bytes of a template, and of the file that holds it."""
LINES = "{{ messages | map(attribute='content') | join('\\n') }}"
"""The default: a model without a template has seen no roles, so it continues the lines of all messages."""


class ChatTemplate:
    """A template; CheckpointError if `source` is none. `tokens`: special tokens by the name that templates know."""

    def __init__(self, source: str = LINES, tokens: dict[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now, **(tokens or {}))
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CheckpointError(
                f"chat template: expected a Jinja template, got {one_line(error)}; mend it"
            ) from error

    def render(self, messages: list[dict[str, str]]) -> str:
        """The prompt; RequestError for messages that the template refuses."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=True)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise RequestError(f"messages: the chat template refuses them: {one_line(error)}") from error


def load_chat_template(checkpoint: Path, file: str | None = None) -> ChatTemplate:
    """The template in `file`, or else that of a checkpoint folder, or else :data:`LINES`.

    CheckpointError for a file that cannot be read or holds no template.
    """
    settings = _json(checkpoint / "tokenizer_config.json")
    tokens = {name: _text(settings[name]) for name in ("bos_token", "eos_token") if settings.get(name) is not None}
    if file is not None:
        return ChatTemplate(_read(Path(file)), tokens)
    if (checkpoint / "chat_template.jinja").is_file():
        return ChatTemplate(_read(checkpoint / "chat_template.jinja"), tokens)
    source = settings.get("chat_template")
    if isinstance(source, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return ChatTemplate(source if isinstance(source, str) else LINES, tokens)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: expected JSON, got {one_line(error)}; download it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected an object, got {short(found)}; download it again")
    return found


def _text(token: Any) -> str:
    """A special token: its text, or an object that has it."""
    return str(token["content"]) if isinstance(token, dict) and "content" in token else str(token)


def _read(path: Path) -> str:
    try:
        return read_regular(path, MAX_TEMPLATE).decode("utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: expected UTF-8 text, got {one_line(error)}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)  # jinja2's own escapes HTML


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
