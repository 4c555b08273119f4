"""The model of FastDeploy's ops gives the examples of its documents that the layer itself is not tested with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compat.fastdeploy.chains import kernels_drafts, kernels_rows, kernels_tokens
from tests.compat.fastdeploy.chains.kernels_tokens import TARGET_MATCH, TOPP

Array = NDArray[Any]

DRAFTS = [7, 11, 12, 13]


def i32(*values: int) -> Array:
    return np.array(values, np.int32)


def verified(targets: list[int], ends: list[int], step: int, limit: int, *, enc: int = 0, reasoning: int = 0,
             reject_all: bool = False) -> list[int]:  # fmt: skip
    ids, lens = np.zeros((1, 4), np.int64), i32(0)
    kernels_tokens.verify_draft_tokens(
        ids, lens, np.array([DRAFTS]), np.array(targets), None, None, None, np.ones(1, np.float32), np.array([False]),
        i32(enc), i32(4), np.array(ends), np.array([False]), i32(0), i32(reasoning), np.array([limit]),
        np.array([step]), 64, 2, TARGET_MATCH, reject_all, False,
    )  # fmt: skip
    assert ids[0, lens[0] :].tolist() == [-1] * (4 - lens[0])
    return ids[0, : lens[0]].tolist()


@pytest.mark.parametrize("state", [{"reject_all": True}, {"enc": 9}, {"reasoning": 1}])
def test_where_no_draft_is_taken(state: dict[str, Any]) -> None:
    assert verified([11, 12, 13, 50], [1], 5, 100, **state) == [11]


def test_a_window_of_topp_is_resumed_where_it_ends() -> None:
    """Drafts 11 to 15, of which the first is the second best: the bonus token follows the fifth."""
    ids, lens = np.zeros((1, 6), np.int64), i32(0)
    candidates = np.array([[9, 11], [12, 0], [13, 0], [14, 0], [15, 0], [50, 0]])
    kernels_tokens.verify_draft_tokens(
        ids, lens, np.array([[7, 11, 12, 13, 14, 15]]), None, candidates, np.ones((6, 2), np.float32), i32(*[1] * 6),
        np.full(1, 0.9, np.float32), np.array([False]), i32(0), i32(6), np.array([1]), np.array([False]), i32(0),
        i32(0), np.array([100]), np.array([5]), 64, 2, TOPP, False, False,
    )  # fmt: skip
    assert ids[0].tolist() == [11, 12, 13, 14, 15, 50]


def test_lengths_of_an_xpu_batch() -> None:
    """What FastDeploy's script expects before the longest context."""
    enc, dec, tt = i32(100, 0, 0, 0, 300), i32(0, 5, 0, 25, 64), i32(100, 1, 0, 1, 300)
    lists = [np.zeros(5 + name.endswith("lod"), np.int32) for name in kernels_rows.INFER_LISTS]
    info, prefix, copies = np.zeros(7, np.int32), np.zeros((5, 8), np.int32), [array.copy() for array in lists]
    kernels_rows.get_infer_param(enc, dec, tt, np.zeros((5, 8), np.int32), *lists, prefix, *copies, info, 64, 5)
    assert info[:6].tolist() == [2, 2, 400, 300, 364, 6]


@pytest.mark.parametrize(
    ("budget", "lens", "decodes", "wanted"),
    [
        (9, [6, 6, 6], [True] * 3, [6, 2, 1]),
        (10, [6, 6, 6], [True] * 3, [6, 3, 1]),
        (12, [4, 6, 6], [False, True, True], [4, 6, 2]),
    ],
)
def test_budgets_of_ngrams(budget: int, lens: list[int], decodes: list[bool], wanted: list[int]) -> None:
    assert kernels_drafts._within(budget, lens, [1] * 3, [True] * 3, decodes) == wanted


def test_an_ngram_of_the_text_itself() -> None:
    """After PR #7774: a b a goes on with b a."""
    drafts, tt = np.full((1, 4), -1), i32(1)
    history = np.array([[1, 5, 6, 5, -1, -1]])
    state = (np.array([1]), np.array([3]), i32(3), drafts, tt, i32(0), i32(4), np.array([50]))
    kernels_drafts.ngram_match(history, *state, 3, 3)
    assert tt[0] == 3 and drafts[0, 1:3].tolist() == [6, 5]


def test_a_stop_sequence_stays() -> None:
    tokens, counts = np.array([[10, 20, 30, 40]]), i32(4)
    kernels_tokens.speculate_set_stop_value_multi_seqs(
        tokens, counts, np.full((1, 8), -1), np.array([0]), np.array([0]), np.array([False]), i32(4),
        np.array([[[20, 30]]]), np.array([[2]], np.int32), np.array([2]), np.array([0]),
    )  # fmt: skip
    assert tokens[0].tolist() == [10, 20, 30, 2] and counts[0] == 4


def test_thinking_that_ends_by_itself_gives_the_answer_two_tokens() -> None:
    assert kernels_tokens.limited_token(7, 3, 9, 5, 0, [8, 7], [2], 7) == (7, 3, 7)
    assert kernels_tokens.limited_token(4, 3, 3, 5, 0, [], [2], 7) == (4, 1, 5)  # without inject tokens it stands
    assert kernels_tokens.limited_token(4, 4, 3, 5, 0, [8, 7], [2], 7) == (4, 0, 5)  # at equality alone
