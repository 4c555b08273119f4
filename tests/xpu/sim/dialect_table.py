"""Every builtin of the dialect, read from the emulator's headers, rendered as a page of the site."""

from __future__ import annotations

import fnmatch
import itertools
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
INCLUDE = ROOT / "kernels_xpu_sim" / "sim" / "include"
QUALIFIERS = Path(__file__).parent / "builtins" / "qualifiers.md"
SOURCES = Path(__file__).parent / "builtins" / "sources.txt"
KINDS = {
    "header": "Public headers of the vendor's, as open repositories have them",
    "guide": "The vendor's programming guides",
    "kernel": "Published kernels and wrappers, by what they compute",
    "guess": "Guessed, by the name and by what hardware usually does; [what exactly](../extend/kunlun.md#guessed)",
}

VECTORS = ("int8x64", "uint8x64", "int16x32", "uint16x32", "int32x16", "uint32x16", "float16x32", "float32x16")
_TYPED = re.compile(rf"(\w+?)_({'|'.join(VECTORS)})(_m[zh])?")

_TEXT = """\
# The builtins of the XPU emulator

What a kernel may call, as [the emulator](../extend/xpu_emulator.md) has it. This page is rendered from its headers;
a test compiles a call of each entry in every build.

## Vectors

Names: `vv` of two vectors, `sv` of a scalar, the left operand, and a vector; then the operation, the type, and what
happens to lanes whose mask bit is 0: `_mz` makes them zero (a store writes zero), `_mh` keeps `hold` (a store keeps
memory). `vvadd_int32x16_mz` is in the row `vvadd`, in the column `int32x16`. A dot is the form without a suffix.

The parameters are those of the first form: V is the vector, T its element, M its mask, an integer with a bit for each
lane. `_mz` takes a mask after them, `_mh` first `V hold` (a store has none), then the mask; a mask that is left out is
-1, all lanes. Comparisons give a mask. The count of a shift (`sll`, `srl`, `sra`) is the first operand; `vvmac` and
`svmac` give a * b + c.

A vector is built from a scalar, `int32x16_t v(0)`, or from its first lanes, `{1, 2}`; `v[i]` is a lane; and
`reinterpret_cast` takes vectors by value. `VType<T>` and `simd_type_trait<T>::type` are the vector of elements T.

`vload2` and `vstore2` are of two vectors, whose type decides. Where memory is `float16` or `bfloat16` and the vectors
are `float32x16_t`, they convert; `_unordered` may permute the lanes, and a store undoes what the load did.
"""

_SOURCES_TEXT = """\
## Where the semantics come from

What each does is as sure as its source. `{a,b}` stands for each; what goes by the type of an argument has it in
parentheses.
"""


@dataclass(frozen=True)
class Builtin:
    """A function at the outermost level of a header."""

    header: str
    template: str  # "template <class T>", or nothing
    result: str
    name: str
    parameters: tuple[str, ...]  # as declared, without default values and without the caller's place

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"

    @property
    def source_name(self) -> str:
        """The name in sources.txt: of what goes by the type of an argument, with that type."""
        place = _place(self)
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


def source_lines() -> list[tuple[str, str]]:
    """The kind and the names, unexpanded, of each line of sources.txt."""
    lines = SOURCES.read_text().splitlines()
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return [(kind, names.strip()) for kind, _, names in pairs]


def source_of(one: Builtin) -> str:
    """Where its semantics come from: a key of KINDS."""
    for kind, names in source_lines():
        if any(fnmatch.fnmatchcase(one.source_name, name) for word in names.split() for name in expand(word)):
            return kind
    raise KeyError(one.source_name)


def builtins() -> list[Builtin]:
    """All of them, in the order of the headers."""
    folder = INCLUDE / "xpu_sim" / "kernel"
    command = ["g++", "-std=gnu++17", "-E", f"-I{INCLUDE}", "-x", "c++", str(folder.with_suffix(".h"))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    header, found, depth, chunk = "", [], 0, ""
    for line in lines:
        if line.startswith("# "):
            path = line.split('"')[1]
            header = path[len(f"{folder}/") :] if path.startswith(f"{folder}/") else ""
            continue
        if not header:
            continue
        for part in re.findall(r'"(?:[^"\\]|\\.)*"|[{}();]|[^{}();"]+', line):
            if part == "{":
                if depth == 0:
                    found += _read(header, chunk)
                depth += 1
            elif part == "}":
                depth -= 1
                chunk = ""
            elif part == ";" and depth == 0:
                found += _read(header, chunk)
                chunk = ""
            elif depth == 0:
                chunk += part
        chunk += " "
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


def render(all_builtins: list[Builtin]) -> str:
    """The page."""
    table: dict[str, dict[str, list[str]]] = {}
    rest: dict[str, dict[str, list[str]]] = {}
    for one in all_builtins:
        place = _place(one)
        if place is None:
            rest.setdefault(one.header, {}).setdefault(one.name, []).append(str(one)[len(one.name) :])
            continue
        family, vector, form = place
        forms = table.setdefault(family, {}).setdefault(vector, [])
        if form not in forms:
            forms.append(form)
    shapes: dict[str, str] = {}
    for one in all_builtins:
        if (place := _place(one)) is not None:
            shapes.setdefault(place[0], _shape(one, place[1]))
    lines = [_TEXT, f"| | parameters | {' | '.join(VECTORS)} |", f"|---|---|{'---|' * len(VECTORS)}"]
    for family, row in table.items():
        cells = [" ".join(f"`{form}`" if form else "·" for form in row.get(vector, [])) for vector in VECTORS]
        lines.append(f"| `{family}` | `{shapes[family]}` | {' | '.join(cells)} |")
    lines += ["", QUALIFIERS.read_text()]
    lines += ["", "## Everything else", "", "| header | builtin | parameters |", "|---|---|---|"]
    for header, names in rest.items():
        for name, parameters in names.items():
            shown = "<br>".join(f"`{one}`" for one in parameters)
            lines.append(f"| `{header}` | `{name}` | {shown} |")
    lines += ["", _SOURCES_TEXT, "| from | builtins |", "|---|---|"]
    for kind, names in source_lines():
        shown = "all others" if names == "*" else " ".join(f"`{word}`" for word in names.split())
        lines.append(f"| {KINDS[kind]} | {shown} |")
    return "\n".join(lines) + "\n"


def _shape(one: Builtin, vector: str) -> str:
    """Its parameters and result with V for the vector, T for its elements and M for its mask."""
    known = {f"{vector}_t": "V", one.result if one.name.startswith("vextract") else "": "T"}
    parts = []
    for parameter in one.parameters:
        kind, _, name = parameter.rpartition(" ")
        kind = kind if name == "offsets" else known.get(kind, kind.replace(f"{vector}_t", "V"))
        parts.append(f"{'T' if name == 's' else 'M' if name == 'mask' else kind} {name}")
    masks = one.name.startswith(("vveq", "vvneq", "vvlt", "vvle", "sveq", "svneq", "svlt", "svle"))
    scalar = one.name.startswith(("vextract", "vrmax"))
    result = "M" if masks else "T" if scalar else one.result.replace(f"{vector}_t", "V")
    return f"({', '.join(parts)})" + ("" if result == "void" else f" -> {result}")


def _place(one: Builtin) -> tuple[str, str, str] | None:
    """Row, column and form in the table of vectors."""
    if match := _TYPED.fullmatch(one.name):
        return match[1], match[2], match[3] or ""
    if match := re.fullmatch(r"(v(?:load|store)2_(?:lm|sm|gsm))(\w*)", one.name):
        vector = next(v for v in VECTORS if re.search(rf"\b{v}_t\b", " ".join(one.parameters)))
        memory = re.search(r"\b(b?float16)\*", " ".join(one.parameters))
        return match[1] + (f"` of `{memory[1]}" if memory else ""), vector, match[2]
    return None


if __name__ == "__main__":
    sys.stdout.write(render(builtins()))
