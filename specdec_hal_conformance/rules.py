"""The contract's rules, and those that no case touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specdec_hal.ops import OPS, get_op
from specdec_hal.ops.page import CONVENTIONS
from specdec_hal.ops.spec import parse_rules
from specdec_hal_conformance.report import REFUSED, Report

CONVENTION = "conventions"
"""Takes the place of the op in the ids of section 0's rules."""


def full_id(op: str, rule: str) -> str:
    """``op#rule``; for a convention (op "") ``conventions#rule``. Full ids are unchanged."""
    return rule if "#" in rule else f"{op or CONVENTION}#{rule}"


def all_rules(ops: Iterable[str] | None = None) -> Mapping[str, str]:
    """Every rule by full id with its statement: those of some ops; or (None) the conventions' and those of all ops."""
    chosen = list(OPS) if ops is None else [get_op(op).name for op in ops]
    known = {}
    if ops is None:
        known = {full_id("", rule): text for rule, text in parse_rules(CONVENTIONS).items()}
    for op in chosen:
        known.update({full_id(op, rule): text for rule, text in OPS[op].rules.items()})
    return known


@dataclass(frozen=True)
class Coverage:
    """Rules by full id: `untouched` with their statements, `refused` with the backend's reason, `total` of all."""

    total: int
    untouched: Mapping[str, str]
    refused: Mapping[str, str]


def _op_of(rule: str) -> str:
    return rule.partition("#")[0]


def coverage(report: Report, ops: Iterable[str] | None = None) -> Coverage:
    """Coverage of the rules of claimed ops by a report's cases.

    A rule counts as refused if all of its cases were.
    """
    touched: set[str] = set()
    refused: dict[str, str] = {}
    missing = {r.op: r.detail for r in report.results if r.check == "capability" and r.case.endswith(":all")}
    for result in report.results:
        if result.status != REFUSED:
            touched.update(result.rules)
        else:
            refused.update(dict.fromkeys(result.rules, result.detail))
    known = {rule: text for rule, text in all_rules(ops).items() if _op_of(rule) not in missing}
    if missing:  # a backend with some ops need not cover all conventions
        known = {rule: text for rule, text in known.items() if _op_of(rule) != CONVENTION or rule in touched}
    left = {rule: text for rule, text in known.items() if rule not in touched}
    return Coverage(
        len(known),
        {rule: text for rule, text in left.items() if rule not in refused},
        {rule: refused[rule] for rule in left if rule in refused},
    )
