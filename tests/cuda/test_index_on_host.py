"""The index that look-ups grow, on the CUDA kernels compiled for the CPU: after every step it holds what one built
again does, and whatever stands in a history is found through it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.conformance.guarded import GuardedHost
from specdec_hal.conformance.inputs.generate import hostile
from specdec_hal.conformance.subject import Subject
from specdec_hal.ops import MatchPolicy
from tests.support import ngram_texts
from tests.support.bits import assert_same_bits
from tests.support.cuda_on_host import ARCHS, CudaOnHost, why_not
from tests.support.ngram_texts import TEXTS, Indexing, buckets_of_single_tokens
from tests.support.running import run

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "never")

HEADER = 64  # bytes before a row's entries


def scene(m: int, length: int, s: int, sizes: dict[str, int]) -> dict[str, Any]:
    """Slots that all decode."""
    state = {"seq_lens_decoder": [1] * m, "max_dec_len": [10**9] * m, "seq_lens_this_time": [1] * m}
    return ngram_texts.scene(m, length, s, sizes, **state)


def indexing(backend: CudaOnHost, sizes: dict[str, int]) -> Indexing:
    return Indexing(backend, lambda op, call: run(op, call, backend), sizes)


def looked_up(backend: CudaOnHost, op: str, call: dict[str, Any], index: np.ndarray, context: object) -> np.ndarray:
    """Compares a look-up with the reference; the index that it leaves."""
    actual = run(op, {**call, "index": index}, backend)
    kept = actual.pop("index")
    assert_same_bits(actual, run(op, call), context)
    return kept


def contents(index: np.ndarray) -> np.ndarray:
    """What every row holds, wherever it lies in it: the header and the sorted entries."""
    return np.hstack([index[:, :HEADER].view(np.uint64), np.sort(index[:, HEADER:].view(np.uint64), axis=1)])


def assert_holds_all(backend: CudaOnHost, index: np.ndarray, state: dict[str, Any], n: int) -> None:
    """Any n tokens of the history that a text continues with are found in the index of the history."""
    ends = state["prompt_lens"] + state["step_idx"]
    for b in range(len(ends)):
        end = int(ends[b])
        columns = np.arange(n, end)
        if end + n > state["token_ids_all"].shape[1] or not len(columns):
            continue
        probe = {k: v[b : b + 1].repeat(len(columns), 0) if isinstance(v, np.ndarray) else v for k, v in state.items()}
        for row, column in zip(probe["token_ids_all"], columns, strict=True):
            row[end : end + n] = row[column - n : column]
        probe["step_idx"] += n
        for policy in MatchPolicy:
            call = {**probe, "match_policy": policy}
            looked_up(backend, "ngram_match", call, index[b : b + 1].repeat(len(columns), 0), ("holds", b, policy))


def grow(text: Any, rng: np.random.Generator, backend: CudaOnHost, length: int, width: int, context: object) -> None:
    """Histories of up to `length` tokens in rows of `width`, whose index look-ups grow by 0 to 12 tokens a step."""
    m, s, largest = 4, int(rng.integers(2, 12)), int(rng.integers(1, 17 if rng.random() < 0.3 else 5))
    sizes = {"max_ngram_size": largest, "min_ngram_size": int(rng.integers(1, min(largest, 3) + 1))}
    state, indexed = scene(m, width, s, sizes), indexing(backend, sizes)
    index = indexed.fresh(m, width)
    state["token_ids_all"][:, :length] = [text(rng, length) for _ in range(m)]
    state["prompt_lens"][:] = rng.integers(1, 50, m)
    state["step_idx"][:] = 1
    if rng.random() < 0.5:
        index = indexed.updated(index, state)
    for step in range(8):
        room = length - state["prompt_lens"] - state["step_idx"]
        state["step_idx"] += np.minimum(rng.integers(0, 13, m), room)
        state["draft_tokens"][:] = text(rng, m * s).reshape(m, s)
        state["seq_lens_this_time"][:] = rng.integers(1, s + 1, m)
        op = ("ngram_match", "hybrid_mtp_ngram")[step % 2]
        call = {**state, "match_policy": MatchPolicy(int(rng.integers(2))), "continue_cycles": step % 4 > 1}
        if rng.random() < 0.2:
            index = indexed.updated(index, state)
        index = looked_up(backend, op, call, index, (context, step))
        rebuilt = indexed.updated(indexed.fresh(m, width), state)
        np.testing.assert_array_equal(contents(index), contents(rebuilt), f"{(context, step)}")
    if width > length:
        assert_holds_all(backend, index, state, min(largest, width - length))


@pytest.mark.parametrize("width", [90, 94])  # histories that reach the end of their rows, and that do not
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_grown_by_look_ups_alone(text, width):
    for seed in range(3):
        grow(text, np.random.default_rng(seed), CudaOnHost(ARCHS[seed % 2], seed), 90, width, seed)


LETTERS = {
    "nearly all new": lambda rng, n: rng.integers(0, 200, n),
    "most of them twice": lambda rng, n: rng.integers(0, 40, n),
    "stretches that come again": lambda rng, n: np.concatenate(
        [np.resize(rng.integers(0, 5, int(rng.integers(1, 7))), int(rng.integers(1, 9))) for _ in range(n)]
    )[:n],
}


@pytest.mark.parametrize("text", LETTERS.values(), ids=LETTERS)
def test_n_grams_new_and_known_in_one_step(text):
    for seed in range(6):
        grow(text, np.random.default_rng(seed), CudaOnHost(ARCHS[seed % 2], seed), 120, 124, seed)


@pytest.mark.parametrize("rows", [4, 64])
@pytest.mark.parametrize("more", [0, 1])  # column than where searches end
def test_few_tokens_are_searched_whatever_the_index(rows, more):
    width, sizes = 199 + more, {"max_ngram_size": 3, "min_ngram_size": 1}
    for arch in ARCHS:
        backend = CudaOnHost(arch, seed=1, index_from=max(rows, 32) * 200)  # 4 rows count as 32
        layout, kept = (
            one.workspace("ngram_match", M=rows, L=width, **sizes)["index"] for one in (backend, CudaOnHost(arch))
        )
        assert (layout.shape[1] < width) == (more == 0) and (layout == kept) == (more == 1)
        if rows == 4:
            length = 40 if more else width  # at which nothing is looked up in more rows
            grow(TEXTS["two letters"], np.random.default_rng(arch), backend, length, width, more)


def test_a_look_up_that_fills_a_cluster_of_buckets_spoils_the_index():
    """From then on histories are searched, until a reset."""
    sizes, width, buckets = {"max_ngram_size": 1, "min_ngram_size": 1}, 2400, 600
    tokens = np.arange(1_300_000)
    colliding = tokens[buckets_of_single_tokens(tokens, buckets) == 7][:1040]
    backend = CudaOnHost(seed=1)
    state, indexed = scene(1, width, 6, sizes), indexing(backend, sizes)
    state["token_ids_all"][:, :1040], state["prompt_lens"][:] = colliding, 400
    state["step_idx"][:] = 610
    index = indexed.updated(indexed.fresh(1, width), state)
    overflowed = []
    for step in range(611, 641):
        state["step_idx"][:] = step
        state["token_ids_all"][0, 400 + step - 1] = colliding[step]  # which occurred before, or is new, in turn
        if step % 2:
            state["token_ids_all"][0, 400 + step - 1] = colliding[400 + step - 1]
        index = looked_up(backend, "ngram_match", state, index, step)
        overflowed.append(int(index[:, :HEADER].view(np.int32)[0, 2]))
    assert overflowed == sorted(overflowed) and (overflowed[0], overflowed[-1]) == (0, 1)


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram", "ngram_index_update"])
def test_random_bits_in_an_index_stay_in_bounds(op):
    """What comes of it is undefined, but nothing outside the outputs is written, and every launch ends."""
    for seed in range(40):
        rng, backend = np.random.default_rng(seed), CudaOnHost(ARCHS[seed % 2], seed)
        option = {} if op == "ngram_index_update" else {"index": True}
        inputs = hostile(op, seed, workspace=backend.workspace, **option)
        index = inputs["index"]
        index[:] = rng.integers(0, 256, index.shape) * (rng.random(index.shape) < rng.random())
        header = index[:, :HEADER].view(np.int32)  # such that it is used
        header[:, 0] = np.clip(inputs["prompt_lens"] + inputs["step_idx"] - rng.integers(0, 9, len(index)), 0, 1 << 20)
        header[:, 1], header[:, 2] = inputs["prompt_lens"], 0
        assert not Subject(backend, GuardedHost()).run(op, inputs).damage
