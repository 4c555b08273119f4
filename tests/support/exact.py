"""Section 0's arithmetic in Python integers and fractions, written without looking at the NumPy primitives.

Only Philox and the exp2 polynomial come from there: tests/kernels_common checks them on their own.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate

import numpy as np

from specdec_hal.backends.reference import primitives

ONE = 1 << 40
INF = math.inf
LOG2E = float(np.float32(1.4426950408889634))


def round_to(value: Fraction, mantissa_bits: int, min_exponent: int, max_exponent: int) -> float:
    """Round to nearest even in a binary format: exponents of its normal numbers, mantissa with the leading one."""
    if value == 0:
        return 0.0
    sign, magnitude = (-1 if value < 0 else 1), abs(value)
    exponent = 0
    while magnitude >= 2 ** (exponent + 1):
        exponent += 1
    while magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, min_exponent) - mantissa_bits + 1)
    rounded = round(magnitude / unit) * unit  # Fraction.__round__ is half to even
    if rounded >= Fraction(2) ** (max_exponent + 1):
        return sign * INF
    return sign * float(rounded)


def _rounder(mantissa_bits: int, min_exponent: int, max_exponent: int):
    def rounder(value: float | int | Fraction) -> float:
        if isinstance(value, float):
            if math.isnan(value) or math.isinf(value) or value == 0:
                return value
            value = Fraction(value)
        return round_to(Fraction(value), mantissa_bits, min_exponent, max_exponent)

    return rounder


f32 = _rounder(24, -126, 127)
f16 = _rounder(11, -14, 15)
bf16 = _rounder(8, -126, 127)
ROUND = {"float32": f32, "float16": f16, "bfloat16": bf16}


def _arithmetic(operation):
    """A float32 operation: exact on finite operands, then rounded; IEEE's rules for the others."""

    def apply(a: float, b: float) -> float:
        if all(map(math.isfinite, (a, b))) and not (operation == "div" and b == 0):
            exact = {
                "add": lambda: Fraction(a) + Fraction(b),
                "sub": lambda: Fraction(a) - Fraction(b),
                "mul": lambda: Fraction(a) * Fraction(b),
                "div": lambda: Fraction(a) / Fraction(b),
            }[operation]()
            return f32(exact)
        with np.errstate(all="ignore"):
            x, y = np.float32(a), np.float32(b)
            return float({"add": x + y, "sub": x - y, "mul": x * y, "div": np.divide(x, y)}[operation])

    return apply


sub, mul, div = _arithmetic("sub"), _arithmetic("mul"), _arithmetic("div")


def widen(row: np.ndarray) -> list[float]:
    """A row of logits as Python floats."""
    if row.dtype == np.uint16:
        return [float(np.array(int(bits) << 16, np.uint32).view(np.float32)) for bits in row]
    return [float(value) for value in row]


def mass(weight: float) -> int:
    """floor(w * 2^40) of a weight in [0, 1]."""
    if math.isnan(weight) or weight <= 0:
        return 0
    return math.floor(min(Fraction(weight), Fraction(1)) * ONE) if math.isfinite(weight) else ONE


def fraction_mass(fraction: float) -> int:
    """Mass of a top_p, which is 1 if it is no number."""
    return ONE if math.isnan(fraction) else mass(fraction)


def part(fraction: float, total: int) -> int:
    """floor(f * 2^24) * total >> 24."""
    f = Fraction(1) if math.isnan(fraction) else min(max(Fraction(fraction), Fraction(0)), Fraction(1))
    return math.floor(f * 2**24) * total >> 24


def softmax_masses(row: list[float], temperature: float, top: float) -> list[int]:
    """Masses of exp((logit - top) / temperature)."""
    inverse = div(1.0, temperature)
    ts = [0.0 if logit == top else mul(mul(sub(logit, top), inverse), LOG2E) for logit in row]
    return [int(m) for m in primitives.exp2_mass(np.array(ts, np.float32))]


def chunk_parts(row: list[float], temperature: float) -> list[tuple[list[int], int]]:
    """Of every 1,024 ids: running sums of their masses relative to the largest of them, and what that one weighs."""
    parts = [row[at : at + 1024] for at in range(0, len(row), 1024)]
    tops = [max(part) for part in parts]
    weights = softmax_masses(tops, temperature, max(tops))
    return [
        (list(accumulate(softmax_masses(part, temperature, top))), weight)
        for part, top, weight in zip(parts, tops, weights, strict=True)
    ]


def chunk_total(parts: list[tuple[list[int], int]]) -> int:
    """The row's total mass."""
    return sum(sums[-1] * weight >> 40 for sums, weight in parts)


def draw_from_chunks(bits: int, parts: list[tuple[list[int], int]]) -> int:
    """The id drawn from a row without filters."""
    rest = bits * chunk_total(parts) >> 64
    for chunk, (sums, weight) in enumerate(parts):
        if sums[-1] * weight >> 40 > rest:
            return 1024 * chunk + next(i for i, running in enumerate(sums) if running * weight >> 40 > rest)
        rest -= sums[-1] * weight >> 40
    raise AssertionError("a draw beyond the masses")


def u32(seed: int, position: int, purpose: int) -> int:
    return int(primitives.philox_u32(seed, position, purpose))


def u64(seed: int, position: int, purpose: int) -> int:
    return int(primitives.philox_u64(seed, position, purpose))


def draw(bits: int, masses: list[int], total: int) -> int:
    """Index of the first mass whose inclusive prefix sum exceeds high64(bits * total)."""
    point = bits * total >> 64
    running = 0
    for index, m in enumerate(masses):
        running += m
        if running > point:
            return index
    raise AssertionError("a draw beyond the masses")
