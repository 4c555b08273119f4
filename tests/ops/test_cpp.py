"""The op table in C++, generated from the OpSpecs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from specdec_hal.ops import OPS, cpp
from specdec_hal.ops.enums import ENUMERATIONS
from specdec_hal.ops.parts import PART_OPS
from specdec_hal.ops.spec import Role
from specdec_hal.ops.vocabulary import SERVED


def test_the_module_writes_them(tmp_path):
    for folder in ("specdec", "specdec_ops"):
        (tmp_path / cpp.INCLUDE / folder).mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "specdec_hal.ops.cpp"], cwd=tmp_path, check=True)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.h")}
    assert written == cpp.headers()
    assert {path.stem for path in written} == {"contract", *OPS, *PART_OPS}


@pytest.mark.parametrize("op", OPS)
def test_a_struct_has_a_field_for_everything(op):
    """Operands, symbols and attributes under the contract's names; what is only read is const."""
    spec = OPS[op]
    attrs = spec.attr_by_name.keys()
    model = next(o for o in OPS.values() if (o.operands, o.attr_by_name.keys()) == (spec.operands, attrs))
    struct = re.search(r"^struct \w+Args \{\n(.*?)^\};", cpp.render_op(model), re.DOTALL | re.MULTILINE)
    assert struct is not None
    lines = [line.partition("//")[0].strip(" ;") for line in struct[1].splitlines()]
    pointers = {line.rpartition(" ")[2]: line for line in lines if "*" in line}
    assert list(pointers) == list(spec.by_name)
    for name, operand in spec.by_name.items():
        assert pointers[name].startswith("const ") == (operand.role is Role.IN)
    fields = {name.strip() for line in lines if "*" not in line for name in line.partition(" ")[2].split(",")}
    assert fields >= {*spec.symbols, *spec.attr_by_name}


def test_the_contract_header_has_every_enumerator_and_size():
    text = cpp.render_contract()
    for kind in ENUMERATIONS:
        (line,) = (line for line in text.splitlines() if line.startswith(f"enum class {kind.__name__} "))
        assert [int(number) for number in re.findall(r"= (\d+)", line)] == [int(member) for member in kind]
    for symbol, most in SERVED.items():
        assert f"k{symbol} = {most};" in text
