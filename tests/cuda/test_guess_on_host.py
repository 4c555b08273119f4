"""Where a filter's cut is presumed: tokens do not depend on it, so it is counted how often it was wrong."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.bench.logit_rows import LogitRows
from tests.support.cuda_on_host import ARCHS, CudaOnHost, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "never")
ROWS = 24


def missed(rows: LogitRows, arch: int, *, top_p: float, top_k: int = 0, seed: int = 0) -> int:
    """Rows whose cut was not where it was presumed."""
    backend = CudaOnHost(arch)
    backend.exports["missed_guesses"]()
    n = rows.rows
    backend.sample_target(
        logits=rows.logits(seed), row_temperature=np.ones(n, np.float32), row_top_p=np.full(n, top_p, np.float32),
        row_top_k=np.full(n, top_k, np.int32), row_min_p=np.zeros(n, np.float32), row_seed=np.arange(n),
        position=np.arange(n), target_tokens=np.zeros(n, np.int64),
    )  # fmt: skip
    return int(backend.exports["missed_guesses"]())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spread", [0.01, 1.0, 2.0, 8.0])
def test_no_guess_fails_in_rows_of_any_spread(spread, dtype):
    for number, (arch, peaks) in enumerate(zip(ARCHS, (0, 20), strict=True)):
        for v in (32_000, 151_936):  # all elements are counted, in clusters, or a sample is
            rows = LogitRows(ROWS, v, dtype, spread, peaks)
            assert missed(rows, arch, top_p=0.9, seed=number) == 0


@pytest.mark.parametrize("top_p, top_k", [(0.1, 0), (0.999, 0), (1.0, 300), (0.9, 1000), (0.9, 40_000)])
def test_no_guess_fails_wherever_the_cut_is(top_p, top_k):
    for number, rows in enumerate((1, ROWS)):  # clusters of blocks, and one a row
        assert missed(LogitRows(rows, 128_256), ARCHS[0], top_p=top_p, top_k=top_k, seed=number) == 0


def test_a_guess_that_must_fail_is_counted():
    """More elements are equal at the threshold than a list has room for."""
    row = LogitRows(1, 262_144, "float32", spread=0.0)
    assert missed(row, ARCHS[1], top_p=0.9) > 0
