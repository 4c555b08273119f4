"""Report kernels whose declaration in host code differs from the definition, before the linker's error."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from specdec_hal.errors import CompileError
from specdec_hal_xpu.launches import split_at_commas

_UNDEFINED = "Uw"


def check_declarations(inputs: Sequence[str]) -> None:
    """Compare undefined and defined functions of objects.

    A needed function that only exists with other parameters has a wrong declaration. ``extern "C"`` names carry no
    parameters.

    Raises:
        CompileError: a mismatch; the message names the differing parameters.
    """
    needed: dict[str, str] = {}  # by whole symbol: the object
    defined: dict[str, str] = {}
    for path in inputs:
        for kind, symbol in _symbols(path):
            (needed if kind in _UNDEFINED else defined).setdefault(symbol, path)
    by_name: dict[str, list[list[str]]] = {}
    for symbol in defined:
        name, parameters = _parts(symbol)
        by_name.setdefault(name, []).append(parameters)
    for symbol in needed:
        name, declared = _parts(symbol)
        if symbol in defined or name not in by_name or name.startswith("std::"):
            continue
        actual = by_name[name][0]
        differing = [
            f"argument {i + 1} is declared {one}, but defined {other}"
            for i, (one, other) in enumerate(zip(declared, actual, strict=False))
            if one != other
        ] or [f"{len(declared)} parameters are declared, but {len(actual)} defined"]
        raise CompileError(
            f"{name}: expected the declaration to be as the definition, but {'; '.join(differing)}; make them the same"
        )


def _symbols(path: str) -> list[tuple[str, str]]:
    """Kind and demangled name of each global function or variable; none without nm."""
    command = ["nm", "-C", "-P", "-g", *(["-D"] if path.endswith(".so") else []), path]
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return []
    found = []
    for line in out.splitlines():
        match = re.fullmatch(r"(.+?) ([A-Za-z])(?: [0-9a-f]+)* *", line)
        if match:
            found.append((match[2], match[1]))
    return found


def _parts(symbol: str) -> tuple[str, list[str]]:
    """ "void f<float>(int, g<a, b>)" as its name, "f<float>", and its parameters. No parentheses: no parameters."""
    end = symbol.rfind(")")
    depth, begin = 0, end
    while begin >= 0:
        depth += (symbol[begin] == ")") - (symbol[begin] == "(")
        if depth == 0:
            break
        begin -= 1
    if end < 0 or begin < 0:
        return symbol, []
    return symbol[:begin].removeprefix("void "), split_at_commas(symbol[begin + 1 : end])
