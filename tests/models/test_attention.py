"""Attention of a step on a CPU: against its definition in float64, and bit for bit against itself."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.models.attention import HostAttention
from specdec_hal.plugin.model import Segment
from specdec_hal.tensors.native import load_library
from tests.support.graphs import together

Array = npt.NDArray[np.float32]

NATIVE = load_library("specdec_cpu")
SETS = range(NATIVE["instruction_sets"]())
BLOCK = NATIVE["attention_block"]()
POSITIONS = 5 * BLOCK
# Heads, KV heads, head_dim: those of real models, one that is no multiple of a vector, groups larger than a tile.
SHAPES = [(4, 2, 64), (9, 3, 64), (3, 1, 10), (2, 2, 128), (6, 6, 80), (40, 1, 16)]


@dataclass
class Model:
    """One layer's attention over texts whose queries, keys and values are random but fixed, a row a position."""

    heads: int
    kv_heads: int
    head_dim: int
    instructions: int = SETS[-1]
    threads: int = 1
    slots: int = 3
    rows: dict[int, Array] = field(default_factory=dict)

    rotated: bool = True
    scale: float = 1.0
    window: int = 0
    softcap: float = 0.0
    sinks: Array | None = None
    chunk: int = 0
    bias: Array | None = None

    def __post_init__(self) -> None:
        angle = np.arange(POSITIONS)[:, None] * 100.0 ** (-np.arange(self.head_dim // 2) / (self.head_dim // 2))
        self.width = (self.heads + 2 * self.kv_heads) * self.head_dim + 6
        self.host = HostAttention(
            self.heads, self.kv_heads, self.head_dim,
            layers=2, slots=self.slots, positions=POSITIONS, threads=self.threads,
            buffer=lambda rows: np.full((rows, self.heads * self.head_dim), np.nan, np.float32),
            rotary=np.exp(1j * angle).astype(np.complex64).view(np.float32) if self.rotated else None,
            chunk=self.chunk,
        )  # fmt: skip
        self.host.instruction_set = self.instructions

    def text(self, seed: int) -> Array:
        """Rows of a text: scores of some units, so that weights differ."""
        if seed not in self.rows:
            rows = np.random.default_rng(seed).standard_normal((POSITIONS, self.width), np.float32)
            rows[:, : self.heads * self.head_dim] *= np.float32(2 * self.head_dim**-0.5)
            self.rows[seed] = rows
        return self.rows[seed]

    def step(self, *parts: tuple[int, int, Array], padding: int = 0) -> list[Array]:
        """Results [n, heads * head_dim] of each (slot, position, rows), in one call."""
        segments: list[Segment] = []
        total = 0
        for slot, position, rows in parts:
            segments.append(Segment(slot, total, len(rows), position))
            self.host.reserve(slot, position + len(rows))
            total += len(rows)
        qkv = np.concatenate([*(rows for *_, rows in parts), np.full((padding, self.width), np.nan, np.float32)])
        rule: dict[str, Any] = {"scale": self.scale, "window": self.window, "softcap": self.softcap}
        rule |= {"sinks": self.sinks, "bias": self.bias}
        out = self.host.attend(1, qkv, self.host.begin(segments, 0, total + padding), **rule)
        assert not out[total:].any(), "rows after the last segment give 0"
        return [out[s.start : s.start + s.length] for s in segments]

    def plain(self, seed: int, length: int) -> Array:
        """A text's first results, a position a step, in a slot of its own; 200 at most."""
        return plain(self.heads, self.kv_heads, self.head_dim, self.instructions, seed)[:length]


@cache
def plain(heads: int, kv_heads: int, head_dim: int, instructions: int, seed: int) -> Array:
    """See Model.plain."""
    model = Model(heads, kv_heads, head_dim, instructions, slots=1)
    text = model.text(seed)
    return np.concatenate([model.step((0, p, text[p : p + 1]))[0] for p in range(200)])


def exact(model: Model, rows: Array) -> npt.NDArray[np.float64]:
    """Softmax attention in float64."""
    heads, kv_heads, dim = model.heads, model.kv_heads, model.head_dim
    angle = np.arange(len(rows))[:, None] * 100.0 ** (-np.arange(dim // 2) / (dim // 2))
    turn = np.exp(1j * angle * model.rotated)[:, None]
    columns = np.split(rows.astype(np.float64), np.cumsum([heads * dim, kv_heads * dim, kv_heads * dim]), 1)
    q, k = (
        (np.ascontiguousarray(part.reshape(len(rows), -1, dim)).view(np.complex128) * turn).view(np.float64)
        for part in columns[:2]
    )
    k, v = (np.repeat(part.reshape(len(rows), kv_heads, dim), heads // kv_heads, 1) for part in (k, columns[2]))
    scores = np.einsum("qhd,khd->hqk", q, k) * model.scale
    if model.softcap:
        scores = model.softcap * np.tanh(scores / model.softcap)
    if model.bias is not None:
        scores = scores + model.bias[:, None, : len(rows)].astype(np.float64)
    ones = np.ones((len(rows), len(rows)), bool)
    scores[:, np.triu(ones, 1) | (np.tril(ones, -model.window) if model.window else ~ones)] = -np.inf
    if model.chunk:
        at = np.arange(len(rows)) // model.chunk
        scores[:, at[:, None] != at] = -np.inf
    if model.sinks is not None:
        sinks = np.broadcast_to(model.sinks[:, None, None], (heads, len(rows), 1))
        scores = np.concatenate([scores, sinks], -1)
        v = np.concatenate([v, np.zeros((1, heads, dim))])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(len(rows), -1)


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_softmax_attention(shape: tuple[int, int, int], instructions: int) -> None:
    model = Model(*shape, instructions)
    rows = model.text(0)[:200]
    np.testing.assert_allclose(model.step((1, 0, rows))[0], exact(model, rows), rtol=0, atol=5e-6)


RULES: dict[str, dict[str, Any]] = {
    "not rotated": {"rotated": False}, "scale": {"scale": 0.3}, "window in a block": {"window": 7},
    "window over blocks": {"window": 100}, "window of one": {"window": 1}, "soft cap": {"softcap": 2.0},
    "chunks": {"chunk": 7, "rotated": False}, "chunks over blocks": {"chunk": 100, "rotated": False},
    "chunks of blocks": {"chunk": BLOCK, "rotated": False, "softcap": 2.0},
    "sinks": {"sinks": np.linspace(-3, 4, 6, dtype=np.float32)},
    "bias": {"bias": np.float32([[0.01], [0.02], [0.1], [0.2], [0.5], [0.7]]) * np.arange(POSITIONS, dtype=np.float32)},
    "all": {"window": 65, "softcap": 3.0, "sinks": np.full(6, 1.5, np.float32), "scale": 1.7, "rotated": False},
}  # fmt: skip


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("rule", list(RULES))
def test_what_other_models_want(rule: str, instructions: int) -> None:
    """Right, and to the last bit the same row by row and in parts of any length."""
    model = Model(6, 2, 20, instructions, **RULES[rule])
    rows = model.text(3)[:230]
    (whole,) = model.step((1, 0, rows))
    np.testing.assert_allclose(whole, exact(model, rows), rtol=0, atol=1e-5)
    cuts = [0, 90, 91, 92, 97, 140, 141, 200, 230]
    parts = [model.step((2, a, rows[a:b]))[0].copy() for a, b in pairwise(cuts)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("sharp", [30.0, 1e4])
def test_weights_of_any_spread(sharp: float) -> None:
    """Scores so far apart that all weights but one are nothing, and the largest comes first, last or in between."""
    model = Model(4, 2, 64)
    rows = model.text(4)[:150].copy()
    rows[:, : 4 * 64] *= np.float32(sharp)
    got, expected = model.step((0, 0, rows))[0], exact(model, rows)
    assert np.isfinite(got).all()
    if sharp < 100:
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bits_do_not_depend_on_what_shares_a_step(data: st.DataObject) -> None:
    """Texts in slots, cut at random, beside each other in any order, over what rejected drafts left; by any threads."""
    shape = data.draw(st.sampled_from(SHAPES))
    model = Model(*shape, data.draw(st.sampled_from(SETS)), threads=data.draw(st.sampled_from([1, 3])))
    ends = {slot: data.draw(st.integers(1, 200)) for slot in range(3)}
    done = dict.fromkeys(ends, 0)
    seeds = {slot: data.draw(st.integers(0, 4)) for slot in ends}
    found: dict[int, list[Array]] = {slot: [] for slot in ends}
    while open_slots := [slot for slot in ends if done[slot] < ends[slot]]:
        chosen = data.draw(st.lists(st.sampled_from(open_slots), min_size=1, unique=True))
        parts, kept = [], []
        for slot in chosen:
            right = min(data.draw(st.one_of(st.integers(1, 9), st.integers(10, 150))), ends[slot] - done[slot])
            wrong = data.draw(st.integers(0, 8))
            text, junk = model.text(seeds[slot]), model.text(17)
            parts.append((slot, done[slot], np.concatenate([text[done[slot] : done[slot] + right], junk[:wrong]])))
            kept.append(right)
        results = model.step(*parts, padding=data.draw(st.integers(0, 2)))
        for slot, right, result in zip(chosen, kept, results, strict=True):
            found[slot].append(result[:right].copy())
            done[slot] += right
    for slot, rows in found.items():
        plain = model.plain(seeds[slot], ends[slot])
        assert np.concatenate(rows).tobytes() == plain.tobytes()


def test_what_a_row_does_not_see_is_never_added() -> None:
    """NaN after a row: in its block of the cache, left by another request, and in later rows of its own step."""
    model = Model(4, 2, 64)
    broken = np.full((150, model.width), np.nan, np.float32)
    plain = model.plain(2, 90)
    model.step((0, 0, broken))
    model.step((0, 0, model.text(2)[:70]))
    for first, last in ((70, 71), (71, 80), (80, 90)):
        rows = np.concatenate([model.text(2)[first:last], broken[:5]])
        (result,) = model.step((0, first, rows))
        assert result[: last - first].tobytes() == plain[first:last].tobytes()
        assert np.isnan(result[last - first :]).all()


def test_caches_start_at_cache_lines_and_grow() -> None:
    model = Model(9, 3, 64)
    (whole,) = model.step((2, 0, model.text(1)[:290]))
    sizes, parts = [], []
    for start in range(0, 290, 29):
        parts += model.step((0, start, model.text(1)[start : start + 29]))
        cache = model.host.slots[0]
        assert cache.address % 64 == 0
        sizes.append(cache.positions)
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert sizes == sorted(sizes) and sizes[0] == BLOCK and sizes[-1] == POSITIONS
    assert model.host.slots[1].positions == 0


def test_steps_of_two_threads_at_once() -> None:
    """The helpers are one set for the process: who does not get them works alone."""
    models = [Model(9, 3, 64, threads=3) for _ in range(3)]
    expected = models[0].step((0, 0, models[0].text(0)))[0].copy()
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(10):
            if models[index].step((1, 0, models[index].text(0)))[0].tobytes() != expected.tobytes():
                wrong.append(index)

    together(*(partial(work, index) for index in range(3)))
    assert wrong == []


def test_a_forked_process_wakes_up_threads_of_its_own() -> None:
    model = Model(9, 3, 64, threads=3)
    rows = model.text(0)
    expected = model.step((0, 0, rows))[0].copy()

    def work() -> None:
        sys.exit(0 if model.step((1, 0, rows))[0].tobytes() == expected.tobytes() else 3)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0


@pytest.mark.parametrize("instructions", SETS)
def test_a_look_reads_queries_and_stores_nothing(instructions: int) -> None:
    """The bits of the step that stored keys and values, also for some of its heads alone."""
    model = Model(4, 2, 64, instructions)
    text = model.text(3)
    (wanted,) = model.step((1, 0, text[:90]))
    kept = model.host.slots[1].data.copy()
    row = np.full_like(text[:1], np.nan)
    row[:, :256] = text[89, :256]
    fewer = np.full((1, 6 * 64), np.nan, np.float32)
    fewer[0, :128] = np.concatenate([text[89, :64], text[89, 128:192]])
    segments = [Segment(1, 0, 1, 89)]
    spans, out = model.host.begin(segments, 0, 1)
    got = model.host.attend(1, row, (spans, out), stores=False)
    assert got.tobytes() == wanted[89].tobytes()
    got = model.host.attend(1, fewer, (spans, np.zeros((1, 128), np.float32)), heads=2, stores=False)
    assert got.tobytes() == np.concatenate([wanted[89, :64], wanted[89, 128:192]]).tobytes()
    assert model.host.slots[1].data.tobytes() == kept.tobytes()


def refuse(message: str, *, spans: Sequence[Sequence[int]] = (), **changes: Any) -> None:
    room = np.zeros(2 * 2 * 2 * BLOCK * 16, np.float32)
    given = {"rows": 4, "width": 64, "heads": 2, "kv_heads": 2, "dim": 10, "set": 0, **changes}
    table = np.array([[*span, room.ctypes.data, BLOCK][:5] for span in spans] or np.zeros((0, 5)), np.int64)
    with pytest.raises(ValueError, match=message):
        NATIVE["attention"](
            np.zeros((given["rows"], given["width"]), np.float32), np.ones((BLOCK, given["dim"]), np.float32), table, 0,
            given["heads"], given["kv_heads"], 1.0, given.get("window", 0), given.get("softcap", 0.0),
            np.zeros(given.get("sinks", 0), np.float32), np.zeros(given.get("bias", (0, 0)), np.float32),
            True, 1, given["set"],
            np.zeros((given["rows"], given["heads"] * given["dim"]), given.get("dtype", np.float32)),
        )  # fmt: skip


@pytest.mark.parametrize(
    "span", [(0, 0, 0), (0, 5, 0), (3, 2, 0), (-1, 2, 0), (0, 2, -1), (0, 2, BLOCK - 1), (0, 1, 0, 0)]
)
def test_spans_outside_rows_or_cache_are_refused(span: tuple[int, ...]) -> None:
    refuse("attention: argument 'spans': expected rows 0..4 in order and positions below 64", spans=[span])


def test_arguments_are_checked() -> None:
    refuse("'spans': expected rows 2..4 in order", spans=[(0, 2, 0), (1, 1, 0)])
    refuse("'heads': expected a multiple of kv_heads", heads=3)
    refuse("'heads': expected a multiple of kv_heads", kv_heads=0)
    refuse("'heads': expected .* an even head_dim, got 2, 2, 9", dim=9)
    refuse("'heads': expected .* rows of width 59", width=59)
    refuse("'out': expected float32", dtype=np.float64)
    refuse("'window': expected a window and a softcap >= 0, got -1 and 0", window=-1)
    refuse("'window': expected .*, got 0 and nan", softcap=float("nan"))
    refuse("'sinks': expected .*2", sinks=3)
    refuse("'bias': expected .*2", bias=(3, BLOCK))
    refuse("'spans': expected .* positions below 0", bias=(2, BLOCK - 1), spans=[(0, 1, 0)])
    refuse("'set': expected 0", set=len(SETS))
