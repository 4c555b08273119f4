"""The op table in C++, from the OpSpecs.

CMake runs ``python -m specdec_hal.ops.cpp``, which writes, under ``kernels_common/include``, ``specdec/contract.h``
(enumerations and limits) and, for each op, ``specdec_ops/<op>.h``: a struct of its arguments, with the contract's
names, and the ``OpSignature`` that binds calls from Python. A kernel file includes the header of its op;
nothing else is written by hand between a Python call and a kernel.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

from specdec_hal.ops import OPS
from specdec_hal.ops.enums import ENUMERATIONS
from specdec_hal.ops.ngram import MAX_NGRAM_SIZE
from specdec_hal.ops.spec import FLOATS, AttrSpec, Dim, Operand, OpSpec, Role, When
from specdec_hal.ops.vocabulary import SERVED, SYMBOLS

INCLUDE = Path("kernels_common") / "include"
NOTICE = "Generated from the OpSpecs: python -m specdec_hal.ops.cpp; do not edit."

_CELLS = {
    ("int64",): ("kInt64", "int64_t"),
    ("int32",): ("kInt32", "int32_t"),
    ("uint8",): ("kUint8", "uint8_t"),
    ("bool",): ("kBool", "Flag"),
    ("float32",): ("kFloat32", "float"),
    FLOATS: ("kFloat", "void"),
}
"""Cell and C++ element type by a tensor's dtypes. Other tensors are moved as bytes."""

_WIDEST = 120
"""Columns of a source line."""

_INT32 = (-(2**31), 2**31 - 1)


def headers() -> dict[Path, str]:
    """Generated headers by path from the repository's root."""
    pages = {INCLUDE / "specdec" / "contract.h": render_contract()}
    for spec in OPS.values():
        pages[INCLUDE / "specdec_ops" / f"{spec.name}.h"] = render_op(spec)
    return pages


def render_contract() -> str:
    """Enumerations, and the largest supported sizes."""
    floats = [(f"k{_camel(name)}", number) for number, name in enumerate(FLOATS)]
    enums = [_enum("FloatType", "The dtypes of logits and hidden rows.", floats)]
    for kind in ENUMERATIONS:
        doc = (kind.__doc__ or "").splitlines()[0]
        enums.append(_enum(kind.__name__, doc, [(f"k{_camel(member.name)}", member.value) for member in kind]))
    served = "\n".join(
        f"constexpr int64_t k{symbol} = {most};  // {SYMBOLS[symbol]}" for symbol, most in SERVED.items()
    )
    return f"""\
// Enumerations and limits of the op contract. {NOTICE}
#pragma once

#include <cstdint>

namespace specdec {{

{chr(10).join(enums)}
// Largest extents of the contract's symbols that this package is made for.
namespace served {{
{served}
}}  // namespace served

constexpr int kMaxNgramSize = {MAX_NGRAM_SIZE};

}}  // namespace specdec
"""


def render_op(spec: OpSpec) -> str:
    """The header of one op. An op with the same arguments as an earlier one shares its struct."""
    model = next((other for other in OPS.values() if _arguments(other) == _arguments(spec)), spec)
    args = f"{_camel(spec.name)}Args"
    if model is not spec:
        include, struct = f"specdec_ops/{model.name}.h", f"using {args} = {_camel(model.name)}Args;\n"
    else:
        include, struct = "specdec/contract.h", _struct(spec, args)
    flags = '#include "specdec/flag.h"\n' if "Flag* " in struct else ""
    return f"""\
// Arguments of {spec.name} (contract, section {spec.section}).
// {NOTICE}
#pragma once

#include "{include}"
{flags}#include "specdec_ops/signature.h"

namespace specdec {{

{struct}
{_signature(spec, args)}
}}  // namespace specdec
"""


def _arguments(spec: OpSpec) -> tuple[tuple[Operand, ...], tuple[AttrSpec, ...]]:
    """Without defaults, which Python handles."""
    return spec.operands, tuple(replace(attr, default=None) for attr in spec.attrs)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.lower().split("_"))


def _enum(name: str, doc: str, members: Iterable[tuple[str, int]]) -> str:
    values = ", ".join(f"{member} = {number}" for member, number in members)
    return f"// {doc}\nenum class {name} : int32_t {{ {values} }};\n"


# The struct


def _struct(spec: OpSpec, name: str) -> str:
    lines = [_pointer(operand) for operand in spec.operands]
    lines += _extras(spec)
    lines += [f"int64_t {', '.join(spec.symbols)};"] if spec.symbols else []
    # The widest first, so that there are no gaps.
    for attr in sorted(spec.attrs, key=lambda attr: -_width(attr)[1]):
        lines.append(f"{_width(attr)[0]} {attr.name};")
    body = "\n".join(f"  {line}" for line in lines)
    return f"struct {name} {{\n{body}\n}};\n"


def _pointer(operand: Operand) -> str:
    const = "const " if operand.role is Role.IN else ""
    shape = "[" + ", ".join(map(str, operand.tensor.dims)) + "]"
    if operand.shape_by is not None:
        attr, shapes = operand.shape_by
        shape = ", ".join(f"[{', '.join(map(str, dims))}] if {attr} is {value}" for value, dims in shapes.items())
    notes = [shape]
    if operand.when is not None:
        notes.append(f"null unless {_show(operand.when)}")
    if operand.optional:
        notes.append("may be null")
    field, comment = f"{const}{_cell(operand)[1]}* {operand.name};", f"// {', '.join(notes)}"
    if 2 + len(field) + 2 + len(comment) <= _WIDEST:
        return f"{field}  {comment}"
    return "\n  ".join([*(f"// {note}" for note in notes), field])


def _show(when: When) -> str:
    return f"{when.attr} is {' or '.join(v.name if isinstance(v, IntEnum) else str(v) for v in when.values)}"


def _cell(operand: Operand) -> tuple[str, str]:
    return _CELLS.get(operand.tensor.dtypes, ("kAny", "char"))


def _extras(spec: OpSpec) -> list[str]:
    """Fields for a tensor's dtype or row width."""
    lines = []
    for operand in spec.operands:
        field = _extra(operand)
        if field and _cell(operand)[0] == "kAny":
            lines.append(f"int64_t {field};")
    for operand in spec.operands:
        field = _extra(operand)
        if field and _cell(operand)[0] == "kFloat":
            lines.append(f"FloatType {field};")
    return lines


def _extra(operand: Operand) -> str:
    if operand.tensor.dtype_of:
        return ""
    return {"kFloat": f"{operand.name}_type", "kAny": f"{operand.name}_row_bytes"}.get(_cell(operand)[0], "")


def _width(attr: AttrSpec) -> tuple[str, int]:
    """C++ type and bytes of an attribute."""
    if attr.kind is bool:
        return "bool", 1
    if issubclass(attr.kind, IntEnum):
        return attr.kind.__name__, 4
    low, high = attr.minimum, attr.maximum
    fits = low is not None and _INT32[0] <= low and high is not None and high <= _INT32[1]
    return ("int32_t", 4) if fits else ("int64_t", 8)


# The signature


def _signature(spec: OpSpec, args: str) -> str:
    indices = [_filled(names) for names in (spec.symbols, tuple(spec.attr_by_name)) if names]
    tables = {
        "symbols": ("SymbolInfo", [f'{{"{symbol}", offsetof(Args, {symbol})}}' for symbol in spec.symbols]),
        "operands": ("OperandInfo", [_operand(spec, operand) for operand in spec.operands]),
        "attributes": (
            "AttributeInfo",
            [f'{{"{attr.name}", offsetof(Args, {attr.name}), {_width(attr)[1]}}}' for attr in spec.attrs],
        ),
    }
    members = [f"using Args = {args};", *(f"enum : int {{{names}}};" for names in indices)]
    for name, (kind, rows) in tables.items():
        if rows:
            cells = "".join(f"      {row},\n" for row in rows)
            members.append(f"static constexpr {kind} {name}[] = {{\n{cells}  }};")
        else:
            members.append(f"static constexpr List<{kind}> {name} = {{}};")
    members.append(
        f'static constexpr OpSignature signature = {{\n      "{spec.name}", {", ".join(tables)}, sizeof(Args)}};'
    )
    return f"""\
// clang-format off
namespace detail::{spec.name} {{
struct Tables {{
{chr(10).join(f"  {member}" for member in members)}
}};
}}  // namespace detail::{spec.name}

inline constexpr OpOf<{args}> {spec.name}_signature = {{
    detail::{spec.name}::Tables::signature}};
// clang-format on
"""


def _filled(names: Iterable[str]) -> str:
    """Names between braces, in lines of at most 120 columns."""
    line = ", ".join(names)
    return f" {line} " if len(line) <= 100 else "\n" + textwrap.indent(textwrap.fill(line, 110), "      ") + "\n  "


def _operand(spec: OpSpec, operand: Operand) -> str:
    cell, access = _cell(operand)[0], "kRead" if operand.role is Role.IN else "kWrite"
    shapes: list[tuple[Dim, ...]] = [operand.tensor.dims]
    if operand.shape_by is not None:
        attr, by_value = operand.shape_by
        if set(by_value) != {False, True}:
            raise ValueError(f"{spec.name}: the shape of {operand.name} may depend on a bool attribute only")
        shapes = [operand.dims({attr: value}) for value in (False, True)]
    head = f'OperandInfo{{"{operand.name}", Cell::{cell}, Access::{access},'
    fields = f"offsetof(Args, {operand.name}), {_extents(shapes[0])}}}"
    more = []
    if operand.shape_by is not None:
        more.append(f".shaped({operand.shape_by[0]}, {_extents(shapes[1])})")
    if operand.tensor.dtype_of:
        more.append(f".like({list(spec.by_name).index(operand.tensor.dtype_of)})")
    if _extra(operand):
        more.append(f".with(offsetof(Args, {_extra(operand)}))")
    return _wrapped(6, head, fields, *more)


def _extents(dims: tuple[Dim, ...]) -> str:
    extents = (f"{dim.symbol or 'kNone'}, {dim.offset}" if dim.offset else f"{dim.symbol}" for dim in dims)
    return f"{{{', '.join(f'{{{extent}}}' for extent in extents)}}}"


def _wrapped(indent: int, head: str, fields: str, *more: str) -> str:
    """On one line if it fits; else one line per part."""
    line = f"{head} {fields}{''.join(more)}"
    if indent + len(line) < _WIDEST:
        return line
    if more:
        first = head if indent + len(head) + 1 + len(fields) > _WIDEST else f"{head} {fields}"
        rest = [] if first != head else [f"            {fields}"]
        return "\n".join([first, *rest, *(f"          {part}" for part in more)])
    return f"{head}\n                  {fields}"


def main() -> None:
    """Write the headers into the working tree. Those that would not change keep their time: nothing is rebuilt."""
    for path, text in headers().items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
