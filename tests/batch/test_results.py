"""A Parquet file has what the lines of JSON have, column by column."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_hal.batch.results import write_results
from specdec_hal.batch.rows import answer, failed
from specdec_hal.runner import RequestOutput, TokenLogprobs


def test_parquet_has_every_column(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (pip install 'specdec-hal[ray]')")
    scored = (TokenLogprobs(-0.5, 1, ((4, -0.5), (7, -1.5))),)
    output = RequestOutput(
        "0", 3, (4,), (False,), "d", "length", "", scored, 5, 9, 2, None, (None, *scored), (), (1 << 63) - 1, 4
    )
    rows = [answer(0, "mine", output), failed(1, None, "why")]
    assert (rows[0]["seed"], rows[0]["steps"], rows[0]["num_drafts"]) == ((1 << 63) - 1, 5, 4)
    write_results(tmp_path / "rows.parquet", iter(rows), "parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.column_names == list(rows[0])
    assert table.to_pylist() == rows
