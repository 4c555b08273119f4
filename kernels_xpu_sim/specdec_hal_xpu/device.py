"""Differences of the device that this machine's compiler does not explain.

Searches kernels for types of another size and for vector assembly, which is not modelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from specdec_hal_xpu.launches import without_comments, without_literals

_DEVICE_FUNCTION = re.compile(r"\b__(?:global|device)__\b|__attribute__\s*\(\s*\(\s*global\s*\)\s*\)")
_TYPE = re.compile(r"\b(?:long\s+long|long\s+double|long|double)\b")
_ASSEMBLY = re.compile(r"\b(?:asm|__asm__)\s*(?:\b(?:volatile|__volatile__)\b\s*)?\(")
_VECTOR_CONSTRAINT = re.compile(r'"[=+&]*[vM]"')
_LINE = re.compile(r'^[ \t]*#[ \t]*line[ \t]+(\d+)[ \t]+"(.*)"', re.MULTILINE)
_SAYS = {
    "long": "'long' has 32 bits on the device and 64 here; use int or int64_t",
    "double": "the device has no 'double'; use float",
}


def type_warnings(text: str, name: str) -> list[str]:
    """A warning for each line of a device function that names `long` or `double`: ``k.xpu:3: warning: ...``."""
    code = without_literals(text)
    found: dict[str, None] = {}
    for begin, end in _device_functions(code):
        for match in _TYPE.finditer(code, begin, end):
            word = "double" if "double" in match[0] else match[0]
            if word in _SAYS:
                found[f"{_site(text, match.start(), name)}: warning: {_SAYS[word]}"] = None
    return list(found)


def vector_assembly(text: str, name: str) -> list[str]:
    """An error for the first piece of vector assembly, if there is one, with its first instruction."""
    code = without_comments(text)
    pieces = []
    for match in _ASSEMBLY.finditer(code):
        statement = code[match.end() - 1 : _closing(code, match.end() - 1, "()")]
        if _VECTOR_CONSTRAINT.search(statement):
            named = re.search(r'"\s*([\w.]+)', statement)
            pieces.append((_site(text, match.start(), name), named[1] if named else "?"))
    if not pieces:
        return []
    site, instruction = pieces[0]
    more = f" and {len(pieces) - 1} more" if pieces[1:] else ""
    return [
        f"{site}: error: vector assembly ('{instruction}'{more}) is not modelled: expected C++ with the builtins of "
        "vectors; specdec-hal xpu builtins lists them"
    ]


def _device_functions(code: str) -> Iterator[tuple[int, int]]:
    """From each qualifier to the end of its body or declaration."""
    for match in _DEVICE_FUNCTION.finditer(code):
        at, depth = match.end(), 0
        while at < len(code) and (depth or code[at] not in ";{"):
            depth += (code[at] == "(") - (code[at] == ")")
            at += 1
        yield match.start(), _closing(code, at, "{}") if code[at : at + 1] == "{" else at


def _closing(code: str, at: int, pair: str) -> int:
    """After the bracket that closes the one at `at`; the end of the text if there is none."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] == pair[0]) - (code[i] == pair[1])
        if depth == 0:
            return i + 1
    return len(code)


def _site(text: str, at: int, name: str) -> str:
    """The file and line of a position, by #line directives."""
    start, first = 0, 1
    for match in _LINE.finditer(text, 0, at):
        start, first, name = text.find("\n", match.end()) + 1, int(match[1]), match[2]
    return f"{name}:{first + text.count(chr(10), start, at)}"
