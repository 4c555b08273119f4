"""Every builtin of the dialect with a kernel that uses it, in each build and under several timings of copies."""

from __future__ import annotations

import pytest

from specdec_hal_xpu.cc import toolchain
from tests.xpu.program import BUILTIN_TESTS, MODES_ASAN_SLOW

OPTIONS = ("seed=0", "seed=3,dma=deferred,poison=90", "seed=8,dma=random,llsc_failure=0.3")


@pytest.mark.parametrize("mode", MODES_ASAN_SLOW)
@pytest.mark.parametrize("name", BUILTIN_TESTS)
def test_builtin(builtins, name, mode):
    for options in OPTIONS:
        result = builtins(mode)(name, options=options)
        assert result.status == 0, (options, result.err)
        assert result.findings == [], options


def test_all_headers_bring_everything_but_partition(shared_folder, compiled):
    """Kernels include some of the headers and rely on all of them. Only those with a partition of their own do not."""
    headers = sorted((toolchain().include / "xpu" / "kernel").glob("*.h"))
    texts = {path.name: path.read_text() for path in headers}
    partition = {name for name, text in texts.items() if '"xpu_sim/kernel/partition.h"' in text}
    assert len(texts) == 19 and len(set(texts.values())) == 2
    assert partition == {f"cluster_{name}.h" for name in ("header", "partition", "primitive", "primitive_template")}
    source = shared_folder / "only_one_header.xpu"
    source.write_text(
        '#include "xpu/kernel/cluster_partition.h"\n__global__ void k(float* x) { int s, e; float16 h = 1.0f;\n'
        "partition(core_id(), core_num(), 64, 16, &s, &e); float v = max(1, h); GM2LM(x, &v, 4); sync_all();\n"
        "int32x16_t z = vzero<int32x16_t>(); v += vextract_int32x16(z) + s + e; mfence(); LM2GM(&v, x, 4); }\n"
        "int main() {}\n"
    )
    assert compiled("headers", [source], "fast")().status == 0
