"""YAML text to plain values within limits, since a few bytes of YAML can expand beyond any memory."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from specdec_hal.errors import ConfigError
from specdec_hal.text import one_line, short

MAX_VALUES = 10_000
"""Most keys and values of a document, with aliases expanded."""
MAX_DEPTH = 64
"""Most sections and lists inside each other."""
MAX_NUMBER = 100
"""Most characters of a number."""

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_FORBIDDEN = re.compile("[\0\ud800-\udfff]")


def read_yaml(text: str, source: str) -> Any:
    """The single document in `text`; otherwise ConfigError, which starts with `source` and the position."""
    check_text(text, source)
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{source}{where}: {one_line(what)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {one_line(error)}") from error


def check_text(text: str, source: str) -> None:
    """Refuse NUL and lone surrogates, which represent bytes that are not UTF-8."""
    if problem := _problem(text):
        raise ConfigError(f"{source}: not YAML: {problem}")


def _problem(text: str) -> str | None:
    found = _FORBIDDEN.search(text)
    return None if found is None else f"expected text, got the character U+{ord(found[0]):04X}; remove it"


class _Loader(yaml.SafeLoader):
    """Safe YAML with unique keys, ``1e-3`` as a number, and the limits."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._values = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Count while composing, before anything is expanded."""
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._values
        self._depth += 1
        if self._depth > MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            raise _refusal(f"expected at most {MAX_DEPTH} sections and lists inside each other", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                raise _refusal(f"the alias '*{event.anchor}' stands for a value around it", event.start_mark)
            self._values += self._sizes[node]
        elif node is not None:
            self._values += 1
            self._sizes[node] = self._values - before
        if self._values > MAX_VALUES:
            what = f"expected at most {MAX_VALUES} keys and values, those after aliases counted each time"
            raise _refusal(what, event.start_mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A scalar that does not fit its tag is an error at its position."""
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        if problem := _problem(node.value):
            raise _refusal(problem, node.start_mark)
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER:
            what = f"expected a number of at most {MAX_NUMBER} characters, got {len(node.value)}: {short(node.value)}"
            raise _refusal(what, node.start_mark)
        try:
            return super().construct_object(node, deep)
        except yaml.MarkedYAMLError:
            raise
        except Exception as error:  # PyYAML passes on all exceptions of Python's conversions
            tag = f"!!{node.tag.rpartition(':')[2]}"
            raise _refusal(f"cannot be read as {tag}: {short(node.value)}", node.start_mark) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _refusal(f"expected a name as key, got {short(key)}", key_node.start_mark)
            if key in seen:
                raise _refusal(f"duplicate key {short(key)}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _refusal(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


# PyYAML reads YAML 1.1, where floats need a dot and a signed exponent, and 1e-3 would be a string.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
