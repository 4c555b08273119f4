"""Finding batch sizes that agree, on products whose classes are known."""

from __future__ import annotations

from specdec_hal.models.rows import RowSizes, agreeing


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
