"""Rewrite constructs that C++ compilers do not accept to calls: kernel launches in host code, ``kernel<T><<<clusters,
cores, stream>>>(args)``, and casts of the device's vectors.
"""

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
    """`text` with every launch as a call of ``XPU_SIM_CHEVRON``; line numbers are unchanged.

    Raises:
        CompileError: an incomplete launch, with file and line.
    """
    # A backslash that continues a macro's line counts as a blank, but is kept.
    code = re.sub(r"\\(?=\r?\n)", " ", without_literals(text))
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
        kernel_end = begin + len(code[begin:at].rstrip())
        kernel, configuration = text[begin:kernel_end], text[at + 3 : end]
        gap = text[kernel_end:at]  # line breaks stay
        label = re.sub(r"(?:\\\r?\n|\s)+", " ", kernel).replace("\\", "\\\\").replace('"', '\\"')
        call = f'XPU_SIM_CHEVRON("{label}", ({kernel}){gap}, {configuration})'
        text = text[:begin] + call + text[end + 3 :]
    return text


_VECTOR_CAST = re.compile(
    r"\breinterpret_cast(?=\s*<\s*(?:const\s+)?(?:u?int(?:8x64|16x32|32x16)|float(?:16x32|32x16))_t\s*>)"
)


def rewrite_vector_casts(text: str) -> str:
    """`text` with value casts of vectors, impossible for C++ classes, as calls; line numbers are unchanged."""
    for match in reversed(list(_VECTOR_CAST.finditer(without_literals(text)))):
        text = f"{text[: match.start()]}xpu_sim_{text[match.start() :]}"
    return text


def without_literals(text: str) -> str:
    """`text` with comments and literals replaced by blanks of the same length."""
    return _SKIPPED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def without_comments(text: str) -> str:
    """`text` with comments replaced by blanks of the same length; literals stay."""
    return _SKIPPED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]) if match[0].startswith("/") else match[0], text)


def split_at_commas(text: str) -> list[str]:
    """The parts between commas that no bracket encloses, stripped; without empty ones."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def _kernel_begin(code: str, end: int) -> int:
    """The start of the kernel's name before `end`: a qualified name, possibly with template arguments."""
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
    """The position of the ``>>>`` that closes a launch configuration, or -1."""
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
