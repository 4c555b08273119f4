"""The pytest fixture xpu_kernel, on the kernels of the pairs and on some of its own."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.errors import CompileError, KernelError

AXPY = """\
#include "xpu/kernel/cluster.h"

struct Pair {
  short low, high;
};

__global__ void axpy(const float* x, float* y, float a, int n, Pair skip) {
  for (int i = cluster_id() * core_num() + core_id(); i < n; i += cluster_num() * core_num()) {
    float one, other;
    GM2LM(x + i, &one, sizeof(float));
    GM2LM(y + i, &other, sizeof(float));
    if (i < skip.low || i >= skip.high) other += a * one;
    mfence_lm();
    LM2GM(&other, y + i, sizeof(float));
  }
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("axpy") / "axpy.xpu"
    path.write_text(AXPY)
    return path


@pytest.fixture
def axpy(source, xpu_kernel):
    return lambda mode: xpu_kernel(source, mode=mode)


def pair(low: int, high: int) -> bytes:
    return np.array([low, high], np.int16).tobytes()


@pytest.mark.parametrize("mode", ["fast", "asan", "strict"])
def test_arrays_in_and_out(axpy, mode):
    x, y = np.arange(100, dtype=np.float32), np.ones((10, 10), np.float32)
    ran = axpy(mode).launch(3, 16, "seed=5,dma=random")(x, y, 2.0, 100, pair(7, 9))
    expected = 1 + 2 * x
    expected[7:9] = 1
    np.testing.assert_array_equal(y.reshape(-1), expected)
    assert ran.statuses == [0] and ran.findings == []
    assert ran.kernels[0]["clusters"] == 3 and ran.kernels[0]["dma"]["LM2GM"]["bytes"] == 400


def test_findings_are_errors(axpy):
    x, y = np.zeros(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(
        KernelError, match=r"gm_out_of_bounds: GM2LM of 4 bytes: bytes 16 to 19 of x, which has 16"
    ) as e:
        axpy("fast").launch(1, 8)(x, y, 1.0, 5, pair(0, 0))
    assert [finding["check"] for finding in e.value.findings] == ["gm_out_of_bounds"]
    ran = axpy("fast").launch(1, 8, check=False)(x, y, 1.0, 5, pair(0, 0))
    assert ran.statuses == [2] and ran.checks == {"gm_out_of_bounds"} and ran.status == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: np.zeros(4, np.float64)}, "argument 'x': expected an array of float32, got one of float64"),
        ({0: [0.0]}, r"argument 'x': expected a NumPy array or None, got \[0.0\]"),
        ({1: np.zeros((4, 2), np.float32)[:, 0]}, "argument 'y': expected an array that is contiguous"),
        ({2: "two"}, "argument 'a': expected a float32, got 'two'"),
        ({3: 2**31}, "argument 'n': expected a int32, got 2147483648"),
        ({3: 1.5}, "argument 'n': expected a int32, got 1.5"),
        ({4: b"123"}, "argument 'skip': expected 4 bytes, got 3"),
    ],
)
def test_arguments_are_checked(axpy, change, message):
    arguments = [np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0, 4, pair(0, 0)]
    for i, value in change.items():
        arguments[i] = value
    with pytest.raises(CompileError, match=message):
        axpy("fast").launch(1, 1)(*arguments)


def test_arrays_that_overlap_are_refused(axpy):
    y = np.zeros(8, np.float32)
    with pytest.raises(CompileError, match="expected arrays that do not overlap"):
        axpy("fast").launch(1, 1)(y[:5], y[4:], 1.0, 4, pair(0, 0))
    with pytest.raises(CompileError, match=r"expected 5 arguments \(x, y, a, n, skip\), got 1"):
        axpy("fast").launch(1, 1)(y)


def test_a_pointer_to_nothing(axpy):
    with pytest.raises(KernelError, match="null_pointer"):
        axpy("fast").launch(1, 1)(None, np.zeros(4, np.float32), 1.0, 4, pair(0, 0))


def test_templates_and_namespaces_are_named(tmp_path, xpu_kernel):
    text = "namespace own {\ntemplate <class T>\n" + AXPY.partition("};\n")[2].replace("float", "T").replace(
        ", Pair skip", ""
    ).replace("if (i < skip.low || i >= skip.high) ", "").lstrip().replace("const T* x", "const T* x", 1)
    (tmp_path / "own.xpu").write_text('#include "xpu/kernel/cluster.h"\n' + text + "}\n")
    x, y = np.arange(5, dtype=np.int32), np.ones(5, np.int32)
    xpu_kernel(tmp_path / "own.xpu", "own::axpy<int>", mode="fast").launch(1, 4)(x, y, 3, 5)
    assert y.tolist() == [1, 4, 7, 10, 13]


def test_what_cannot_be_compiled(tmp_path, xpu_kernel, capfd):
    with pytest.raises(CompileError, match="which does not exist"):
        xpu_kernel("gone.xpu")
    two = tmp_path / "two.xpu"
    two.write_text(AXPY + "__global__ void other() {}\n")
    with pytest.raises(CompileError, match=r"expected one kernel, got \['axpy', 'other'\]"):
        xpu_kernel(two)
    with pytest.raises(CompileError, match=r"expected two\.xpu with no_kernel to compile"):
        xpu_kernel(two, "no_kernel", mode="fast")
    assert "no_kernel" in capfd.readouterr().err


def test_suppressions_of_other_tests_are_no_error(axpy, tmp_path, monkeypatch):
    (tmp_path / "rules.txt").write_text("gm_out_of_bounds axpy.xpu looked at\n")
    monkeypatch.setenv("XPU_SIM_SUPPRESSIONS", str(tmp_path / "rules.txt"))
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    ran = axpy("fast").launch(1, 4)(x, y, 1.0, 4, pair(0, 0))
    assert y.tolist() == [2] * 4 and len(ran.unused_suppressions) == 1
    ran = axpy("fast").launch(1, 8, check=False)(x, y, 1.0, 5, pair(0, 0))
    assert (ran.findings, ran.unused_suppressions, ran.status) == ([], [], 0) and ran.statuses == [2]
