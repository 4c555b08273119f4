"""The page of builtins. Write it: ``python -m tests.xpu.sim.dialect_table > docs/reference/xpu_builtins.md``"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from specdec_hal_xpu.builtins import VECTORS, Builtin, builtins, place_of, sources

QUALIFIERS = Path(__file__).parent / "builtins" / "qualifiers.md"

_TEXT = """\
# The builtins of the XPU emulator

What a kernel may call, as [the emulator](../extend/xpu_emulator.md) has it. This page is rendered from its headers;
a test compiles a call of each entry in every build. `specdec-hal xpu builtins WORD` prints those with WORD in their
names, each with its source. A guess says little about the device:
[what exactly is guessed](../extend/kunlun.md#guessed).

## Vectors

Names: `vv` of two vectors, `sv` of a scalar, the left operand, and a vector; then the operation, the type, and what
happens to lanes whose mask bit is 0. `_mz` makes them zero (a store writes zero), `_mh` keeps `hold` (a store keeps
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


def render(all_builtins: Iterable[Builtin]) -> str:
    """The page."""
    table: dict[str, dict[str, list[str]]] = {}
    rest: dict[tuple[str, str, str], list[str]] = {}
    for one in all_builtins:
        place = place_of(one)
        if place is None:
            rest.setdefault((one.header, one.name, str(one.source)), []).append(str(one)[len(one.name) :])
            continue
        family, vector, form = place
        forms = table.setdefault(family, {}).setdefault(vector, [])
        if form not in forms:
            forms.append(form)
    shapes: dict[str, str] = {}
    for one in all_builtins:
        if (place := place_of(one)) is not None:
            shapes.setdefault(place[0], _shape(one, place[1]))
    lines = [_TEXT, f"| | parameters | {' | '.join(VECTORS)} |", f"|---|---|{'---|' * len(VECTORS)}"]
    for family, row in table.items():
        cells = [" ".join(f"`{form}`" if form else "·" for form in row.get(vector, [])) for vector in VECTORS]
        lines.append(f"| `{family}` | `{shapes[family]}` | {' | '.join(cells)} |")
    lines += ["", QUALIFIERS.read_text()]
    lines += ["", "## Everything else", "", "| header | builtin | parameters | from |", "|---|---|---|---|"]
    for (header, name, source), parameters in rest.items():
        shown = "<br>".join(f"`{one}`" for one in parameters)
        lines.append(f"| `{header}` | `{name}` | {shown} | {source} |")
    lines += ["", _SOURCES_TEXT, "| from | builtins |", "|---|---|"]
    for source, words in sources():
        lines.append(f"| {source} | {'all others' if words == ('*',) else ' '.join(f'`{word}`' for word in words)} |")
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


if __name__ == "__main__":
    sys.stdout.write(render(builtins()))
