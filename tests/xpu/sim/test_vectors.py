"""Vectors and casts: a kernel for each type and memory, generated from tables, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from specdec_hal_xpu.calls import Call

Array = Any
TYPES = {f"{np.dtype(t).name}x{64 // np.dtype(t).itemsize}": np.dtype(t) for t in (
    np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.float32, np.float16,
)}  # fmt: skip
SPACES = {"lm": "", "sm": "__shared__ ", "gsm": "__group_shared__ "}
NAMES = ["casts", *(f"arithmetic_{name}" for name in TYPES)]
NAMES += [f"{space}_{name}" for space in SPACES for name in (*TYPES, "float16", "bfloat16")]
CORES = 16  # one a group, for GSM
MASK = 0x5A31C00FF00D5A31  # lanes of every kind
U = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Case:
    """Statements that call ``put`` for each result: a vector, or a number in the lowest word."""

    code: str
    expected: tuple[Array, ...]  # vectors [rows, lanes], numbers [rows]


def numbers(dtype: np.dtype[Any]) -> Array:
    """Four operands [4, rows, lanes]: edges with edges, then any bits, of which every other first operand is small."""
    if dtype.kind == "f":
        info: Any = np.finfo(dtype)
        edges = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, info.smallest_subnormal, -info.smallest_subnormal, info.max,
                 info.min, info.tiny, 2.5, -3.5, 1 + info.eps, -0.5]  # fmt: skip
    else:
        info = np.iinfo(dtype)
        edges = [0, 1, info.max, info.min, info.max - 1, info.min + 1, 7, info.max // 3]
    lanes, rng = 64 // dtype.itemsize, np.random.default_rng(39)
    bits = U[dtype.itemsize]
    count = 2**16 if dtype == np.float16 else 2**12  # every half
    some = rng.integers(0, 2 ** (8 * dtype.itemsize), (4, count), dtype=bits).view(dtype)
    if dtype == np.float16:
        some[0] = np.arange(count, dtype=bits).view(dtype)
    else:
        some[0, ::2] = rng.integers(0, 70, count // 2).astype(dtype)
    pairs = np.array(list(product(edges, repeat=2)), dtype).T
    x = np.concatenate([np.concatenate([pairs, pairs[::-1]]), some], axis=1)
    return x[:, : x.shape[1] // lanes * lanes].reshape(4, -1, lanes)


def wide(x: Array) -> Array:
    """Halves are calculated in float32 and rounded once."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def shift(left: bool, signed: bool) -> Callable[[Array, Array], Array]:
    """By the lane's width or more, zeros or the sign are left."""

    def shifted(count: Array, x: Array) -> Array:
        bits, source = 8 * x.itemsize, x.view(f"i{x.itemsize}" if signed else U[x.itemsize])
        n = count.view(U[x.itemsize])
        by = np.minimum(n, bits - 1).astype(source.dtype)
        inside, beyond = source << by if left else source >> by, source >> (bits - 1) if signed else 0
        return np.where(n < bits, inside, beyond).astype(source.dtype).view(x.dtype)

    return shifted


def of_bits(f: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: f(x.view(U[x.itemsize]), y.view(U[y.itemsize])).view(y.dtype)


EVERY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "max": lambda x, y: np.where(x > y, x, y), "min": lambda x, y: np.where(x < y, x, y),
}  # fmt: skip
LOGIC = {"and": of_bits(np.bitwise_and), "or": of_bits(np.bitwise_or), "xor": of_bits(np.bitwise_xor)}
SHIFTS = {"sll": shift(True, False), "srl": shift(False, False), "sra": shift(False, True)}
COMPARISONS = {"eq": np.equal, "neq": np.not_equal, "lt": np.less, "le": np.less_equal}


def operations(dtype: np.dtype[Any]) -> dict[str, Callable[[Array, Array], Array]]:
    if dtype.kind != "f":
        return EVERY | LOGIC | SHIFTS
    return EVERY | {"div": np.divide} | (LOGIC if dtype == np.float32 else {})


class Type:
    """A type of vectors and its operands: a, b, c, and s, the first lane of the fourth, all as wide as a row."""

    def __init__(self, name: str) -> None:
        self.name, self.dtype = name, TYPES[name]
        self.element = f"{self.dtype.name}_t" if self.dtype.kind != "f" else self.dtype.name.replace("float32", "float")
        self.lanes = 64 // self.dtype.itemsize
        self.x = numbers(self.dtype)
        self.a, self.b, self.c, d = self.x
        self.s = d[:, :1]
        self.mask = MASK & (2**self.lanes - 1)
        self.on = (self.mask >> np.arange(self.lanes, dtype=np.uint64) & np.uint64(1)).astype(bool)

    def where(self, value: Array, off: Array) -> Array:
        return np.where(self.on, value, off).astype(self.dtype)

    def bits(self, truth: Array) -> Array:
        """Bit i is lane i's."""
        return (truth.astype(np.uint64) << np.arange(self.lanes, dtype=np.uint64)).sum(1, dtype=np.uint64)

    def arithmetic(self) -> Iterator[tuple[str, list[Case]]]:
        """By operation, its forms."""
        v, mask, zero = self.name, f"{self.mask:#x}", self.dtype.type(0)
        operands = (("vv", "a", self.a), ("sv", "s", self.s))
        for name, f in operations(self.dtype).items():
            cases = []
            for kind, first, x in operands:
                value = np.broadcast_to(f(x, self.b), self.b.shape).astype(self.dtype)
                call = f"{kind}{name}_{v}"
                cases += [
                    put(f"{call}({first}, b)", value),
                    put(f"{call}_mz({first}, b, {mask})", self.where(value, zero)),
                    put(f"{call}_mh({first}, b, c, {mask})", self.where(value, self.c)),
                    put(f"{call}_mz({first}, b)", value),
                    put(f"{call}_mh({first}, b, c)", value),
                ]
            yield name, cases
        for name, f in COMPARISONS.items():
            cases = []
            for kind, first, x in operands:
                bits, call = self.bits(f(x, self.b)), f"{kind}{name}_{v}"
                cases += [put(f"{call}({first}, b)", bits), put(f"{call}_mz({first}, b)", bits)]
                cases.append(put(f"{call}_mz({first}, b, {mask})", bits & np.uint64(self.mask)))
            yield name, cases
        cases = []
        for kind, first, x in operands:
            value = (wide(x) * wide(self.b) + wide(self.c)).astype(self.dtype)
            cases += [
                put(f"{kind}mac_{v}({first}, b, c)", value),
                put(f"{kind}mac_{v}_mz({first}, b, c, {mask})", self.where(value, zero)),
                put(f"{kind}mac_{v}_mh({first}, b, c, a, {mask})", self.where(value, self.a)),
            ]
        yield "mac", cases
        if self.dtype.kind != "u":
            yield "abs", [put(f"vabs_{v}(a)", np.abs(self.a))]

    def moves(self) -> list[Case]:
        """What lanes become of others."""
        v, a, b, n = self.name, self.a, self.b, self.lanes
        padded, i = np.concatenate([a, np.zeros_like(a)], 1), np.arange(n)
        each = f"{v}_t r = {{}}; for (int i = 0; i < {n}; ++i) r[i] = vextract_{v}(a, 1ull << i); put(r);"
        low, high = (np.stack([a[:, half], b[:, half]], 2).reshape(a.shape) for half in (i < n // 2, i >= n // 2))
        return [
            *(put(f"vsrlp_{v}({by * 512 // n}, a)", padded[:, by : by + n]) for by in range(0, n + 1, n // 8)),
            Case(each, (a,)),
            put(f"vextract_{v}(a)", a[:, 0].copy().view(U[a.itemsize]).astype(np.uint64)),
            put(f"vshuffle2_{v}(0x4B, a, b)", np.where(i % 4 < 2, a[:, i ^ 3], b[:, i ^ 2])),  # of each four 3 2 | 0 1
            put(f"vshuffle2_{v}(0x1B, a)", a[:, i ^ 3]),
            put(f"vshuffle2_{v}(a)", a[:, i ^ 1]),
            put(f"vvmerge_l_{v}(a, b)", low),
            put(f"vvmerge_h_{v}(a, b)", high),
            put(f"vzero<{self.element}>()", np.zeros_like(a)),
            put(f"vzero<{v}_t>()", np.zeros_like(a)),
        ]

    def memory(self, space: str) -> list[Case]:
        """Loads from ``x``, which holds a and b, and stores to ``y``, in a space."""
        v, a, b, zero, mask = self.name, self.a, self.b, self.dtype.type(0), f"{self.mask:#x}"
        load, store, load2, store2 = (f"v{word}_{space}" for word in ("load", "store", "load2", "store2"))
        both, clear = f"put({load}_{v}(y)); put({load}_{v}(y + {self.lanes}));", f"{store2}(y, c, c);"
        cases = [
            put(f"{load}_{v}(x)", a),
            put(f"{load}_{v}_mz(x, {mask})", self.where(a, zero)),
            put(f"{load}_{v}_mh(x, b, {mask})", self.where(a, b)),
            put(f"{load}_{v}_mz(x)", a),
            put(f"{load}_{v}_mh(x, b)", a),
        ]
        for form, off in (("", a), ("_mz", zero), ("_mh", b)):
            cases.append(Case(f"{store}_{v}(y, b); {store}_{v}{form}(y, a); put({load}_{v}(y));", (a,)))
            if form:
                code = f"{store}_{v}(y, b); {store}_{v}{form}(y, a, {mask}); put({load}_{v}(y));"
                cases.append(Case(code, (self.where(a, off),)))
        for form in ("", "_unordered"):  # what one takes apart, the other puts together
            cases.append(Case(f"{clear} {load2}{form}(x, v, w); {store2}{form}(y, v, w); {both}", (a, b)))
        cases.append(Case(f"{load2}(x, v, w); {store2}(y, w, v); put(v); put(w); {both}", (a, b, b, a)))
        if self.dtype.itemsize == 4:
            on = (0x0FF05A31 >> np.arange(32) & 1).astype(bool)
            some = tuple(np.where(on[half], x, zero) for half, x in ((slice(16), a), (slice(16, 32), b)))
            loaded, stored = f"{load2}_mz(x, v, w%s); put(v); put(w);", f"{clear} {store2}_mz(y, a, b%s); {both}"
            for code in (loaded, stored):
                cases += [Case(code % "", (a, b)), Case(code % ", 0x0FF05A31u", some)]
        if self.name in ("int16x32", "int32x16", "uint32x16", "float32x16"):
            cases += list(self.indexed(space))
        return cases

    def indexed(self, space: str) -> Iterator[Case]:
        v, n, size, rows = self.name, self.lanes, self.dtype.itemsize, np.arange(len(self.c))[:, None]
        at, zero, mask = self.c.view(f"int{8 * size}") & (2 * n - 1), self.dtype.type(0), f"{self.mask:#x}"
        o = f"int{8 * size}x{n}"  # bytes
        elements = f"vvand_{o}(reinterpret_cast<{o}_t>(c), {o}_t({2 * n - 1}))"
        index = f"const {o}_t at = vvsll_{o}({o}_t({size // 2}), {elements});"
        gathered = np.concatenate([self.a, self.b], 1)[rows, at]
        for arguments, value in (
            ("(x, at)", gathered), ("_mz(x, at)", gathered), (f"_mz(x, at, {mask})", self.where(gathered, zero)),
            ("_mh(x, at, b)", gathered), (f"_mh(x, at, b, {mask})", self.where(gathered, self.b)),
        ):  # fmt: skip
            yield Case(f"{index} put(vgather_{space}_{v}{arguments});", (value,))
        for form, lanes in (("", range(n)), ("_mh", np.flatnonzero(self.on))):
            scattered = np.concatenate([self.b, self.b], 1)
            for lane in lanes:  # the last of those that go to one place stays
                scattered[rows[:, 0], at[:, lane]] = self.a[:, lane]
            more = f", {mask}" if form else ""
            code = f"vstore2_{space}(y, b, b); vscatter_{space}_{v}{form}(y, a, at{more});"
            both = f"put(vload_{space}_{v}(y)); put(vload_{space}_{v}(y + {n}));"
            yield Case(f"{index} {code} {both}", (scattered[:, :n], scattered[:, n:]))


def put(expression: str, expected: Array) -> Case:
    return Case(f"put({expression});", (expected,))


def halves(name: str, space: str) -> tuple[Array, list[Case]]:
    """Operands: a line of halves of a kind, and 32 floats. Lines as two vectors of floats, and back."""
    every = np.arange(2**16, dtype=np.uint16).reshape(-1, 32)
    f = np.random.default_rng(40).permutation(np.concatenate([
        np.random.default_rng(41).integers(0, 2**32, 2**15, dtype=np.uint32).view(np.float32),
        (every.view(np.float16).astype(np.float32).view(np.uint32).reshape(-1)[: 2**15] + 0x1000).view(np.float32),
    ])).reshape(-1, 32)  # fmt: skip
    if name == "float16":  # to the nearest, ties to even
        floats, narrow = every.view(np.float16).astype(np.float32), f.astype(np.float16)
    else:  # the upper half
        floats, narrow = (every.astype(np.uint32) << 16).view(np.float32), (f.view(np.uint32) >> 16).astype(np.uint16)
    on = (0x8FF05A31 >> np.arange(32) & 1).astype(bool)
    load, store, line = f"vload2_{space}", f"vstore2_{space}", f"put(vload_{space}_uint16x32(y));"
    both = "put(v); put(w);"
    mixed = np.stack([narrow[:, :16], narrow[:, 16:]], 2).reshape(narrow.shape)
    zeros, some = np.float32(0), np.where(on, narrow, 0).astype(narrow.dtype)
    kept = np.where(on, floats, zeros).astype(np.float32)
    cases = [
        Case(f"{load}(x, v, w); {both}", (floats[:, :16], floats[:, 16:])),
        Case(f"{load}_mz(x, v, w); {both}", (floats[:, :16], floats[:, 16:])),
        Case(f"{load}_mz(x, v, w, 0x8FF05A31u); {both}", (kept[:, :16], kept[:, 16:])),
        Case(f"{load}_unordered(x, v, w); {both}", (floats[:, ::2], floats[:, 1::2])),
        Case(f"{store}(y, low, high); {line}", (narrow,)),
        Case(f"{store}_mz(y, low, high); {line}", (narrow,)),
        Case(f"{store}_mz(y, low, high, 0x8FF05A31u); {line}", (some,)),
        Case(f"{store}_unordered(y, low, high); {line}", (mixed,)),
    ]
    return np.concatenate([every.view(np.uint64), np.ascontiguousarray(f).view(np.uint64)], 1), cases


def casts() -> tuple[Array, list[Case]]:
    """Operands: 32 floats of every kind, and 16 words. Conversions of arrays, and between vectors of two sizes."""
    edges = [0.5, -0.5, 2.7, -2.7, 65504, 65519.99, 65520, 2**-24, 2**-25, 2**31, -(2**31), 127.9, -128.9, 3e9, 1e-40,
             -0.0, np.inf, -np.inf, np.nan, 16777217, 2147483520, 300]  # fmt: skip
    bits = np.random.default_rng(42).integers(0, 2**32, (2**12 - len(edges), 2), dtype=np.uint32)
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (every.view(np.uint32) + 0x1000).view(np.float32)  # between two halves
    f = np.concatenate([np.array(edges, np.float32), bits[:, 0].view(np.float32), every, middles]).reshape(-1, 32)
    words = np.resize(bits.view(np.uint64).reshape(-1), (len(f), 16))
    ints, bytes_ = words.view(np.int32), words.view(np.int8)
    nearest, upper = f.astype(np.float16), (f.view(np.uint32) >> 16).astype(np.uint16)
    # The next half toward zero, where rounding went away from it.
    beyond = np.abs(nearest.astype(np.float32)) > np.abs(f)
    truncated = np.where(beyond, np.nextafter(nearest, np.float16(0)), nearest)
    known = np.where(np.isnan(f), 0, f.astype(np.float64))
    whole, rounded = (np.clip(x, -(2**31), 2**31 - 1).astype(np.int32) for x in (np.trunc(known), np.rint(known)))
    byte = np.pad(np.clip(known, -128, 127).astype(np.int8), ((0, 0), (0, 32)))
    wide, brains = nearest.astype(np.float32), (upper.astype(np.uint32) << 16).view(np.float32)
    longs = ints[:, :16].astype(np.int64)
    puts = "put(vload_lm_float32x16(y)); put(vload_lm_float32x16(y + 16));"

    def cast(a: str, b: str, source: str, n: int, room: int, *expected: Array) -> Case:
        loads = "".join(f" put(vload_lm_int32x16(reinterpret_cast<int*>(y) + {16 * k}));" for k in range(len(expected)))
        copy = f"__simd__ {a} x[{room}] = {{}}; __simd__ {b} y[{room}] = {{}}; memcpy(x, {source}, {n} * sizeof({a}));"
        return Case(f"{copy} primitive_cast<{a}, {b}>(x, y, {n});{loads}", expected)

    def back(half: str, values: Array) -> Case:
        there = f"__simd__ {half} x[32]; __simd__ float y[32]; primitive_cast<float, {half}>(floats, x, 32);"
        return Case(f"{there} primitive_cast<{half}, float>(x, y, 32); {puts}", (values[:, :16], values[:, 16:]))

    return np.concatenate([np.ascontiguousarray(f).view(np.uint64), words], 1), [
        *(put(f"vfloat2fp16_lh{form}(low, high)", nearest) for form in ("", "_rn")),
        put("vfloat2fp16_lh_rz(low, high)", truncated),
        put("vfp162float_l(vfloat2fp16_lh(low, high))", wide[:, :16]),
        put("vfp162float_h(vfloat2fp16_lh(low, high))", wide[:, 16:]),
        put("vfix2float(vload_lm_int32x16(words))", ints[:, :16].astype(np.float32)),
        put("vfloat2fix(low)", rounded[:, :16]),
        cast("float", "float16", "floats", 32, 32, nearest),
        cast("float", "bfloat16", "floats", 32, 32, upper),
        cast("float", "int", "floats", 32, 32, whole[:, :16], whole[:, 16:]),
        cast("float", "int8_t", "floats", 32, 64, byte),
        back("float16", wide),
        back("bfloat16", brains),
        cast("int", "float", "words", 32, 32, *np.split(ints.astype(np.float32), 2, axis=1)),
        cast("int8_t", "float", "words", 32, 64, *np.split(bytes_[:, :32].astype(np.float32), 2, axis=1)),
        cast("int64_t", "int", "words", 16, 128, ints[:, ::2]),
        cast("int", "int64_t", "words", 16, 128, *np.split(longs, 2, axis=1)),
    ]


HEAD = """\
#include "xpu/kernel/cluster.h"
#include "xpu/kernel/cluster_simd.h"
#define FUNCTION static __device__ __attribute__((noinline)) void
struct Results {
  uint64_t* at;
  template <class V>
  FUNCTION store(Results& to, const V& v) {
    mfence_lm();
    LM2GM(reinterpret_cast<const uint64_t*>(&v), to.at, 64);
    to.at += 8;
  }
  template <class V>
  __device__ void operator()(const V& v) {
    if constexpr (sizeof(V) == 64) return store(*this, v);
    __simd__ uint64_t word[8] = {};
    memcpy(word, &v, sizeof(v));
    store(*this, word);
  }
};
"""


@dataclass(frozen=True)
class Kernel:
    """A generated kernel, with its operands by row as words, and what it must give."""

    name: str
    text: str
    operands: Array
    expected: tuple[Array, ...]


def kernel(name: str, operands: Array, parts: list[tuple[str, list[Case]]], before: str) -> Kernel:
    """`before`: declarations in each part, from the row's operands in LM, ``tile``."""
    functions = [
        f"FUNCTION {name}_{part}(const uint64_t* tile, Results& put) {{\n  {before}\n"
        + "".join(f"  {{ {case.code} }}\n" for case in cases)
        + "}\n"
        for part, cases in parts
    ]
    expected = tuple(one for _, cases in parts for case in cases for one in case.expected)
    words = operands.shape[1]
    calls = "".join(f"    {name}_{part}(tile, put);\n" for part, _ in parts)
    text = (
        f"__global__ void {name}(const uint64_t* x, uint64_t* out, int rows) {{\n  __simd__ uint64_t tile[{words}];\n"
        f"  for (int row = core_id(); row < rows; row += core_num()) {{\n"
        f"    GM2LM(x + row * {words}, tile, {8 * words});\n"
        f"    Results put{{out + row * {8 * len(expected)}}};\n{calls}  }}\n}}\n"
    )
    return Kernel(name, "".join(functions) + text, operands, expected)


@cache
@np.errstate(all="ignore")
def kernels(mode: str) -> dict[str, Kernel]:
    """All of them. Checking builds look at memory, where the forms of an operation do not differ: two are enough."""
    found = []
    for name in TYPES:
        of = Type(name)
        rows = np.ascontiguousarray(of.x.transpose(1, 0, 2)).reshape(of.x.shape[1], -1).view(np.uint64)
        load = f"[[maybe_unused]] const {name}_t a = vload_lm_{name}(tile), b = vload_lm_{name}(tile + 8), "
        load += f"c = vload_lm_{name}(tile + 16);"
        scalar = f" [[maybe_unused]] {of.element} s; memcpy(&s, tile + 24, sizeof(s));"
        parts = [(part, cases if mode == "fast" else cases[::7]) for part, cases in of.arithmetic()]
        found.append(kernel(f"arithmetic_{name}", rows, [*parts, ("moves", of.moves())], load + scalar))
        for space, qualifier in SPACES.items():
            cells = cells_of(space, qualifier, of.element, 4 * of.lanes)
            cells += f" {of.element}* const y = x + {2 * of.lanes}; {name}_t v, w; vstore2_{space}(x, a, b);"
            found.append(kernel(f"{space}_{name}", rows, [("cells", of.memory(space))], f"{load} {cells}"))
    for half, (space, qualifier) in product(("float16", "bfloat16"), SPACES.items()):
        rows, cases = halves(half, space)
        cells = cells_of(space, qualifier, half, 64) + f" {half}* const y = x + 32; float32x16_t v, w;"
        cells += f" vstore_{space}_uint16x32(x, vload_lm_uint16x32(tile));"
        cells += " const float32x16_t low = vload_lm_float32x16(tile + 8), high = vload_lm_float32x16(tile + 16);"
        found.append(kernel(f"{space}_{half}", rows, [("cells", cases)], cells))
    rows, cases = casts()
    floats = "[[maybe_unused]] const float* floats = reinterpret_cast<const float*>(tile);"
    words = "[[maybe_unused]] const uint64_t* words = tile + 16;"
    low = (
        "[[maybe_unused]] const float32x16_t low = vload_lm_float32x16(floats), high = vload_lm_float32x16(floats + 16)"
    )
    found.append(kernel("casts", rows, [(str(i), [case]) for i, case in enumerate(cases)], f"{floats} {words} {low};"))
    return {one.name: one for one in found}


def cells_of(space: str, qualifier: str, element: str, count: int) -> str:
    """``x``, cells of the core's own."""
    if space != "sm":
        return f"{qualifier}__simd__ {element} x[{count}];"
    return f"{qualifier}__simd__ {element} cells[{CORES}][{count}]; {element}* const x = cells[core_id()];"


def text(mode: str) -> str:
    """The file of them all."""
    return HEAD + "".join(one.text for one in kernels(mode).values())


@pytest.fixture(scope="session")
def run(xpu_programs, shared_folder):
    def call(mode: str, name: str, options: str = "") -> None:
        source = shared_folder / f"vectors_{mode}.xpu"
        if not source.is_file():
            unfinished = source.with_suffix(f".{np.random.default_rng().integers(2**32)}")
            unfinished.write_text(text(mode))
            unfinished.rename(source)
        flags = ["-Wall", "-Wextra", "-Werror", "-O1"]  # compiling takes longer than running them
        program = xpu_programs([source], NAMES, mode, profiles=["portable"], flags=flags)
        one = kernels(mode)[name]
        rows = len(one.operands) if mode == "fast" else CORES
        out = np.zeros((rows, len(one.expected), 8), np.uint64)
        ran = program.run([Call(name, [one.operands[:rows].copy(), out, rows], 1, CORES)], options=options)
        assert (ran.statuses, ran.findings) == ([0], []), ran.err
        for k, expected in enumerate(one.expected):
            check(out[:, k], expected[:rows], (name, k))

    return call


def check(got: Array, expected: Array, what: object) -> None:
    """The same bits, except for NaN, of which there are many."""
    if expected.ndim == 1:
        return np.testing.assert_array_equal(got[:, 0], expected, err_msg=str(what))
    expected = np.ascontiguousarray(expected)
    got, bits = np.ascontiguousarray(got).view(expected.dtype), U[expected.itemsize]
    both = np.isnan(got) & np.isnan(expected) if expected.dtype.kind == "f" else np.zeros(got.shape, bool)
    np.testing.assert_array_equal(got.view(bits)[~both], expected.view(bits)[~both], err_msg=str(what))


@pytest.mark.parametrize("mode", ["fast", "strict"])
@pytest.mark.parametrize("name", NAMES)
def test_vectors(run, name, mode):
    run(mode, name)


def test_what_a_masked_store_leaves(run):
    with pytest.raises(AssertionError):
        run("fast", "lm_int32x16", options="model.masked_stores_write_zero=0")
