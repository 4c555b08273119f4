"""Cases drawn by hypothesis from the OpSpecs: shapes that satisfy the symbols, attributes in range, coherent values."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, IntEnum
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from specdec_hal.ops import get_op
from specdec_hal.ops.inputs.generate import DEEP, generate, hostile
from specdec_hal_conformance.case import Case

SIZES = {
    "M": st.integers(1, 6),
    "S": st.integers(1, 7),
    "L": st.integers(1, 40),
    "V": st.sampled_from([1, 2, 3, 7, 16, 40, 111]),
}
_MAKERS = {"generated": generate, "hostile": hostile}


def _whole_alphabet(op: str) -> dict[str, st.SearchStrategy[Any]]:
    """Every value of the op's enumerated attributes, and whether optional operands are passed."""
    spec = get_op(op)
    drawn: dict[str, st.SearchStrategy[Any]] = {}
    for attr in spec.attrs:
        if attr.kind is bool:
            drawn[attr.name] = st.booleans()
        elif issubclass(attr.kind, IntEnum):
            drawn[attr.name] = st.sampled_from(list(attr.kind))
    if "x" in spec.by_name:
        drawn["dtype"] = st.sampled_from(spec.by_name["x"].tensor.dtypes)
    return drawn


@st.composite
def op_options(draw: st.DrawFn, /, op: str, **fixed: Any) -> dict[str, Any]:
    """Options of :func:`.inputs.generate.generate`; they shrink towards few slots, short rows, small ids.

    About a third leave everything to the scene; a third have options that reach the op's deep branches.
    """
    options: dict[str, Any] = {"seed": draw(st.integers(0, 2**32 - 1))}
    style = draw(st.sampled_from(["free", "sized", "deep"]))
    if style == "deep":
        options.update(DEEP.get(op, {}))
    elif style == "sized":
        options.update({name: draw(sizes) for name, sizes in SIZES.items()})
    if draw(st.booleans()):
        options.update({n: draw(s) for n, s in _whole_alphabet(op).items() if n not in options})
    options.update(fixed)
    return options


def draw_options(op: str, count: int, base_seed: int) -> list[dict[str, Any]]:
    """`count` sets of options, the same for the same seed."""
    drawn: list[dict[str, Any]] = []

    @seed(base_seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=False,
    )
    @given(op_options(op))
    def collect(options: dict[str, Any]) -> None:
        drawn.append(options)

    collect()
    return drawn


def _make(kind: str, op: str, options: dict[str, Any], workspace: Any) -> dict[str, Any]:
    given_options = dict(options)
    if kind == "hostile" and op == "ngram_index_update":
        given_options.setdefault("L", 6)  # each look-up probes a whole table of random bits
    return _MAKERS[kind](op, given_options.pop("seed"), workspace=workspace, **given_options)


def drawn_cases(op: str, kind: str, count: int, base_seed: int) -> Iterator[Case]:
    """`kind` is "generated" or "hostile" (the same shapes with the worst values)."""
    for number, options in enumerate(draw_options(op, count, base_seed)):
        shown = ", ".join(f"{name}={_show(value)}" for name, value in options.items())
        yield Case(op, f"{kind}:{number}", partial(_make, kind, op, options), note=shown)


def _show(value: Any) -> str:
    return value.name if isinstance(value, Enum) else "+".join(value) if isinstance(value, tuple) else str(value)
