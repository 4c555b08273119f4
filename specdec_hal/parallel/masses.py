"""The arithmetic that all backends share (:mod:`specdec_hal.backends.reference.primitives`), on PyTorch tensors.

For ranks that sample from their own part of a vocabulary: what each finds in its part has to be the integers that an op
finds in the whole row. Operators run one by one, so that every float32 operation is rounded, and reading no value they
can be captured in a CUDA graph; torch.compile would fuse them into fused multiply-adds, which the contract forbids.

PyTorch has no arithmetic for uint64: masses are int64, and below 2^63 for any vocabulary below 2^23 tokens. Words that
use all 64 bits stand in int64 too, whose sums and products wrap around.
"""

from __future__ import annotations

from typing import Any

import torch

from specdec_hal.backends.reference.primitives import (
    EXP2_COEFFICIENTS,
    LN2_Q64,
    LOG2E,
    MASS_BITS,
    PHILOX_INCREMENTS,
    PHILOX_MULTIPLIERS,
)

_LOW32 = 0xFFFFFFFF
_COEFFICIENTS = [float(c) for c in EXP2_COEFFICIENTS]

KEY_INF, KEY_NAN = 0x7F800000, 0x7FFFFFFF


def shift_right(x: Any, bits: int) -> Any:
    """Words of 64 bits, shifted without their sign; `bits` >= 1."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mulhi64(a: Any, b: Any) -> Any:
    """See primitives.mulhi64."""
    a0, a1, b0, b1 = a & _LOW32, shift_right(a, 32), b & _LOW32, shift_right(b, 32)
    cross = a1 * b0 + shift_right(a0 * b0, 32)
    other = a0 * b1 + (cross & _LOW32)
    return a1 * b1 + shift_right(cross, 32) + shift_right(other, 32)


def mass_product(mass: Any, weight: Any) -> Any:
    """See primitives.mass_product."""
    return mulhi64(mass, weight) << (64 - MASS_BITS) | shift_right(mass * weight, MASS_BITS)


def philox_u64(seed: Any, position: Any, purpose: int) -> Any:
    """See primitives.philox_u64: int64 tensors [R]. Both halves of a round at once, since each operator is a launch."""
    multipliers, increments = (
        torch.stack([seed.new_full((1,), word) for word in pair]) for pair in (PHILOX_MULTIPLIERS, PHILOX_INCREMENTS)
    )
    key = torch.stack([seed & _LOW32, shift_right(seed, 32)])
    even = torch.stack([position & _LOW32, torch.full_like(position, int(purpose))])
    odd = torch.stack([shift_right(position, 32), torch.zeros_like(position)])
    for _ in range(10):
        product = (even * multipliers).flip(0)
        even, odd = shift_right(product, 32) ^ odd ^ key, product & _LOW32
        key = (key + increments) & _LOW32
    return odd[0] << 32 | even[0]


# ---- masses


def softmax_t(logits: Any, top: Any, inv_temperature: Any) -> Any:
    """See primitives.softmax_t; here, all three are broadcast."""
    return (((logits - top) * inv_temperature) * float(LOG2E)).masked_fill_(logits == top, 0.0)


def exp2_mass(t: Any) -> Any:
    """See primitives.exp2_mass."""
    x = t.nan_to_num(nan=-64.0, neginf=-64.0).clamp_(-64.0, 0.0)
    n = x.round()
    x -= n
    p = x * _COEFFICIENTS[-1]
    for c in _COEFFICIENTS[-2:0:-1]:
        p = p.add_(c).mul_(x)
    p += _COEFFICIENTS[0]
    power = n.to(torch.int32).add_(MASS_BITS).bitwise_left_shift_(23)
    return power.add_(p.view(torch.int32)).view(torch.float32).to(torch.int64)


def threshold(fraction: Any, total: Any) -> Any:
    """See primitives.threshold: `fraction` float32, `total` int64."""
    steps = (fraction.nan_to_num(nan=1.0).clamp(0.0, 1.0) * float(1 << 24)).to(torch.int64)
    return steps * (total >> 24) + (steps * (total & 0xFFFFFF) >> 24)


def ln_ratio(total: Any) -> Any:
    """See primitives.ln_ratio: int64 `total`."""
    x = total.clamp(min=1)
    log2 = torch.full_like(x, 63)
    for step in (32, 16, 8, 4, 2, 1):  # as words, to [2^63, 2^64)
        small = shift_right(x, 64 - step) == 0
        x = torch.where(small, x << step, x)
        log2 -= small.to(torch.int64) * step
    for _ in range(32):
        x = mulhi64(x, x)
        carry = x < 0
        x = torch.where(carry, x, x << 1)
        log2 = log2 * 2 + carry.to(torch.int64)
    q56 = mulhi64((log2 - (MASS_BITS << 32)).clamp_(min=0) << 24, torch.full_like(x, LN2_Q64 - (1 << 64)))
    return q56.to(torch.float32) * 2.0**-56


# ---- order


def order_key(x: Any) -> Any:
    """int32 keys of float32: a larger float has a larger key, equal ones (-0 and +0 too) the same, NaN the largest."""
    bits = x.view(torch.int32)
    magnitude, sign = bits & 0x7FFFFFFF, bits >> 31
    return ((magnitude ^ sign) - sign).masked_fill_(magnitude > KEY_INF, KEY_NAN)


def key_value(key: Any) -> Any:
    """The float32 of an int32 key; +0 for that of both zeros."""
    return torch.where(key < 0, -key | -(1 << 31), key).view(torch.float32)


def place(key: Any, token: Any) -> Any:
    """Where a token stands in the order of a row (logit descending, id ascending), as an int64: the first is largest.

    `key` int32, `token` int64 below 2^32.
    """
    return key.to(torch.int64) << 32 | (_LOW32 - token)


NOWHERE = -(1 << 63)
"""Behind every :func:`place`."""


def key_at(places: Any) -> Any:
    """The int32 key of the logit that stands there."""
    return (places >> 32).to(torch.int32)


def logit_at(places: Any) -> Any:
    """The float32 logit that stands there."""
    return key_value(key_at(places))


def token_at(places: Any) -> Any:
    """The token that stands there."""
    return _LOW32 - (places & _LOW32)
