"""The support matrix: from reports to Markdown and CSV, and the committed one against what backends claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_hal.ops import OPS
from specdec_hal.plugin import registry
from specdec_hal_conformance import matrix

DOCS = Path(__file__).parents[2] / "docs"


def report(backend: str, *rows: tuple[str, str, dict[str, int]], reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    table = [{"op": op, "mode": mode, **counts, "reasons": list(reasons)} for op, mode, counts in rows]
    return {"backend": backend, "table": table}


def test_cells() -> None:
    rows = report(
        "npu",
        ("verify_draft_tokens", "GREEDY", {"passed": 9}),
        ("verify_draft_tokens", "TOPP", {"passed": 9, "failed": 2}),
        ("verify_draft_tokens", "", {"passed": 30}),
        ("prepare_inputs", "", {"passed": 4, "expected failure": 2}),
    )
    cells = matrix.cells_of(rows)
    assert cells == {
        ("verify_draft_tokens", "GREEDY"): "passes",
        ("verify_draft_tokens", "TOPP"): "FAILS (2)",
        ("prepare_inputs", ""): "passes; known failures (2)",
    }
    refused = {"passed": 1, "refused": 7}
    limits = report("npu", ("prepare_inputs", "", refused), reasons=("M = 9 (largest: 8)", "M = 10 (largest: 8)"))
    assert matrix.cells_of(limits) == {("prepare_inputs", ""): "passes; refused: M > 8"}


def test_machines_contribute_one_after_the_other(tmp_path: Path) -> None:
    both = (("sample_target", "float32", {"passed": 1}), ("sample_target", "float16", {"passed": 1}))
    missing = report("npu", ("sample_target", "", {"refused": 6}), reasons=("the op is missing",))
    target = tmp_path / "support"
    matrix.write(target, matrix.merge({}, [report("gpu", *both)]))
    matrix.write(target, matrix.merge(matrix.read(tmp_path / "support.csv"), [missing]))
    assert (tmp_path / "support.csv").read_text().splitlines() == [
        "op,mode,gpu,npu",
        "sample_target,float16,passes,refused: the op is missing",
        "sample_target,float32,passes,refused: the op is missing",
    ]
    page = matrix.render(matrix.read(tmp_path / "support.csv"))
    assert "| `sample_target` | float16 | passes | refused: the op is missing |" in page
    again = matrix.merge(matrix.read(tmp_path / "support.csv"), [report("gpu", both[0])])
    assert again[("sample_target", "float16")] == {"npu": "refused: the op is missing"}


def test_the_committed_matrix_says_what_backends_claim() -> None:
    """That they pass it, test_backends shows."""
    cells = matrix.read(DOCS / "reference" / "support.csv")
    assert {op for op, _ in cells} == set(OPS)
    for name in ("reference", "cpu", "xpu_sim"):
        backend = registry.get_backend(name)
        for (op, mode), columns in cells.items():
            claimed = backend.capability(op) is not None
            assert columns[name] == ("passes" if claimed else "refused: the op is missing"), (op, mode, name)
    rendered = matrix.render(cells)
    assert rendered.startswith(matrix.HEAD) and rendered.count("\n| `") == len(cells)
