"""OpSpecs: their own parts, the vocabulary, and the page made of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from specdec_hal.ops import OPS, MatchPolicy, Purpose, Strategy, TokenOrder, vocabulary
from specdec_hal.ops.enums import ENUMERATIONS, AcceptPolicy, SlotAction
from specdec_hal.ops.page import SECTIONS, render_contracts, render_op
from specdec_hal.ops.spec import NO_NAN, OFFSETS, Dim, Role, between

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "text, symbol, offset", [("M", "M", 0), ("B+1", "B", 1), ("S-1", "S", -1), ("R_cap", "R_cap", 0), (4, None, 4)]
)
def test_dimensions(text, symbol, offset):
    dim = Dim.parse(text)
    assert dim == Dim(symbol, offset) and str(dim) == str(text)
    assert dim.value({symbol: 10} if symbol else {}) == offset + (10 if symbol else 0)


@pytest.mark.parametrize("text", ["", "m", "B++1", "2B", "B*2", "B +1"])
def test_bad_dimensions(text):
    with pytest.raises(ValueError, match=r"bad dimension .*expected a symbol such as 'M', or 'B\+1'"):
        Dim.parse(text)


def test_value_rules():
    rule = between(0, "S")
    docs = [rule.doc, between(0, None).doc, between(-1, "M-1").doc]
    assert docs == ["in [0, S]", "in [0, inf]", "in [-1, M-1]"]
    values = np.array([[0, 3], [7, -1]])
    assert rule.check(values, {"S": 7}) == "-1 at [1, 1]"
    assert rule.check(values, {"S": 6}) == "7 at [1, 0]"
    assert rule.check(values[:1], {"S": 3}) is None
    assert rule.check(values[:1] + 100, {}) is None  # an unknown symbol puts no limit
    assert between(0, 1).check(np.array([0.5, np.nan], np.float32), {}) == "nan at [1]"
    assert OFFSETS.check(np.array([0, 1, 1]), {}) is None and OFFSETS.check(np.array([], int), {}) is None
    assert OFFSETS.check(np.array([1, 2]), {}) == "1 at [0]"
    assert OFFSETS.check(np.array([0, 2, 1]), {}) == "1 after 2 at [2]"
    assert NO_NAN.check(np.array([[0, np.inf]], np.float16), {}) is None
    assert NO_NAN.check(np.array([[0x3F80], [0xFFC1]], np.uint16), {}) == "NaN in row 1"


def test_enumerations_are_numbered_for_good():
    """Compiled backends receive the integers."""
    assert [m.name for m in sorted(Strategy)] == ["GREEDY", "TARGET_MATCH", "TOPP", "REJECTION"]
    assert [m.name for m in sorted(AcceptPolicy)] == ["NORMAL", "ACCEPT_ALL", "REJECT_ALL"]
    assert [m.name for m in sorted(MatchPolicy)] == ["LEFTMOST", "LATEST"]
    assert [m.name for m in sorted(TokenOrder)] == ["SLOT", "PREFILL_FIRST"]
    assert [m.name for m in sorted(SlotAction)] == ["KEEP", "PREFILL", "WAIT", "STOP"]
    names = ("SAMPLE", "ACCEPT", "RESIDUAL", "CANDIDATE", "DRAFT")
    assert [(m.name, m.value) for m in Purpose] == [(name, value) for value, name in enumerate(names)]
    for kind in ENUMERATIONS:
        assert sorted(kind) == list(range(len(kind)))


def test_vocabulary():
    used = {dim.symbol for name in vocabulary.names() for dim in vocabulary.tensor(name).dims} - {None}
    assert used == set(vocabulary.SYMBOLS)
    assert set(vocabulary.MINIMUM) | set(vocabulary.MAXIMUM) <= set(vocabulary.SYMBOLS)
    in_ops = {operand.name for spec in OPS.values() for operand in spec.operands}
    assert set(vocabulary.names()) - in_ops == {"block_tables"} and in_ops < set(vocabulary.names())  # models take it
    with pytest.raises(KeyError):
        vocabulary.tensor("nothing")


@pytest.mark.parametrize("op", OPS)
def test_op_specs_are_sound(op):
    spec = OPS[op]
    assert spec.name == op and spec.section in SECTIONS
    assert spec.summary.endswith(".") and spec.doc and "\n    " not in spec.doc
    assert any(operand.role is not Role.IN for operand in spec.operands)
    assert len(spec.by_name) == len(spec.operands) and not set(spec.by_name) & set(spec.attr_by_name)
    symbols = {d.symbol for operand in spec.operands for d in operand.tensor.dims} | set(spec.attr_by_name)
    for relation in spec.relations:
        assert {relation.left, relation.right} <= symbols
    for operand in spec.operands:
        assert operand.when is None or operand.when.attr in spec.attr_by_name
        assert not operand.tensor.dtype_of or operand.tensor.dtype_of in spec.by_name


@pytest.mark.parametrize("op", OPS)
def test_rendered_ops_say_everything(op):
    spec, text = OPS[op], render_op(OPS[op])
    assert text.startswith(f"### `{op}`\n\n{spec.summary}\n") and text.endswith("\n")
    assert spec.doc in text and not re.search(r"^[^-\s].*\n[-+*>] ", spec.doc, re.M), "a line reads as a list"
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `")}
    assert set(rows) == {*spec.by_name, *spec.attr_by_name}
    for name, operand in spec.by_name.items():
        assert operand.tensor.doc in rows[name] and f"| {operand.role.value}" in rows[name]
        assert operand.tensor.dtype_of or all(dtype in rows[name] for dtype in operand.tensor.dtypes)
        assert ("optional" in rows[name]) == operand.optional
        assert operand.when is None or str(operand.when) in rows[name]
        if operand.tensor.values is not None and operand.role is not Role.OUT:
            assert operand.tensor.values.doc in rows[name]
    for name, attr in spec.attr_by_name.items():
        assert attr.doc in rows[name] and attr.allowed().replace("|", "\\|") in rows[name]
        assert ("required" in rows[name]) == (attr.default is None and not attr.from_backend)
    for relation in spec.relations:
        assert f"`{relation}`" in text


def test_shapes_that_depend_on_an_attribute_are_rendered():
    text = render_op(OPS["gather_next_token"])
    assert "| [R_cap, D] if is_speculative = True; [B, D] if is_speculative = False |" in text
    assert "| that of `x` |" in render_op(OPS["adjust_batch"])


def test_the_page_has_every_op_once_and_every_symbol():
    page = render_contracts()
    for op in OPS:
        assert page.count(f"\n### `{op}`\n") == 1
    for symbol in vocabulary.SYMBOLS:
        assert f"\n| {symbol} |" in page
    for number, title in SECTIONS.items():
        assert f"\n## {number}. {title}\n" in page
    for block in page.split("\n\n"):
        if block.startswith("|"):
            assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1, block
