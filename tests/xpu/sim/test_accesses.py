"""The strict build sees loads and stores however the compiler makes them: structures, copies, returns, vectors."""

from __future__ import annotations

import re

import pytest

from tests.xpu.program import SOURCES

FILE = SOURCES / "accesses.xpu"
EXPECTED = {"sm_write": "race", "sm_read": "race", "lm_write": "missing_fence", "lm_read": "read_in_flight"}
KERNELS = {
    f"{kind.lower()}_{name}": EXPECTED[kind.lower()]
    for kind, name in re.findall(r"^([SL]M_(?:WRITE|READ))\((\w+),", FILE.read_text(), re.MULTILINE)
}


@pytest.fixture(scope="session")
def program(shared_folder, compiled):
    main = shared_folder / "accesses_main.cpp"
    main.write_text(
        '#include <cstring>\n#include "xpu_sim/host.h"\n'
        + "".join(f"void {name}(const int*, int*);\n" for name in KERNELS)
        + "int main(int, char** argv) {\n"
        '  int* const in = xpu_sim::gm_alloc<int>(64, "in");\n  int* const out = xpu_sim::gm_alloc<int>(256, "out");\n'
        "  for (int i = 0; i < 64; ++i) in[i] = i;\n"
        + "".join(
            f'  if (std::strcmp(argv[1], "{name}") == 0) xpu_sim::launch({name}, 1, 4)(in, out);\n' for name in KERNELS
        )
        + "}\n"
    )
    return compiled("accesses", [FILE, main], "strict", flags=["-Wno-error", "-w"])


@pytest.mark.parametrize("name", KERNELS)
def test_an_access_is_seen(program, name):
    result = program(name)
    assert KERNELS[name] in result.checks, result.err
    finding = next(one for one in result.findings if one["check"] == KERNELS[name])
    assert finding["space"] == name[:2].upper()
    assert finding["object"] == name[0]  # the variables of the kernels are called so
