"""Widths at which kernels of recurrent layers take other ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specdec_hal.ops import Storage
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.spec import FLOATS

WIDTHS = ((64, 16), (64, 20), (128, 33), (128, 128), (129, 9), (200, 36), (256, 64), (256, 6))
"""D_k and D_v: whole and not for the groups of lanes, columns and vectors of the kernels."""


def calls(op: str, seed: int = 0, **options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls of the op at all widths, with what they are."""
    states = {"states": ("decode", "decode", "prefill", "idle"), "S": 4, "L": 30, "M": 5, "H_k": 2, "H_v": 4}
    if op == "causal_conv1d":
        for number, (width, taps) in enumerate(((1, 4), (127, 4), (128, 3), (300, 8), (129, 1))):
            yield f"{width} channels, {taps} taps", generate(op, seed + number, D=width, Taps=taps, **states, **options)
        return
    for number, (d_k, d_v) in enumerate(WIDTHS):
        for storage in Storage:
            sizes = {"D_k": d_k, "D_v": d_v, "R": 11, "storage": storage}
            yield f"{d_k} x {d_v}, {storage.name}", generate(op, seed + number, **sizes, **states, **options)


def prompts(op: str, seed: int = 0, **options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls in which some slots have the rows of a prompt, with what they are."""
    states = {"states": ("decode", "decode", "prefill", "idle"), "S": 80, "L": 300, "M": 5, "R": 11, "H_k": 2, "H_v": 4}
    shapes = [(64, 20), (64, 33), (128, 33), (128, 64)]
    for number, (first, second) in enumerate([(130, 4), (130, 8), (129, 1)] if op == "causal_conv1d" else shapes):
        options |= {"dtype": FLOATS[(number + seed) % len(FLOATS)]}
        if op == "causal_conv1d":
            yield f"{second} taps", generate(op, seed + number, D=first, Taps=second, **states, **options)
            continue
        for storage in Storage:
            sizes = {"D_k": first, "D_v": second, "storage": storage}
            yield f"{first} x {second}, {storage.name}", generate(op, seed + number, **sizes, **states, **options)
