"""Finding batch sizes that agree, on products whose classes are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specdec_hal.models.rows import CANDIDATES, RowSizes, agreeing, linear_sizes

Array = npt.NDArray[np.float32]


def test_fit() -> None:
    sizes = RowSizes([6, 1, 4, 12, 4])
    assert sizes.sizes == (1, 4, 6, 12)
    assert [sizes.fit(n) for n in (1, 2, 4, 5, 7, 12)] == [1, 4, 4, 6, 12, 12]
    assert 4 in sizes and 5 not in sizes
    assert sizes.largest == 12
    assert RowSizes([]).largest == 0


def test_class_with_most_decode_sizes_wins() -> None:
    classes = {1: b"a", 2: b"b", 3: b"b", 4: b"b", 40: b"a", 48: b"a", 64: b"a", 5: None}
    assert agreeing(classes.get, classes).sizes == (2, 3, 4)


def test_smallest_size_wins_a_tie() -> None:
    classes = {1: b"a", 2: b"b", 64: b"b"}
    assert agreeing(classes.get, classes).sizes == (1,)


def by_kernels(x: Array, kernel: dict[int, int]) -> Array:
    """Row sums; each row is added up in pieces whose width depends on the number of rows, as in a BLAS."""
    width = kernel.get(len(x), 7)
    return sum((x[:, i : i + width].sum(1, dtype=np.float32) for i in range(0, x.shape[1], width)), np.float32(0))[
        :, None
    ]


def test_linear_sizes() -> None:
    kernel = {n: 64 for n in CANDIDATES if n % 3 == 1}
    found = linear_sizes(lambda x: by_kernels(x, kernel), 200, 40).sizes
    assert found == tuple(n for n in CANDIDATES if n % 3 != 1 and n <= 40)


def test_a_size_whose_own_rows_differ_is_none() -> None:
    def multiply(x: Array) -> Array:
        result = x.sum(1, keepdims=True)
        if len(x) > 4:
            result[-1] = np.nextafter(result[-1], np.float32(np.inf))
        return result

    assert linear_sizes(multiply, 8, 16).sizes == (1, 2, 3, 4)
