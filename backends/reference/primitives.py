"""The arithmetic every backend shares, in NumPy: random words, integer masses, draws and logarithms.

Two rules make backends agree bit for bit:

* Floating point only ever produces a weight. As soon as a weight takes part in a sum or a decision it is an integer
  *mass*, ``floor(weight * 2**40)`` in ``uint64``, and integer sums do not depend on their order.
* The remaining floating point is IEEE float32, one rounding per operation, in the order written here. No fused
  multiply-add, no float64.

``kernels_common/include/specdec/*.h`` holds the same functions in C++17; ``tests/kernels_common`` compares the two bit
for bit. Every function takes scalars or arrays and broadcasts like a NumPy ufunc.

Sources: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011) for Philox; Y. Leviathan et al.,
"Fast inference from transformers via speculative decoding" (2022) for the acceptance test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ArrayLike = npt.ArrayLike
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

MASS_BITS = 40
"""A weight of 1 has the mass ``2**MASS_BITS``. 2^18 weights of a vocabulary then sum to at most 2^58."""

MASS_ONE = 1 << MASS_BITS

LOG2E = np.float32(float.fromhex("0x1.715476p+0"))
"""log2(e) rounded to float32."""

LN2_Q64 = 0xB17217F7D1CF79AC
"""round(ln(2) * 2**64)."""

EXP2_COEFFICIENTS = tuple(
    np.float32(float.fromhex(c))
    for c in (
        "0x1.000000p+0",
        "0x1.62e430p-1",
        "0x1.ebfbdcp-3",
        "0x1.c6af7cp-5",
        "0x1.3b2de0p-7",
        "0x1.5f082ep-10",
        "0x1.416b54p-13",
    )
)
"""c[0] .. c[6] of p(f) = sum c[k] f^k, 2^f on [-0.5, 0.5]: minimax in relative error under c[0] = 1, each coefficient
rounded to float32 before the next ones were fitted. Relative error evaluated in float32: at most 2^-23.39."""


# Random words ---------------------------------------------------------------------------------------------------------

PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
PHILOX_INCREMENTS = 0x9E3779B9, 0xBB67AE85
"""Multipliers of two counter words, and increments of the key, in each round."""

_PHILOX_M0, _PHILOX_M1 = map(np.uint64, PHILOX_MULTIPLIERS)
_PHILOX_W0, _PHILOX_W1 = map(np.uint64, PHILOX_INCREMENTS)
_LOW32 = np.uint64(0xFFFFFFFF)
_LOW24 = np.uint64(0xFFFFFF)
_24, _32, _63 = np.uint64(24), np.uint64(32), np.uint64(63)


def philox4x32_10(counter: ArrayLike, key: ArrayLike) -> U32:
    """Ten rounds of Philox4x32: a bijection of the counter, chosen by the key.

    Args:
        counter: uint32 [..., 4].
        key: uint32 [..., 2]; the leading dimensions broadcast against the counter's.

    Returns:
        uint32 [..., 4].
    """
    # 32-bit words are kept in uint64: products fit, and NumPy has no wrap-around to warn of.
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, np.uint32).astype(np.uint64), -1, 0)
    k0, k1 = np.moveaxis(np.asarray(key, np.uint32).astype(np.uint64), -1, 0)
    for _ in range(10):
        a, b = _PHILOX_M0 * c0, _PHILOX_M1 * c2
        c0, c1, c2, c3 = (b >> _32) ^ c1 ^ k0, b & _LOW32, (a >> _32) ^ c3 ^ k1, a & _LOW32
        k0, k1 = (k0 + _PHILOX_W0) & _LOW32, (k1 + _PHILOX_W1) & _LOW32
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), -1).astype(np.uint32)


def philox_words(seed: ArrayLike, position: ArrayLike, purpose: int, index: ArrayLike = 0) -> tuple[U32, U32, U32, U32]:
    """The four words for one decision about one token of one request.

    Args:
        seed: int64 [...], the request's seed: the key, low half first.
        position: int64 [...], prompt length + number of tokens generated before the one being decided: counter words
            0 and 1, low half first.
        purpose: a :class:`~specdec_hal.ops.enums.Purpose`: counter word 2.
        index: uint32 [...]: counter word 3, 0 unless an op says otherwise.

    Returns:
        Words 0 to 3, each uint32 of the broadcast shape.
    """
    s = np.asarray(seed, np.int64).astype(np.uint64)  # two's complement
    p = np.asarray(position, np.int64).astype(np.uint64)
    s, p, i = np.broadcast_arrays(s, p, np.asarray(index, np.uint64))
    counter = np.stack([p & _LOW32, p >> _32, np.full_like(p, int(purpose)), i], -1).astype(np.uint32)
    words = philox4x32_10(counter, np.stack([s & _LOW32, s >> _32], -1).astype(np.uint32))
    return words[..., 0], words[..., 1], words[..., 2], words[..., 3]


def philox_u32(seed: ArrayLike, position: ArrayLike, purpose: int) -> U32:
    """The 32 random bits of a decision: word 0 of :func:`philox_words`."""
    return philox_words(seed, position, purpose)[0]


def philox_u64(seed: ArrayLike, position: ArrayLike, purpose: int) -> U64:
    """The 64 random bits of a decision: ``word 1 << 32 | word 0`` of :func:`philox_words`."""
    w0, w1, _, _ = philox_words(seed, position, purpose)
    return np.asarray(w1.astype(np.uint64) << _32 | w0)


# Weights and masses ---------------------------------------------------------------------------------------------------

_BLOCK = 1 << 15
"""Elements processed at once, so that temporaries stay in cache."""


def softmax_t(logits: ArrayLike, row_max: ArrayLike, inv_temperature: ArrayLike) -> F32:
    """Base-2 exponent of the softmax weight: ``((logit - row_max) * inv_temperature) * log2(e)``, each step rounded.

    Exactly 0 where ``logit == row_max``, so the largest logit weighs 1 even if it or ``inv_temperature`` is inf. NaN (a
    NaN logit, or -inf with ``inv_temperature`` 0) stays NaN, and has mass 0.

    Args:
        logits: float32 [..., V].
        row_max: float32 [...], the largest logit of each row.
        inv_temperature: float32 [...], ``float32(1) / float32(temperature)``.

    Returns:
        float32 [..., V], <= 0 or NaN.
    """
    x = np.asarray(logits, np.float32)
    top = np.asarray(row_max, np.float32)[..., None]
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        t = np.asarray((x - top) * np.asarray(inv_temperature, np.float32)[..., None], np.float32)
        t *= LOG2E
    np.copyto(t, np.float32(0.0), where=x == top)
    return t


def exp2_mass(t: ArrayLike) -> U64:
    """Mass of the weight 2^t: ``floor(2**40 * p(t - n) * 2**n)`` with n = t rounded half to even.

    p is the polynomial of :data:`EXP2_COEFFICIENTS`, by Horner's rule in float32. t = 0 gives exactly 2^40 and no t
    gives more. Below -40, and for -inf and NaN, it gives 0. t > 0 is outside the domain and taken as 0. It is not
    monotonic: in 3 of 10,000 pairs of neighbours the smaller t has a mass larger by one unit in the 24th bit. Tokens
    are therefore ordered by logit, never by mass.

    Args:
        t: float32 [...].

    Returns:
        uint64 [...].
    """
    return _in_blocks(_exp2_mass, np.asarray(t, np.float32))


def _exp2_mass(t: F32) -> U64:
    x = np.minimum(np.fmax(t, np.float32(-64.0)), np.float32(0.0))  # NaN and -inf: weight 2^-64, mass 0
    n = np.rint(x)
    x -= n  # exact, in [-0.5, 0.5]
    p = x * EXP2_COEFFICIENTS[-1]
    for c in EXP2_COEFFICIENTS[-2:0:-1]:
        p += c
        p *= x
    p += EXP2_COEFFICIENTS[0]
    # p * 2^(n + 40) by its exponent, which stays that of a normal number.
    power = (n.astype(np.int32) + MASS_BITS) << 23
    return (p.view(np.int32) + power).view(np.float32).astype(np.int64).view(np.uint64)


def prob_mass(weight: ArrayLike) -> U64:
    """Mass of a probability or weight: ``floor(weight * 2**40)``; NaN and anything <= 0 give 0, >= 1 gives 2^40.

    Args:
        weight: float32 [...].

    Returns:
        uint64 [...].
    """
    return _in_blocks(_prob_mass, np.asarray(weight, np.float32))


def fraction_mass(fraction: ArrayLike) -> U64:
    """Mass of a fraction that a request asks for (top_p): as `prob_mass`, but NaN counts as 1, as in `mass_threshold`.

    Args:
        fraction: float32 [...].

    Returns:
        uint64 [...].
    """
    f = np.asarray(fraction, np.float32)
    return prob_mass(np.where(np.isnan(f), np.float32(1), f))


def _prob_mass(weight: F32) -> U64:
    return _floor_scaled(np.minimum(np.fmax(weight, np.float32(0.0)), np.float32(1.0)), MASS_BITS)


def _floor_scaled(x: F32, bits: int) -> U64:
    """``floor(x * 2**bits)`` of float32 x in [0, 2), from x's bits: exact, whatever the rounding mode."""
    raw = x.view(np.int32)
    # x = mantissa * 2^(exponent - 150). A denormal wrongly gets the leading 1; the shift discards all of it.
    mantissa = ((raw & 0x7FFFFF) | 0x800000).astype(np.uint64) << np.uint64(17)
    shift = np.minimum((167 - bits) - (raw >> 23), 63)
    return np.asarray(mantissa >> shift.astype(np.uint64))


def _in_blocks(function: Callable[[F32], U64], values: F32) -> U64:
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(flat.shape, np.uint64)
    with np.errstate(invalid="ignore", under="ignore"):  # signalling NaNs and denormals are ordinary input
        for start in range(0, flat.size, _BLOCK):
            out[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
    return out.reshape(values.shape)


def mass_threshold(fraction: ArrayLike, total: ArrayLike) -> U64:
    """The part of a total that a user's fraction stands for: ``floor(fraction * 2**24) * total >> 24``, exactly.

    Args:
        fraction: float32 [...], e.g. top_p or min_p; clamped to [0, 1], NaN counts as 1.
        total: uint64 [...], any value.

    Returns:
        uint64 [...]; equal to total for fraction 1.
    """
    f = np.asarray(fraction, np.float32)
    f = np.where(np.isnan(f), np.float32(1.0), np.clip(f, np.float32(0.0), np.float32(1.0)))
    steps = _floor_scaled(f, 24)
    m = np.asarray(total, np.uint64)
    # total = high * 2^24 + low: steps * high and steps * low both fit 64 bits, and the first has no part to cut off.
    return np.asarray(steps * (m >> _24) + (steps * (m & _LOW24) >> _24))


def mass_ratio(mass: ArrayLike, total: ArrayLike) -> F32:
    """``float32(mass) / float32(total)``: two conversions rounded to nearest even, one IEEE division; 0 for total 0.

    Args:
        mass: uint64 [...].
        total: uint64 [...].

    Returns:
        float32 [...].
    """
    n = np.asarray(total, np.uint64).astype(np.float32)
    part = np.asarray(mass, np.uint64).astype(np.float32)
    return np.asarray(part / np.where(n > 0, n, np.float32(np.inf)))


# Exponential ----------------------------------------------------------------------------------------------------------

LN2_HIGH, LN2_LOW = np.float32(float.fromhex("0x1.62e4p-1")), np.float32(float.fromhex("0x1.7f7d1cp-20"))
"""ln(2) in two parts; the first has 15 bits, so that its product with an exponent is exact."""


def exp_f32(x: ArrayLike) -> F32:
    """e^x, each step rounded: n = x * log2(e) rounded half to even, f = ((x - n * high) - n * low) * log2(e), then
    p(f) * 2^n with p of :data:`EXP2_COEFFICIENTS`. Above 88 it is inf, below -87 it is 0; NaN stays NaN.

    Args:
        x: float32 [...].

    Returns:
        float32 [...], within a factor of 1 +- 2^-22.5 of the exact value.
    """
    given = np.asarray(x, np.float32)
    inside = np.where((given >= np.float32(-87)) & (given <= np.float32(88)), given, np.float32(0))
    n = np.rint(inside * LOG2E)
    f = ((inside - n * LN2_HIGH) - n * LN2_LOW) * LOG2E
    p = f * EXP2_COEFFICIENTS[-1]
    for c in EXP2_COEFFICIENTS[-2:0:-1]:
        p = (p + c) * f
    p = p + EXP2_COEFFICIENTS[0]
    inner = (p.view(np.int32) + (n.astype(np.int32) << 23)).view(np.float32)
    with np.errstate(over="ignore"):
        edge = np.where(given > 88, np.float32(np.inf), np.where(given < -87, np.float32(0), given))
    return np.where(inside == given, inner, edge)


# Masses of a row ------------------------------------------------------------------------------------------------------

CHUNK = 1024
"""Consecutive ids of a row whose masses are relative to the same logit."""


class ChunkMasses(NamedTuple):
    """A row of logits as masses by chunks of ids; the last chunk is filled up with elements that have no mass."""

    masses: U64
    """[chunks, 1024], M: relative to the chunk's largest logit."""
    weights: U64
    """[chunks], W: of the chunk's largest logit, relative to the row's."""
    shares: U64
    """[chunks], S: the chunk's part of the total."""
    total: np.uint64


def chunk_masses(row: F32, inv_temperature: ArrayLike) -> ChunkMasses:
    """Masses of a row by chunks. The row has a distribution: no NaN, and not all of it -inf.

    Args:
        row: float32 [V].
        inv_temperature: float32, ``float32(1) / float32(temperature)``.
    """
    chunks = np.full((-(-len(row) // CHUNK), CHUNK), -np.inf, np.float32)
    chunks.reshape(-1)[: len(row)] = row
    tops = chunks.max(1)
    masses = exp2_mass(softmax_t(chunks, tops, inv_temperature))
    weights = exp2_mass(softmax_t(tops, tops.max(), inv_temperature))  # of a chunk of -inf: 0
    shares = mass_product(masses.sum(1, dtype=np.uint64), weights)
    return ChunkMasses(masses, weights, shares, shares.sum(dtype=np.uint64))


def draw_from_chunks(u64: np.uint64, row: ChunkMasses) -> int:
    """Draw an id: of the first chunk whose inclusive sum of S exceeds r = ``mulhi64(u64, total)``, the first id for
    which the inclusive prefix sum of M, times W / 2^40, exceeds what the chunks before it leave of r.

    Args:
        u64: uint64, random bits.
        row: of the row; its total is not 0.
    """
    r = int(u64) * int(row.total) >> 64
    ends = np.cumsum(row.shares, dtype=np.uint64)
    c = int(np.searchsorted(ends, np.uint64(r), side="right"))
    rest = r - int(ends[c] - row.shares[c])
    # prefix * W >> 40 > rest, solved for the prefix
    least = -(-((rest + 1) << MASS_BITS) // int(row.weights[c]))
    prefixes = np.cumsum(row.masses[c], dtype=np.uint64)
    return c * CHUNK + int(np.searchsorted(prefixes, np.uint64(least), side="left"))


def mass_product(mass: ArrayLike, weight: ArrayLike) -> U64:
    """``floor(mass * weight / 2**40)`` of the exact product.

    Args:
        mass: uint64 [...].
        weight: uint64 [...]; the product is below 2^104.
    """
    a, b = np.asarray(mass, np.uint64), np.asarray(weight, np.uint64)
    return np.asarray(mulhi64(a, b) << _24 | np.multiply(a, b) >> np.uint64(MASS_BITS))


# Integer decisions ----------------------------------------------------------------------------------------------------


def mulhi64(a: ArrayLike, b: ArrayLike) -> U64:
    """High 64 bits of the 128-bit product of two uint64."""
    x, y = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
    x0, x1, y0, y1 = x & _LOW32, x >> _32, y & _LOW32, y >> _32
    cross = x1 * y0 + (x0 * y0 >> _32)  # cannot overflow: (2^32 - 1)^2 + 2^32 - 1 < 2^64
    other = x0 * y1 + (cross & _LOW32)
    return np.asarray(x1 * y1 + (cross >> _32) + (other >> _32))


def draw(u64: ArrayLike, masses: ArrayLike) -> I64:
    """Draw one index from each row of masses: the first whose inclusive prefix sum exceeds ``mulhi64(u64, total)``.

    Args:
        u64: uint64 [...], random bits, one word a row.
        masses: uint64 [..., V], in the order that the op defines; each row must total less than 2^64.

    Returns:
        int64 [...], in [0, V), or -1 for a row that totals 0. An index of mass 0 is never drawn.
    """
    sums = np.cumsum(np.asarray(masses, np.uint64), axis=-1, dtype=np.uint64)
    total = sums[..., -1]
    beyond = sums > mulhi64(u64, total)[..., None]
    return np.where(total > 0, beyond.argmax(-1), -1).astype(np.int64)


def accept_test(u32: ArrayLike, q_mass: ArrayLike, p_mass: ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether a draft of draft mass q and target mass p is accepted: ``(u32 * q) >> 32 < p``, exactly.

    True with probability min(1, p/q) to within 2^-32; with q = 2^40 (a one-hot draft), p to within 2^-32.

    Args:
        u32: uint32 [...], random bits.
        q_mass: uint64 [...].
        p_mass: uint64 [...].

    Returns:
        bool [...].
    """
    u = np.asarray(u32, np.uint32).astype(np.uint64)
    return np.asarray(mulhi64(u << _32, q_mass) < np.asarray(p_mass, np.uint64))


# Logarithms -----------------------------------------------------------------------------------------------------------


def log2_q32(m: ArrayLike) -> I64:
    """log2 of an integer in Q32 fixed point, rounded down: in (exact - 2^-31, exact].

    One result bit at a time: squaring the mantissa doubles the logarithm, and a square that reaches 2 gives a 1.

    Args:
        m: uint64 [...], >= 1 (0 is taken as 1).

    Returns:
        int64 [...], ``floor(log2(m) * 2**32)`` give or take the error above.
    """
    x = np.maximum(np.asarray(m, np.uint64), np.uint64(1))
    result = np.full(x.shape, 63, np.int64)
    for step in (32, 16, 8, 4, 2, 1):  # normalise x to [2^63, 2^64)
        small = x < np.uint64(1 << (64 - step))
        x = np.where(small, x << np.uint64(step), x)
        result -= np.where(small, step, 0)
    for _ in range(32):
        x = mulhi64(x, x)
        carry = x >> _63
        x = np.where(carry > 0, x, x << np.uint64(1))
        result = result * 2 + carry.astype(np.int64)
    return result


def ln_ratio(total: ArrayLike) -> F32:
    """``ln(total / 2**40)`` of a sum of masses, rounded once from Q56 to float32.

    Args:
        total: uint64 [...]; below 2^40 (a row whose largest weight is not 1) gives 0.

    Returns:
        float32 [...], >= 0.
    """
    bits = np.maximum(log2_q32(total) - (MASS_BITS << 32), 0).astype(np.uint64)
    q56 = mulhi64(bits << _24, np.uint64(LN2_Q64))
    return np.asarray(q56.astype(np.float32) * np.float32(2.0**-56), np.float32)


# Sums -----------------------------------------------------------------------------------------------------------------

DOT_PARTS = 8
"""Partial sums of a dot product: part j has the products of elements j, j + 8, ..."""


def dot_sum(products: ArrayLike) -> F32:
    """The products of a dot product, added in the contract's order.

    Args:
        products: float32 [..., D].

    Returns:
        float32 [...].
    """
    x = np.asarray(products, np.float32)
    sums = np.zeros((*x.shape[:-1], DOT_PARTS), np.float32)
    for i in range(0, x.shape[-1], DOT_PARTS):
        part = x[..., i : i + DOT_PARTS]
        sums[..., : part.shape[-1]] += part
    for half in (4, 2, 1):
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0]


# Widening -------------------------------------------------------------------------------------------------------------


def bf16_to_f32(bits: ArrayLike) -> F32:
    """Float32 of bfloat16 bit patterns; exact.

    Args:
        bits: uint16 [...].

    Returns:
        float32 [...].
    """
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
