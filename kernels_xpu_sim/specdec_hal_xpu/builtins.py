"""The builtins of the dialect: declarations, read from the emulator's headers, and the sources of their semantics."""

from __future__ import annotations

import fnmatch
import itertools
import re
import subprocess
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from specdec_hal.errors import CompileError
from specdec_hal.text import did_you_mean
from specdec_hal_xpu.cc import compiler, toolchain

SOURCES = Path(__file__).with_suffix(".txt")
KINDS = {"header": "public header", "guide": "programming guide", "kernel": "public kernels", "guess": "guess"}
VECTORS = ("int8x64", "uint8x64", "int16x32", "uint16x32", "int32x16", "uint32x16", "float16x32", "float32x16")
_TYPED = re.compile(rf"(\w+?)_({'|'.join(VECTORS)})(_m[zh])?")


@dataclass(frozen=True)
class Builtin:
    """A function at the outermost level of a header."""

    header: str  # of the emulator
    template: str  # "template <class T>", or nothing
    result: str
    name: str
    parameters: tuple[str, ...]  # as declared, without default values and without the caller's place

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"

    @cached_property
    def source(self) -> Source:
        """Where its semantics come from."""
        for source, words in sources():
            if any(fnmatch.fnmatchcase(self.source_name, name) for word in words for name in expand(word)):
                return source
        raise KeyError(self.source_name)

    @property
    def source_name(self) -> str:
        """The name in the table of sources: of what goes by the type of an argument, with that type."""
        place = place_of(self)
        if place is None or _TYPED.fullmatch(self.name):
            return self.name
        family, vector, form = place
        family, _, memory = family.partition("` of `")
        return f"{family}{form}({memory or vector})"

    def call(self, number: int) -> str:
        """A function that calls this one, to be compiled; not for templates."""
        names = [f"a{i}" for i in range(len(self.parameters))]
        declared = [re.sub(r"\s*\w+$", "", one) if " " in one else one for one in self.parameters]
        parameters = ", ".join(f"{kind} {name}" for kind, name in zip(declared, names, strict=True))
        back = "" if self.result == "void" else "return "
        return f"{self.result} entry_{number}({parameters}) {{ {back}{self.name}({', '.join(names)}); }}"


def expand(word: str) -> list[str]:
    """{a,b}c is ac and bc, as in a shell."""
    parts = [part.split(",") if i % 2 else [part] for i, part in enumerate(re.split(r"\{(.*?)\}", word))]
    return ["".join(choice) for choice in itertools.product(*parts)]


@dataclass(frozen=True)
class Source:
    """Where semantics come from: `kind` is a key of KINDS, `where` a header or whose kernels, or empty."""

    kind: str
    where: str = ""

    def __str__(self) -> str:
        return KINDS[self.kind] + (f" ({self.where})" if self.where else "")


@cache
def sources() -> list[tuple[Source, tuple[str, ...]]]:
    """The lines of the table: a source and patterns of names, unexpanded."""
    lines = (
        line.split(":", 1) for line in SOURCES.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")
    )
    return [(Source(*source.split(" ", 1)), tuple(names.split())) for source, names in lines]


@cache
def builtins() -> tuple[Builtin, ...]:
    """All of them, in the order of the headers.

    Raises:
        BackendUnavailableError: no compiler to read the headers with, or the emulator is not built.
    """
    include = toolchain().include
    header = f"{include}/xpu_sim/kernel/"
    command = [compiler(), "-std=gnu++17", "-E", f"-I{include}", "-x", "c++", f"{header}partition.h"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    within, found, depth, chunk = "", list[Builtin](), 0, ""
    for line in lines:
        if line.startswith("# "):
            path = line.split('"')[1]
            within = path[len(header) :] if path.startswith(header) else ""
            continue
        if not within:
            continue
        for part in re.findall(r'"(?:[^"\\]|\\.)*"|[{}();]|[^{}();"]+', line):
            if part == "{":
                if depth == 0:
                    found += _read(within, chunk)
                depth += 1
            elif part == "}":
                depth -= 1
                chunk = ""
            elif part == ";" and depth == 0:
                found += _read(within, chunk)
                chunk = ""
            elif depth == 0:
                chunk += part
        chunk += " "
    return tuple(found)


def named(word: str) -> list[Builtin]:
    """Those with `word` in their names, whatever the case.

    Raises:
        CompileError: there are none.
    """
    found = [one for one in builtins() if word.lower() in one.name.lower()]
    if not found:
        hint = did_you_mean(word, {one.name for one in builtins()}) or "; leave the word out to see all of them"
        raise CompileError(f"expected a builtin with '{word}' in its name, found none{hint}")
    return found


def _read(header: str, chunk: str) -> list[Builtin]:
    """The function that a declaration at the outermost level declares, if it is one."""
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)\)?|\[\[.*?\]\]|\b(?:inline|static|constexpr|noexcept)\b", " ", chunk)
    text = re.sub(r"::xpu_sim::Site xpu_sim_site = [\w:]+\(\)", "", " ".join(text.split()))
    match = re.fullmatch(r"(template ?<.*?> )?([\w:<>, *&]+?) (\w+) ?\((.*)\)", text.strip())
    if match is None or match[2] in ("typedef", "using") or match[3].startswith("xpu_sim"):
        return []
    parameters = [re.sub(r" = .*", "", one).strip() for one in _split(match[4])]
    return [Builtin(header, (match[1] or "").strip(), match[2], match[3], tuple(one for one in parameters if one))]


def _split(parameters: str) -> list[str]:
    """At the commas outside of angle brackets."""
    return re.split(r",(?![^<]*>)", parameters)


def place_of(one: Builtin) -> tuple[str, str, str] | None:
    """Row, column and form in the table of vectors."""
    if match := _TYPED.fullmatch(one.name):
        return match[1], match[2], match[3] or ""
    if match := re.fullmatch(r"(v(?:load|store)2_(?:lm|sm|gsm))(\w*)", one.name):
        vector = next(v for v in VECTORS if re.search(rf"\b{v}_t\b", " ".join(one.parameters)))
        memory = re.search(r"\b(b?float16)\*", " ".join(one.parameters))
        return match[1] + (f"` of `{memory[1]}" if memory else ""), vector, match[2]
    return None
