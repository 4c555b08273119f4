"""Kernel launches in host code, ``kernel<T><<<clusters, cores, stream>>>(args)``, as calls that C++ compilers read."""

from __future__ import annotations

import re

from specdec_hal.errors import CompileError

_SKIPPED = re.compile(
    r"""
      //(?:\\\n|[^\n])*                      # comments; a backslash continues one
    | /\*.*?(?:\*/|\Z)
    | R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"   # raw strings
    | "(?:\\.|[^"\\\n])*"
    | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'    # not the separators of 1'000'000
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD = r"[A-Za-z_]\w*(?:\s*##\s*\w+)*"  # a macro may paste it
_NAME = re.compile(rf"(?:(?:::)?\s*{_WORD}\s*::\s*)*(?:::)?{_WORD}\s*\Z")


def rewrite_launches(text: str, name: str = "the source") -> str:
    """`text` with every launch made a call of ``XPU_SIM_CHEVRON``; lines stay where they are.

    Raises:
        CompileError: a launch that is not complete, with file and line.
    """
    code = without_literals(text)
    launches = []
    at = code.find("<<<")
    while at >= 0:
        begin = _kernel_begin(code, at)
        end = _chevron_end(code, at + 3)
        if begin == at or end < 0 or not code[end + 3 :].lstrip().startswith("("):
            line = text.count("\n", 0, at) + 1
            raise CompileError(
                f"{name}:{line}: expected a launch, kernel<<<clusters, cores, stream>>>(args), got an incomplete one; "
                "complete it, or call xpu_sim::launch"
            )
        launches.append((begin, at, end))
        at = code.find("<<<", end + 3)
    for begin, at, end in reversed(launches):
        kernel, configuration = text[begin:at].rstrip(), text[at + 3 : end]
        gap = text[begin + len(kernel) : at]  # line breaks stay
        label = re.sub(r"\s+", " ", kernel).replace("\\", "\\\\").replace('"', '\\"')
        call = f'XPU_SIM_CHEVRON("{label}", ({kernel}){gap}, {configuration})'
        text = text[:begin] + call + text[end + 3 :]
    return text


def without_literals(text: str) -> str:
    """`text` with comments and literals replaced by blanks of the same length."""
    return _SKIPPED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _kernel_begin(code: str, end: int) -> int:
    """Where the kernel's name before `end` begins: a qualified name, perhaps with template arguments."""
    at = len(code[:end].rstrip())
    if at == 0:
        return end
    if code[at - 1] == ">":
        depth, parentheses = 0, 0
        while at > 0:
            at -= 1
            if code[at] in ")]":
                parentheses += 1
            elif code[at] in "([":
                parentheses -= 1
            elif parentheses == 0 and code[at] == ">":
                depth += 1
            elif parentheses == 0 and code[at] == "<":
                depth -= 1
                if depth == 0:
                    break
    name = _NAME.search(code[:at])
    if name is None:
        return end
    return name.start() + len(name[0]) - len(name[0].lstrip())


def _chevron_end(code: str, at: int) -> int:
    """Where the ``>>>`` is that closes a launch configuration; -1: nowhere."""
    depth = 0
    for i in range(at, len(code)):
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
            if depth < 0:
                return -1
        elif depth == 0 and code.startswith(">>>", i):
            return i
        elif depth == 0 and code[i] == ";":
            return -1
    return -1
