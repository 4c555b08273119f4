"""Render messages with a checkpoint's chat template (Jinja, with the extensions of `transformers`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, pass_context
from jinja2.ext import Extension
from jinja2.nodes import EvalContextModifier, Node, Scope
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec_hal.config.files import read_regular
from specdec_hal.errors import CheckpointError, RequestError
from specdec_hal.models.checkpoint import TOKENIZER_CONFIG, read_optional
from specdec_hal.models.loader import is_gguf
from specdec_hal.text import clip, describe, one_line, short

Message = Mapping[str, Any]
"""`role`, `content` and other keys of the template (`tool_calls`, `name`, ...)."""

MAX_TEMPLATE = 1 << 20
"""Most bytes of a template's file."""
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of templates: the default, and the one for messages with tools."""

# tokenizer_config.json's keys whose texts templates may use.
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Marks the end of a message to continue; its white space shows whether the template trims.
_END = "CONTINUE_FINAL_MESSAGE_TAG "
# Find out which forms of content a template shows.
_PROBE, _UNUSED = "CONTENT_FORM_PROBE", "CONTENT_FORM_UNUSED"
# Roles before and after the first message of the user.
_FIRST, _LATER = ("system", "developer"), ("user", "assistant", "tool")
# What a template raises on messages that it does not take.
_REFUSALS = (TemplateError, ArithmeticError, LookupError, TypeError, ValueError)


class ChatTemplate:
    """The templates of a checkpoint by name; CheckpointError for an invalid one.

    `sources`: one template, or several by name, such as :data:`DEFAULT` and :data:`TOOL_USE`. `tokens`: special tokens
    by the names that templates use.
    """

    def __init__(self, sources: str | Mapping[str, str], tokens: Mapping[str, str] | None = None) -> None:
        self.sources = {DEFAULT: sources} if isinstance(sources, str) else dict(sources)
        self.tokens = dict(tokens or {})
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # compiling, which has no limits, evaluates no constants: see also _when_rendered
            finalize=_when_rendered,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        self._shown: dict[tuple[str, str], set[type]] = {}
        environment.globals.update(raise_exception=_refuse, strftime_now=_now, **self.tokens)
        try:
            self._templates = {name: _compiled(environment, source) for name, source in self.sources.items()}
        except Exception as error:  # compiling it may also raise RecursionError, SyntaxError or MemoryError
            got = f"expected a Jinja template, got {clip(describe(error), 300)}"
            raise CheckpointError(f"chat template: {got}; correct the template") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt, as ``apply_chat_template`` of `transformers` renders it.

        A message's `content` is text or a list of parts. It goes to the template in that form, unless the template
        shows the other form only: text as one part; parts of text, joined by line breaks, as text. `tools`, `documents`
        and `kwargs` go to the template. `continue_final_message`: the prompt ends in the last
        message's content, which the model continues. RequestError if the template refuses the messages.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message: expected add_generation_prompt to be false, got true; set one of both"
            )
        name = self._name(bool(tools))
        given, last = _as_known(messages, self.sources[name]), ""
        for message in given:
            if "content" in message:
                message["content"] = _in_form(message["content"], self._forms(name, message.get("role")))
        if continue_final_message:
            last = _marked(given[-1])
            if "content" not in self.sources[name]:
                raise _nothing_to_continue(last)
        try:
            text = self._templates[name].render(
                messages=given, tools=tools or None, documents=documents, add_generation_prompt=add_generation_prompt,
                **kwargs,
            )  # fmt: skip
        except _REFUSALS as error:
            raise RequestError(f"messages: the chat template refuses them: {one_line(error)}") from error
        return _cut(text, last) if continue_final_message else text

    def _forms(self, name: str, role: Any) -> set[type]:
        """The forms of content that a template shows for a role, found by rendering both on first use.

        Those of the user's messages for other roles, and where the template shows neither.
        """
        role = role if role in _FIRST + _LATER else "user"
        if (name, role) not in self._shown:
            self._shown[name, role] = {kind for kind in (str, list) if self._shows(kind, name, role)}
        return self._shown[name, role] or (set() if role == "user" else self._forms(name, "user"))

    def _shows(self, kind: type, name: str, role: str) -> bool:
        """Whether a template renders content of this form as text, not as a list in Python's or JSON's notation."""

        def message(role: str, text: str) -> dict[str, Any]:
            return {"role": role, "content": text if kind is str else [{**_part(text), "unused": _UNUSED}]}

        asked, user = message(role, _PROBE), message("user", "Hi")
        messages = [asked] if role == "user" else [asked, user] if role in _FIRST else [user, asked]
        try:
            text = self._templates[name].render(messages=messages, add_generation_prompt=True)
        except _REFUSALS:
            return False
        return _PROBE in text and _UNUSED not in text

    def _name(self, with_tools: bool) -> str:
        if with_tools and TOOL_USE in self._templates:
            return TOOL_USE
        if DEFAULT in self._templates:
            return DEFAULT
        if len(self._templates) == 1:
            return next(iter(self._templates))
        names = ", ".join(map(repr, sorted(self._templates)))
        raise RequestError(f"messages: expected a chat template named '{DEFAULT}', got {names}; name a file of one")


def load_chat_template(checkpoint: Path, file: str | None = None) -> ChatTemplate | None:
    """The template in `file`, or that of a checkpoint folder or GGUF file, if any.

    CheckpointError for a file that is unreadable or not a template.
    """
    sources, tokens = _read_checkpoint(checkpoint)
    if file is not None:
        sources = {DEFAULT: _read(Path(file))}
    return ChatTemplate(sources, tokens) if sources else None


def special_tokens(checkpoint: Path) -> dict[str, str]:
    """The special tokens of a checkpoint folder or GGUF file by their names in templates."""
    return _read_checkpoint(checkpoint)[1]


def _read_checkpoint(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Templates by name, and special tokens."""
    if not is_gguf(path):
        return _read_folder(path)
    from specdec_hal.models.llama_cpp import read_chat_templates

    found, tokens = read_chat_templates(path, (None, TOOL_USE))
    return {name or DEFAULT: source for name, source in found.items()}, tokens


def missing_template(
    model: str, hint: str = "give a Jinja file with serve.chat_template (--chat-template FILE), or use completions"
) -> RequestError:
    """The error for a chat with a model that has no template."""
    return RequestError(f"messages: the model '{model}' has no chat template; {hint}")


def _read_folder(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Templates and special tokens of a checkpoint folder, from each place where `transformers` stores them."""
    settings = read_optional(folder, TOKENIZER_CONFIG)
    extra = settings.get("extra_special_tokens")
    named = {**(extra if isinstance(extra, dict) else {}), **{key: settings.get(key) for key in _TOKENS}}
    tokens = {name: _text(token) for name, token in named.items() if token is not None}
    file, more = folder / "chat_template.jinja", folder / "additional_chat_templates"
    if file.exists():
        others = {entry.stem: _read(entry) for entry in sorted(more.glob("*.jinja"))}
        return {DEFAULT: _read(file), **others}, tokens
    source = settings.get("chat_template", read_optional(folder, "chat_template.json").get("chat_template"))
    if isinstance(source, list):
        entries = [entry for entry in source if isinstance(entry, dict)]
        found = {str(entry.get("name")): entry.get("template") for entry in entries}
        return {name: text for name, text in found.items() if isinstance(text, str)}, tokens
    return {DEFAULT: source} if isinstance(source, str) else {}, tokens


def _as_known(messages: Sequence[Message], source: str) -> list[dict[str, Any]]:
    """The messages for a template: the role `developer` becomes `system` if the template lacks it."""
    given = [deepcopy(dict(message)) for message in messages]
    for message in given:
        if message.get("role") == "developer" and "developer" not in source:
            message["role"] = "system"
    return given


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _in_form(content: Any, forms: set[type]) -> Any:
    """The content of a message in one of these forms; unchanged if it is not text, or in one of them."""
    if isinstance(content, str):
        return [_part(content)] if forms == {list} else content
    texts = [part.get("text") if isinstance(part, dict) else None for part in content or ()]
    found = [text for text in texts if isinstance(text, str)]
    return content if content is None or list in forms or len(found) < len(texts) else "\n".join(found)


def _marked(message: dict[str, Any]) -> str:
    """Mark the end of the message's text, its last part, and return this text. RequestError if it has none."""
    content = message.get("content", "")
    if isinstance(content, str):
        message["content"] = content + _END
        return content
    last = content[-1] if isinstance(content, list) and content else None
    if not isinstance(last, dict) or not isinstance(text := last.get("text"), str):
        raise _nothing_to_continue(content)
    last["text"] = text + _END
    return text


def _nothing_to_continue(got: Any) -> RequestError:
    where = "text in the last message that the template shows"
    return RequestError(f"continue_final_message: expected {where}, got {short(got)}")


def _cut(text: str, last: str) -> str:
    """The prompt up to the end of the last message's content."""
    at = text.rfind(_END.strip())
    if at < 0 or last.strip() not in text:
        raise _nothing_to_continue(last)
    return text[:at] if text[at : at + len(_END)] == _END else text[:at].rstrip()


class _Generation(Extension):
    """``{% generation %}``, with which `transformers` marks what an assistant said: its content as it stands."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


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


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # jinja2's own filter escapes HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _compiled(environment: ImmutableSandboxedEnvironment, source: str) -> Template:
    """A template; its expressions are evaluated when it is rendered, except the argument of ``autoescape``."""
    for node in environment.parse(source).find_all(EvalContextModifier):
        raise TemplateSyntaxError("expected no autoescape, which chat templates do not have", node.lineno)
    return environment.from_string(source)


@pass_context
def _when_rendered(context: Context, value: Any) -> Any:
    # Jinja evaluates a constant output while compiling unless this function needs the context.
    return value


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
