#!/usr/bin/env python3
"""Compare the machine code of CUDA kernels in two builds, kernel by kernel.

    tools/compare_sass.py before/libspecdec_cuda.so after/libspecdec_cuda.so [--diff]

Each side is a library, an object file or a folder of them; `cuobjdump` and `c++filt` must be on PATH. Kernels are
matched by architecture and by their demangled name without its parameter list, so that the types of parameters may be
renamed. Instructions are compared without addresses and encodings. Where two kernels differ only in the places of
their parameters (offsets into the constant bank, ``c[0x0][..]``, from where the parameters begin), they count as equal
"but for parameter offsets", and the last line says how many do. The exit status is 1 if a kernel differs or is missing.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PARAMETERS_AT = {80: 0x160, 86: 0x160, 89: 0x160, 90: 0x210, 100: 0x380, 120: 0x380}
"""Where parameters begin in constant bank 0, by compute capability."""

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;?\s*/\* 0x[0-9a-f]+ \*/\s*$")
_BANK = re.compile(r"c\[0x0\]\[((?:U?R\d+\s*\+\s*)?)(0x[0-9a-f]+)\]")

Kernels = dict[tuple[int, str], list[str]]


def main() -> int:
    """Print what differs; 1 if anything does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--diff", action="store_true", help="show the instructions that differ")
    options = parser.parse_args()
    before, after = read(options.before), read(options.after)
    if not before:
        sys.exit(f"{options.before}: expected CUDA kernels, found none; give a library or objects compiled by nvcc")
    moved = bad = 0
    for key in sorted({*before, *after}):
        title = f"sm_{key[0]} {key[1]}"
        if key not in before or key not in after:
            print(f"only {'after' if key in after else 'before'}: {title}")
            bad += 1
            continue
        old, new = before[key], after[key]
        if old == new:
            continue
        masked = [[mask(line, key[0]) for line in side] for side in (old, new)]
        if masked[0] == masked[1]:
            moved += 1
            continue
        bad += 1
        changes = [
            line for line in difflib.unified_diff(*masked, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")
        ]
        print(f"differs: {title}: {len(old)} instructions, then {len(new)}; {len(changes)} lines of difference")
        if options.diff:
            print("\n".join(f"    {line}" for line in changes))
    equal = len({*before, *after}) - bad - moved
    print(f"{equal} kernels equal, {moved} equal but for parameter offsets (masked), {bad} differ or are missing")
    return 1 if bad else 0


def read(path: Path) -> Kernels:
    """Instructions by architecture and kernel."""
    files = sorted(path.glob("*.o")) if path.is_dir() else [path]
    found: dict[tuple[int, str], list[str]] = {}
    for file in files:
        for arch, name, code in kernels_of(file):
            found[arch, name] = code
    names = sorted({name for _, name in found})
    shown = dict(zip(names, map(bare, run("c++filt", *names).splitlines()), strict=True)) if names else {}
    kernels: Kernels = {}
    for (arch, name), code in found.items():
        if (arch, shown[name]) in kernels:
            sys.exit(f"{path}: two kernels are called {shown[name]}; they cannot be told apart without parameter types")
        kernels[arch, shown[name]] = code
    return kernels


def kernels_of(file: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Architecture, mangled name and instructions of every kernel in a file."""
    arch, name, code = 0, "", list[str]()
    for line in run("cuobjdump", "-sass", str(file)).splitlines():
        if (found := re.match(r"\s*code for sm_(\d+)", line)) or (found := re.match(r"\s*Function : (\S+)", line)):
            if name:
                yield arch, name, code
            arch, name, code = (int(found[1]), "", []) if found[1].isdigit() else (arch, found[1], [])
        elif name and (found := _INSTRUCTION.match(line)):
            code.append(found[1])
    if name:
        yield arch, name, code


def bare(demangled: str) -> str:
    """Without return type and parameter list: what stands before the parenthesis that closes last, outside of <>."""
    text = demangled.replace("(anonymous namespace)", "{anonymous}")
    depth, end = 0, len(text)
    for i in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[i], 0)
        if depth == 0 and text[i] == "(":
            end = i
            break
    return text[:end].removeprefix("void ")


def mask(instruction: str, arch: int) -> str:
    """The instruction without the places of parameters."""
    first = PARAMETERS_AT[arch]
    return _BANK.sub(lambda m: f"c[0x0][{m[1]}parameter]" if int(m[2], 16) >= first else m[0], instruction)


def run(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
