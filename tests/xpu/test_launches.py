"""Launches in host code become calls; everything else, and every line's number, stays."""

from __future__ import annotations

import pytest

from specdec_hal.errors import CompileError
from specdec_hal_xpu.launches import rewrite_launches, rewrite_vector_casts


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("k<<<1, 64>>>(x);", 'XPU_SIM_CHEVRON("k", (k), 1, 64)(x);'),
        ("int r = k<<<n(), 64, s>>>(x, y);", 'int r = XPU_SIM_CHEVRON("k", (k), n(), 64, s)(x, y);'),
        ("k<float><<<1, 64>>>();", 'XPU_SIM_CHEVRON("k<float>", (k<float>), 1, 64)();'),
        (
            "a::b::k<T, f<U>, (3 > 2)> <<<c, 64>>> (x)",
            'XPU_SIM_CHEVRON("a::b::k<T, f<U>, (3 > 2)>", (a::b::k<T, f<U>, (3 > 2)>) , c, 64) (x)',
        ),
        ("::k<<<(a >> 2), b[1 >> 3]>>>(x)", 'XPU_SIM_CHEVRON("::k", (::k), (a >> 2), b[1 >> 3])(x)'),
        (
            "return k<<<1, 1>>>(x) || j<<<2, 2>>>(y);",
            'return XPU_SIM_CHEVRON("k", (k), 1, 1)(x) || XPU_SIM_CHEVRON("j", (j), 2, 2)(y);',
        ),
        ("k<T>\n<<<\n1,\n64>>>(x);", 'XPU_SIM_CHEVRON("k<T>", (k<T>)\n, \n1,\n64)(x);'),
        (
            "#define L(n) \\\n  k<T> \\\n  <<<1, \\\n  64>>>(n)",
            '#define L(n) \\\n  XPU_SIM_CHEVRON("k<T>", (k<T>) \\\n  , 1, \\\n  64)(n)',
        ),
        ("a::k_##T ## x<<<1, 1>>>(y)", 'XPU_SIM_CHEVRON("a::k_##T ## x", (a::k_##T ## x), 1, 1)(y)'),
        ('k<h("<<<")><<<1, 1>>>()', 'XPU_SIM_CHEVRON("k<h(\\"<<<\\")>", (k<h("<<<")>), 1, 1)()'),
    ],
)  # fmt: skip
def test_a_launch_becomes_a_call(source, expected):
    assert rewrite_launches(source) == expected
    assert expected.count("\n") == source.count("\n")


@pytest.mark.parametrize(
    "source",
    [
        "a << b; c >> d; x = y < z > w;",
        "// k<<<1, 2>>>(x) \\\n k<<<1\n",
        "/* k<<<1,\n 2>>>(x) */",
        'puts("k<<<1, 2>>>(x)"); puts("\\"k<<<");',
        'auto s = R"(k<<<1, 2>>>(x) " )"; auto t = R"--(<<< )" )--";',
        "char c = '\"'; int n = 1'000'000; char d = '\\'';",
        "std::vector<std::vector<std::vector<int>>> v;",
    ],
)
def test_other_text_stays(source):
    assert rewrite_launches(source) == source


@pytest.mark.parametrize("source", ["\nk<<<1, 64>>>;", "\nk<<<1, 64>>(x);", "\n<<<1, 2>>>(x);", "\nf(k<<<1, 64);"])
def test_an_incomplete_launch_is_named_with_its_line(source):
    with pytest.raises(CompileError, match=r"^host\.cpp:2: expected a launch, .*, got an incomplete one; complete it"):
        rewrite_launches(source, "host.cpp")


def test_casts_of_vectors_by_value_are_calls():
    source = (
        "a = reinterpret_cast<float16x32_t>(b); // reinterpret_cast<int8x64_t>(c)\nreinterpret_cast< int8x64_t >(d)"
    )
    rewritten = source.replace("= rei", "= xpu_sim_rei").replace("\nrei", "\nxpu_sim_rei")
    assert rewrite_vector_casts(source) == rewritten
    for other in (
        "reinterpret_cast<int32x16_t*>(p)",
        "reinterpret_cast<const float*>(v)",
        "reinterpret_cast<int32x16_t&>(v)",
    ):
        assert rewrite_vector_casts(other) == other
