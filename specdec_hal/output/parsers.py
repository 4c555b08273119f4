"""Split an answer's text into thoughts, content and tool calls.

Parsers read text, not tokens, and do not depend on the tokens per step: with drafts, a piece of text may span several
parts. Text that may begin a marker is held back. The names are vLLM's (`vllm/reasoning`, `vllm/tool_parsers`), the
formats those of the models' chat templates.
"""

from __future__ import annotations

import json
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import ClassVar, NamedTuple

THINK = {"qwen3": ("<think>", "</think>"), "deepseek_r1": ("<think>", "</think>"), "mistral": ("[THINK]", "[/THINK]")}
"""Start and end of thoughts, by parser."""
THINKS_AT_ONCE = ("deepseek_r1",)
"""Models whose answers begin with a thought without a marker."""
CALLS_END = {"qwen3": "<tool_call>", "mistral": "[TOOL_CALLS]"}
"""Start of a call, which also ends an open thought, by the thought's parser."""

_SPACES = 1024
"""White space that is held back, as a call may follow."""
_NAME_CHARS = 256
"""Of a function."""


class Reasoning(NamedTuple):
    """A piece of a thought."""

    text: str


class Content(NamedTuple):
    """A piece of content."""

    text: str


class Call(NamedTuple):
    """The start of a call, with id and name, or more of its arguments (JSON as written by the model)."""

    number: int
    arguments: str
    id: str | None = None
    name: str | None = None


Part = Reasoning | Content | Call


class Parser(ABC):
    """Takes a text piece by piece."""

    @property
    def held(self) -> int:
        """The number of characters at the end of the text so far that may become content."""
        return 0

    @abstractmethod
    def push(self, text: str) -> Iterator[Part]:
        """The parts that one more piece completes."""

    @abstractmethod
    def finish(self) -> Iterator[Part]:
        """The rest."""


class ContentOnly(Parser):
    """All of it is content."""

    def push(self, text: str) -> Iterator[Part]:
        """As it stands."""
        if text:
            yield Content(text)

    def finish(self) -> Iterator[Part]:
        """Nothing is held back."""
        yield from ()


def thinks(name: str, prompt: str) -> bool | None:
    """Whether the answer to `prompt` begins with a thought; None: if it begins with the thought's marker.

    `name`: the parser's. A template may start a thought at the end of the prompt, or start and end it.
    """
    begin, end = THINK[name]
    tail = prompt.rstrip()
    return False if tail.endswith(end) else (tail.endswith(begin) or name in THINKS_AT_ONCE or None)


class ThoughtParser(Parser):
    """Thoughts first, as :func:`thinks` says; `after` parses the rest. `calls_end`: a call ends a thought."""

    def __init__(self, name: str, prompt: str, after: Parser, calls_end: bool = True) -> None:
        (self._begin, self._end), self._after = THINK[name], after
        self._thinks = thinks(name, prompt)
        self._may_begin = not prompt.rstrip().endswith(self._begin)
        self._ends = (self._end, CALLS_END.get(name, self._end)) if calls_end else (self._end,)
        self._held = ""

    def push(self, text: str) -> Iterator[Part]:
        """Up to the end of the thought, and after it."""
        if self._thinks is False:
            yield from self._after.push(text)
            return
        self._held += text
        if self._may_begin:
            start = self._held.lstrip()
            if self._begin.startswith(start[: len(self._begin)]) and len(start) < len(self._begin):
                return
            self._may_begin = False
            if start.startswith(self._begin):
                self._thinks, self._held = True, start[len(self._begin) :]
            elif self._thinks is None:
                yield from self._go_on(self._held)
                return
        if found := [at for end in self._ends if (at := self._held.find(end)) >= 0]:
            thought, rest = self._held[: min(found)], self._held[min(found) :]
            if thought:
                yield Reasoning(thought)
            if isinstance(self._after, ToolParser) and not rest.startswith(self._end):
                self._after.closers = (*self._after.closers, self._end)
            yield from self._go_on(rest.removeprefix(self._end))
            return
        keep = max(begun(self._held, end) for end in self._ends)
        ready, self._held = _split(self._held, keep)
        if ready:
            yield Reasoning(ready)

    @property
    def held(self) -> int:
        """See :class:`Parser`."""
        return self._after.held if self._thinks is False else len(self._held)

    def _go_on(self, rest: str) -> Iterator[Part]:
        self._thinks, self._held = False, ""
        yield from self._after.push(rest)

    def finish(self) -> Iterator[Part]:
        """What was held back."""
        if self._held:
            yield Reasoning(self._held) if self._thinks else Content(self._held)
        yield from self._after.finish()


@dataclass
class ToolParser(Parser):
    """Text with calls. White space before a call and separators of calls are not content."""

    ids: Random = field(default_factory=SystemRandom)
    """What the calls' ids are drawn from."""
    functions: Collection[str] | None = None
    """The names that a call may have; None: any."""
    _number: int = -1
    """Of the last call."""
    _held: str = ""
    _call: CallScanner | None = None
    _opening: str = ""
    """The start of the call, which becomes content if the call is invalid."""
    closers: tuple[str, ...] = ()
    """Text after a call that is not content."""
    _may_close: bool = False
    """Whether only white space and closers follow the last call so far."""

    begin: ClassVar[str]
    """The start of a call."""
    markers: ClassVar[tuple[str, ...]] = ()
    """All markers; if they are special tokens, they must be kept in the text."""
    written: ClassVar[tuple[tuple[str, str, str], ...]]
    """The text of a call before the function's name, between name and arguments, and after them."""
    trigger: ClassVar[str]
    """The common start of these, which no other text has."""

    def push(self, text: str) -> Iterator[Part]:
        """Content, and calls."""
        self._held += text
        while self._held:
            if self._call is None:
                content, begins = self._until_call()
                if content:
                    self._may_close = False
                    yield Content(content)
                if not begins:
                    return
                self._call = self._scanner()
            used, parts = self._call.feed(self._held)
            self._held = self._held[used:]
            yield from self._numbered(parts)
            if not self._call.ended:
                return
            ended, self._call = self._call, None
            self._may_close = not ended.wrong
            if ended.wrong:
                yield Content(self._opening + ended.raw)

    def finish(self) -> Iterator[Part]:
        """The rest; a call that is not certain is content, an incomplete closer is not."""
        if self._may_close and self._call is None and self._closes(self._held.strip()):
            self._held = ""
        if self._call is not None and not self._call.named:
            yield Content(self._opening + self._call.raw)
        elif self._call is None and (self._held.strip() or self._number < 0) and self._held:
            yield Content(self._held)

    @property
    def held(self) -> int:
        """See :class:`Parser`."""
        uncertain = self._call is not None and not self._call.named
        return len(self._held) + (len(self._opening + self._call.raw) if self._call and uncertain else 0)

    def _closes(self, text: str) -> bool:
        """Whether a closer begins with a text."""
        return any(closer.startswith(text) for closer in self.closers)

    def _numbered(self, parts: list[Call]) -> Iterator[Part]:
        for part in parts:
            if part.name is not None:
                self._number += 1
                part = part._replace(id=self._new_id())
            yield part._replace(number=self._number)

    def _until_call(self) -> tuple[str, bool]:
        """The content before a call, and whether there is one; a possible start of a call stays held."""
        if self._may_close:
            for closer in self.closers:
                left = self._held.lstrip()
                if left.startswith(closer):
                    self._held = left[len(closer) :]
            if self._closes(self._held.lstrip()):
                return "", False
        content, begin, rest = self._held.partition(self.begin)
        if begin:
            self._held, self._opening = rest, begin
            return content.rstrip(), True
        keep = begun(self._held, self.begin)
        tail = _split(self._held, keep)[0][-_SPACES:]
        keep += len(tail) - len(tail.rstrip())
        content, self._held = _split(self._held, keep)
        return content, False

    def _scanner(self) -> CallScanner:
        return CallScanner(self.functions)

    def _new_id(self) -> str:
        return f"call_{self.ids.getrandbits(96):024x}"


@dataclass
class HermesParser(ToolParser):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes 2 Pro and later, Qwen 2.5 and 3."""

    closers: tuple[str, ...] = ("</tool_call>",)

    begin = trigger = "<tool_call>"
    markers = (begin, "</tool_call>")
    written = (
        ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
        ('<tool_call>{"name": "', '", "arguments": ', "}</tool_call>"),
    )


class LlamaParser(ToolParser):
    """``{"name": ..., "parameters": {...}}``, several with ``;`` in between: Llama 3.1 and later.

    An answer has calls if it begins with one, or with ``<|python_tag|>``.
    """

    begin = "<|python_tag|>"
    markers = (begin,)
    trigger = '{"name": "'
    written = ((trigger, '", "parameters": ', "}"),)
    _content_only = False

    def push(self, text: str) -> Iterator[Part]:
        """Content alone, unless the answer begins with a call."""
        return ContentOnly().push(text) if self._content_only else super().push(text)

    def _until_call(self) -> tuple[str, bool]:
        left = self._held.lstrip()
        if self._number >= 0:
            left = left.removeprefix(";").lstrip()
        if left.startswith(self.begin):
            rest = left.removeprefix(self.begin)
            left = rest.lstrip()
            self._opening = self.begin + rest[: len(rest) - len(left)]
        if left.startswith("{"):
            self._held = left
            return "", True
        if not left or self.begin.startswith(left):
            return "", False
        content, self._held, self._content_only = self._held, "", True
        return content, False


class MistralParser(ToolParser):
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``; from version 11 on ``[TOOL_CALLS]name[ARGS]{...}``."""

    begin = trigger = "[TOOL_CALLS]"
    _arguments = "[ARGS]"
    written = ((begin, _arguments, ""), ('[TOOL_CALLS][{"name": "', '", "arguments": ', "}]"))
    markers = (begin, _arguments, "[CALL_ID]")
    _in_list = False

    def _until_call(self) -> tuple[str, bool]:
        if not (self._in_list and self._may_close):
            content, begins = super()._until_call()
            self._in_list = begins
            return content, begins
        self._opening, left = "", self._held.lstrip()
        if left.startswith(","):
            self._held = left[1:]
            return "", True
        if left.startswith("]"):
            self._held, self._in_list = left[1:], False
        elif left:
            self._in_list = False
        else:
            return "", False
        return self._until_call()

    def _scanner(self) -> CallScanner:
        return MistralScanner(self.functions)

    def _new_id(self) -> str:
        return "".join(self.ids.choices(string.ascii_letters + string.digits, k=9))


class ListParser(ToolParser):
    """``[{"name": ..., "parameters": {...}}, ...]`` as the whole answer, enforced by a grammar. Nothing is content."""

    begin = "["
    _separators = "[,]"

    def _until_call(self) -> tuple[str, bool]:
        self._held = self._held.lstrip(self._separators + string.whitespace)
        return "", bool(self._held)

    def finish(self) -> Iterator[Part]:
        """What was held back is a call that a limit has cut before its arguments."""
        yield from ()


@dataclass
class ArgumentsParser(Parser):
    """The arguments of one call as the whole answer, enforced by a grammar."""

    name: str
    ids: Random = field(default_factory=SystemRandom)
    _begun: bool = False

    def push(self, text: str) -> Iterator[Part]:
        """As it stands."""
        if not self._begun:
            self._begun = True
            yield Call(0, text, f"call_{self.ids.getrandbits(96):024x}", self.name)
        elif text:
            yield Call(0, text)

    def finish(self) -> Iterator[Part]:
        """Nothing is held back."""
        yield from ()


def forced_parser(name: str, ids: Random) -> Parser:
    """The parser of an answer that a grammar restricts to arguments of `name`, or for "" to a list of calls."""
    return ArgumentsParser(name, ids) if name else ListParser(ids)


TOOLS: dict[str, type[ToolParser]] = {"hermes": HermesParser, "llama3_json": LlamaParser, "mistral": MistralParser}
"""Parsers of calls by name."""


@dataclass
class CallScanner:
    """Reads one JSON object with the name of a function and arguments, and streams the text of the arguments.

    Anything else is `wrong`: not a call. `functions`: the possible names; None: any.
    """

    functions: Collection[str] | None = None
    raw: str = ""
    """All of it, until it is certain to be a call."""
    named: bool = False
    ended: bool = False
    wrong: bool = False
    _depth: int = 0
    _in_string: bool = False
    _escaped: bool = False
    _key: str | None = None
    _token: list[str] = field(default_factory=list)
    """Of the current string or value, at depth 1."""
    _name: str | None = None
    _has_arguments: bool = False
    _arguments: list[str] = field(default_factory=list)
    """Text not yet returned."""

    def feed(self, text: str) -> tuple[int, list[Call]]:
        """The number of characters that belong to the call, and the call's new parts."""
        used = 0
        while used < len(text) and not self.ended:
            self._take(text[used])
            used += 1
        if not self.named:
            self.raw += text[:used]
        return used, self._new_calls()

    def _new_calls(self) -> list[Call]:
        if self.wrong:
            return []
        arguments = "".join(self._arguments)
        if self.named:
            self._arguments.clear()
            return [Call(0, arguments)] if arguments else []
        if self._name is None or not self._has_arguments:
            return []
        self.named, self.raw = True, ""
        self._arguments.clear()
        return [Call(0, arguments, name=self._name)]

    def _may_call(self, name: str | None) -> bool:
        return name is not None and (self.functions is None or name in self.functions)

    def _take(self, char: str) -> None:
        if self._depth == 0:
            if char == "{":
                self._depth = 1
            elif not char.isspace():
                self.ended = self.wrong = True
            return
        if self._in_string:
            self._value(char)
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
            return
        if char == "}" and self._depth == 1:
            self._end_value()
            self._depth, self.ended = 0, True
            self.wrong |= self._name is None or not self._has_arguments
        elif char == "," and self._depth == 1:
            self._end_value()
        elif char == ":" and self._depth == 1 and self._key is None:
            self._key, self._token = _text("".join(self._token)), []
        elif self._depth > 1 or not char.isspace():
            self._depth += (char in "{[") - (char in "}]")
            self._in_string = char == '"'
            self._value(char)

    def _value(self, char: str) -> None:
        """Another character of the key or the value at hand."""
        if self._key not in ("arguments", "parameters"):
            self._token.append(char)
        else:
            self._has_arguments = True
            self._arguments.append(char)

    def _end_value(self) -> None:
        if self._key == "name" and self._name is None:
            self._name = _text("".join(self._token))
            if not self._may_call(self._name):
                self.ended = self.wrong = True
        self._key, self._token = None, []


class MistralScanner(CallScanner):
    """The same, or a name and then the object of its arguments."""

    _NAME: ClassVar[re.Pattern[str]] = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?(?=\{)")
    _ALLOWED: ClassVar[re.Pattern[str]] = re.compile(r"[\w.\-\[\]\s]*")
    _kind = ""
    _waiting = ""

    def feed(self, text: str) -> tuple[int, list[Call]]:
        """The number of characters that belong to the call, and the call's new parts."""
        if self._kind == "list":
            return super().feed(text)
        if self._kind == "named":
            used = 0
            while used < len(text) and not self.ended:
                self._bare(text[used])
                used += 1
            return used, [Call(0, text[:used])]
        before, self._waiting = len(self._waiting), self._waiting + text
        left = self._waiting.lstrip()
        if left[:1] in ("[", "{"):
            self._kind = "list"
            skipped = len(self._waiting) - len(left) + (left[0] == "[")
            self.raw = self._waiting[:skipped]
            used, parts = super().feed(self._waiting[skipped:])
            return skipped + used - before, parts
        found = self._NAME.match(self._waiting)
        if found is None:
            most = len(self._waiting) - len(left) + _NAME_CHARS
            end = min(self._ALLOWED.match(self._waiting).end(), most) + 1  # type: ignore[union-attr]
            self.raw, self.ended = self._waiting[:end], end <= len(self._waiting)
            self.wrong = self.ended
            return min(end - before, len(text)), []
        if not self._may_call(found[1]):
            self.raw, self.ended, self.wrong = self._waiting[: found.end()], True, True
            return found.end() - before, []
        self._kind, self.named = "named", True
        used, parts = self.feed(self._waiting[found.end() :])
        return found.end() + used - before, [Call(0, "".join(part.arguments for part in parts), name=found[1])]

    def _bare(self, char: str) -> None:
        """A character of bare arguments."""
        if self._in_string:
            self._in_string = char != '"' or self._escaped
            self._escaped = char == "\\" and not self._escaped
            return
        self._in_string = char == '"'
        self._depth += (char in "{[") - (char in "}]")
        self.ended = self._depth == 0


def begun(text: str, marker: str) -> int:
    """The length of a marker's prefix at the end of a text."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def _split(text: str, keep: int) -> tuple[str, str]:
    """A text without its last characters, and these."""
    return text[: len(text) - keep], text[len(text) - keep :]


def _text(token: str) -> str | None:
    """A string of JSON; None if it is none."""
    try:
        found = json.loads(token)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def make_parser(
    reasoning: str | None,
    tools: str | None,
    prompt: str,
    ids: Random | None = None,
    forced: str | None = None,
    functions: Collection[str] | None = None,
    calls_end: bool = True,
) -> Parser:
    """The parser of an answer to `prompt`, by the parsers' names; None: no thoughts, or no calls.

    `ids`: what the calls' ids are drawn from (default: the operating system's entropy). `forced`: see
    :func:`forced_parser`; it replaces `tools`. `functions`: the names that a call may have; None: any. `calls_end`:
    a call ends a thought; False where a grammar begins after the thought.
    """
    after: Parser = ContentOnly() if tools is None else TOOLS[tools](ids or SystemRandom(), functions)
    if forced is not None:
        after = forced_parser(forced, ids or SystemRandom())
    return after if reasoning is None else ThoughtParser(reasoning, prompt, after, calls_end)


class ContentFinder:
    """Finds the content in a text that comes in pieces, with its place."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    @property
    def held(self) -> int:
        """See :class:`Parser`."""
        return self._parser.held

    def push(self, text: str) -> Iterator[tuple[int, str]]:
        """The content that one more piece makes certain: its start, relative to that of the piece, and its text."""
        for at, char in enumerate(text, 1):
            for part in self._parser.push(char):
                if isinstance(part, Content):
                    yield at - self._parser.held - len(part.text), part.text
