"""A report of an audit for people, programs and browsers."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

from specdec_hal.cli.output import Output
from specdec_hal.cli.tables import Rows
from specdec_hal_conformance.audit.run import DRAFTED, PLAIN, Check, Finding, Kind, Report

SHOWN = 3
"""Findings of a check that are printed; the file has all."""
VERDICTS = {0: "no draft changed an answer", 1: "drafts change answers", 2: "no verdict"}


COLUMNS = ("check", "verdict", "asked", "equal", "ties", "tokens", "detail")


def document(report: Report) -> dict[str, Any]:
    """For JSON."""
    return {
        "status": report.status,
        "verdict": VERDICTS[report.status],
        "cannot": report.cannot,
        "threshold_nats": report.threshold,
        "checks": [{**dataclasses.asdict(check), "verdict": check.verdict} for check in report.checks],
        "kinds": [
            {**dataclasses.asdict(kind), "verdict": kind.verdict, "faster": kind.faster} for kind in report.kinds
        ],
        "acceptance": report.acceptance,
        "seconds": report.seconds,
    }


def print_report(report: Report, output: Output) -> None:
    """A table, and the first findings of each check with commands that show them."""
    rows = Rows("Audit", COLUMNS, spare=(5,))
    for check in report.checks:
        rows.add_row(*_cells(check))
    rows.print(output.console)
    if report.kinds:
        rows = Rows("Greedy answers", KINDS, spare=(6, 7))
        for kind in report.kinds:
            rows.add_row(*_kind_cells(kind))
        rows.print(output.console)
    for check in report.checks:
        for finding in check.findings[:SHOWN]:
            print(f"{check.name} ({finding.kind}): {finding.what}\n  {finding.curl}", file=output.stdout)
        if len(check.findings) > SHOWN:
            print(f"{check.name}: {len(check.findings) - SHOWN} more, see --json or --html", file=output.stdout)
    for side, rows_of_side in report.acceptance.items():
        counted = ", ".join(f"{name} {value:g}" for name, value in rows_of_side.items())
        print(f"{side}: {counted}", file=output.stdout)
    seconds = ", ".join(f"{side} {value:.1f} s" for side, value in report.seconds.items() if value)
    print(f"time of requests: {seconds or 'none, every answer was known'}", file=output.stdout)
    print(f"differences up to {report.threshold:.3f} nats are rounding", file=output.stdout)
    print(VERDICTS[report.status] + (f": {report.cannot}" if report.cannot else ""), file=output.stdout)


def _cells(check: Check) -> tuple[str, ...]:
    counts = (check.asked, check.equal, check.ties, check.compared)
    texts = map(str, counts) if check.asked else [""] * len(counts)
    return (check.name, check.verdict, *texts, "; ".join(one for one in (check.detail, check.skipped) if one))


KINDS = ("kind", "verdict", "answers", "equal", "ties", "accepted", "plain tok/s", "drafted tok/s", "faster")


def _kind_cells(kind: Kind) -> tuple[str, ...]:
    accepted = f"{kind.accepted} of {kind.drafted}" if kind.drafted else ""
    speeds = [
        f"{kind.tokens[side] / kind.seconds[side]:.1f}" if kind.seconds[side] else "" for side in (PLAIN, DRAFTED)
    ]
    faster = "" if kind.faster is None else f"{kind.faster:.2f} x"
    return (kind.name, kind.verdict, str(kind.answers), str(kind.equal), str(kind.ties), accepted, *speeds, faster)


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
       color: #1b1b1b; background: #fff; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; vertical-align: top; }
tr { border-bottom: 1px solid #8884; } pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; } .FAULT { color: #b00020; font-weight: 600; }
section { margin: 1.5rem 0; } mark { background: #ffd54f; }
@media (prefers-color-scheme: dark) { body { color: #e8e8e8; background: #16181d; } .FAULT { color: #ff7a85; } }
@media (max-width: 45rem) { .sides { grid-template-columns: 1fr; } }
"""


def page(report: Report) -> str:
    """A page with the differing texts side by side."""
    checks = _table(COLUMNS, [_cells(check) for check in report.checks])
    kinds = _table(KINDS, [_kind_cells(kind) for kind in report.kinds])
    found = "".join(_section(finding) for check in report.checks for finding in check.findings)
    verdict = VERDICTS[report.status] + (f": {report.cannot}" if report.cannot else "")
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>Audit</title><style>{_STYLE}</style><h1>Audit: {html.escape(verdict)}</h1>"
        f"{checks}{kinds}{found}</html>"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(
        f"<tr class='{row[1]}'>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in heads)}</tr>{cells}</table>"


def _section(finding: Finding) -> str:
    same = 0
    while same < min(len(finding.plain), len(finding.drafted)) and finding.plain[same] == finding.drafted[same]:
        same += 1
    sides = "".join(
        f"<div><b>{side}</b><pre>{html.escape(text[:same])}<mark>{html.escape(text[same:])}</mark></pre></div>"
        for side, text in (("plain", finding.plain), ("drafted", finding.drafted))
    )
    head = f"{html.escape(finding.check)}, {html.escape(finding.kind)}: {html.escape(finding.what)}"
    return f"<section><h2>{head}</h2><pre>{html.escape(finding.curl)}</pre><div class='sides'>{sides}</div></section>"
