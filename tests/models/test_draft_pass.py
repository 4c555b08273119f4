"""Parts of a drafter's pass by hand; whole passes are compared in tests/proposers and beside other libraries."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")


@pytest.mark.parametrize(
    ("count", "ids"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (4, [1, 2, 4, 3]), (6, [1, 2, 4, 3, 0, 5])]
)
def test_candidates_are_the_largest_and_of_equal_ones_the_first(count: int, ids: list[int]) -> None:
    from specdec_hal.models.draft_pass import best_candidates

    rows = torch.tensor([[[1.0, 3.0, 3.0, 2.0, 3.0, 0.0], [0.0] * 6]])
    assert best_candidates(rows, count).tolist() == [[ids, list(range(count))]]


def test_a_convolution_stays_in_its_block() -> None:
    """Blocks of two rows, of none and of one, and a row of the tail: one tap back, by a kernel of each row."""
    from specdec_hal.models.draft_pass import convolved

    base = torch.tensor([[[1.0, 2.0], [10.0, 20.0]], [[0.0, 0.0], [1.0, 1.0]]])
    begins = torch.tensor([0, 0, 2, 0], dtype=torch.int32)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    own = torch.zeros(4, 2, 2, 1)  # rows, before and after, taps, groups
    own[1, 0, 1], own[2, 0, 0] = 0.5, 0.25
    before, after = (convolved(x, base[side], own[:, side], begins)[:3].numpy() for side in (0, 1))
    np.testing.assert_allclose(before, [[1.0, 4.0], [3 + 10.5 * 1, 8 + 20.5 * 2], [1.25 * 5, 2.25 * 6]])
    np.testing.assert_allclose(after, [[0, 0], [1, 2], [0, 0]])
